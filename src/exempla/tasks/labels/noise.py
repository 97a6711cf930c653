"""What kind of mistakes the labels have, estimated instead of assumed.

    posterior   q(c | x): what a row truly is, by models that have not seen its label, put on a
                scale of probabilities by rows whose labels are right
    kinds       P(given j | true c, x): how often each class is called another, and how much more
                often where the models waver
    spread      how far the evidence carries: an interval for the number of wrong labels

It imports nothing of the package around it.

P(given j | true c, x): the kind of mistakes, estimated from rows whose labels may be wrong.

With q(c | x) known, a training row's label has the likelihood Σ_c q(c | x)·T_cj(x), where

    T_cj(x) = (E_cj + ρ(x)·q_j/(1 − q_c)) / Z_c(x)   for j ≠ c,     T_cc(x) = 1 / Z_c(x),
    E_cj    = exp(a + u_cj)/(C − 1)                   how often c is called j, wherever it lies,
    ρ(x)    = exp(s − b·margin(x))                    how much more often where the models waver,

margin = log q of the likeliest class minus log q of the next, and Z_c makes the row sum to one.
Uniform mistakes are u = 0, ρ = 0; one class called another is one large u; hard rows given the
label they resemble are a large s. Everything has a normal prior (u shrinks towards 0: classes of
few rows are taken to be like the others), and the likeliest values are found by L-BFGS. Then, by
Bayes, P(true c | x, given j) ∝ q_c·T_cj. All arrays are (n, C).

Mistakes that mimic q exactly, so that Σ_c q_c·T_cj = q_j, cannot be seen at all by anything that
looks at x and the label; the prior then keeps ρ small, and `spread` says how many there may be.

Whether models can tell the classes apart at all: if not, they know nothing about the labels.

q(c | x): what a row truly is, from several views of it that do not know its given label.

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
from scipy.special import log_softmax, softmax
from scipy.stats import rankdata
from threadpoolctl import threadpool_limits

_RATE, _RATE_SD = -3.0, 2.0
"""Prior of a: about one in twenty, give or take."""
_WAVER, _WAVER_SD = -3.5, 1.0
"""Prior of s, at its widest: see `fit_noise`."""
_SLOPE, _SLOPE_SD = 1.0, 0.5
"""Prior of b."""
_PAIR_SD = 1.0
"""Prior of u."""
_MOST_PAIRS = 30
"""With more classes than this, u stays 0: there are more pairs than rows that show them."""
_MOST_MARGIN = 12.0
_STARTS = (-4.0, 0.0)
"""Values of s the search starts from: there may be two optima."""


@dataclass(frozen=True)
class NoiseModel:
    """The fitted kind of mistakes."""

    rate: float
    """a."""
    waver: float
    """s; −inf if mistakes do not depend on the row."""
    slope: float
    """b."""
    pairs: np.ndarray
    """u, (C, C)."""
    log_likelihood: float
    """Of the labels it was fitted to."""

    @property
    def errors(self) -> np.ndarray:
        """E, (C, C), with zeros on the diagonal."""
        E = np.exp(self.rate + self.pairs) / max(len(self.pairs) - 1, 1)
        np.fill_diagonal(E, 0.0)
        return E

    def posterior(self, log_q: np.ndarray, given: np.ndarray) -> np.ndarray:
        """P(true c | x, given), (n, C)."""
        p, _, _ = _mixture(log_q, given, self.errors, _wavering(log_q, self.waver, self.slope))
        return p / p.sum(axis=1, keepdims=True)

    def log_chance(self, log_q: np.ndarray, true: np.ndarray, given: np.ndarray) -> np.ndarray:
        """log P(given | true, x), (n,)."""
        rho = _wavering(log_q, self.waver, self.slope)
        _, top, Z = _mixture(log_q, given, self.errors, rho)
        rows = np.arange(len(given))
        return np.log(np.maximum(top[rows, true] / Z[rows, true], 1e-300))

    def wrong(self, log_q: np.ndarray, given: np.ndarray) -> np.ndarray:
        """P(the given label is wrong), (n,)."""
        p, _, _ = _mixture(log_q, given, self.errors, _wavering(log_q, self.waver, self.slope))
        rows = np.arange(len(p))
        right = p[rows, given]
        p[rows, given] = 0.0
        others = p.sum(axis=1)
        return others / (others + right)


def fit_noise(
    log_q: np.ndarray,
    given: np.ndarray,
    *,
    wavers: bool = True,
    weights: np.ndarray | None = None,
    start: NoiseModel | None = None,
    known: np.ndarray | None = None,
    fixed: tuple[float, float] | None = None,
    curated: int | None = None,
) -> NoiseModel:
    """Fit it. `known` are true labels where they are known, −1 elsewhere; `fixed` sets (s, b).

    `curated` is how many rows q was learnt from. That labels are less certain than q says, where
    models waver, may be due to mistakes or to q: however many labels there are, they tell no more
    about it than that number of rows do, m·n/(m + n). So the fewer those are among all, the
    narrower the prior of s: 2·√(m/(m + n)), and never wider than WAVER_SD.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.integers(0, 2, 4000)
    >>> given = np.where((truth == 1) & (rng.random(4000) < 0.3), 0, truth)
    >>> log_q = np.log(np.where(np.eye(2)[truth] > 0, 0.98, 0.02))
    >>> noise = fit_noise(log_q, given)
    >>> E = noise.errors
    >>> bool(E[1, 0] / (1 + E[1, 0]) > 0.2), bool(E[0, 1] < 0.05)
    (True, True)
    """
    C = log_q.shape[1]
    problem = _Likelihood(log_q, given, weights, known, wavers, fixed)
    if curated is not None:
        total = len(given) if weights is None else float(weights.sum())
        spread = min(2.0 * np.sqrt(curated / (curated + total)), _WAVER_SD)
        problem.precision[1] = spread**-2
    best, base = None, problem.base
    if start is not None:
        first = [np.concatenate([[start.rate, start.waver, start.slope], start.pairs.ravel()])]
    else:
        first = []
        for s in _STARTS if wavers and fixed is None else _STARTS[:1]:
            v = np.zeros(3 + C * C)
            v[:3] = _RATE, s, _SLOPE
            first.append(v)
    with threadpool_limits(1, user_api="blas"):
        for v in first:
            if fixed is not None:
                v[1:3] = fixed
            found = minimize(
                problem.objective, v[problem.free], jac=True, method="L-BFGS-B",
                options={"maxiter": 200},
            )  # fmt: skip
            if best is None or found.fun < best.fun:
                best, base = found, v
    assert best is not None
    v = base.copy()
    v[problem.free] = best.x
    slope = max(float(v[2]), 0.0)
    waver = float(v[1]) if wavers else -np.inf
    value = problem.log_likelihood(v)
    return NoiseModel(float(v[0]), waver, slope, v[3:].reshape(C, C), value)


def fit_together(
    views: list[np.ndarray], given: np.ndarray, penalty: float
) -> tuple[np.ndarray, NoiseModel]:
    """The views' weights and the noise at once, from labels none of which is known to be right.

    What tells them apart: where q is near one, only a wrong label can differ. Where classes
    overlap nothing does, so mistakes are taken not to depend on the row (ρ = 0), and q to have no
    biases of its own.
    """
    V = np.stack(views, axis=-1)
    n, C, K = V.shape
    spread = np.sqrt(np.mean((V - V.mean(1, keepdims=True)) ** 2, axis=(0, 1)))
    V = V / np.where(spread > 0, spread, 1.0)
    problem = _Likelihood(np.zeros((n, C)), given, None, None, wavers=False, fixed=None)

    def objective(v: np.ndarray) -> tuple[float, np.ndarray]:
        w = v[:K]
        problem.q = softmax(V @ w, axis=1)
        value, slope = problem.objective(v[K:])
        back = np.einsum("nc,nck->k", problem.q - problem.responsibilities, V) + penalty * w
        return value + 0.5 * penalty * float(w @ w), np.concatenate([back, slope])

    start = np.concatenate([np.full(K, 1.0 / K), problem.base[problem.free]])
    with threadpool_limits(1, user_api="blas"):
        found = minimize(objective, start, jac=True, method="L-BFGS-B", options={"maxiter": 300}).x
    v = problem.base.copy()
    v[problem.free] = found[K:]
    noise = NoiseModel(float(v[0]), -np.inf, _SLOPE, v[3:].reshape(C, C), problem.log_likelihood(v))
    return found[:K] / np.where(spread > 0, spread, 1.0), noise


def _wavering(log_q: np.ndarray, waver: float, slope: float) -> np.ndarray:
    """ρ(x)."""
    if not np.isfinite(waver):
        return np.zeros(len(log_q))
    return np.exp(waver - slope * margins(log_q))


def margins(log_q: np.ndarray) -> np.ndarray:
    """log q of the likeliest class minus that of the next."""
    two = np.partition(log_q, -2, axis=1)[:, -2:]
    return np.minimum(two[:, 1] - two[:, 0], _MOST_MARGIN)


def _mixture(
    log_q: np.ndarray, given: np.ndarray, errors: np.ndarray, rho: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q_c·T_c,given, the numerators of T and Z, each (n, C)."""
    q, rows = np.exp(log_q), np.arange(len(log_q))
    likeness = q[rows, given][:, None] / np.maximum(1.0 - q, 1e-12)
    top = errors[:, given].T + rho[:, None] * np.minimum(likeness, 1.0)
    top[rows, given] = 1.0
    Z = 1.0 + errors.sum(1)[None, :] + rho[:, None]
    return np.maximum(q * top / Z, 1e-300), top, Z


class _Likelihood:
    """−log-likelihood of the labels − log prior, and its slope, in the free parameters."""

    def __init__(
        self,
        log_q: np.ndarray,
        given: np.ndarray,
        weights: np.ndarray | None,
        known: np.ndarray | None,
        wavers: bool,
        fixed: tuple[float, float] | None,
    ) -> None:
        n, C = log_q.shape
        self.log_q, self.given, self.C = log_q, given, C
        self.q = np.exp(log_q)
        if known is not None:  # of these rows the true class is no guess
            sure = known >= 0
            self.q[sure] = 0.0
            self.q[np.flatnonzero(sure), known[sure]] = 1.0
        plain = np.exp(log_q)
        rows = np.arange(n)
        likeness = plain[rows, given][:, None] / np.maximum(1.0 - plain, 1e-12)
        self.likeness = np.minimum(likeness, 1.0)
        self.margin = margins(log_q)
        self.rows = rows
        self.weights = np.ones(n) if weights is None else weights
        self.one_hot = np.zeros((n, C))
        self.one_hot[rows, given] = 1.0
        self.wavers = wavers
        self.responsibilities = self.q
        """P(true c | x, given) at the values last looked at."""
        free = np.ones(3 + C * C, dtype=bool)
        free[1:3] = wavers and fixed is None
        if C > _MOST_PAIRS:
            free[3:] = False
        else:
            free[3 + np.arange(C) * (C + 1)] = False
        self.free = np.flatnonzero(free)
        self.base = np.zeros(3 + C * C)
        self.base[:3] = _RATE, _WAVER, _SLOPE
        if fixed is not None:
            self.base[1:3] = fixed
        self.center = np.concatenate([[_RATE, _WAVER, _SLOPE], np.zeros(C * C)])
        self.precision = np.concatenate(
            [[_RATE_SD**-2, _WAVER_SD**-2, _SLOPE_SD**-2], np.full(C * C, _PAIR_SD**-2)]
        )

    def _parts(self, v: np.ndarray) -> tuple[np.ndarray, ...]:
        E = np.exp(np.minimum(v[0] + v[3:].reshape(self.C, self.C), 30.0)) / max(self.C - 1, 1)
        np.fill_diagonal(E, 0.0)
        slope = max(v[2], 0.0)
        rho = np.zeros(len(self.q))
        if self.wavers:
            rho = np.exp(np.minimum(v[1] - slope * self.margin, 30.0))
        top = E[:, self.given].T + rho[:, None] * self.likeness
        top[self.rows, self.given] = 1.0
        Z = 1.0 + E.sum(1)[None, :] + rho[:, None]
        p = np.maximum(self.q * top / Z, 1e-300)
        return E, rho, top, Z, p

    def log_likelihood(self, v: np.ndarray) -> float:
        return float(self.weights @ np.log(self._parts(v)[4].sum(1)))

    def objective(self, free: np.ndarray) -> tuple[float, np.ndarray]:
        v = self.base.copy()
        v[self.free] = free
        E, rho, top, Z, p = self._parts(v)
        total = p.sum(1)
        r = p * (self.weights / total)[:, None]
        self.responsibilities = r
        by_top, by_Z = r / top, r / Z
        by_top[self.rows, self.given] = 0.0
        # d/dlog E_cj: of the rows labelled j, and of all rows through Z_c
        dE = E * (by_top.T @ self.one_hot - by_Z.sum(0)[:, None])
        d_rho = rho * ((by_top * self.likeness).sum(1) - by_Z.sum(1))
        slope = np.empty(len(v))
        slope[0], slope[1] = dE.sum(), d_rho.sum()
        slope[2] = -(d_rho @ self.margin) if v[2] > 0 else 0.0
        slope[3:] = dE.ravel()
        off = v - self.center
        value = -self.weights @ np.log(total) + 0.5 * self.precision @ off**2
        return float(value), (-slope + self.precision * off)[self.free]


_SURE = 3.0
"""Standard deviations above chance."""
_MOST_CLASSES = 20


def tells_apart(log_proba: np.ndarray, codes: np.ndarray) -> bool:
    """Whether rows of some class get a higher probability of it than others do, beyond chance.

    By ranks (Mann and Whitney's U), so that a model may be as overconfident as it likes.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> codes = rng.integers(0, 2, 500)
    >>> chance = np.log(rng.dirichlet([1, 1], 500))
    >>> tells_apart(chance, codes), tells_apart(chance + np.eye(2)[codes], codes)
    (False, True)
    """
    n = len(codes)
    sizes = np.bincount(codes, minlength=log_proba.shape[1])
    best = 0.0
    for c in np.argsort(-sizes)[:_MOST_CLASSES]:
        k = int(sizes[c])
        if not 0 < k < n:
            continue
        ranks = rankdata(np.round(log_proba[:, c], 9))
        U = ranks[codes == c].sum() - k * (k + 1) / 2
        spread = np.sqrt(k * (n - k) * (n + 1) / 12)
        best = max(best, (U - k * (n - k) / 2) / spread)
    return bool(best > _SURE)


STRENGTHS = (0.1, 1.0, 10.0)
"""Penalties on the squared weights (of scaled views), tried by cross-validation."""
_BIAS_STRENGTH = 3.0
_FOLDS = 5
_WORTH = 1.0
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
    fold = np.random.default_rng(seed).permutation(len(codes)) % min(_FOLDS, len(codes))
    # For a dozen weights L-BFGS only waits for threads.
    with threadpool_limits(1, user_api="blas"):
        kept = list(range(len(views)))
        penalty, loss = _best(views, kept, codes, fold)
        while len(kept) > 1:  # drop the view that is missed least, if rows are likelier without it
            rest = [[k for k in kept if k != out] for out in kept]
            tried = [_best(views, some, codes, fold, (penalty,)) for some in rest]
            least = int(np.argmin([found for _, found in tried]))
            if tried[least][1] > loss - _WORTH:
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
        value += 0.5 * penalty * w @ w + 0.5 * _BIAS_STRENGTH * b @ b
        back = np.einsum("mc,mck->k", slope, G) + penalty * w
        return float(value), np.concatenate([back, slope.sum(0) + _BIAS_STRENGTH * b])

    # No view speaks against what it says: of views that resemble each other one would otherwise be
    # set off against the next, and q come out far too sure.
    bounds = [(0.0, None)] * K + [(None, None)] * C
    start = np.concatenate([np.full(K, 0.5 / K), np.zeros(C)])
    v = minimize(objective, start, jac=True, method="L-BFGS-B", bounds=bounds).x
    return v[:K] / spread, v[K:]
