"""Explain predictions: which training examples are responsible for them?

`explain` answers for any test rows, `explain_errors` for those that the model gets wrong. A
question about errors passes four steps:

    mistakes   which test rows are errors, and which errors are wrong test labels
    pick       the training rows, copies of a row counted once; k="auto" chooses how many
    removal    what removing them does: measured where retraining is cheap, predicted elsewhere
    answer     an `Explanation`, whose first sentence says what was found
"""

from __future__ import annotations

import time
import warnings
from dataclasses import replace
from typing import Any, Literal, Unpack

import numpy as np

from exempla.checks import check_k, whole_number
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.explainer import Explainer, KernelOptions, Side, check_options
from exempla.kernel.kernel import Query, shares
from exempla.oracles.base import Labels
from exempla.progress import showing
from exempla.quality import judge_test
from exempla.results import Explanation
from exempla.selection import Selector
from exempla.tasks.question import Copies, check_ask, trusted_query
from exempla.tasks.retrain import judge_held_out
from exempla.tasks.verify import auto_limit, is_diffuse, memory_forecast, smallest_set, with_removal

_SHOWN_IF_DIFFUSE = 10
"""Training rows that are listed where no small set of rows causes the errors."""
_SIGN = {"opponents": -1.0, "proponents": 1.0}
_MOST_SELECTIONS = 6
"""Selections made to replace picks that turned out to be copies of earlier ones."""


def explain(
    model: Any,
    train: Any,
    test: Any,
    k: int | Literal["auto"] = 50,
    *,
    side: Side = "opponents",
    labels: Labels = "true",
    ask: Any = "all",
    selector: Selector | None = None,
    weights: Any = None,
    ids: Any = None,
    fit: Any = None,
    **options: Unpack[KernelOptions],
) -> Explanation:
    """Return the k training examples most responsible for some predictions.

    Shorthand for fitting an `Explainer` and asking it once; keep the Explainer if you have several
    questions.

    Parameters
    ----------
    model : fitted model, or a list of them
        A scikit-learn model, boosted trees, a torch module, or your own oracle. Several models are
        averaged, and an error is what most of them get wrong. After a torch module, give
        checkpoints of its training (state dicts, files, the folder of a `Recorder`): the answer
        then agrees better with retraining.
    train : (X, y), (X, y, sample_weight), or a data set
        The data the model was trained on. A torch Dataset or DataLoader works, too.
    test : (X, y), X alone, or a data set
        Predictions to explain, one or many. Without labels the model's own predictions are used.
    k : int or "auto"
        Number of training examples to return; copies of an example count once. "auto" takes the
        smallest set that has most of the effect of a larger one.
    side : {"opponents", "proponents", "both"}
        Examples that push against the queried labels, support them, or either.
    labels : {"true", "predicted"}
        Whether to explain the given labels or the predicted ones.
    ask : {"all", "errors"}, "errors:TRUE->PREDICTED", indices or boolean mask
        Which test rows the question is about: all, the wrongly predicted ones, one confusion
        ("errors:spam->ham": spam that was predicted as ham), or rows of your choice. Errors that
        are probably wrong test labels are left out and reported first.
    selector : Selector
        How examples are picked; `SBQ(noise=10)` by default. `TopInfluence()` is a plain ranking.
    weights : (n_test,) array
        How much each test row counts; equally by default.
    ids : sequence
        Your own names of the training examples; the answer carries them.
    fit : callable(module, X, y, sample_weight) -> module
        How to train a torch module, to measure the effect of a removal if that is quick.
    **options
        Options of the kernel, as for `Explainer`: likelihood, fisher, sketch, damping, normalize,
        parameters, store, device, seed, progress.

    Returns
    -------
    Explanation
        `.indices` (rows of the training data, most important first), `.copies`, `.weights`,
        `.removal` (what removing them does), `.verify()`, `.to_frame()`, `.plot()`.

    Raises
    ------
    ExemplaError
        If an argument is unusable; checked before anything is computed.

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
    check_question(k, side, labels, ask, selector, weights)
    started = time.perf_counter()
    first = model[0] if isinstance(model, list | tuple) and model else model
    explainer = Explainer(model, **options)
    explainer._fit(train, ids, forecast=memory_forecast(first, train, fit))
    return explain_from(
        explainer, test, k, side=side, labels=labels, ask=ask, selector=selector, weights=weights,
        fit=fit, started=started,
    )  # fmt: skip


def explain_errors(
    model: Any,
    train: Any,
    test: Any,
    k: int | Literal["auto"] = "auto",
    *,
    ask: Any = "errors",
    **options: Any,
) -> Explanation:
    """Return the training examples most responsible for the model's wrong predictions.

    The same as ``explain(..., ask="errors")``. Opponents, the default side, push against the true
    labels of the misclassified examples; proponents support them, too weakly. Errors that look like
    wrong test labels are reported first and left out of the question.

    Parameters
    ----------
    model, train, test, k, ask, **options
        As for `explain`; `k` is "auto" by default, and `test` needs labels.

    Returns
    -------
    Explanation

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = scale(X)
    >>> model = LogisticRegression().fit(X[:300], y[:300])
    >>> answer = explain_errors(model, (X[:300], y[:300]), (X[300:], y[300:]), k=5, progress=False)
    >>> len(answer), bool((answer.alignment < 0).all())
    (5, True)
    """
    return explain(model, train, test, k, ask=ask, **options)


def check_question(
    k: Any, side: Any, labels: Any, ask: Any, selector: Any, weights: Any = None
) -> None:
    """Raise if an argument of a question is unusable whatever the data are."""
    if not (isinstance(k, str) and k == "auto") and (not whole_number(k) or k < 1):  # pyright: ignore[reportOperatorIssue]
        raise ExemplaError(f"k is {k!r}; give a whole number of at least 1, or 'auto'.")
    check_ask(ask)
    check_options(side, labels, selector, weights)


def explain_from(
    explainer: Explainer,
    test: Any,
    k: int | Literal["auto"] = 50,
    *,
    side: Side = "opponents",
    labels: Labels = "true",
    ask: Any = "all",
    selector: Selector | None = None,
    weights: Any = None,
    fit: Any = None,
    started: float | None = None,
    errors: bool | None = None,
) -> Explanation:
    """Answer one question with a fitted Explainer; arguments as for `explain`.

    `started` is the time at which the answer was begun: retraining may take as long again. `errors`
    says whether rows given by position are errors, whose test labels are then checked.
    """
    check_question(k, side, labels, ask, selector, weights)
    started = time.perf_counter() if started is None else started
    with showing(explainer.progress):
        asked = trusted_query(explainer, test, ask, weights, errors)
        query = explainer._query(asked.test, labels, asked.weights)
        found = pick(explainer, query, k, side, selector, asked.weights)
        oracle, quality = explainer.embeddings[0].oracle, None
        if asked.rows is not None:
            quality = judge_test(oracle, test, "test rows")
        elif len(explainer.models) == 1:
            quality = judge_held_out(explainer.models[0], explainer.train_data, oracle.likelihood)
        found = asked.answered(found, explainer, test, quality=quality)
        return with_removal(found, query, fit, max(time.perf_counter() - started, 0.0))


def pick(
    explainer: Explainer,
    query: Query,
    k: int | Literal["auto"],
    side: Side,
    selector: Selector | None,
    weights: np.ndarray | None,
) -> Explanation:
    """Pick k training rows that are not copies of each other, with all copies of each.

    The query has been read and is scored once, whatever the number of selections.
    """
    n = explainer.n_train
    wanted = auto_limit(n) if k == "auto" else check_k(k, n)
    problem = explainer.kernel().rows_and_targets(query, weights)

    def select(count: int, quiet: bool) -> Explanation:
        with warnings.catch_warnings():
            if quiet:
                warnings.simplefilter("ignore", ExemplaWarning)
            return explainer._explanations(query, problem, count, side, selector)[0]

    found = select(wanted, quiet=k == "auto")
    copies = Copies(explainer.kernel().features.rows.__getitem__, n, explainer.train_data)
    count, first = wanted, copies.group(found.indices)
    for _ in range(_MOST_SELECTIONS):
        missing = wanted - len(np.unique(first))
        if missing <= 0 or len(found) < count or count >= n:
            break
        count = min(n, count + 2 * missing)
        found = select(count, quiet=True)
        first = copies.group(found.indices)
    leaders = np.flatnonzero(first == np.arange(len(first)))
    members = copies.members(found.indices[leaders])
    diffuse = False
    if k == "auto" and len(leaders):
        influence = explainer.set_influence(query, query.labels, weights, solve="sketch").values
        push = np.array([influence[group].sum() for group in members])
        wanted = smallest_set(np.abs(push) if side == "both" else push * _SIGN[side])
        diffuse = side == "opponents" and is_diffuse(
            explainer, np.concatenate(members), query, weights
        )
        wanted = min(wanted, _SHOWN_IF_DIFFUSE) if diffuse else wanted
    if len(leaders) > wanted:  # greedy picks are nested: the first ones stay what they are
        end = int(leaders[wanted])
        found = select(end, quiet=True)
        first, leaders, members = first[:end], leaders[:wanted], members[:wanted]
    place = np.searchsorted(leaders, first)
    assert found.question is not None
    return replace(
        found,
        question=found.question._replace(shares=shares(weights, len(query))),
        indices=found.indices[leaders],
        ids=None if found.ids is None else found.ids[leaders],
        weights=np.bincount(place, found.weights, minlength=len(leaders)),
        gains=np.bincount(place, found.gains, minlength=len(leaders)),
        alignment=found.alignment[leaders],
        copies=tuple(group.tolist() for group in members),
        k=len(leaders) if k == "auto" else int(k),
        diffuse=diffuse,
    )
