"""scikit-learn models as oracles; `base` removes their wrappers and checks their data.

Imports: data, recorder (its files), oracles.base, oracles.likelihoods, errors.
"""
