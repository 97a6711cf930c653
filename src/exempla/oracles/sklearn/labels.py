"""Labels for a scikit-learn model: from the user's vocabulary to the likelihood's, and weights."""

from __future__ import annotations

import numpy as np
import pandas as pd

from exempla.data import listing
from exempla.likelihoods import Likelihood, Poisson
from exempla.oracles.sklearn.families import Tweedie

__all__ = ["class_weights", "encode", "encode_classes", "encode_numbers"]


def encode(
    labels: np.ndarray,
    classes: np.ndarray | None,
    outputs: int,
    family: Likelihood | None,
    role: str,
    problems: list[str],
) -> np.ndarray | None:
    """Labels as the likelihood takes them: numbers where there are no classes, else positions
    among the classes, of which training data must show two."""
    if classes is None:
        return encode_numbers(labels, outputs, family, problems)
    codes = encode_classes(labels, classes, problems)
    if role == "train" and codes is not None and len(np.unique(codes)) < 2:
        problems.append(
            f"all labels are {classes[codes[0]].item()!r}: training data need two classes"
        )
    return codes


def encode_classes(y: np.ndarray, classes: np.ndarray, problems: list[str]) -> np.ndarray | None:
    """Positions of the labels among the model's classes.

    >>> import numpy as np
    >>> encode_classes(np.array(["spam", "ham"]), np.array(["ham", "spam"]), [])
    array([1, 0])
    """
    if y.ndim != 1:
        problems.append(f"y must hold one label per row, but has shape {y.shape}")
        return None
    given, values = pd.factorize(y)
    if np.any(given < 0):
        problems.append(f"labels are missing in {listing(np.flatnonzero(given < 0))}")
    known = {label: code for code, label in enumerate(classes.tolist())}
    values = np.asarray(values).tolist()
    unseen = [label for label in values if label not in known]
    if unseen:
        problems.append(
            f"y holds labels the model never saw: {_some(unseen)}; it knows "
            f"{_some(classes.tolist())}"
        )
    if np.any(given < 0) or unseen:
        return None
    return np.array([known[label] for label in values], dtype=np.int64)[given]


def _some(labels: list, show: int = 10) -> str:
    text = ", ".join(map(repr, labels[:show]))
    return text + (f" and {len(labels) - show} more" if len(labels) > show else "")


def encode_numbers(
    y: np.ndarray, outputs: int, likelihood: Likelihood | None, problems: list[str]
) -> np.ndarray | None:
    """Targets of a regression as float64, (n,) or (n, outputs)."""
    if y.dtype.kind not in "biuf":
        try:
            y = np.asarray(y, dtype=object).astype(np.float64)
        except (TypeError, ValueError):
            problems.append("y must be numeric for a regression model")
            return None
    y = y.astype(np.float64)
    width = 1 if y.ndim == 1 else y.shape[1]
    if y.ndim > 2 or width != outputs:
        problems.append(f"y has shape {y.shape}, but the model has {outputs} output(s) a row")
        return None
    by_row = y.reshape(len(y), -1)
    bad = np.flatnonzero(~np.isfinite(by_row).all(axis=1))
    if len(bad):
        problems.append(f"y is NaN or infinite in {listing(bad)}")
        return None
    if isinstance(likelihood, Poisson) and np.any(by_row < 0):
        negative = np.flatnonzero((by_row < 0).any(axis=1))
        problems.append(f"y is negative in {listing(negative)}, which a Poisson count cannot be")
        return None
    if isinstance(likelihood, Tweedie) and likelihood.power >= 1:
        least = "above zero" if likelihood.power >= 2 else "zero or more"
        low = by_row <= 0 if likelihood.power >= 2 else by_row < 0
        if np.any(low):
            problems.append(
                f"y is not {least} in {listing(np.flatnonzero(low.any(axis=1)))}, as a Tweedie "
                f"model of power {likelihood.power:g} asks"
            )
            return None
    return y


def class_weights(
    class_weight: dict | str | None,
    classes: np.ndarray,
    codes: np.ndarray,
    weights: np.ndarray | None,
) -> np.ndarray:
    """The weight of each class.

    "balanced" gives class c the weight n / (C·n_c), n and n_c being sums of `weights` if given.

    >>> import numpy as np
    >>> class_weights("balanced", np.array(["a", "b"]), np.array([0, 0, 0, 1]), None)
    array([0.66666667, 2.        ])
    """
    if class_weight is None:
        return np.ones(len(classes))
    if isinstance(class_weight, dict):
        return np.array([class_weight.get(label, 1.0) for label in classes.tolist()])
    counts = np.bincount(codes, weights=weights, minlength=len(classes)).astype(np.float64)
    present = counts > 0
    balanced = counts.sum() / (len(classes) * np.where(present, counts, 1.0))
    return np.where(present, balanced, 1.0)
