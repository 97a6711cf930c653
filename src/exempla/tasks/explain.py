"""The main question in one call: which training examples are responsible for these predictions?"""

from __future__ import annotations

from typing import Any

from exempla.explainer import Explainer, Side
from exempla.oracles.base import Labels
from exempla.results import Explanation
from exempla.selection import Selector

__all__ = ["explain"]


def explain(
    model: Any,
    train: Any,
    test: Any,
    k: int = 50,
    side: Side = "opponents",
    labels: Labels = "true",
    selector: Selector | None = None,
    *,
    weights: Any = None,
    ids: Any = None,
    likelihood: Any = "auto",
    fisher: str = "true",
    sketch: str | int = "auto",
    damping: str | float = "auto",
    normalize: bool = True,
    parameters: Any = None,
    store: Any = None,
    device: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Explanation:
    """The k training examples most responsible for the questioned predictions.

    The same as ``Explainer(model, …).fit(train, ids).explain(test, k, …)``; keep the Explainer
    where you have several questions.

    Parameters
    ----------
    model : fitted model, or a list of them
    train : (X, y), (X, y, sample_weight), or a data set
        What it was trained on.
    test : (X, y), X alone, or a data set
        The questioned examples.
    k, side, labels, selector, weights
        As for `Explainer.explain`.
    ids : sequence
        Your own names of the training examples.
    likelihood, fisher, sketch, damping, normalize, parameters, store, device, seed, progress
        As for `Explainer`.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500).fit(X, y)
    >>> answer = explain(model, (X, y), (X[:2], y[:2]), k=3, side="proponents", progress=False)
    >>> [int(y[i]) for i in answer.indices]
    [0, 0, 0]
    """
    explainer = Explainer(
        model, likelihood=likelihood, fisher=fisher, sketch=sketch, damping=damping,
        normalize=normalize, parameters=parameters, store=store, device=device, seed=seed,
        progress=progress,
    )  # fmt: skip
    return explainer.fit(train, ids).explain(test, k, side, labels, selector, weights=weights)
