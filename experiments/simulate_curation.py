"""Simulated curation: an expert checks a batch, the model learns from it, the list is made anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from exempla.data import stack_rows, take_rows
from exempla.errors import ExemplaError
from exempla.tasks.labels.fix_labels import fix_labels
from exempla.tasks.labels.problem import read_problem

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["simulate_curation"]


def simulate_curation(
    model: Any,
    train: Any,
    truth: Any,
    curated: Any = None,
    *,
    batch: int = 50,
    rounds: int = 4,
    **options: Any,
) -> pd.DataFrame:
    """How fast wrong labels are found when every batch of checked rows joins the curated set.

    `truth` are the right labels of the training rows, asked for only where a row is checked;
    `options` go to `fix_labels`. One line per round: rows checked so far, wrong ones found so
    far, and how many more were expected before the round.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> noisy = y.copy()
    >>> noisy[::10] = (noisy[::10] + 1) % 3
    >>> trace = simulate_curation(LogisticRegression(), (X, noisy), y, batch=10, rounds=2)
    >>> trace.checked.tolist(), bool(trace.found.iloc[-1] >= 10)
    ([10, 20], True)
    """
    import pandas as pd

    X, labels = train[0], read_problem(train, curated).labels(np.arange(len(np.asarray(truth))))
    truth = np.asarray(truth)
    if batch < 1 or rounds < 1 or batch * rounds >= len(labels):
        raise ExemplaError(
            f"{rounds} rounds of {batch} rows cannot be checked among {len(labels)}: "
            "both must be at least 1 and leave some rows unchecked."
        )
    left, checked = np.arange(len(labels)), np.array([], dtype=np.int64)
    lines = []
    for _ in range(rounds):
        trusted = curated
        if len(checked):
            trusted = (take_rows(X, checked), truth[checked])
            if curated is not None:
                both = np.concatenate([np.asarray(curated[1]), truth[checked]])
                trusted = (stack_rows(curated[0], trusted[0]), both)
            elif len(np.unique(truth[checked])) < 2:
                trusted = None
        fixes = fix_labels(model, (take_rows(X, left), labels[left]), trusted, k=batch, **options)
        checked = np.concatenate([checked, left[fixes.indices]])
        left = np.setdiff1d(left, checked)
        found = int(np.sum(labels[checked] != truth[checked]))
        lines.append((len(checked), found, fixes.expected_errors))
    return pd.DataFrame(lines, columns=["checked", "found", "expected_before"])
