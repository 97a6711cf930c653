"""Attacks by wrong labels: which training rows, under which other label, do most harm.

Let μ be the mean score of the attacked predictions and v = M⁻¹μ. A training row j under label c
contributes s_j(c)ᵀv / n to their mean log-likelihood. Label c instead of y changes that by

    effect_j = (s_j(c) − s_j(y))ᵀ v / n

to first order. No input is moved, so the model needs no gradient in its inputs: trees have none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from exempla.arrays import to_numpy
from exempla.checks import check_ids, check_rows, whole_number
from exempla.data import arrays_of, index_of, n_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.kernel.damping import check_damping, resolve_damping
from exempla.kernel.embed import Embedding, embed_training_set
from exempla.oracles import make_oracle
from exempla.oracles.base import Oracle
from exempla.tasks.attack.result import Relabelling
from exempla.tasks.retrain import Fit


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
    queried = with_labels(oracle, test)
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


def with_labels(oracle: Oracle, test: Any) -> tuple[Any, np.ndarray]:
    """Return the test data with labels; the predicted ones if none were given."""
    examples = oracle.read(test, role="test")
    X: Any = test[0] if isinstance(test, tuple) else test
    return X, oracle.predict(examples) if examples.labels is None else examples.labels


def attacked_rows(k: Any, n: int, harm: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the k most harmful of n training rows, or the rows that `k` names."""
    if whole_number(k):
        if not 1 <= k <= n:
            raise ExemplaError(f"k is {k}: give a number from 1 to {n}, or row numbers.")
        return np.argsort(-harm(), kind="stable")[:k].astype(np.int64)
    return check_rows(k, n, "k", "training rows")
