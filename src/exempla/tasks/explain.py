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
        A scikit-learn model, boosted trees, a torch module, or an oracle of your own. Several
        models are averaged; after a torch module, checkpoints of its training (state dicts, files,
        the folder of a `Recorder`) make the answer agree better with retraining.
    train : (X, y), (X, y, sample_weight), or a data set
        What it was trained on. A torch Dataset or DataLoader will do.
    test : (X, y), X alone, or a data set
        The questioned examples: any number of them, one included. Without labels the model's own
        predictions are questioned.
    k : int
        How many training examples to pick.
    side : {"opponents", "proponents", "both"}
        Those that push against the questioned labels, for them, or either.
    labels : {"true", "predicted"}
        Whose labels the question is about: yours, or what the model says.
    selector : Selector
        How the examples are picked; `SBQ(noise=10)` by default. `TopInfluence()` is a plain
        ranking.
    weights : (n_test,) array
        How much each questioned example counts; all alike by default.
    ids : sequence
        Your own names of the training examples; the answer carries them.
    likelihood : {"auto"}, name, or `exempla.likelihoods` object
        What the model's outputs mean (classes, numbers, counts). Told from the model by default.
    fisher : {"true", "empirical", "diagonal", "identity"}
        The metric examples are compared in: the Fisher information under the model's own labels
        (default), under the given ones, without correlations, or plain dot products.
    sketch : {"auto", "exact"} or int
        How far a large model is compressed: by size and cost, not at all, or to this width.
    damping : {"auto"}, rule or float
        What is added to the metric's eigenvalues; by default chosen from data and recorded.
    normalize : bool
        Compare directions only: rows of unit length (default). False weighs long rows more.
    parameters : names, globs or modules
        The part of a torch model to look at; all of it by default.
    store : path
        A folder for the training rows, where they should live on disk rather than in memory.
    device : torch device
        Where a torch model runs; where it is, by default.
    seed : int
        The seed of every random choice.
    progress : bool
        Whether to show progress on work that takes more than two seconds.

    Returns
    -------
    Explanation
        `.indices` (rows of the training data, most important first), `.weights`, `.removal` (what
        removing them is predicted to do), `.verify()`, `.to_frame()`, `.plot()`.

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
