"""Find the training examples whose removal helps a set of predictions most.

To first order the effects of removals add up, so the k examples to remove are those with the most
negative influence on the mean of the query.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field, replace
from typing import Any, Unpack

import numpy as np

from exempla.checks import check_k, check_seed
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.explainer import Explainer, KernelOptions
from exempla.kernel.kernel import Query, mean_embedding, shares
from exempla.progress import showing
from exempla.results import Explanation, Question, Selection
from exempla.selection import Selector, TopInfluence
from exempla.selection.rows import RELATIVE_TIE, descending
from exempla.selection.select import quiet_select
from exempla.tasks.explain import check_question, pick
from exempla.tasks.question import Copies, trusted_query
from exempla.tasks.retrain import check_fit, fitted
from exempla.tasks.verify import memory_forecast, with_removal


@dataclass(frozen=True, kw_only=True, repr=False)
class Cleaning(Explanation):
    """Training examples to remove, most harmful first; `.verify()` retrains without them.

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> import exempla
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X, model = scale(X), LogisticRegression()
    >>> found = exempla.clean(model, (X[:300], y[:300]), (X[300:], y[300:]), k=5, progress=False)
    >>> bool((found.effect > 0).all()), found.to_frame().columns[-1]
    (True, 'effect')
    """

    effect: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """First-order gain in the mean log-likelihood of the query if the example is removed, with all
    its copies."""
    fit: Any = field(default=None, repr=False, compare=False)

    def _columns(self) -> dict[str, Any]:
        return {**super()._columns(), "effect": self.effect}

    def verify(self, fit: Any = None, seeds: int = 5, holdout: Any = None, **more: Any) -> Any:
        """Retrain without these examples and without equally many random ones; see `verify`."""
        return super().verify(self.fit if fit is None else fit, seeds, holdout, **more)


def clean(
    model: Any,
    train: Any,
    test: Any,
    k: int,
    *,
    ask: Any = "errors",
    selector: Selector | None = None,
    fit: Any = None,
    ids: Any = None,
    **options: Unpack[KernelOptions],
) -> Cleaning:
    """Return the k training examples whose removal should help the queried predictions most.

    Removal repairs the queried predictions. It does not improve accuracy in general: look at what
    `.verify()` says about the predictions that were not queried. Errors that look like wrong test
    labels are reported first and left out; copies of an example count once.

    Parameters
    ----------
    model : model, fitted or not, or a list of them
        Never changed. Several models' kernels are averaged, and an error is what most of them get
        wrong. After a torch module, give state dicts of four or five checkpoints of its training,
        `[model, *state_dicts]`: that fixes more errors (docs/studies/mnist.md).
    train, test : (X, y) or a data set
    k : int
        Number of training examples to return.
    ask : {"errors", "all"}, "errors:TRUE->PREDICTED", or test rows by positions or mask
        Which test predictions should become better.
    selector : Selector
        By default the most negative influence on the mean of the query, over all parameters: on
        MNIST the last layer alone is a poor proxy, and diversity costs effect. The paper's
        selection is ``SBQ(noise=10)``, on the opponents and unit rows.
    fit : callable(module, X, y, sample_weight) -> module
        How to train a torch module, for `.verify()`.
    ids : sequence
        Your own names of the training examples.
    **options
        Options of the kernel, as for `Explainer` (`parameters=` to use some layers only).

    Returns
    -------
    Cleaning

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X, noisy = scale(X), y.copy()
    >>> noisy[:30] = 1 - noisy[:30]
    >>> model = LogisticRegression().fit(X[:300], noisy[:300])
    >>> train, test = (X[:300], noisy[:300]), (X[300:], y[300:])
    >>> harmful = clean(model, train, test, k=30, ask="all", progress=False)
    >>> bool(np.mean(harmful.indices < 30) > 0.5)
    True
    """
    started = time.perf_counter()
    check_question(k, "opponents", "true", ask, selector)
    if fit is not None:
        check_fit(model, fit)
    models = model if isinstance(model, list | tuple) else [model]
    seed = check_seed(options.get("seed", 0))
    explainer = Explainer([fitted(m, train, seed) for m in models], **options)
    forecast = memory_forecast(models[0], train, fit, whitened=selector is not None)
    explainer._fit(train, ids, forecast=forecast)
    return clean_from(explainer, test, k, ask=ask, selector=selector, fit=fit, started=started)


def clean_from(
    explainer: Explainer,
    test: Any,
    k: int,
    *,
    ask: Any = "errors",
    selector: Selector | None = None,
    fit: Any = None,
    started: float | None = None,
    errors: bool | None = None,
) -> Cleaning:
    """Clean with a fitted Explainer; arguments as for `clean` and `explain_from`."""
    started = time.perf_counter() if started is None else started
    check_question(k, "opponents", "true", ask, selector)
    with showing(explainer.progress):
        asked = trusted_query(explainer, test, ask, None, errors)
        query = explainer._query(asked.test, "true", asked.weights)
        if selector is None:
            found = _most_harmful(explainer, query, k, asked.weights)
        else:
            picked = pick(explainer, query, k, "opponents", selector, asked.weights)
            found = Cleaning.of(picked, effect=-picked.alignment / explainer.n_train)
        found = replace(asked.answered(found, explainer, test), fit=fit)
        answer: Any = with_removal(found, query, fit, time.perf_counter() - started)
        return answer


def _most_harmful(
    explainer: Explainer, query: Query, k: int, weights: np.ndarray | None
) -> Cleaning:
    """Return the k groups of copies with the most negative influence on the mean of the query."""
    n, k = explainer.n_train, check_k(k, explainer.n_train)
    influence = explainer.set_influence(query, "true", weights, solve="sketch").values
    least = RELATIVE_TIE * np.abs(influence).max()  # anything smaller is rounding
    harmful = descending(-influence)[: 3 * k + 20]
    harmful = harmful[influence[harmful] < -least]
    if len(harmful) == 0:
        raise ExemplaError("no training example harms these predictions: nothing to remove.")
    kernel = explainer.kernel("influence")
    copies = Copies(kernel.whiten_rows, n, explainer.train_data)
    leaders = harmful[np.unique(copies.group(harmful))]
    groups = copies.members(leaders)
    totals = np.array([-influence[rows].sum() for rows in groups])
    best = [i for i in descending(totals)[:k] if totals[i] > least]
    order = leaders[best]
    notes = list(query.notes)
    if len(order) < k:
        others = "no other one harms these predictions"
        notes.append(f"{len(order)} of {k} examples were found: {others}.")
        warnings.warn(notes[-1], ExemplaWarning, stacklevel=4)
    question = Question(
        explainer, query.examples[0], query.test, shares=shares(weights, len(query))
    )
    rows = kernel.whiten_rows(order)
    mu = mean_embedding(kernel.query_rows(query, rows), weights)
    return Cleaning.of(
        _weighted(rows, mu, order),
        alignment=n * influence[order],
        effect=totals[best],
        copies=tuple(groups[i].tolist() for i in best),
        damping=kernel.damping,
        damping_rule=kernel.dampings[0].rule,
        **explainer._provenance(order, question, "true", k),
        warnings=tuple(notes),
    )


def _weighted(rows: Any, mu: Any, order: np.ndarray) -> Selection:
    """Return these examples in this order, with the weights that quadrature gives them."""
    picked = quiet_select(rows, mu, len(order), TopInfluence())
    ranked = np.zeros((2, len(order)))
    ranked[:, picked.indices] = picked.weights, picked.gains
    named: Any = {"weights": ranked[0], "gains": ranked[1], "side": "opponents", "state": None}
    return replace(picked, indices=order, **named)
