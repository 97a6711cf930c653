"""The default model for a table or for images, and how good it is by cross-validation.

Imports: errors, tables.columns, tables.features.
"""
