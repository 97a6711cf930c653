"""What removing some training examples is predicted to do to the questioned predictions.

Removing training examples S takes their scores and their part of the Fisher away. One Newton step
from the trained weights to those of the rest is, with M the metric and R the Fisher rows of S,

    Δθ = −(nM − RᵀR)⁻¹ Σ_S s_i = −(x + M⁻¹Rᵀ(n − R M⁻¹Rᵀ)⁻¹ R x)/n,    x = M⁻¹ Σ_S s_i

whose first term alone is the sum of the influences; the second matters where many examples go that
share a direction. For a model of classes the change is carried over in log-odds, so that no
probability passes 1. As many rows drawn by chance are the measure of how much that is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.arrays import Array, as_like, concatenate, products, to_numpy
from exempla.embedding import Embedding
from exempla.kernel import Scored
from exempla.oracles.base import Examples, Labels

__all__ = ["CLASSES", "Effect", "predicted_effect"]

CLASSES = ("bernoulli", "categorical")
"""Likelihoods of one class out of several."""
MOST_ROWS = 2048
"""Fisher rows of the removed examples that the second term is worked out for."""
SURE = 1e-9
"""Closest that a probability comes to 0 and 1 where its log-odds are taken."""


@dataclass(frozen=True)
class Effect:
    """Predicted, not observed: `verify` trains again and looks."""

    removed: int
    """Training examples removed."""
    log_likelihood: float
    """Change of the questioned predictions' mean log-likelihood."""
    by_chance: float
    """The same for as many training examples drawn by chance: the mean over draws …"""
    by_chance_sd: float
    """… and the standard deviation."""
    mended: int | None = None
    """Predictions whose own label is less likely than not, and would become likelier than not;
    None where labels are no classes."""
    spoiled: int | None = None
    """Predictions whose own label would cease to be likelier than not."""


def predicted_effect(
    embeddings: list[Embedding],
    asked: Scored,
    examples: Examples,
    labels: Labels,
    dampings: list[float],
    shares: np.ndarray,
    picked: np.ndarray,
) -> Effect:
    """The effect of removing `picked` on questioned examples that count by `shares`.

    `asked` are their rows by each model, `examples` themselves as the first one reads them. Several
    models are averaged, as their kernels are.
    """
    if not len(picked):
        return Effect(0, 0.0, 0.0, 0.0)
    n, models = len(embeddings[0].train), len(embeddings)
    change, everyone = np.zeros(len(examples)), np.zeros(n)
    for e, (rows, _), damping in zip(embeddings, asked, dampings, strict=True):
        train = e.rows_near_model()
        change += products(rows, newton_step(e, train, picked, damping)[None])[:, 0] / models
        together = e.metric.solve(as_like(shares[None, :], rows) @ rows, damping)
        everyone += products(train, together)[:, 0] / (n * models)
    k = len(picked)
    chance, spread = -k * float(everyone.mean()), float(np.sqrt(k * (1 - k / n)) * everyone.std())
    first = embeddings[0].oracle
    if first.likelihood not in CLASSES or labels != "true" or examples.labels is None:
        return Effect(k, float(shares @ change), chance, spread)
    before = first.log_likelihood(examples)
    p = np.clip(np.exp(before), SURE, 1 - SURE)
    odds = np.log(p) - np.log1p(-p)
    moved = odds + change / (1 - p)
    after = -np.logaddexp(0.0, -moved)
    return Effect(
        k,
        float(shares @ (after - np.log(p))),
        chance,
        spread,
        mended=int(np.sum((odds <= 0) & (moved > 0))),
        spoiled=int(np.sum((odds > 0) & (moved <= 0))),
    )


def newton_step(embedding: Embedding, train: Array, picked: np.ndarray, damping: float) -> Array:
    """Δθ of removing these training examples, in the sketch."""
    solve, n = embedding.metric.solve, len(train)
    x = solve(train[picked].sum(0)[None], damping)[0]
    if embedding.metric.name != "full":
        return x / -n
    parts: list[Array] = []
    for batch in embedding.oracle.fisher_rows(embedding.train.take(picked)):
        parts.append(embedding.sketch.project(batch))
        if sum(map(len, parts)) > MOST_ROWS:
            return x / -n
    R = to_numpy(concatenate(parts))
    solved = to_numpy(solve(as_like(R, x), damping)).astype(np.float64)
    left = n * np.eye(len(R)) - R @ solved.T
    more = np.linalg.solve(left, R @ to_numpy(x)) @ solved
    return as_like(to_numpy(x) + more, x) / -n
