"""scikit-learn models as oracles; `unwrap` finds the module that scores a model.

Imports: data, recorder (its files), oracles.base, oracles.likelihoods, errors.
"""
