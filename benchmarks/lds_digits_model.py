"""The digits MLPs of the faithfulness truth (`lds_digits`) as scikit-learn models.

from lds_digits_model import lds_data, lds_model
X, y, X_test, y_test = lds_data(folder)
explainer = exempla.Explainer(lds_model(folder, seed=0)).fit((X, y))
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from sklearn.neural_network import MLPClassifier

from benchmarks.mlp_from_weights import mlp_classifier_from_weights

__all__ = ["lds_data", "lds_model"]

WEIGHT_DECAY = 1e-4
N_TRAIN = 1500


def lds_data(folder: str | Path) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """X, y, X_test, y_test."""
    with np.load(Path(folder) / "data.npz", allow_pickle=False) as data:
        return tuple(data[name] for name in ("xtr", "ytr", "xte", "yte"))


def lds_model(folder: str | Path, seed: int = 0, penalty: bool = True) -> MLPClassifier:
    """One of the ten MLPs, 64-128-128-10; `penalty=False` forgets its weight decay."""
    with np.load(Path(folder) / f"model_seed{seed}.npz", allow_pickle=False) as state:
        layers = [(state[f"{i}.weight"], state[f"{i}.bias"]) for i in (0, 2, 4)]
    alpha = WEIGHT_DECAY * N_TRAIN if penalty else 0.0
    return mlp_classifier_from_weights(layers, np.arange(10), alpha=alpha)
