"""What a torch model's outputs mean: one distribution per example, per token, or the user's own.

Imports: likelihoods, oracles.torch.inputs.
"""
