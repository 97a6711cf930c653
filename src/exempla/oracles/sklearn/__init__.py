"""scikit-learn models as oracles: what a model computes (anatomy), how its data are read, scores.

Imports: data, arrays, factors, likelihoods, errors, oracles.base.
"""
