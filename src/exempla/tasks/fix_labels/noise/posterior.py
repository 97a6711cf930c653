"""q(c | x): what a row truly is, from several views of it that do not know its given label.

A view says of every row how much it looks like each class, log p(c | x). They are put together as

    q(c | x) ∝ exp(Σ_k w_k φ_k(c, x) + b_c),      φ = −arcsinh(log-odds against c),

with weights w ≥ 0 learnt where labels are right: on curated rows. (Log-odds of 30 and of 10 both
mean "surely", hence the squashing.) The penalty is the one under which held-out rows are likeliest,
and a view without which they are likelier is dropped.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize
from scipy.special import log_softmax
from threadpoolctl import threadpool_limits

__all__ = ["ClassPosterior", "fit_posterior", "log_odds_against", "support"]

STRENGTHS = (0.1, 1.0, 10.0)
"""Penalties on the squared weights (of scaled views), tried by cross-validation."""
BIAS_STRENGTH = 3.0
FOLDS = 5
WORTH = 1.0
"""How much likelier held-out rows must become, in nats, for a view to be dropped."""


@dataclass(frozen=True)
class ClassPosterior:
    """Weights of the views and of the classes."""

    weights: np.ndarray
    """(K,); 0 where a view was dropped."""
    biases: np.ndarray
    """(C,)."""
    penalty: float

    def log_proba(self, views: list[np.ndarray]) -> np.ndarray:
        """log q(c | x), (n, C), from each view's support."""
        total = self.biases + np.zeros_like(views[0])
        for weight, view in zip(self.weights, views, strict=True):
            if weight:
                total += weight * view
        return log_softmax(total, axis=1)


def log_odds_against(log_p: np.ndarray) -> np.ndarray:
    """log (1 − p)/p from log p."""
    return np.log(-np.expm1(np.minimum(log_p, -1e-12))) - log_p


def support(log_proba: np.ndarray) -> np.ndarray:
    """φ: how much a view speaks for each class."""
    return -np.arcsinh(log_odds_against(log_proba))


def fit_posterior(
    views: list[np.ndarray], codes: np.ndarray, seed: int, weights: np.ndarray | None = None
) -> ClassPosterior:
    """Fit it to rows whose labels are right: each view's support (m, C), and their labels.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> codes = rng.integers(0, 2, 400)
    >>> good = rng.normal(size=(400, 2)) + 2.0 * np.eye(2)[codes]
    >>> chance = rng.normal(size=(400, 2))
    >>> fit_posterior([good, chance], codes, seed=0).weights.round().tolist()
    [2.0, 0.0]
    """
    fold = np.random.default_rng(seed).permutation(len(codes)) % min(FOLDS, len(codes))
    # For a dozen weights L-BFGS only waits for threads.
    with threadpool_limits(1, user_api="blas"):
        kept = list(range(len(views)))
        penalty, loss = _best(views, kept, codes, fold)
        while len(kept) > 1:  # drop the view that is missed least, if rows are likelier without it
            rest = [[k for k in kept if k != out] for out in kept]
            tried = [_best(views, some, codes, fold, (penalty,)) for some in rest]
            least = int(np.argmin([found for _, found in tried]))
            if tried[least][1] > loss - WORTH:
                break
            kept, (penalty, loss) = rest[least], tried[least]
        return refitted(views, codes, kept, penalty, weights)


def refitted(
    views: list[np.ndarray],
    codes: np.ndarray,
    kept: list[int],
    penalty: float,
    row_weights: np.ndarray | None = None,
) -> ClassPosterior:
    """The posterior with these views and this penalty."""
    used = np.stack([views[k] for k in kept], axis=-1)
    w, b = _fit(used, codes, penalty, row_weights)
    weights = np.zeros(len(views))
    weights[kept] = w
    return ClassPosterior(weights, b, penalty)


def _best(
    views: list[np.ndarray],
    kept: list[int],
    codes: np.ndarray,
    fold: np.ndarray,
    strengths: tuple[float, ...] = STRENGTHS,
) -> tuple[float, float]:
    """The penalty with the smallest held-out loss, and that loss."""
    used = np.stack([views[k] for k in kept], axis=-1)
    losses = np.zeros(len(strengths))
    for f in np.unique(fold):
        held = fold == f
        for i, penalty in enumerate(strengths):
            if held.all():
                continue
            w, b = _fit(used[~held], codes[~held], penalty)
            log_q = log_softmax(used[held] @ w + b, axis=1)
            losses[i] -= log_q[np.arange(held.sum()), codes[held]].sum()
    best = int(np.argmin(losses))
    return strengths[best], float(losses[best])


def _fit(
    views: np.ndarray, codes: np.ndarray, penalty: float, row_weights: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """min −Σ log q(code) + penalty/2·‖w‖² + 3/2·‖b‖², views (m, C, K) scaled to unit spread."""
    m, C, K = views.shape
    spread = np.sqrt(np.mean((views - views.mean(1, keepdims=True)) ** 2, axis=(0, 1)))
    spread = np.where(spread > 0, spread, 1.0)
    G, rows = views / spread, np.arange(m)
    share = np.ones(m) if row_weights is None else row_weights

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        w, b = v[:K], v[K:]
        log_q = log_softmax(G @ w + b, axis=1)
        slope = np.exp(log_q) * share[:, None]
        slope[rows, codes] -= share
        value = -share @ log_q[rows, codes]
        value += 0.5 * penalty * w @ w + 0.5 * BIAS_STRENGTH * b @ b
        back = np.einsum("mc,mck->k", slope, G) + penalty * w
        return float(value), np.concatenate([back, slope.sum(0) + BIAS_STRENGTH * b])

    # No view speaks against what it says: of views that resemble each other one would otherwise be
    # set off against the next, and q come out far too sure.
    bounds = [(0.0, None)] * K + [(None, None)] * C
    start = np.concatenate([np.full(K, 0.5 / K), np.zeros(C)])
    v = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return v[:K] / spread, v[K:]
