"""Attacks by wrong labels: which training rows, under which other label, harm a target most.

With v = M⁻¹μ for the target's mean score μ, a training row j under label c is worth s_j(c)ᵀv / n to
the target's mean log-likelihood. Giving it label c instead of y changes that by

    effect_j = (s_j(c) − s_j(y))ᵀ v / n

to first order. Nothing is moved, so a model needs no gradient in its inputs: trees have none.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd

from exempla import __version__
from exempla.arrays import to_numpy
from exempla.checks import check_ids, check_rows, whole_number
from exempla.data import arrays_of, index_of, n_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.kernel.damping import check_damping, resolve_damping
from exempla.kernel.embed import Embedding, embed_training_set
from exempla.oracles import make_oracle
from exempla.results import Answer
from exempla.tasks.attack.result import AttackCheck, _predictions
from exempla.tasks.verify import Fit, check_fit, refit

__all__ = ["Relabelling", "relabel"]

_ARMS = ("untouched", "attacked", "random direction")


@dataclass(frozen=True, kw_only=True, repr=False)
class Relabelling(Answer):
    """Training rows and the wrong labels that would harm the target most; nothing is changed.

    Attributes
    ----------
    indices : int64 array
        Rows of the training data, most harmful first.
    given, labels : arrays
        Their labels, and the ones to give them instead.
    effect : array
        First-order change of the target's mean log-likelihood by each.
    """

    given: np.ndarray
    labels: np.ndarray
    effect: np.ndarray
    damping: float = 0.0
    damping_rule: str = ""
    seed: int = 0
    version: str = __version__
    perturbed: str = "labels"
    every: tuple[np.ndarray, np.ndarray] = field(repr=False)
    """Of all training rows: the most harmful other label, and its effect."""
    context: Any = field(default=None, repr=False, compare=False)

    @property
    def expected(self) -> float:
        """First-order change of the target's mean log-likelihood by all of them."""
        return float(self.effect.sum())

    @property
    def finding(self) -> str:
        return (
            f"{len(self):,} training rows under other labels change the target's mean "
            f"log-likelihood by {self.expected:.3g}, to first order."
        )

    def _columns(self) -> dict[str, Any]:
        return {"given": self.given, "label": self.labels, "effect": self.effect}

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain values; `weights` is what each row's other label costs."""
        costs = (-self.effect).tolist()
        return {
            **super().to_dict(), "side": "opponents", "weights": costs, "expected": self.expected,
        }  # fmt: skip

    def weak_points(self) -> pd.DataFrame:
        """The defence view: all training rows by how much another label would harm the target."""
        labels, effect = self.every
        order = np.argsort(effect, kind="stable")
        return pd.DataFrame({"index": order, "label": labels[order], "reach": -effect[order]})

    def apply(self, y: Any) -> np.ndarray:
        """A copy of the labels with these ones in place."""
        return _with_labels(y, self.indices, self.labels)

    def verify(self, fit: Fit | None = None, seeds: int = 5) -> AttackCheck:
        """Train on untouched, attacked and randomly wrong labels; count flipped predictions."""
        model, (X, y, weights), target, remembered = self.context
        fit = remembered if fit is None else fit
        check_fit(model, fit)
        lines = []
        for seed in range(seeds):
            arms = zip(_ARMS, (np.asarray(y), self.apply(y), self._at_random(y, seed)), strict=True)
            fitted = {arm: refit(model, X, labels, weights, fit, seed) for arm, labels in arms}
            clean = _predictions(fitted["untouched"], target)
            for arm, trained in fitted.items():
                predicted, likelihood = _predictions(trained, target)
                flips = float(np.mean(predicted != clean[0]))
                lines.append((arm, seed, flips, float(np.mean(likelihood))))
        columns = ["arm", "seed", "flipped", "log_likelihood"]
        return _RelabelCheck(pd.DataFrame(lines, columns=columns), len(self.indices), 0.0)

    def _at_random(self, y: Any, seed: int) -> np.ndarray:
        """As many rows chosen by chance, each under another label chosen by chance."""
        rng, labels = np.random.default_rng(seed), np.asarray(y)
        rows = rng.choice(len(labels), len(self), replace=False)
        classes, codes = np.unique(labels, return_inverse=True)
        other = (codes[rows] + rng.integers(1, len(classes), len(rows))) % len(classes)
        return _with_labels(labels, rows, classes[other])


class _RelabelCheck(AttackCheck):
    """Flipped target predictions after training on wrong labels, per arm and seed."""

    def __str__(self) -> str:
        head = f"{self.points} training rows under other labels\n"
        return head + self.table.to_string(index=False, float_format="%.4f")


def relabel(
    model: Any,
    train: Any,
    target: Any,
    *,
    points: Any = 2,
    damping: str | float = "auto",
    parameters: Any = None,
    fit: Fit | None = None,
    ids: Any = None,
    seed: int = 0,
) -> Relabelling:
    """The training rows whose labels to change so that a target is judged worse.

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = HistGradientBoostingClassifier(max_iter=20).fit(X[:300], y[:300])
    >>> found = relabel(model, (X[:300], y[:300]), (X[300:310], y[300:310]), points=3)
    >>> len(found), found.expected < 0, bool((found.given != found.labels).all())
    (3, True, True)
    """
    X, y, weights = arrays_of(train, "training data")
    oracle = make_oracle(model, parameters=parameters)
    embedding = embed_training_set(oracle, (X, y, weights), fisher="true", sketch="auto", seed=seed)
    codes, classes = getattr(embedding.train, "codes", None), _classes(oracle)
    if codes is None or classes is None:
        raise UnsupportedModelError(
            f"perturb='labels' gives rows another class, and {type(model).__name__} predicts no "
            "classes of a scikit-learn kind: use perturb='train'."
        )
    asked = _labelled(embedding, target)
    chosen = resolve_damping(check_damping(damping), embedding.evidence, embedding.metric.name)
    worth = _worth_under(embedding, oracle.read(asked, role="test"), chosen.value, len(classes))
    rows = np.arange(len(codes))
    change = (worth - worth[rows, codes][:, None]) / len(codes)
    change[rows, codes] = np.inf  # the label it has is no change
    best = np.argmin(change, axis=1)
    effect = change[rows, best]
    found = _rows(points, effect)
    names = check_ids(index_of(X, y) if ids is None else ids, n_rows(y))
    return Relabelling(
        indices=found,
        ids=None if names is None else names[found],
        given=classes[codes[found]],
        labels=classes[best[found]],
        effect=effect[found],
        damping=chosen.value,
        damping_rule=chosen.rule,
        seed=int(seed),
        warnings=oracle.notes,
        every=(classes[best], effect),
        context=(model, (X, y, weights), asked, fit),
    )


def _worth_under(embedding: Embedding, questioned: Any, damping: float, classes: int) -> np.ndarray:
    """s_j(c)ᵀ M⁻¹ μ of every training row j under every class c, (n, classes)."""
    rows, _ = embedding.embed(questioned, "true")
    v = to_numpy(embedding.metric.solve(rows.mean(0)[None, :], damping))[0]
    train: Any = embedding.train
    found = []
    for code in range(classes):
        other = replace(train, codes=np.full(len(train), code))
        batches = embedding.oracle.scores(other)
        found.append(np.concatenate([to_numpy(embedding.sketch.project(b)) @ v for b in batches]))
    return np.stack(found, axis=1).astype(np.float64)


def _classes(oracle: Any) -> np.ndarray | None:
    """The model's classes, in the order of its codes."""
    parts = getattr(oracle, "_parts", oracle)
    classes = getattr(parts, "classes", None)
    return None if classes is None else np.asarray(classes)


def _labelled(embedding: Embedding, target: Any) -> tuple[Any, np.ndarray]:
    """The target with labels; the predicted ones if none were given."""
    examples = embedding.oracle.read(target, role="test")
    X: Any = target[0] if isinstance(target, tuple) else target
    if examples.labels is not None:
        return X, examples.labels
    return X, embedding.oracle.predict(examples)


def _rows(points: Any, effect: np.ndarray) -> np.ndarray:
    """Which training rows: the most harmful, or those named."""
    n = len(effect)
    if whole_number(points):
        if not 1 <= points <= n:
            raise ExemplaError(f"points is {points}: give a number from 1 to {n}, or row numbers.")
        return np.argsort(effect, kind="stable")[:points].astype(np.int64)
    return check_rows(points, n, "points", "training rows")


def _with_labels(y: Any, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """A copy of y with these labels in these rows."""
    out = np.array(y)
    out = out.astype(np.result_type(out.dtype, labels.dtype)) if out.dtype != object else out
    out[rows] = labels
    return out
