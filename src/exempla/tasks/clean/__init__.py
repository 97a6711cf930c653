"""Which training examples to remove, so that a target set is judged better after retraining."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from exempla.arrays import on_device_of
from exempla.checks import check_k
from exempla.data import take_examples
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.explainer import Explainer
from exempla.fisher import Damping
from exempla.oracles.base import Examples
from exempla.progress import showing
from exempla.results import Explanation
from exempla.selection import SBQ, TopInfluence, select
from exempla.target import mean_embedding
from exempla.tasks.clean.harm import kernel_with
from exempla.tasks.explain_errors import wrong_predictions
from exempla.tasks.retrain import fitted
from exempla.version import __version__

__all__ = ["Cleaning", "clean", "clean_from"]

METHODS = ("influence", "sbq")
NOISE = 10.0


@dataclass(frozen=True)
class Cleaning(Explanation):
    """Training examples to remove, most harmful first; `.verify()` retrains without them."""

    effect: np.ndarray = field(default_factory=lambda: np.zeros(0))
    """What the mean log-likelihood of the target gains, to first order, if the example goes."""
    fit: Any = field(default=None, repr=False, compare=False)

    def to_dict(self) -> dict[str, Any]:
        out = super().to_dict()
        out.pop("fit")
        return out

    def verify(self, fit: Any = None, seeds: int = 5, holdout: Any = None, **more: Any) -> Any:
        """Refit without these examples, and without as many chosen by chance; see `verify`."""
        return super().verify(self.fit if fit is None else fit, seeds, holdout, **more)


def clean(
    model: Any,
    train: Any,
    test: Any,
    k: int,
    *,
    method: str = "influence",
    target: Any = "errors",
    fit: Any = None,
    seed: int = 0,
    damping: str | float = "auto",
    noise: float = NOISE,
    progress: bool = True,
    **options: Any,
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
    method : {"influence", "sbq"}
        Most negative influence, or SBQ on the opponents (unit rows, `noise`).
    target : {"errors", "all"}, or test rows by positions or mask
        Which of the test predictions are to become better.
    fit : callable(module, X, y, sample_weight) -> module
        How a torch module is trained, for `.verify()`.
    seed, damping, progress, options
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
    >>> harmful = clean(model, (X[:300], noisy[:300]), (X[300:], y[300:]), k=30, target="all")
    >>> bool(np.mean(harmful.indices < 30) > 0.5)
    True
    """
    models = model if isinstance(model, list | tuple) else [model]
    model = [fitted(m, train, seed) for m in models]
    explainer = Explainer(model, seed=seed, damping=damping, progress=progress, **options)
    cleaning = clean_from(explainer.fit(train), test, k, method=method, target=target, noise=noise)
    return replace(cleaning, fit=fit)


def clean_from(
    explainer: Explainer,
    test: Any,
    k: int,
    *,
    method: str = "influence",
    target: Any = "errors",
    noise: float = NOISE,
) -> Cleaning:
    """`clean` with an Explainer that is fitted already."""
    if method not in METHODS:
        raise ExemplaError(f"method={method!r} is not known: use 'influence' or 'sbq'.")
    with showing(explainer.progress):
        return _named(explainer, test, k, method, target, noise)


def _named(
    explainer: Explainer, test: Any, k: int, method: str, target: Any, noise: float
) -> Cleaning:
    positions = target_rows(explainer, test, target)
    questioned = test if positions is None else take_examples(test, positions)
    if method == "sbq":
        found = explainer.explain(questioned, k, "opponents", selector=SBQ(noise=noise))
        effect = -found.alignment / explainer.n_train
    else:
        found, effect = most_harmful(explainer, questioned, k)
    parts = {f.name: getattr(found, f.name) for f in fields(Explanation)}
    parts["asked"] = (test, positions)
    return Cleaning(**parts, effect=effect)


def target_rows(explainer: Explainer, test: Any, target: Any) -> np.ndarray | None:
    """Positions of the questioned test rows; None for all of them."""
    if isinstance(target, str):
        if target not in ("errors", "all"):
            raise ExemplaError(f"target={target!r} is not known: use 'errors', 'all' or rows.")
        return None if target == "all" else wrong_predictions(explainer, test)
    return wrong_predictions(explainer, test, target)


def most_harmful(explainer: Explainer, questioned: Any, k: int) -> tuple[Explanation, np.ndarray]:
    """The k examples of most negative influence on the mean of the target, and what each costs."""
    examples = [e.oracle.read(questioned, role="test") for e in explainer.embeddings]
    dampings = explainer._dampings("influence")
    mean = np.full((len(examples[0]), 1), 1.0 / len(examples[0]))
    z = np.mean(
        [
            kernel_with(e, x, d.value, mix=mean)[:, 0]
            for e, x, d in zip(explainer.embeddings, examples, dampings, strict=True)
        ],
        axis=0,
    )
    order = np.argsort(z, kind="stable")[: check_k(k, len(z))]
    order = order[z[order] < 0]
    if len(order) == 0:
        raise ExemplaError("no training example harms this target: there is nothing to remove.")
    notes = []
    if len(order) < k:
        notes.append(f"{len(order)} of {k} examples were named: no other one harms the target.")
        warnings.warn(notes[0], ExemplaWarning, stacklevel=3)
    found = described(explainer, examples, dampings, order, z[order], k, notes)
    return found, -z[order] / len(z)


def described(
    explainer: Explainer,
    examples: list[Examples],
    dampings: list[Damping],
    order: np.ndarray,
    alignment: np.ndarray,
    k: int,
    notes: list[str],
) -> Explanation:
    """The chosen examples with what they explain of the target, as quadrature would weigh them."""
    chosen, asked = [], []
    for e, x, d in zip(explainer.embeddings, examples, dampings, strict=True):
        rows, _ = e.embed(x, "true")
        asked.append(e.metric.whiten(rows, d.value))
        chosen.append(on_device_of(e.metric.whiten(e.rows[order], d.value), asked[-1]))
    mu = mean_embedding(explainer._joined(asked))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExemplaWarning)
        picked = select(explainer._joined(chosen), mu, len(order), TopInfluence())
    weights, gains = np.zeros(len(order)), np.zeros(len(order))
    weights[picked.indices], gains[picked.indices] = picked.weights, picked.gains
    first = explainer.embeddings[0]
    return Explanation(
        indices=order,
        weights=weights,
        side="opponents",
        gains=gains,
        explained=picked.explained,
        variance=picked.variance,
        mmd2=picked.mmd2,
        rank=picked.rank,
        k=k,
        damping=float(np.mean([d.value for d in dampings])),
        damping_rule=dampings[0].rule,
        share=float(np.mean([e.evidence.share for e in explainer.embeddings])),
        selector="TopInfluence",
        noise=0.0,
        labels="true",
        alignment=alignment,
        n_train=explainer.n_train,
        n_test=len(examples[0]),
        seed=explainer.seed,
        version=__version__,
        fisher=explainer.fisher,
        ids=None if first.train.ids is None else np.asarray(first.train.ids)[order],
        warnings=tuple(notes),
        context=(explainer, examples[0]),
    )
