"""What removing some training examples is predicted to do to the questioned predictions.

To first order, removing training example i changes the log-likelihood of prediction j by −I_ij,
the influence of i on j; the effects of several add up. For a model of classes the sum is carried
over in log-odds, so that no probability passes 1. As many rows drawn by chance are the measure of
how much that is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.arrays import as_like, products
from exempla.embedding import Embedding
from exempla.oracles.base import Examples, Labels

__all__ = ["CLASSES", "Effect", "predicted_effect"]

CLASSES = ("bernoulli", "categorical")
"""Likelihoods of one class out of several."""
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
    examples: list[Examples],
    labels: Labels,
    dampings: list[float],
    shares: np.ndarray,
    picked: np.ndarray,
) -> Effect:
    """The effect of removing `picked` on questioned examples that count by `shares`.

    Several models are averaged, as their kernels are.
    """
    n, models = len(embeddings[0].train), len(embeddings)
    change, everyone = np.zeros(len(examples[0])), np.zeros(n)
    for e, x, damping in zip(embeddings, examples, dampings, strict=True):
        rows, _ = e.embed(x, labels)
        train = e.rows_near_model()
        solved = e.metric.solve(rows, damping)
        change -= products(train[picked], solved).sum(0) / (n * models)
        together = as_like(shares[None, :], solved) @ solved
        everyone += products(train, together)[:, 0] / (n * models)
    k = len(picked)
    chance, spread = -k * float(everyone.mean()), float(np.sqrt(k * (1 - k / n)) * everyone.std())
    first = embeddings[0].oracle
    if first.likelihood not in CLASSES or labels != "true" or examples[0].labels is None:
        return Effect(k, float(shares @ change), chance, spread)
    before = first.log_likelihood(examples[0])
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
