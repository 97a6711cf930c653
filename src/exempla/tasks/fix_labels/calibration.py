"""From signals to a probability: calibration rows show how much each kind of evidence weighs.

Each calibration row is seen once with its true label (right) and once with another (wrong). A small
logistic regression, the calibrator, tells the two apart; on the training rows it gives log-odds g
of a wrong label at even prior odds. There the share π of wrong labels is not one half but unknown.
It is the fixed point of (expectation-maximisation for a shift of the prior)

    π = mean_i σ(g_i + logit π),      P(label i is wrong) = σ(g_i + logit π),

so Σ_i P(label i is wrong) = π·n is the expected number of wrong labels.

Without curated rows the calibration rows are training rows, a share ρ of them wrong: what is called
wrong is right with probability ρ/(C − 1), and what is called right is wrong with probability ρ.
Then P(called wrong | signals) = (1 − a)·σ(g) + b·σ(−g), a and b following from ρ. The data cannot
tell ρ from natural overlap of the classes (fitted along with the weights it collapses to zero), so
it is read off where there is no overlap: `share_in_doubt`, and taken as π.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit, logit
from threadpoolctl import threadpool_limits

from exempla.tasks.ties import TIE, first_largest, levels

__all__ = ["Calibrator", "fit_calibrator", "share_in_doubt", "share_wrong"]

STRENGTHS = (1.0, 10.0, 100.0)
"""Penalties on the squared weights (of standardised signals), tried by cross-validation."""
FOLDS = 5
STEPS = 1000
SMALLEST_SHARE = 1e-6
NEAR_ONE = 1e-5
"""Where log p is smaller than this, p is so near to one that only its last digits are left."""
MOST_DOUBT = 0.45
"""Beyond this share of wrong labels nothing can be learnt from the given ones."""


@dataclass(frozen=True)
class Calibrator:
    """Log-odds of a wrong label, linear in standardised signals."""

    center: np.ndarray
    scale: np.ndarray
    weights: np.ndarray
    bias: float
    penalty: float

    def log_odds(self, signals: np.ndarray) -> np.ndarray:
        """g at even prior odds, one per version."""
        return (signals - self.center) / self.scale @ self.weights + self.bias


@dataclass(frozen=True)
class CalibrationSet:
    """Versions of calibration rows: signals, whether called wrong, and how much each counts."""

    signals: np.ndarray
    wrong: np.ndarray
    share: np.ndarray
    wrong_called_right: float = 0.0
    """a: how often that happens."""
    right_called_wrong: float = 0.0
    """b: how often that happens."""

    def part(self, rows: np.ndarray) -> CalibrationSet:
        return replace(
            self, signals=self.signals[rows], wrong=self.wrong[rows], share=self.share[rows]
        )

    def loss(self, log_odds: np.ndarray) -> tuple[float, np.ndarray]:
        """−log-likelihood of what the versions are called, and its slope in the log-odds."""
        a, b = self.wrong_called_right, self.right_called_wrong
        if a == b == 0.0:
            value = self.share @ np.logaddexp(0.0, np.where(self.wrong, -log_odds, log_odds))
            return float(value), self.share * (expit(log_odds) - self.wrong)
        p = expit(log_odds)
        called = (1.0 - a) * p + b * (1.0 - p)
        value = -self.share @ np.where(self.wrong, np.log(called), np.log1p(-called))
        slope = self.share * np.where(self.wrong, -1.0 / called, 1.0 / (1.0 - called))
        return float(value), slope * (1.0 - a - b) * p * (1.0 - p)


def fit_calibrator(
    signals: np.ndarray,
    wrong: np.ndarray,
    groups: np.ndarray,
    *,
    seed: int,
    doubt: float = 0.0,
    wrong_labels: int = 1,
) -> Calibrator:
    """Fit it; the penalty is the one under which held-out calibration rows are likeliest.

    `groups` says which row a version belongs to: versions of a row stay together. `doubt` is ρ,
    `wrong_labels` C − 1.
    """
    members, codes = np.unique(groups, return_inverse=True)
    # Both kinds weigh the same in all, however many wrong labels there are.
    share = np.where(wrong, 1.0 / wrong.sum(), 1.0 / (~wrong).sum()) * len(members)
    lucky = doubt / wrong_labels
    known = CalibrationSet(
        signals, wrong, share, doubt / (1 + doubt - lucky), lucky / (1 - doubt + lucky)
    )
    fold = (np.random.default_rng(seed).permutation(len(members)) % FOLDS)[codes]
    # For a dozen weights L-BFGS only waits for threads: on a busy machine a hundred times as long.
    with threadpool_limits(1, user_api="blas"):
        return _fit(known, _best_penalty(known, fold))


def _best_penalty(known: CalibrationSet, fold: np.ndarray) -> float:
    """The one with the smallest loss on held-out folds; of equals the weakest."""
    losses = np.zeros(len(STRENGTHS))
    for f in np.unique(fold):
        held = known.part(fold == f)
        for i, penalty in enumerate(STRENGTHS):
            calibrator = _fit(known.part(fold != f), penalty)
            losses[i] += held.loss(calibrator.log_odds(held.signals))[0]
    return STRENGTHS[int(np.argmax(losses <= losses.min() * (1.0 + TIE)))]


def share_wrong(log_odds: np.ndarray) -> float:
    """π: the share of wrong labels under which the log-odds are self-consistent.

    >>> import numpy as np
    >>> round(share_wrong(np.repeat([-9.0, 9.0], [80, 20])), 2)
    0.2
    """
    share = 0.5
    for _ in range(STEPS):
        new = float(np.mean(expit(log_odds + logit(share))))
        new = min(max(new, SMALLEST_SHARE), 1.0 - SMALLEST_SHARE)
        if abs(new - share) < 1e-9:
            break
        share = new
    return share


def share_in_doubt(log_proba: np.ndarray, codes: np.ndarray) -> float:
    """ρ: how often the given label is not the predicted one, among the most confident half.

    Where a cross-fitted model is surest, classes hardly overlap and disagreement means a wrong
    label. The model's own mistakes count as well, so this errs upwards: with e of them,
    ρ(1 − e) + (1 − ρ)e ≥ ρ while ρ < ½. Of several models' shares the smallest is the best.

    >>> import numpy as np
    >>> p = np.repeat([[0.99, 0.01], [0.6, 0.4]], 10, axis=0)
    >>> share_in_doubt(np.log(p), np.array([1] * 2 + [0] * 8 + [0, 1] * 5))
    0.2
    """
    confidence = levels(log_proba.max(axis=1), scale=NEAR_ONE)
    sure = np.argsort(-confidence, kind="stable")[: max(len(codes) // 2, 1)]
    wrong = float(np.mean(first_largest(log_proba[sure]) != codes[sure]))
    return float(np.clip(wrong, SMALLEST_SHARE, MOST_DOUBT))


def _fit(known: CalibrationSet, penalty: float) -> Calibrator:
    """min over w of loss + penalty/2·‖w‖² on standardised signals, the bias free."""
    center = np.average(known.signals, axis=0, weights=known.share)
    scale = np.sqrt(np.average((known.signals - center) ** 2, axis=0, weights=known.share))
    scale = np.where(scale > 0, scale, 1.0)
    Z = np.column_stack([(known.signals - center) / scale, np.ones(len(known.signals))])
    ridge = np.append(np.full(known.signals.shape[1], penalty), 0.0)

    def objective(w: np.ndarray) -> tuple[float, np.ndarray]:
        value, slope = known.loss(Z @ w)
        return value + 0.5 * float(ridge @ w**2), Z.T @ slope + ridge * w

    w = minimize(objective, np.zeros(Z.shape[1]), jac=True, method="L-BFGS-B").x
    return Calibrator(center, scale, w[:-1], float(w[-1]), penalty)
