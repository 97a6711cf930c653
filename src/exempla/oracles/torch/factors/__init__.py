"""Per-sample scores of each kind of layer in factored form, and the arithmetic they need.

Imports: factors, oracles.base.
"""
