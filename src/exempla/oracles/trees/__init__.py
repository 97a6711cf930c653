"""Ensembles of trees as oracles; no boosting library is imported here.

Imports: oracles.base, oracles.sklearn, data, errors.
"""
