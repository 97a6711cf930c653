"""torch modules as oracles: the oracle, the scorer that runs one batch, and the diagnosis of what
cannot be scored.

Inside: inputs/ (what is read), likelihood/ (what the outputs mean), tape/ (how layers are recorded
and run backwards), factors/ (the scores of each kind of layer). torch is imported at the top of
these files; `exempla.oracles` imports them when a torch model arrives.
Imports: likelihoods, factors, errors, oracles.base.
"""
