"""Which layers ran, with which inputs, and their backward pass: a tape of one forward pass.

Imports: oracles.torch.factors, oracles.torch.inputs.
"""
