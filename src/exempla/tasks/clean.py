"""Which training examples to remove, so that a target set is judged better after retraining."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from exempla.checks import check_choice, check_k, check_seed, renamed_options
from exempla.data import take_examples
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.explainer import Explainer
from exempla.kernel.kernel import Kernel
from exempla.kernel.query import Query, mean_embedding
from exempla.memory import clean_bytes, explain_bytes
from exempla.progress import showing
from exempla.results import Explanation, Question, Selection
from exempla.selection import SBQ, TopInfluence, select
from exempla.selection.basis import TIE, descending
from exempla.selection.selectors import check_noise
from exempla.tasks.explain import questioned_rows
from exempla.tasks.verify import check_fit, fitted

_METHODS = ("influence", "sbq")
_NOISE = 10.0


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
    """What the mean log-likelihood of the target gains, to first order, if the example goes."""
    fit: Any = field(default=None, repr=False, compare=False)

    @property
    def predicted_change(self) -> float:
        """Of the questioned predictions' mean log-likelihood, if these examples are removed."""
        return float(self.effect.sum())

    @property
    def finding(self) -> str:
        """What removing these examples is predicted to do, in one sentence."""
        return (
            f"{len(self):,} of {self.n_train:,} training examples harm these {self.n_test:,} "
            "predictions most; removing them should raise their mean log-likelihood by "
            f"{self.predicted_change:.3g}."
        )

    def _columns(self) -> dict[str, Any]:
        return {**super()._columns(), "effect": self.effect}

    def verify(self, fit: Any = None, seeds: int = 5, holdout: Any = None, **more: Any) -> Any:
        """Refit without these examples, and without as many chosen by chance; see `verify`."""
        return super().verify(self.fit if fit is None else fit, seeds, holdout, **more)


@renamed_options(target="ask")
def clean(
    model: Any,
    train: Any,
    test: Any,
    k: int,
    *,
    ask: Any = "errors",
    method: str = "influence",
    noise: float = _NOISE,
    fit: Any = None,
    ids: Any = None,
    likelihood: Any = "auto",
    fisher: str = "true",
    sketch: str | int = "auto",
    damping: str | float = "auto",
    parameters: Any = None,
    store: Any = None,
    device: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Cleaning:
    """The k training examples whose removal should help the target most.

    To first order the effects of removals add up, so the k to remove are the k of most negative
    influence on the mean of the target, over all parameters: measured on MNIST, the last layer
    alone is a poor proxy, and diversity costs effect. The paper's SBQ is `method="sbq"`.

    Removal repairs the questioned predictions. It is no general trick for accuracy: look at what
    `.verify()` says about the predictions that were not questioned.

    Parameters
    ----------
    model : model, fitted or not yet, or a list of them
        Never changed. Several models' kernels are averaged, and an error is what most of them
        get wrong. After a torch module give state dicts of four or five moments of its training,
        `[model, *state_dicts]`: that mends more (docs/experiments/mnist.md).
    train, test : (X, y) or a data set
    k : int
        How many training examples to name.
    ask : {"errors", "all"}, or test rows by positions or mask
        Which of the test predictions are to become better.
    method : {"influence", "sbq"}
        Most negative influence, or SBQ on the opponents (unit rows, `noise`).
    fit : callable(module, X, y, sample_weight) -> module
        How a torch module is trained, for `.verify()`.
    ids : sequence
        Your own names of the training examples.
    likelihood, fisher, sketch, damping, parameters, store, device, seed, progress
        As for `Explainer` (`parameters=` to look at some layers only).

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
    >>> harmful = clean(model, (X[:300], noisy[:300]), (X[300:], y[300:]), k=30, ask="all")
    >>> bool(np.mean(harmful.indices < 30) > 0.5)
    True
    """
    if fit is not None:
        check_fit(model, fit)
    models = model if isinstance(model, list | tuple) else [model]
    explainer = Explainer(
        [fitted(m, train, check_seed(seed)) for m in models],
        likelihood=likelihood, fisher=fisher, sketch=sketch, damping=damping,
        parameters=parameters, store=store, device=device, seed=seed, progress=progress,
    )  # fmt: skip
    check_choice("method", method, _METHODS)
    explainer._fit(train, ids, forecast=clean_bytes if method == "influence" else explain_bytes)
    found = clean_from(explainer, test, k, ask=ask, method=method, noise=noise)
    return replace(found, fit=fit)


def clean_from(
    explainer: Explainer,
    test: Any,
    k: int,
    *,
    ask: Any = "errors",
    method: str = "influence",
    noise: float = _NOISE,
) -> Cleaning:
    """`clean` with an Explainer that is fitted already."""
    check_choice("method", method, _METHODS)
    check_noise(noise)
    with showing(explainer.progress):
        rows = questioned_rows(explainer, test, ask)
        questioned = test if rows is None else take_examples(test, rows)
        if method == "sbq":
            picked = explainer.explain(questioned, k, "opponents", selector=SBQ(noise=noise))
            found = Cleaning.of(picked, effect=-picked.alignment / explainer.n_train)
        else:
            found = _most_harmful(explainer, questioned, k)
    assert found.question is not None
    return replace(found, question=found.question._replace(test=test, rows=rows))


def _most_harmful(explainer: Explainer, questioned: Any, k: int) -> Cleaning:
    """The k examples of most negative influence on the mean of the target, and what each costs."""
    kernel = explainer.kernel("influence")
    query = kernel.query(questioned)
    z = kernel.set_influence(query, solve="sketch").values * explainer.n_train
    order = descending(-z)[: check_k(k, len(z))]
    order = order[z[order] < -TIE * np.abs(z).max()]  # no harm that is nothing but rounding
    if len(order) == 0:
        raise ExemplaError("no training example harms this target: there is nothing to remove.")
    notes = list(dict.fromkeys(note for e in explainer.embeddings for note in e.oracle.notes))
    if len(order) < k:
        notes.append(f"{len(order)} of {k} examples were named: no other one harms the target.")
        warnings.warn(notes[-1], ExemplaWarning, stacklevel=3)
    question = Question(explainer, query.examples[0], questioned)
    return Cleaning.of(
        _weighed(kernel, query, order),
        alignment=z[order],
        effect=-z[order] / len(z),
        damping=kernel.damping,
        damping_rule=kernel.dampings[0].rule,
        **explainer._provenance(order, question, "true", k),
        warnings=tuple(notes),
    )


def _weighed(kernel: Kernel, query: Query, order: np.ndarray) -> Selection:
    """Return these examples in this order, with the weights of a quadrature."""
    rows = kernel.whiten_rows(order)
    mu = mean_embedding(kernel.query_rows(query, rows))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExemplaWarning)
        picked = select(rows, mu, len(order), TopInfluence())
    weights, gains = np.zeros(len(order)), np.zeros(len(order))
    weights[picked.indices], gains[picked.indices] = picked.weights, picked.gains
    return replace(
        picked, indices=order, weights=weights, gains=gains, side="opponents", state=None
    )
