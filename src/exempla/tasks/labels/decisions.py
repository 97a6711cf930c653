"""Probabilities, order and count after some labels have been checked by a person.

Decisions refit the probabilities of all labels that are not decided yet (`learn`). A stated
probability p_i may be wrong in several ways (too low throughout, too steep, blind to one pair of
classes), so each way has its own coefficient, with a prior that says "as stated":

    z_i = logit p_i
    logit P(i is wrong) = a + b·z_i + Σ_m f_m·k_m(i) + c·e_i + u[given] + v[given, suggested]

    a ~ N(0, 3²)   b ~ N(1, ¼²)   f ~ N(0, 1½²)   c ~ N(0, ½²)   u ~ N(0, τ_u²)   v ~ N(0, τ_v²)

f bends the curve locally (k are bumps along the rank): if the most certain rows turn out right,
that says little about the uncertain ones, and must not reverse the order. e_i is further evidence,
standardised. τ_u and τ_v, how much classes and pairs differ, maximise the evidence of the decisions
(Laplace's approximation), so with few decisions or similar classes the offsets stay near 0. As
decisions accumulate, the level of the fitted log-odds is left to an isotonic fit, which preserves
the order and gains weight with the number of decisions.

`after_checks` is the small door for a page or a notebook: give it the stated probabilities and the
decisions on a *random* sample of the labels, and show the interval before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.optimize import isotonic_regression
from scipy.special import expit, logit
from scipy.stats import betabinom

__all__ = ["CheckedLabels", "Learned", "Stated", "after_checks", "learn"]

_INTERCEPT_SD, _SLOPE_SD, _BUMP_SD, _EVIDENCE_SD = 3.0, 0.25, 1.5, 0.5
_BUMPS = 8
_OFFSET_SDS = (0.1, 0.7, 2.0)
"""Choices for τ_u and τ_v."""
_ISOTONIC_FROM, _ISOTONIC_HALF = 30, 100
"""Decisions from which on the isotonic fit counts, and those at which it counts one half."""
_EDGE = 1e-7


@dataclass(frozen=True)
class Stated:
    """What an analysis said about n rows: probabilities, labels, and further evidence (n × e).

    >>> import numpy as np
    >>> Stated(np.array([0.2, 0.9]), ["ham", "ham"], ["spam", "spam"]).evidence.shape
    (2, 0)
    """

    probabilities: np.ndarray
    given: Sequence[str]
    suggested: Sequence[str]
    evidence: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    _codes: tuple[np.ndarray, np.ndarray] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        p = np.asarray(self.probabilities, dtype=float)
        object.__setattr__(self, "probabilities", p)
        evidence = np.asarray(self.evidence, dtype=float)
        columns = evidence.size // p.size if p.size else 0
        object.__setattr__(self, "evidence", evidence.reshape(p.size, columns))
        given = [str(name) for name in self.given]
        both = [f"{g}\0{s}" for g, s in zip(given, self.suggested, strict=True)]
        object.__setattr__(self, "_codes", (_coded(given), _coded(both)))


@dataclass(frozen=True)
class Learned:
    """Probabilities after the decisions, and how they came about."""

    probabilities: np.ndarray
    """Of every row, the decided ones included."""
    intercept: float
    slope: float
    decisions: int


def learn(stated: Stated, decided: np.ndarray, wrong: np.ndarray) -> Learned:
    """Re-fit every probability to what was decided.

    `decided` are positions in `stated`, `wrong[j]` whether row `decided[j]` was found wrong.

    >>> import numpy as np
    >>> stated = Stated(np.full(300, 0.1), ["ham"] * 300, ["spam"] * 300)
    >>> learn(stated, np.array([], int), np.array([])).probabilities[0].round(3)
    np.float64(0.1)
    >>> after = learn(stated, np.arange(60), np.ones(60))  # all of them were wrong
    >>> bool(after.probabilities[200] > 0.9)
    True
    """
    decided = np.asarray(decided, dtype=int)
    y = np.asarray(wrong, dtype=float)
    features = _Features.of(stated, decided)
    best: _Fit | None = None
    rows, start = features.rows(decided), None
    for tau in _offset_choices(features):
        fit = _fit(rows, y, features.prior(*tau), start)
        start = fit.weights  # the next one's is not far
        best = fit if best is None or fit.evidence > best.evidence else best
    if best is None:
        raise AssertionError("there is always one choice")
    odds = features.all @ best.weights
    p = expit(odds)
    if decided.size >= _ISOTONIC_FROM:
        share = decided.size / (decided.size + _ISOTONIC_HALF)
        p = (1 - share) * p + share * _isotonic(odds[decided], y, p[decided], odds)
    return Learned(p, float(best.weights[0]), float(best.weights[1]), decided.size)


@dataclass(frozen=True)
class CheckedLabels:
    """What is known after a random sample of the labels has been checked."""

    probabilities: np.ndarray
    """P(wrong) of every label; 0 or 1 of the checked ones."""
    order: np.ndarray
    """Labels that were not checked, most suspicious first."""
    expected_errors: float
    interval: tuple[float, float]
    """90 % interval of the number of wrong labels, the checked ones included."""


def after_checks(stated: Stated, checked: np.ndarray, wrong: np.ndarray) -> CheckedLabels:
    """Update probabilities, order and count from checks of a random sample.

    Parameters
    ----------
    stated : Stated
        Probabilities, given and suggested labels of all labels.
    checked : int array
        Positions of the checked labels. They must be drawn at random, uniformly or evenly over
        strata: the interval rests on that, not on the stated probabilities.
    wrong : bool array
        Whether each checked label was wrong.

    Examples
    --------
    >>> stated = Stated(np.full(1000, 0.1), ["ham"] * 1000, ["spam"] * 1000)
    >>> few = after_checks(stated, np.arange(20), np.arange(20) % 4 == 0)
    >>> more = after_checks(stated, np.arange(50), np.arange(50) % 4 == 0)
    >>> bool(np.ptp(more.interval) < np.ptp(few.interval))
    True
    """
    checked, wrong = np.asarray(checked, dtype=int), np.asarray(wrong, dtype=bool)
    n, m, k = len(stated.probabilities), len(checked), int(wrong.sum())
    p = learn(stated, checked, wrong).probabilities.copy()
    p[checked] = wrong
    rest = np.setdiff1d(np.arange(n), checked)
    expected, (low, high) = count_by_sample(n - m, m, k)
    order = rest[np.argsort(-p[rest], kind="stable")]
    return CheckedLabels(p, order, k + expected, (k + low, k + high))


def count_by_sample(n: int, m: int, wrong: int) -> tuple[float, tuple[float, float]]:
    """Return the expected number of wrong ones among n labels and its 90 % interval.

    `wrong` of m others, drawn at random, were wrong.

    >>> count_by_sample(1000, 50, 5)[0].round()
    np.float64(108.0)
    """
    count = betabinom(n, wrong + 0.5, m - wrong + 0.5)
    return count.mean(), (float(count.ppf(0.05)), float(count.ppf(0.95)))


@dataclass(frozen=True)
class _Features:
    """The design matrix of all rows: 1, logit p, bumps, evidence, classes, pairs."""

    all: np.ndarray
    evidence: int
    classes: int
    pairs: int

    @classmethod
    def of(cls, stated: Stated, decided: np.ndarray) -> _Features:
        p = stated.probabilities
        spread = stated.evidence.std(axis=0)
        scale = np.where(spread > 1e-9, spread, 1.0)
        evidence = stated.evidence
        if p.size:
            evidence = (evidence - evidence.mean(axis=0)) / scale
        # Only what was decided about can be told from its prior, which is 0.
        classes, pairs = (_indicators(codes, decided) for codes in stated._codes)
        z = logit(np.clip(p, _EDGE, 1 - _EDGE))
        columns = [np.ones((p.size, 1)), z[:, None], _bumps(p), evidence, classes, pairs]
        return cls(np.hstack(columns), evidence.shape[1], classes.shape[1], pairs.shape[1])

    def rows(self, decided: np.ndarray) -> np.ndarray:
        return self.all[decided]

    def prior(self, class_sd: float, pair_sd: float) -> tuple[np.ndarray, np.ndarray]:
        """Mean and precision of each coefficient."""
        sds = np.concatenate([
            [_INTERCEPT_SD, _SLOPE_SD],
            np.full(_BUMPS, _BUMP_SD),
            np.full(self.evidence, _EVIDENCE_SD),
            np.full(self.classes, class_sd),
            np.full(self.pairs, pair_sd),
        ])  # fmt: skip
        mean = np.zeros(sds.size)
        mean[1] = 1.0
        return mean, sds**-2


@dataclass(frozen=True)
class _Fit:
    weights: np.ndarray
    evidence: float


def _offset_choices(features: _Features) -> list[tuple[float, float]]:
    """(τ_u, τ_v) to try; with one class or pair an offset is only another intercept."""
    classes = _OFFSET_SDS if features.classes > 1 else _OFFSET_SDS[:1]
    pairs = _OFFSET_SDS if features.pairs > features.classes else _OFFSET_SDS[:1]
    return [(u, v) for u in classes for v in pairs]


def _bumps(p: np.ndarray) -> np.ndarray:
    """Bell curves along the rank of p (its log-odds of being reached), as wide as they are apart.

    Along the rank and not along p: where all is stated to be as good as certain, the order still
    says something.
    """
    if not p.size:
        return np.zeros((0, _BUMPS))
    rank = np.searchsorted(np.sort(p), p, side="left") + np.searchsorted(np.sort(p), p, "right")
    q = (rank / 2 + 0.5) / (p.size + 1)
    axis = np.log(q) - np.log1p(-q)
    places = np.linspace(-1.0, np.log(p.size + 1.0), _BUMPS)
    width = places[1] - places[0]
    return np.exp(-0.5 * ((axis[:, None] - places) / width) ** 2)


def _coded(names: Sequence[str]) -> np.ndarray:
    return np.unique(np.array(names, dtype=str), return_inverse=True)[1]


def _indicators(codes: np.ndarray, decided: np.ndarray) -> np.ndarray:
    """A column for each name that was decided about."""
    return (codes[:, None] == np.unique(codes[decided])).astype(float)


def _fit(
    X: np.ndarray,
    y: np.ndarray,
    prior: tuple[np.ndarray, np.ndarray],
    start: np.ndarray | None = None,
) -> _Fit:
    """The posterior mode by Newton's method, and the Laplace approximation of log P(y)."""
    mean, precision = prior
    weights = mean if start is None else start
    value = _objective(X, y, weights, prior)
    curve = np.diag(precision)
    for _ in range(50):
        p = expit(X @ weights)
        slope = X.T @ (y - p) - precision * (weights - mean)
        curve = (X.T * (p * (1 - p))) @ X + np.diag(precision)
        step = np.linalg.solve(curve, slope)
        while (after := _objective(X, y, weights + step, prior)) < value - 1e-12:
            step = step / 2
        weights, value = weights + step, after
        if np.abs(step).max(initial=0.0) < 1e-6:
            break
    log_det = np.linalg.slogdet(curve)[1]
    return _Fit(weights, float(value + 0.5 * (np.log(precision).sum() - log_det)))


def _objective(
    X: np.ndarray, y: np.ndarray, weights: np.ndarray, prior: tuple[np.ndarray, np.ndarray]
) -> float:
    mean, precision = prior
    odds = X @ weights
    fit = y @ odds - np.logaddexp(0.0, odds).sum()
    return float(fit - 0.5 * precision @ (weights - mean) ** 2)


def _isotonic(odds: np.ndarray, y: np.ndarray, fitted: np.ndarray, at: np.ndarray) -> np.ndarray:
    """A rising step function through the decisions, interpolated between the blocks.

    Each decision counts with one tenth of what the logistic fit says, so that no block of a few
    says 0 or 1. Blocks meet in the middle of their ranges, so no two rows are tied that the fit
    distinguishes.
    """
    order = np.argsort(odds, kind="stable")
    steps = isotonic_regression((y[order] + 0.1 * fitted[order]) / 1.1)
    starts = steps.blocks[:-1]
    middle = np.add.reduceat(odds[order], starts) / np.diff(steps.blocks)
    return np.interp(at, middle, steps.x[starts])
