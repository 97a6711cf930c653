"""What a torch model is given: data sets, loaders and streams, batches, chosen parameters,
checkpoints, and the Trainer or pipeline that it may come in.

Imports: arrays, errors, oracles.base, oracles.torch.tape.restore (checkpoints copy a model, random
items are drawn in a state that is put back), recorder (its files).
"""
