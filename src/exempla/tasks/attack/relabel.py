"""Attacks by wrong labels: which training rows, under which other label, do most harm.

Let μ be the mean score of the attacked predictions and v = M⁻¹μ. A training row j under label c
contributes s_j(c)ᵀv / n to their mean log-likelihood. Label c instead of y changes that by

    effect_j = (s_j(c) − s_j(y))ᵀ v / n

to first order. No input is moved, so the model needs no gradient in its inputs: trees have none.
"""

from __future__ import annotations

from collections.abc import Callable
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
from exempla.tasks.attack.result import AttackCheck, check_attack
from exempla.tasks.retrain import Fit, refit


@dataclass(frozen=True, kw_only=True, repr=False)
class Relabelling(Answer):
    """Training rows and the wrong labels that would do most harm; nothing is changed.

    Attributes
    ----------
    indices : int64 array
        Rows of the training data, most harmful first.
    given, labels : arrays
        Their labels, and the wrong ones to give them.
    effect : array
        First-order change of the attacked predictions' mean log-likelihood by each.
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
    """For all training rows: the most harmful other label, and its effect."""
    context: Any = field(default=None, repr=False, compare=False)

    @property
    def expected(self) -> float:
        """First-order change of the attacked predictions' mean log-likelihood by all of them."""
        return float(self.effect.sum())

    @property
    def finding(self) -> str:
        return (
            f"Giving {len(self):,} training rows wrong labels should change the mean "
            f"log-likelihood of the attacked predictions by {self.expected:.3g}."
        )

    def _columns(self) -> dict[str, Any]:
        return {"given": self.given, "label": self.labels, "effect": self.effect}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; `weights` is what each wrong label costs."""
        costs = (-self.effect).tolist()
        return {
            **super().to_dict(), "side": "opponents", "weights": costs, "expected": self.expected,
        }  # fmt: skip

    def weak_points(self) -> pd.DataFrame:
        """Return all training rows by how much a wrong label of each would harm."""
        labels, effect = self.every
        order = np.argsort(effect, kind="stable")
        return pd.DataFrame({"index": order, "label": labels[order], "reach": -effect[order]})

    def apply(self, y: Any) -> np.ndarray:
        """Return a copy of the labels with the wrong ones in place."""
        return _with_labels(y, self.indices, self.labels)

    def verify(self, fit: Fit | None = None, seeds: int = 5) -> AttackCheck:
        """Retrain on untouched, attacked and randomly wrong labels; count flipped predictions."""
        model, (X, y, weights), test, remembered = self.context

        def train(arm: str, seed: int, fit: Fit | None) -> Any:
            labels = np.asarray(y)
            if arm != "untouched":
                labels = self.apply(y) if arm == "attacked" else self._at_random(y, seed)
            return refit(model, X, labels, weights, fit, seed)

        what = f"{len(self)} training rows with wrong labels"
        return check_attack(model, train, test, remembered if fit is None else fit, seeds, what)

    def _at_random(self, y: Any, seed: int) -> np.ndarray:
        """Return the labels with as many random rows under random other labels."""
        rng, labels = np.random.default_rng(seed), np.asarray(y)
        rows = rng.choice(len(labels), len(self), replace=False)
        classes, codes = np.unique(labels, return_inverse=True)
        other = (codes[rows] + rng.integers(1, len(classes), len(rows))) % len(classes)
        return _with_labels(labels, rows, classes[other])


def relabel(
    model: Any,
    train: Any,
    test: Any,
    *,
    k: Any = 2,
    damping: str | float = "auto",
    parameters: Any = None,
    fit: Fit | None = None,
    ids: Any = None,
    seed: int = 0,
) -> Relabelling:
    """Return the training rows whose relabelling harms the test predictions most.

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = HistGradientBoostingClassifier(max_iter=20).fit(X[:300], y[:300])
    >>> found = relabel(model, (X[:300], y[:300]), (X[300:310], y[300:310]), k=3)
    >>> len(found), found.expected < 0, bool((found.given != found.labels).all())
    (3, True, True)
    """
    X, y, weights = arrays_of(train, "training data")
    oracle = make_oracle(model, parameters=parameters)
    embedding = embed_training_set(oracle, (X, y, weights), fisher="true", sketch="auto", seed=seed)
    codes, classes = getattr(embedding.train, "codes", None), _classes(oracle)
    if codes is None or classes is None:
        raise UnsupportedModelError(
            f"perturb='labels' gives rows another class, but {type(model).__name__} has no "
            "classes in the scikit-learn sense: use perturb='train'."
        )
    queried = _labelled(embedding, test)
    chosen = resolve_damping(check_damping(damping), embedding.evidence, embedding.metric.name)
    worth = _worth_under(embedding, oracle.read(queried, role="test"), chosen.value, len(classes))
    rows = np.arange(len(codes))
    change = (worth - worth[rows, codes][:, None]) / len(codes)
    change[rows, codes] = np.inf  # its own label is no attack
    best = np.argmin(change, axis=1)
    effect = change[rows, best]
    found = attacked_rows(k, len(effect), lambda: -effect)
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
        context=(model, (X, y, weights), queried, fit),
    )


def _worth_under(embedding: Embedding, queried: Any, damping: float, classes: int) -> np.ndarray:
    """Return s_j(c)ᵀ M⁻¹ μ of every training row j under every class c, (n, classes)."""
    rows, _ = embedding.embed(queried, "true")
    v = to_numpy(embedding.metric.solve(rows.mean(0)[None, :], damping))[0]
    train: Any = embedding.train
    found = []
    for code in range(classes):
        other = replace(train, codes=np.full(len(train), code))
        batches = embedding.oracle.scores(other)
        found.append(np.concatenate([to_numpy(embedding.sketch.project(b)) @ v for b in batches]))
    return np.stack(found, axis=1).astype(np.float64)


def _classes(oracle: Any) -> np.ndarray | None:
    """Return the model's classes in the order of its codes, if it has any."""
    parts = getattr(oracle, "_parts", oracle)
    classes = getattr(parts, "classes", None)
    return None if classes is None else np.asarray(classes)


def _labelled(embedding: Embedding, test: Any) -> tuple[Any, np.ndarray]:
    """Return the test data with labels; the predicted ones if none were given."""
    examples = embedding.oracle.read(test, role="test")
    X: Any = test[0] if isinstance(test, tuple) else test
    if examples.labels is not None:
        return X, examples.labels
    return X, embedding.oracle.predict(examples)


def attacked_rows(k: Any, n: int, harm: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the k most harmful of n training rows, or the rows that `k` names."""
    if whole_number(k):
        if not 1 <= k <= n:
            raise ExemplaError(f"k is {k}: give a number from 1 to {n}, or row numbers.")
        return np.argsort(-harm(), kind="stable")[:k].astype(np.int64)
    return check_rows(k, n, "k", "training rows")


def _with_labels(y: Any, rows: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return a copy of y with these labels in these rows."""
    out = np.array(y)
    out = out.astype(np.result_type(out.dtype, labels.dtype)) if out.dtype != object else out
    out[rows] = labels
    return out
