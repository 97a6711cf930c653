"""torch modules as oracles: the oracle and the scorer that runs one batch.

Inside: inputs/ (what is read), likelihood/ (what the outputs mean), tape/ (how layers are recorded
and run backwards), factors/ (the scores of each kind of layer). Only this folder imports torch at
the top of a file; `exempla.oracles` imports it when a torch model arrives.
"""
