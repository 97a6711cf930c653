"""What a torch model is given: data sets and loaders, batches, chosen parameters, checkpoints.

Imports: arrays, errors, oracles.base, oracles.torch.tape.restore (checkpoints copy a model),
recorder (its files).
"""
