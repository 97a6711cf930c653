"""Ensembles of trees as oracles.

Modules: leaves (leaf indicators as sparse inputs), readers (one per boosting library), oracle
(boosting), axil (derivatives through boosting), forest, xgboost_labels.
Imports: oracles.base, oracles.sklearn, data, errors. No boosting library is imported here.
"""
