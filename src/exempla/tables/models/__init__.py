"""The default model for a table or for images, and how good it is by cross-validation.

Folds and scores are scikit-learn's own; only cnn.py imports torch, when a network is asked for.
Imports: errors, data, tables.table, tables.columns, tables.features.
"""
