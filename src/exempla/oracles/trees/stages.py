"""An ensemble at earlier stages of boosting, as checkpoints are of a network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.sklearn.unwrap import unwrap
from exempla.oracles.trees.leaves import is_boosted
from exempla.oracles.trees.oracle import TreeOracle

__all__ = ["earlier_stages"]


def earlier_stages(model: Any, shares: Sequence[float] = (0.2, 0.4, 0.6, 0.8)) -> list[TreeOracle]:
    """The ensemble with only these shares of its trees, for `Explainer([model, *stages])`.

    A model that has become sure of its training data shows little of what it learnt from; its
    earlier stages still do. The kernels of all of them are averaged.

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> import exempla
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = HistGradientBoostingClassifier(max_iter=20).fit(X[:300], y[:300])
    >>> stages = earlier_stages(model, (0.25, 0.5))
    >>> explainer = exempla.Explainer([model, *stages], progress=False).fit((X[:300], y[:300]))
    >>> explainer.influence((X[300:305], y[300:305])).shape
    (300, 5)
    """
    last = unwrap(model)[1]
    if not is_boosted(last):
        raise UnsupportedModelError(
            f"{type(last).__name__} is not boosted, so it has no stages: give a boosted ensemble."
        )
    if not shares or not all(0 < share <= 1 for share in shares):
        raise ExemplaError(f"shares are {list(shares)}: give shares of the trees, such as 0.5.")
    return [TreeOracle(model, share=float(share)) for share in shares]
