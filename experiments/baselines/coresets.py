"""Other ways to a weighted subset: by chance, by sensitivity, by Hilbert-space geometry.

    Huggins, Campbell, Broderick, "Coresets for scalable Bayesian logistic regression" (2016)
    Campbell, Broderick, "Bayesian coreset construction via greedy iterative geodesic ascent" (2018)

They are called like `summarize` and return what it returns; `total=None` leaves the weights as
the method makes them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from sklearn.cluster import MiniBatchKMeans

from exempla.arrays import is_sparse
from exempla.checks import check_k
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.likelihoods import Bernoulli
from exempla.results import Selection
from exempla.tasks.summarize import best_total, left_out
from exempla.tasks.summarize.last_layer import LastLayer, read_last_layer
from exempla.tasks.summarize.posterior import posterior, refitter

__all__ = ["hilbert_coreset", "random_summary", "sensitivity_coreset"]

Total = Literal["auto", "k", "n"] | None
PROJECTIONS = 500
"""Posterior draws at which log-likelihoods are compared (Campbell and Broderick's choice)."""
MATCHED = 1e-8
"""GIGA has arrived when 1 − cosine to the sum of all log-likelihoods is below this."""


def random_summary(
    model: Any, train: Any, k: int, total: Total = "k", *, seed: int = 0
) -> Selection:
    """k examples by chance, equally weighted.

    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = [[0.0], [1.0], [2.0], [3.0]], [0, 1, 0, 1]
    >>> random_summary(LogisticRegression().fit(X, y), (X, y), 2).weights
    array([1., 1.])
    """
    task = _task(model, train, k, total, seed)
    picked = task.rng.choice(task.open, k, replace=False)
    return task.finish(picked, np.ones(k), "Random")


def sensitivity_coreset(
    model: Any,
    train: Any,
    k: int,
    total: Total = None,
    *,
    clusters: int = 6,
    radius: float = 3.0,
    seed: int = 0,
) -> Selection:
    """Huggins' coreset for logistic regression: examples drawn by a bound on their sensitivity.

    With z = ±x (the sign of the label), G_i the clusters of the z's and R the radius of the ball
    of parameters, the sensitivity of example n is at most
    m_n = N / (1 + Σ_i |G_i∖n| exp(−R‖z̄_{G_i∖n} − z_n‖)). Draws are with replacement in proportion
    to m_n; they go on until k different examples are drawn.

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = scale(X)
    >>> len(sensitivity_coreset(LogisticRegression().fit(X, y), (X, y), 20))
    20
    """
    task = _task(model, train, k, total, seed)
    if not isinstance(task.layer.family, Bernoulli):
        raise UnsupportedModelError(
            "the sensitivity bound is known for logistic regression on two classes only."
        )
    layer = task.layer.take(task.open)
    x = layer.a.toarray() if is_sparse(layer.a) else np.asarray(layer.a)
    bound = sensitivities((2 * layer.codes[:, None] - 1) * x, clusters, radius, seed)
    chances = bound / bound.sum()
    drawn = _draw_until(chances, k, task.rng)
    picked, times = np.unique(drawn, return_counts=True)
    return task.finish(task.open[picked], times / (len(drawn) * chances[picked]), "Sensitivity")


def sensitivities(z: np.ndarray, clusters: int, radius: float, seed: int) -> np.ndarray:
    """Upper bounds m_n on how much one example can matter to the likelihood."""
    n = len(z)
    count = min(clusters, n)
    labels = np.asarray(MiniBatchKMeans(count, random_state=seed).fit_predict(z))
    total = np.ones(n)
    for i, centre in enumerate(_centroids(z, labels, count)):
        inside = labels == i
        size = int(inside.sum())
        if size == 0:
            continue
        apart = np.linalg.norm(z - centre, axis=1)
        if size > 1:
            # without the example itself its cluster's mean lies a little further from it
            apart[inside] *= size / (size - 1)
        total += (size - inside) * np.exp(-radius * apart)
    return n / total


def _centroids(z: np.ndarray, labels: np.ndarray, clusters: int) -> list[np.ndarray]:
    """The clusters' own means, which a mini-batch clustering's centres only approach."""
    return [z[labels == i].mean(0) if (labels == i).any() else z[0] for i in range(clusters)]


def _draw_until(chances: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Draws with replacement until k different ones have come up."""
    drawn = np.empty(0, dtype=np.int64)
    for _ in range(1000):
        drawn = np.concatenate([drawn, rng.choice(len(chances), k, p=chances)])
        first = np.sort(np.unique(drawn, return_index=True)[1])
        if len(first) >= k:
            return drawn[: first[k - 1] + 1]
    raise ExemplaError(f"fewer than {k} examples have a chance to be drawn: ask for fewer.")


def hilbert_coreset(
    model: Any,
    train: Any,
    k: int,
    total: Total = None,
    *,
    method: Literal["giga", "frank-wolfe"] = "giga",
    seed: int = 0,
) -> Selection:
    """Weights that match the sum of log-likelihoods as functions of the parameters.

    Log-likelihoods are compared at 500 draws from the Laplace posterior of all the data. Each
    iteration may add an example; it goes on until k are in or nothing is gained.

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = scale(X)
    >>> len(hilbert_coreset(LogisticRegression().fit(X, y), (X, y), 20))
    20
    """
    if method not in ("giga", "frank-wolfe"):
        raise ExemplaError(f"method={method!r} is not known: use 'giga' or 'frank-wolfe'.")
    task = _task(model, train, k, total, seed)
    layer = task.layer.take(task.open)
    values = log_likelihood_functions(layer, task.rng)
    weights = (giga if method == "giga" else frank_wolfe)(values, k)
    picked = np.flatnonzero(weights > 0)
    order = np.argsort(-weights[picked], kind="stable")
    return task.finish(task.open[picked[order]], weights[picked[order]], method)


def log_likelihood_functions(layer: LastLayer, rng: np.random.Generator) -> np.ndarray:
    """(n, draws) log-likelihoods at posterior draws, each example's mean taken off."""
    around = posterior(layer, int(layer.size), rng, draws=PROJECTIONS, spread=1.0)
    values = np.empty((len(layer), PROJECTIONS), dtype=np.float32)
    for d, theta in enumerate(around.thetas):
        values[:, d] = layer.family.log_prob(layer.a @ theta, layer.codes)
    if layer.counts is not None:
        values *= layer.counts[:, None]
    values -= values.mean(1, keepdims=True)
    return values / np.float32(np.sqrt(PROJECTIONS))


def giga(values: np.ndarray, k: int, patience: int = 2) -> np.ndarray:
    """Greedy iterative geodesic ascent: move along the sphere towards the sum's direction.

    `patience` × k iterations at most, since one may move weight between examples already in.
    """
    norms = np.linalg.norm(values, axis=1)
    alive = norms > 1e-12 * norms.max()
    units = values / np.where(alive, norms, 1.0)[:, None]
    total = values.sum(0, dtype=np.float64)
    length = np.linalg.norm(total)
    goal = total / length
    towards = units @ goal.astype(np.float32)
    weights = np.zeros(len(values))
    first = int(np.argmax(np.where(alive, towards, -np.inf)))
    weights[first], here = 1.0, units[first].astype(np.float64)
    for _ in range(patience * k):
        along = units @ here.astype(np.float32)
        cosine = float(goal @ here)
        # cosine between the two directions that lead off from here: to the goal, to an example
        ahead = (towards - cosine * along) / np.sqrt(np.maximum(1.0 - along**2, 1e-12))
        full = np.count_nonzero(weights) >= k
        open_ = alive & (weights > 0) if full else alive
        n = int(np.argmax(np.where(open_, ahead, -np.inf)))
        if ahead[n] <= 1e-9 or 1.0 - cosine < MATCHED:
            break
        z0, z1, z2 = float(towards[n]), cosine, float(along[n])
        up, down = z0 - z1 * z2, z1 - z0 * z2
        step = 1.0 if down <= 0 else up / (up + down)
        moved = (1 - step) * here + step * units[n]
        size = np.linalg.norm(moved)
        here = moved / size
        weights *= (1 - step) / size
        weights[n] += step / size
        if full and step < 1e-6:
            break
    return weights * length * float(goal @ here) / np.where(alive, norms, np.inf)


def frank_wolfe(values: np.ndarray, k: int, patience: int = 2) -> np.ndarray:
    """Frank–Wolfe on the polytope whose corners are the examples, scaled by all norms together."""
    norms = np.linalg.norm(values, axis=1).astype(np.float64)
    alive = norms > 1e-12 * norms.max()
    scale = norms.sum()
    total = values.sum(0, dtype=np.float64)
    weights, here = np.zeros(len(values)), np.zeros(values.shape[1])
    for i in range(patience * k):
        ahead = (values @ (total - here).astype(np.float32)) / np.where(alive, norms, np.inf)
        open_ = alive & (weights > 0) if np.count_nonzero(weights) >= k else alive
        n = int(np.argmax(np.where(open_, ahead, -np.inf)))
        corner = values[n] * (scale / norms[n])
        way = corner - here
        step = 1.0 if i == 0 else float(np.clip(way @ (total - here) / (way @ way), 0.0, 1.0))
        if step <= 1e-12:
            break
        weights *= 1 - step
        weights[n] += step * scale / norms[n]
        here = here + step * way
    return weights


@dataclass(frozen=True)
class _Task:
    """What all baselines share: the data, who may be picked, and how the total is found."""

    model: Any
    train: Any
    layer: LastLayer
    k: int
    total: Total
    rng: np.random.Generator
    open: np.ndarray
    """Examples that may be picked."""

    def finish(self, picked: np.ndarray, weights: np.ndarray, name: str) -> Selection:
        """The picks as a Selection, with weights of the total that was asked for."""
        share = weights / weights.sum()
        # a fit needs two classes; a subset that has one keeps its weights
        fits = not self.layer.discrete or len(np.unique(self.layer.codes[picked])) > 1
        if self.total == "auto" and fits:
            others = left_out(self.layer, [(picked, share)], self.rng)
            if len(others):
                refit = refitter(self.model, self.train, "auto", None, None)
                chosen = best_total([(picked, share)], refit, others, self.layer)
                weights = share * chosen[1]
        elif self.total == "k":
            weights = share * len(picked)
        elif self.total == "n":
            weights = share * self.layer.size
        return replace(_EMPTY, indices=picked, weights=weights, selector=name, rank=len(picked))


_EMPTY = Selection(
    indices=np.empty(0, dtype=np.int64),
    weights=np.empty(0),
    gains=np.empty(0),
    explained=float("nan"),
    variance=float("nan"),
    mmd2=float("nan"),
    rank=0,
    target_norm2=float("nan"),
)


def _task(model: Any, train: Any, k: int, total: Total, seed: int) -> _Task:
    if total not in ("auto", "k", "n", None):
        raise ExemplaError(f"total={total!r} is not known: use 'auto', 'k', 'n' or None.")
    layer = read_last_layer(model, train)
    k = check_k(k, len(layer))
    rng = np.random.default_rng(seed)
    rows = np.arange(len(layer))
    if layer.counts is not None:
        rows = rows[layer.counts[rows] > 0]
    return _Task(model, train, layer, k, total, rng, rows)
