"""Ensembles of trees as oracles; no boosting library is imported here.

`AnyLabelXGBClassifier` is defined when it is first used, because its base class is XGBoost's.
Imports: oracles.base, oracles.sklearn, data, errors.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def __getattr__(name: str) -> Any:
    if name != "AnyLabelXGBClassifier":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from xgboost import XGBClassifier

    class AnyLabelXGBClassifier(XGBClassifier):
        """An `XGBClassifier` that accepts any labels, not only 0, 1, 2, …"""

        __qualname__ = name  # pickle finds it as an attribute of this module
        _words: np.ndarray | None = None

        def fit(self, X: Any, y: Any, **more: Any) -> AnyLabelXGBClassifier:
            """Fit to the positions of the labels among the sorted labels."""
            self._words = None  # XGBoost itself sees positions
            words, codes = np.unique(np.asarray(y), return_inverse=True)
            super().fit(X, codes, **more)
            self._words = words
            return self

        def predict(self, X: Any, **more: Any) -> np.ndarray:
            """Return predicted labels in the user's vocabulary."""
            found = np.asarray(super().predict(X, **more))
            return found if self._words is None else self._words[found.astype(np.int64)]

        @property
        def classes_(self) -> np.ndarray:
            """The labels, sorted."""
            return np.asarray(super().classes_) if self._words is None else self._words

    globals()[name] = AnyLabelXGBClassifier
    return AnyLabelXGBClassifier
