"""Default models: `choose` for tables, `image` for images, `surrogate` for unsupported models.

Folds and scores come from scikit-learn; torch is imported only when a network is trained.
"""
