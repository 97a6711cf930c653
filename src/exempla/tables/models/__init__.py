"""The default model for a table or for images, and how good it is by cross-validation.

tabular and boosted make candidates, choose picks one, surrogate stands in for a model without
scores. Folds and scores are scikit-learn's own; only cnn.py imports torch, when a network is asked
for. Imports: errors, data, oracles, progress, tables.table, tables.columns, tables.features.
"""
