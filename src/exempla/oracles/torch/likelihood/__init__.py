"""What a torch model's outputs mean: one distribution per example (heads), one per token (tokens),
and which of them it is (choose).

Imports: likelihoods, errors, oracles.base, oracles.torch.inputs.
"""
