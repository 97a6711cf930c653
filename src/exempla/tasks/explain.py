"""The main question in one call: which training examples are responsible for these predictions?

Why is the model wrong here? The training examples behind the mistakes of a test set.

Near-ties: numbers that differ in their last bits alone count as equal.

How many threads a BLAS uses decides in which order it adds, and so the last bits. A choice among
rows that are alike (a row that occurs twice, a probability of one half) must not hang on them: it
falls to the first, as in selection.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np

from exempla.checks import check_choice, check_rows, renamed_options
from exempla.data import take_examples
from exempla.errors import ExemplaError
from exempla.explainer import Explainer, Side
from exempla.oracles import is_checkpoint
from exempla.oracles.base import Labels
from exempla.results import Explanation
from exempla.selection import Selector


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
    likelihood : {"auto"}, name, or `exempla.oracles.likelihoods` object
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


_ASK = ("errors", "all")
ONE_CONFUSION = "errors:"
"""How a question about one confusion begins: errors:spam->ham, or errors:spam→ham."""


@renamed_options(errors="ask")
def explain_errors(
    model: Any,
    train: Any,
    test: Any,
    k: int = 50,
    side: Side = "opponents",
    ask: Any = "errors",
    *,
    labels: Labels = "true",
    selector: Selector | None = None,
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
    """The k training examples most responsible for the model's wrong predictions.

    Opponents, the default, push against the true labels of the misjudged examples: they are the
    ones to blame. Proponents are the ones that support the true labels, too weakly.

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
    ask : {"errors", "all"}, "errors:TRUE->SAID", indices or boolean mask
        Which test rows the question is about: all wrong predictions, all rows, one confusion
        ("errors:spam->ham": spam that was called ham), or your own choice.
    labels, selector, weights
        As for `Explainer.explain`.
    ids : sequence
        Your own names of the training examples.
    likelihood, fisher, sketch, damping, normalize, parameters, store, device, seed, progress
        As for `Explainer`.

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
    explainer = Explainer(
        model, likelihood=likelihood, fisher=fisher, sketch=sketch, damping=damping,
        normalize=normalize, parameters=parameters, store=store, device=device, seed=seed,
        progress=progress,
    ).fit(train, ids)  # fmt: skip
    rows = questioned_rows(explainer, test, ask)
    some = test if rows is None else take_examples(test, rows)
    answer = explainer.explain(some, k, side, labels, selector, weights=weights)
    assert answer.question is not None
    return replace(answer, question=answer.question._replace(test=test, rows=rows))


def questioned_rows(explainer: Explainer, test: Any, ask: Any) -> np.ndarray | None:
    """Positions of the test rows that are asked about; None for all of them."""
    if ask is None:  # the old way to leave it open
        ask = "errors"
    if isinstance(ask, str) and ask.startswith(ONE_CONFUSION):
        return _confused(explainer, test, ask)
    if isinstance(ask, str):
        return (
            None if check_choice("ask", ask, _ASK) == "all" else _wrong_predictions(explainer, test)
        )
    n = len(explainer.embeddings[0].oracle.read(test, role="test"))
    return check_rows(ask, n, "ask", "test examples")


def confused(ask: str, labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Positions of one confusion: ``errors:TRUE->SAID`` (or with an arrow, →).

    >>> y, said = np.array(["spam", "ham", "spam"]), np.array(["ham", "ham", "spam"])
    >>> confused("errors:spam→ham", y, said).tolist()
    [0]
    """
    pieces = ask.removeprefix(ONE_CONFUSION).replace("→", "->").split("->")
    if len({piece.strip() for piece in pieces} - {""}) != 2 or len(pieces) != 2:
        raise ExemplaError(
            f"{ask!r} names no confusion; write errors:TRUE->SAID, such as errors:spam->ham."
        )
    true, said = (piece.strip() for piece in pieces)
    given, answers = labels.astype(str), predicted.astype(str)
    known = np.unique([*given, *answers]).tolist()
    for name in (true, said):
        if name not in known:
            classes = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
            raise ExemplaError(f"There is no class {name!r} among the test rows: {classes}.")
    found = np.flatnonzero((given == true) & (answers == said))
    if not len(found):
        raise ExemplaError(f"No test row of {true!r} was called {said!r}{_others(given, answers)}.")
    return found


def _others(given: np.ndarray, answers: np.ndarray) -> str:
    """Which confusions there are, the commonest first."""
    wrong = [(g, a) for g, a in zip(given.tolist(), answers.tolist()) if g != a]
    seen = Counter(wrong).most_common(3)
    return "; there are " + ", ".join(f"{g}->{a} ({n:,})" for (g, a), n in seen) if seen else ""


def _confused(explainer: Explainer, test: Any, ask: str) -> np.ndarray:
    first = explainer.embeddings[0].oracle
    read = first.read(test, role="test")
    if read.labels is None:
        raise ExemplaError("the test data has no labels, so no error can be told: give (X, y).")
    return confused(ask, np.asarray(read.labels), np.asarray(first.predict(read)))


def _wrong_predictions(explainer: Explainer, test: Any) -> np.ndarray:
    """Positions of the test rows that most models get wrong.

    Earlier checkpoints of a model, given as weights, know less than it does and have no vote.
    """
    read = [e.oracle.read(test, role="test") for e in explainer.embeddings]
    labels = read[0].labels
    if labels is None:
        raise ExemplaError("the test data has no labels, so no error can be told: give (X, y).")
    voters = [
        _misjudged(e.oracle.predict(x), labels)
        for model, e, x in zip(explainer.models, explainer.embeddings, read, strict=True)
        if not is_checkpoint(model)
    ]
    wrong = np.mean(voters, axis=0)
    found = np.flatnonzero(wrong > 0.5)
    if len(found) == 0:
        raise ExemplaError(
            f"the model makes no error on these {len(read[0])} examples, so there is nothing to "
            "explain: give other test data, or name rows with ask=."
        )
    return found


def _misjudged(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Where prediction and label differ; numbers are no classes."""
    if predicted.shape != labels.shape or (labels.dtype.kind == "f" and not _is_whole(labels)):
        raise ExemplaError(
            "wrong predictions can be told for class labels alone: for other targets name the "
            "rows with ask=."
        )
    return predicted != labels


def _is_whole(values: np.ndarray) -> bool:
    return bool(np.all(values == np.round(values)))


TIE = 1e-9
"""Numbers within this relative distance are equal: far above what a sum in another order changes,
far below what tells one row from another."""


def levels(values: np.ndarray, scale: float = 0.0) -> np.ndarray:
    """Each value's rank, from 0 for the smallest; neighbours that nearly tie share one.

    Two values nearly tie within TIE of the larger one, or of `scale`: what differences and
    log-odds are made of is larger than they are where they vanish.

    >>> import numpy as np
    >>> levels(np.array([0.3, 0.1, 0.1 + 1e-15, 0.2]))
    array([2, 0, 0, 1])
    """
    order = np.argsort(values, kind="stable")
    ordered = values[order]
    size = np.maximum(np.abs(ordered), scale)
    apart = np.diff(ordered) > TIE * np.maximum(size[1:], size[:-1])
    out = np.empty(len(values), dtype=np.int64)
    out[order[:1]] = 0
    out[order[1:]] = np.cumsum(apart)
    return out


def first_largest(table: np.ndarray) -> np.ndarray:
    """The first column of each row of log-probabilities that is, or nearly ties with, the largest.

    >>> import numpy as np
    >>> first_largest(np.log([[0.2, 0.8], [0.5 - 1e-15, 0.5]]))
    array([1, 0])
    """
    best = table.max(axis=1, keepdims=True)
    return np.argmax(table >= best - TIE * np.maximum(np.abs(best), 1.0), axis=1)
