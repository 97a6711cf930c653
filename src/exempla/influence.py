"""Influence of removals: relative influence, and the predicted effect of removing several examples.

Influence itself is computed by `exempla.kernel.solve`; with the model's Fisher matrix as the metric
it is the Fisher kernel divided by n. For models with a canonical link the Fisher matrix is the
Hessian, and influence is that of Koh and Liang (`exempla.metrics.hessian_influence`).

Removing training examples S takes their scores and their part of the Fisher matrix away. One Newton
step from the trained weights to those of the rest is, with metric M and Fisher rows R of S,

    Δθ = −(nM − RᵀR)⁻¹ Σ_S s_i = −(x + M⁻¹Rᵀ(n − R M⁻¹Rᵀ)⁻¹ R x)/n,    x = M⁻¹ Σ_S s_i

The first term is the sum of the influences; the second matters if many removed examples share a
direction. For a classifier the change is applied to the log-odds, so that no probability exceeds 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.arrays import Array, as_like, concatenate, products, to_numpy
from exempla.errors import ExemplaError
from exempla.kernel.embed import Embedding
from exempla.kernel.kernel import Kernel, Query
from exempla.kernel.solve import SetInfluence

__all__ = ["RemovalEffect", "SetInfluence", "predicted_effect", "relative_influence"]

CLASSES = ("bernoulli", "categorical")
"""Likelihoods of one class out of several."""
MAX_FISHER_ROWS = 2048
"""Fisher rows of the removed examples up to which the second term is computed."""
_MIN_PROBABILITY = 1e-9
"""Probabilities are kept this far from 0 and 1 before their log-odds are taken."""


def relative_influence(values: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Divide the influence of each training example by the root of its self-influence.

    Among all examples that would move the model as far as this one, how strongly does it act on the
    query (Barshan, Brunet and Dziugaite 2020)? Examples without self-influence get 0.
    """
    root = np.sqrt(own)[:, None]
    return np.divide(values, root, out=np.zeros_like(values), where=root > 0)


def refuse_overflow(values: np.ndarray, what: str) -> np.ndarray:
    """Return the values if all of them are finite."""
    if not np.isfinite(values).all():
        raise ExemplaError(f"{what} overflows: scale the inputs of all examples alike.")
    return values


@dataclass(frozen=True)
class RemovalEffect:
    """Predicted effect of removing training examples; `verify` retrains and measures it.

    Attributes
    ----------
    removed : int
        Number of training examples removed.
    log_likelihood : float
        Change of the mean log-likelihood of the queried predictions.
    random_baseline, random_sd : float
        Mean and standard deviation of the same change for as many examples drawn at random.
    n_fixed : int or None
        Predictions whose own label is at most 50 % likely and would become more likely than not;
        None if the labels are not classes.
    n_broken : int or None
        Predictions whose own label would cease to be more likely than not.
    """

    removed: int
    log_likelihood: float
    random_baseline: float
    random_sd: float
    n_fixed: int | None = None
    n_broken: int | None = None


def predicted_effect(
    kernel: Kernel, query: Query, shares: np.ndarray, picked: np.ndarray, scale: float = 1.0
) -> RemovalEffect:
    """Predict the effect of removing the training examples `picked`, averaged over the models.

    The kernel is at the damping for influence. `shares` (n_test,) has the share of each queried
    example. `scale` multiplies the change of each score (of the log-odds, for classes).
    """
    if not len(picked):
        return RemovalEffect(0, 0.0, 0.0, 0.0)
    n, models = kernel.n_train, len(kernel.embeddings)
    change, everyone = np.zeros(len(query)), np.zeros(n)
    each = zip(kernel.embeddings, query.scored, kernel.dampings, strict=True)
    for e, (rows, _), damping in each:
        train = e.rows_near_model()
        step = _newton_step(e, train, picked, damping.value)
        change += products(rows, step[None])[:, 0] / models
        together = e.metric.solve(as_like(shares[None, :], rows) @ rows, damping.value)
        everyone += products(train, together)[:, 0] / (n * models)
    change, everyone = scale * change, scale * everyone
    k = len(picked)
    mean, spread = -k * float(everyone.mean()), float(np.sqrt(k * (1 - k / n)) * everyone.std())
    first, examples = kernel.embeddings[0].oracle, query.examples[0]
    if first.likelihood not in CLASSES or query.labels != "true" or examples.labels is None:
        return RemovalEffect(k, float(shares @ change), mean, spread)
    p = np.clip(np.exp(first.log_likelihood(examples)), _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
    odds = np.log(p) - np.log1p(-p)
    moved = odds + change / (1 - p)
    after = -np.logaddexp(0.0, -moved)
    return RemovalEffect(
        k,
        float(shares @ (after - np.log(p))),
        mean,
        spread,
        n_fixed=int(np.sum((odds <= 0) & (moved > 0))),
        n_broken=int(np.sum((odds > 0) & (moved <= 0))),
    )


def _newton_step(embedding: Embedding, train: Array, picked: np.ndarray, damping: float) -> Array:
    """Return Δθ of removing these training examples, in the sketch."""
    solve, n = embedding.metric.solve, len(train)
    x = solve(train[picked].sum(0)[None], damping)[0]
    if embedding.metric.name != "full":
        return x / -n
    parts: list[Array] = []
    for batch in embedding.oracle.fisher_rows(embedding.train.take(picked)):
        parts.append(embedding.sketch.project(batch))
        if sum(map(len, parts)) > MAX_FISHER_ROWS:
            return x / -n
    R = to_numpy(concatenate(parts))
    solved = to_numpy(solve(as_like(R, x), damping)).astype(np.float64)
    left = n * np.eye(len(R)) - R @ solved.T
    more = np.linalg.solve(left, R @ to_numpy(x)) @ solved
    return as_like(to_numpy(x) + more, x) / -n
