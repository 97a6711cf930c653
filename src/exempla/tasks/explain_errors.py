"""Why is the model wrong here? The training examples behind the mistakes of a test set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from exempla.data import take_examples
from exempla.errors import ExemplaError
from exempla.explainer import Explainer, Side
from exempla.oracles import is_checkpoint
from exempla.results import Explanation

__all__ = ["explain_errors", "wrong_predictions"]

QUESTION = ("labels", "selector", "weights")
"""Options that belong to the question; the others go to `Explainer`."""


def explain_errors(
    model: Any,
    train: Any,
    test: Any,
    k: int = 50,
    side: Side = "opponents",
    errors: Any = None,
    **options: Any,
) -> Explanation:
    """The k training examples most responsible for the model's wrong predictions.

    Opponents, the default, push against the true labels of the misjudged examples: they are the
    ones to blame. Proponents are the ones that spoke for the true labels and were not heard.

    Parameters
    ----------
    model : fitted classifier, or a list of them
        With several models an error is what most of them get wrong. After a torch module, state
        dicts of its earlier checkpoints make the answer truer.
    train, test : (X, y) or a data set
        What it was trained on, and labelled examples to find the errors among.
    k : int
        How many training examples to pick.
    side : {"opponents", "proponents", "both"}
        Against the true labels, for them, or either.
    errors : indices or boolean mask, optional
        Your own choice of test rows to ask about, instead of all wrong predictions.
    options
        Those of `Explainer` and of `Explainer.explain`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = scale(X)
    >>> model = LogisticRegression().fit(X[:300], y[:300])
    >>> answer = explain_errors(model, (X[:300], y[:300]), (X[300:], y[300:]), k=5)
    >>> len(answer), bool((answer.alignment < 0).all())
    (5, True)
    """
    asked = {name: options.pop(name) for name in QUESTION if name in options}
    explainer = Explainer(model, **options).fit(train)
    positions = wrong_predictions(explainer, test, errors)
    answer = explainer.explain(take_examples(test, positions), k, side, **asked)
    return replace(answer, asked=(test, positions))


def wrong_predictions(explainer: Explainer, test: Any, errors: Any = None) -> np.ndarray:
    """Positions of the questioned rows: the caller's own, or what most models get wrong.

    Earlier checkpoints of a model, given as weights, know less than it does and have no vote.
    """
    read = [e.oracle.read(test, role="test") for e in explainer.embeddings]
    if errors is not None:
        return named_rows(errors, len(read[0]))
    labels = read[0].labels
    if labels is None:
        raise ExemplaError("the test data has no labels, so no error can be told: give (X, y).")
    voters = [
        misjudged(e.oracle.predict(x), labels)
        for model, e, x in zip(explainer.models, explainer.embeddings, read, strict=True)
        if not is_checkpoint(model)
    ]
    wrong = np.mean(voters, axis=0)
    found = np.flatnonzero(wrong > 0.5)
    if len(found) == 0:
        raise ExemplaError(
            f"the model makes no error on these {len(read[0])} examples, so there is nothing to "
            "explain: give other test data, or name rows with errors=."
        )
    return found


def misjudged(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Where prediction and label differ; numbers are no classes."""
    if predicted.shape != labels.shape or (labels.dtype.kind == "f" and not is_whole(labels)):
        raise ExemplaError(
            "wrong predictions can be told for class labels alone: for other targets name the "
            "rows with errors=."
        )
    return predicted != labels


def is_whole(values: np.ndarray) -> bool:
    return bool(np.all(values == np.round(values)))


def named_rows(wanted: Any, n: int) -> np.ndarray:
    """Rows given as positions or as a mask, checked."""
    rows = np.asarray(wanted)
    if rows.dtype == bool:
        if rows.shape != (n,):
            raise ExemplaError(f"errors= is a mask of {rows.shape} for {n} test examples.")
        rows = np.flatnonzero(rows)
    if rows.ndim != 1 or len(rows) == 0 or rows.dtype.kind not in "iu":
        raise ExemplaError("errors= must name at least one test row, by positions or a mask.")
    if rows.min() < 0 or rows.max() >= n:
        raise ExemplaError(f"errors= names row {int(rows.max())}, but there are {n} test examples.")
    return rows.astype(np.int64)
