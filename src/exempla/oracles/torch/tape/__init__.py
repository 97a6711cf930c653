"""Which layers ran, with which inputs, and their backward pass: a tape of one forward pass, found
out by a survey in full precision (precision), on a model that is put back as it was (restore).

Imports: factors, errors, oracles.base, oracles.torch.factors, oracles.torch.inputs.
"""
