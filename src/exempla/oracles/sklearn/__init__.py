"""scikit-learn models as oracles: what a model computes (anatomy), how its data are read, scores,
recorded snapshots.

Imports: data, recorder (its files), arrays, factors, likelihoods, errors, oracles.base.
"""
