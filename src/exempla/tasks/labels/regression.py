"""Which numbers of a regression are wrong.

Each number is compared with what models of the other folds predict for its row. Wrong numbers
spoil such models, so the suspects are left out and the models are trained again, twice. The spread
s(x) of right numbers may change from row to row. Of three guesses the one with the smallest loss
log s + |r|/s is taken: one spread for all, the median |r| of the rows predicted next to this one,
and what the caller's own model learns from log |r| by cross-fitting.

A right number y has a residual z = (y − μ)/s of a two-piece Student distribution, whose scales to
both sides and tail ν are fitted: heavy-tailed noise is right. A wrong number is one of these KINDS:

    ×10, ÷10, ×100, ÷100, ×1000, ÷1000, sign    T(y) is a right number, where T undoes the slip
    digits exchanged                             it is one with two neighbouring digits put back
    another row's value                          it has the distribution of all numbers, whatever x
    out of range                                 it lies anywhere, far away more often than not

The shares of the kinds and the distribution of right numbers are fitted together by
expectation-maximisation. The prior of each share holds every order of magnitude equally likely
(density 1/share): a kind without a whole case fades, so what noise explains as well is not called
wrong. Curated rows are right numbers, and count for the right component alone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import median_filter
from scipy.optimize import minimize
from scipy.special import gammaln, logsumexp
from sklearn.base import is_classifier
from threadpoolctl import threadpool_limits

from exempla.data import listing
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.tasks.labels.crossfit import cross_validated_numbers
from exempla.tasks.labels.problem import LabelledRows, LabelRequest, read_rows
from exempla.tasks.labels.result import LabelFixes
from exempla.tasks.labels.wrong import Z90
from exempla.tasks.retrain import Fit, check_fit

KINDS = ("×10", "÷10", "×100", "÷100", "×1000", "÷1000", "sign", "digits exchanged",
         "another row's value", "out of range")  # fmt: skip
_FACTORS = (0.1, 10.0, 0.01, 100.0, 0.001, 1000.0, -1.0)
"""What undoes the slip of the first kinds."""
PAIRS = 4
"""Neighbouring digits, from the first on, that may stand in each other's place."""
_FIT_ROWS = 5_000
"""Rows the distribution of right numbers is fitted to; a random part of larger sets."""
_MAX_STEPS = 40
_STARTS = (1e-4, 0.01, 0.1)
"""Shares of wrong numbers from which the fit starts; the most likely result is taken."""
_MOST_WRONG = 0.4
_FADED = 0.1
"""Cases of a kind that is taken not to occur: it may come back."""
_TAILS = (1.5, 60.0)
"""ν of the Student distribution: from almost Cauchy to almost normal."""
_TOLD_APART, _UNDONE = 2.5, 1.5
"""What lies fewer spreads than this from the expected number, or a slip from the number undone,
cannot be told from noise and does not count as wrong."""


class Case(NamedTuple):
    """What the mixture is of."""

    y: np.ndarray
    expected: np.ndarray
    spread: np.ndarray
    curated: np.ndarray
    """(n,) rows known to be right."""


def _log_density(z: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Return log f(z) of a two-piece Student distribution.

    `right` holds the logs of its scales to the left and to the right, log ν, and its peak.
    """
    (below, above, nu), center = np.exp(right[:3]), right[3]
    off = (z - center) / np.where(z < center, below, above)
    peak = gammaln((nu + 1) / 2) - gammaln(nu / 2) - 0.5 * np.log(nu * np.pi)
    return peak + np.log(2.0 / (below + above)) - (nu + 1) / 2 * np.log1p(off**2 / nu)


class _Assessed(NamedTuple):
    """What is estimated of every number."""

    probabilities: np.ndarray
    kinds: np.ndarray
    """(n,) position in KINDS of the likeliest mistake."""
    expected_errors: float
    interval: tuple[float, float]
    """90 % interval of that number; what noise hides is not counted."""
    tail: float
    """ν of right residuals."""


def assess(case: Case, seed: int) -> _Assessed:
    """Return P(wrong) of every number, the likeliest kind of mistake and the count."""
    n, rows = int((~case.curated).sum()), np.arange(len(case.y))
    if len(rows) > _FIT_ROWS:
        rows = np.sort(np.random.default_rng(seed).choice(rows, _FIT_ROWS, replace=False))
    some = _Densities(Case(*(values[rows] for values in case)))
    with threadpool_limits(1, user_api="blas"):  # short vectors only wait for threads
        fitted = max((_maximised(some, share) for share in _STARTS), key=lambda one: one[2])
    right, shares, _ = fitted
    wrong, ways, _ = _responsible(*_Densities(case).given(right), shares)
    wrong = np.where(case.curated, 0.0, np.minimum(wrong, n / (n + 3.0)))
    expected = float(wrong.sum())
    # the count varies around its mean, and the shares are known from as many cases only
    off = Z90 * float(np.sqrt(expected + np.sum(wrong * (1.0 - wrong))))
    interval = max(expected - off, 0.0), min(expected + off, float(n))
    return _Assessed(wrong, np.argmax(ways, axis=1), expected, interval, float(np.exp(right[2])))


def repaired(case: Case, kinds: np.ndarray) -> np.ndarray:
    """Return what each number should be: the slip undone, or the expected number."""
    rows, exchanges = np.arange(len(kinds)), _exchanges(case.y)
    off = np.where(np.isnan(exchanges), np.inf, np.abs(exchanges - case.expected[:, None]))
    undone = np.column_stack([case.y[:, None] * _FACTORS, exchanges[rows, np.argmin(off, axis=1)]])
    slip = undone[rows, np.minimum(kinds, len(_FACTORS))]
    return np.where((kinds > len(_FACTORS)) | np.isnan(slip), case.expected, slip)


def exchanged(value: float) -> list[float]:
    """Return the numbers that two neighbouring digits in each other's place make of it."""
    text = f"{value:.6g}" if value % 1 else f"{value:.0f}"
    digits = [i for i, sign in enumerate(text) if sign.isdigit()] if "e" not in text else []
    out = []
    for i, j in pairwise(digits[: PAIRS + 1]):
        if text[i] != text[j]:
            swapped = list(text)
            swapped[i], swapped[j] = text[j], text[i]
            out.append(float("".join(swapped)))
    return out


def _exchanges(y: np.ndarray) -> np.ndarray:
    """(n, PAIRS): those numbers, and NaN where there are fewer."""
    return np.array([[*exchanged(value), *[np.nan] * PAIRS][:PAIRS] for value in y.tolist()])


class _Densities:
    """Log-densities of numbers that are right, or wrong in each way."""

    def __init__(self, case: Case) -> None:
        self.case = case
        exchanges = _exchanges(case.y)
        undone = np.hstack([case.y[:, None] * _FACTORS, exchanges])
        told = np.abs(undone - case.y[:, None]) > _UNDONE * case.spread[:, None]
        self.undone = np.where(told, undone, np.nan)
        """(n, J) numbers with a slip undone; NaN where there is none."""
        count = np.maximum((~np.isnan(exchanges)).sum(axis=1), 1)[:, None]
        jacobian = np.tile(np.log(np.abs(_FACTORS)), (len(case.y), 1))
        self.added = np.hstack([jacobian, np.tile(-np.log(count), (1, PAIRS))])
        """(n, J) log |dT/dy|, or the share of one exchange among several."""
        near = np.abs(case.y - case.expected) <= _TOLD_APART * case.spread
        self.other = np.where(near[:, None], -np.inf, _whatever_is_expected(case))

    def given(self, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return those of right numbers, (n,), and of numbers wrong in each way, (n, K)."""
        case, unit = self.case, np.log(self.case.spread)
        clean = _log_density((case.y - case.expected) / case.spread, right) - unit
        off = (self.undone - case.expected[:, None]) / case.spread[:, None]
        slips = _log_density(np.nan_to_num(off), right) - unit[:, None] + self.added
        slips[np.isnan(off)] = -np.inf
        exchanges = logsumexp(slips[:, len(_FACTORS) :], axis=1, keepdims=True)
        return clean, np.hstack([slips[:, : len(_FACTORS)], exchanges, self.other])


def _whatever_is_expected(case: Case) -> np.ndarray:
    """(n, 2): log-densities of another row's value, and of a number out of range."""
    y = case.y
    range_ = float(np.subtract(*np.quantile(y, [0.95, 0.05]))) or float(np.std(y)) or 1.0
    near = np.quantile(y, np.linspace(0.01, 0.99, 99))  # of all numbers, less the farthest
    width = max(0.5 * float(np.median(case.spread)), range_ / 20.0)
    kernel = -0.5 * ((y[:, None] - near) / width) ** 2
    swapped = logsumexp(kernel, axis=1) - np.log(99.0 * width * np.sqrt(2 * np.pi))
    off = (y - float(np.median(y))) / (5.0 * range_)
    return np.column_stack([swapped, -np.log1p(off**2) - np.log(np.pi * 5.0 * range_)])


def _responsible(
    clean: np.ndarray, wrong: np.ndarray, shares: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return P(wrong), P(wrong in this way) and the log-density of each number."""
    parts = wrong + np.log(shares)
    ways = logsumexp(parts, axis=1)
    total = np.logaddexp(ways, clean + np.log1p(-shares.sum()))
    return np.exp(ways - total), np.exp(parts - total[:, None]), total


def _maximised(densities: _Densities, start: float) -> tuple[np.ndarray, np.ndarray, float]:
    """Return the most likely mixture by expectation-maximisation from a share of wrong numbers:
    right numbers, the shares of the kinds among all numbers, and the log-posterior."""
    case = densities.case
    n = int((~case.curated).sum())
    right, shares = np.array([0, 0, np.log(5), 0]), np.full(len(KINDS), start / len(KINDS))
    posterior = -np.inf
    for _ in range(_MAX_STEPS):
        clean, wrong = densities.given(right)
        chance, ways, total = _responsible(clean, wrong, shares)
        total = np.where(case.curated, clean, total)
        # under the prior 1/share: a kind without a whole case fades
        before, posterior = posterior, float(total.sum() - np.log(np.maximum(n * shares, 1)).sum())
        if posterior - before < 1e-3:
            break
        right = _fit_right(case, np.where(case.curated, 1.0, 1.0 - chance), right)
        shares = np.maximum(ways[~case.curated].sum(axis=0) - 1.0, _FADED) / n
        shares *= min(1.0, _MOST_WRONG / shares.sum())
    return right, shares, posterior


def _fit_right(case: Case, weights: np.ndarray, start: np.ndarray) -> np.ndarray:
    """Return the parameters of `_log_density` after a few steps towards the most likely ones."""
    z = (case.y - case.expected) / case.spread
    keep = weights > 1e-3
    z, w = z[keep], weights[keep]
    bounds = [(-3.0, 3.0), (-3.0, 3.0), tuple(np.log(_TAILS)), (-1.0, 1.0)]
    return minimize(
        lambda p: -float(w @ _log_density(z, p)) / len(z), start, method="L-BFGS-B",
        bounds=bounds, options={"maxiter": 8},
    ).x  # fmt: skip


_DRAWS = 3
"""Draws of folds that the last round averages."""
_FEWEST_NEAR = 51
"""Rows a local median is taken of, at least; a twentieth of all in larger sets."""
_TO_SIGMA = 1.4826
"""Median |r| of a normal distribution times this is its standard deviation."""


def residuals_of(
    model: Any,
    given: LabelledRows,
    seed: int,
    *,
    fit: Fit | None = None,
    learn_from: np.ndarray | None = None,
    learn_spread: bool = False,
) -> tuple[Case, str]:
    """Return expected numbers with their spreads, and how the spreads were found.

    `learn_spread` lets the model learn the spread as well, which costs as much again.
    """
    options: Any = {"weights": given.weights, "fit": fit, "learn_from": learn_from}
    draws = _DRAWS if learn_spread else 1
    mu = cross_validated_numbers(model, given.X, given.y, seed, draws=draws, **options)
    size = np.abs(given.y - mu)
    trusted = np.ones(len(mu), dtype=bool) if learn_from is None else learn_from
    floor = _floor(size[trusted], given.y)
    guesses = {"one spread for all": np.full(len(mu), np.median(size[trusted]))}
    if trusted.sum() >= 2 * _FEWEST_NEAR:
        guesses["spread by predicted value"] = _near(mu, size, trusted)
    if learn_spread and len(mu) >= 4 * _FEWEST_NEAR:
        logs = np.log(np.maximum(size, floor))
        learnt = cross_validated_numbers(
            model, given.X, logs, seed + 1, what="learning the spread", **options
        )
        learnt = np.exp(np.clip(learnt, logs[trusted].min(), logs[trusted].max()))
        share = np.median(size[trusted] / learnt[trusted])
        guesses["spread learnt by the model"] = share * learnt
    guesses = {rule: np.maximum(_TO_SIGMA * s, floor) for rule, s in guesses.items()}
    best = min(guesses, key=lambda rule: _loss(size[trusted], guesses[rule][trusted]))
    return Case(given.y, mu, guesses[best], given.curated), best


def _loss(size: np.ndarray, spread: np.ndarray) -> float:
    """Laplace's −log-likelihood, with the surest outliers counted as if they were large."""
    scaled = size / spread
    return float(np.mean(np.log(spread) + np.minimum(scaled, 10.0) / np.median(scaled)))


def _floor(size: np.ndarray, y: np.ndarray) -> float:
    """Return the smallest spread that is distinguished from zero, if most numbers are predicted
    exactly."""
    typical = float(np.quantile(size, 0.9))
    middle = np.quantile(y, [0.1, 0.9])
    return max(0.01 * typical, 1e-9 * float(np.max(np.abs(middle))), np.finfo(float).tiny * 1e30)


def _near(mu: np.ndarray, size: np.ndarray, trusted: np.ndarray) -> np.ndarray:
    """Median |r| of the trusted rows predicted nearest."""
    rows = np.flatnonzero(trusted)
    order = rows[np.argsort(mu[rows], kind="stable")]
    width = max(_FEWEST_NEAR, len(order) // 20) | 1
    local = median_filter(size[order], size=width, mode="nearest")
    return local[np.clip(np.searchsorted(mu[order], mu), 0, len(order) - 1)]


_ROUNDS = 2
_TELLING = 0.5
"""Probabilities below this differ by which kinds were found elsewhere more than by the row."""
FEWEST = 20
"""Rows below which no spread can be told."""


def fix_numbers(asked: LabelRequest) -> LabelFixes:
    """Rank training rows by how likely their numbers are wrong; see `exempla.fix_labels`."""
    given = read_rows(asked.train, asked.curated, _as_floats, "numbers")
    if given.n_train < FEWEST:
        raise ExemplaError(
            f"{given.n_train} numbers are too few to tell a wrong one; give {FEWEST}."
        )
    if np.ptp(given.y[: given.n_train]) == 0:
        raise ExemplaError(f"all numbers are {given.y[0]:g}, and nothing can be learnt from that.")
    check_fit(asked.model, asked.fit)
    if asked.fit is None and (is_classifier(asked.model) or not hasattr(asked.model, "predict")):
        raise UnsupportedModelError(
            f"{type(asked.model).__name__} predicts no numbers, which finding wrong ones needs: "
            "use a regressor, such as Ridge."
        )
    n, seed = given.n_train, asked.seed
    k, names = asked.listed(n, "training rows"), asked.names(n, given.ids)
    case, rule = residuals_of(asked.model, given, seed, fit=asked.fit)
    for step in range(1, _ROUNDS + 1):  # by models that did not learn from the last suspects
        keep = assess(case, seed).probabilities <= 0.5
        if keep.sum() < max(FEWEST, len(keep) // 2):
            break
        case, rule = residuals_of(
            asked.model, given, seed + 101 * step, fit=asked.fit, learn_from=keep,
            learn_spread=step == _ROUNDS,
        )  # fmt: skip
    judged = assess(case, seed)
    p = judged.probabilities[:n]
    off = np.abs(case.y - case.expected)[:n]
    # probable mistakes first, then by residual: neither |r| nor |r|/s is reliable alone, for s is a
    # guess, and large numbers have large residuals
    order = np.lexsort((-off / np.sqrt(case.spread[:n]), -np.where(p > _TELLING, p, 0.0)))[:k]
    # wrong numbers that look like noise are not counted, but may be as many as lie in its tails
    far = off > Z90 * case.spread[:n]
    mended = repaired(case, judged.kinds)[:n]
    return LabelFixes(
        probabilities=p[order],
        given=given.y[order],
        suggested=np.where(p > 0.5, mended, given.y[:n])[order],
        expected=case.expected[order],
        spread=case.spread[order],
        kind=np.array(KINDS)[judged.kinds[order]],
        expected_errors=judged.expected_errors,
        interval=(judged.interval[0], max(judged.interval[1], float(np.sum(far)))),
        tail=judged.tail,
        spread_rule=rule,
        method="residuals",
        task="regression",
        **asked.fields(order, names, n, n, len(given.y) - n),
    )


def _as_floats(y: np.ndarray, found: list[str]) -> np.ndarray:
    """Return the numbers, one per row; what is wrong with them is added to `found`."""
    if y.ndim != 1:
        found.append(f"y must hold one number per row, but has shape {y.shape}")
        return np.array([])
    try:
        out = y.astype(np.float64)
    except (TypeError, ValueError):
        found.append("y holds words: wrong classes are found with task='classes'")
        return np.array([])
    if len(bad := np.flatnonzero(~(np.abs(out) < 1e150))):
        found.append(f"numbers are missing or infinite in {listing(bad)}")
    return out
