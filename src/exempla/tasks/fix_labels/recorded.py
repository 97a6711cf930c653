"""How a recorded training came to terms with each label, and what that says about it.

While a network learns, right labels are learnt early and wrong ones late, if at all. The signal is
the margin of the given label over the next best, averaged over the snapshots of a `Recorder`'s run:

    s_i = mean over snapshots of  log p(y_i | x_i) − max over c ≠ y_i of log p(c | x_i).

The run has seen the label, so curated rows cannot show how much s is worth: their labels were not
learnt. It is read off the training rows themselves. With p_i the probability of a wrong label from
everything else, and h_i what models that have not seen the label hold against it,

    s_i | right ~ N(a₀ + b₀·h_i, σ₀²),     s_i | wrong ~ N(a₁ + b₁·h_i, σ₁²),

fitted by expectation-maximisation with p_i for the prior; the log-odds gain log N₁ − log N₀. Rows
that are hard for every model have a large h and a small s without being wrong: hence the b's. The
signal is dropped if a single regression of s on h makes held-out rows as likely, or if wrong labels
come out with the larger margins. The number of wrong labels is left as it was: s moves
probabilities between rows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.optimize import brentq
from scipy.special import expit, logit

from exempla.errors import ExemplaError
from exempla.oracles import make_oracles, with_runs
from exempla.progress import track

__all__ = ["moved", "recorded_margins", "worth_of_margins"]

FOLDS = 5
STEPS = 50
WORTH = 2.0
"""Nats by which held-out rows must become likelier."""
MOST = 4.0
"""Log-odds that the signal may add or take."""
LIMIT = 1e-9
LEAST_ROWS = 50


def recorded_margins(model: Any, run: Any, X: Any, classes: np.ndarray, codes: Any) -> np.ndarray:
    """s of every row; `run` is a Recorder's folder, or a list of them."""
    folders = [run] if isinstance(run, str | Path) else list(run)
    missing = [str(folder) for folder in folders if not Path(folder).is_dir()]
    if missing or not folders:
        named = ", ".join(missing) or "nothing"
        raise ExemplaError(f"recorded= must name folders that a Recorder filled; got {named}.")
    oracles = make_oracles(with_runs([model, *folders]))
    rows, total = np.arange(len(codes)), np.zeros(len(codes))
    for oracle in track(oracles, "margins of the recorded run", len(oracles)):
        log_p = np.empty((len(codes), len(classes)))
        for code, label in enumerate(classes):
            labels = np.full(len(codes), label)
            log_p[:, code] = oracle.log_likelihood(oracle.read((X, labels), role="test"))
        own = log_p[rows, codes]
        log_p[rows, codes] = -np.inf
        total += own - log_p.max(axis=1)
    return total / len(oracles)


def worth_of_margins(margins: np.ndarray, against: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """What the margins add to each row's log-odds of a wrong label; zeros if they do not help.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.random(2000) < 0.1
    >>> margins = rng.normal(size=2000) + np.where(truth, -2.0, 2.0)
    >>> doubt = np.full(2000, 0.1)
    >>> gain = worth_of_margins(margins, rng.normal(size=2000), doubt)
    >>> bool(gain[truth].mean() > 1), bool(gain[~truth].mean() < -1)
    (True, True)
    >>> bool(worth_of_margins(rng.normal(size=2000), rng.normal(size=2000), doubt).any())
    False
    """
    if len(margins) < LEAST_ROWS:
        return np.zeros(len(margins))
    H = np.column_stack([np.ones(len(margins)), _standard(against)])
    s, p = _standard(margins), np.clip(wrong, LIMIT, 1.0 - LIMIT)
    fold = np.random.default_rng(0).permutation(len(s)) % FOLDS
    gain = 0.0
    for f in range(FOLDS):
        here, rest = fold == f, fold != f
        two = _fit(s[rest], H[rest], p[rest])
        one = _regression(s[rest], H[rest], np.ones(rest.sum()))
        gain += float(
            _mixed(s[here], H[here], p[here], two).sum() - _log(s[here], H[here], one).sum()
        )
    right, wronged = _fit(s, H, p)
    lower = (p @ (H @ (wronged[0] - right[0]))) / p.sum()
    if gain < WORTH or lower >= 0:
        return np.zeros(len(s))
    return np.clip(_log(s, H, wronged) - _log(s, H, right), -MOST, MOST)


def moved(wrong: np.ndarray, by: np.ndarray) -> np.ndarray:
    """Probabilities with their log-odds moved, and all alike so that their sum stays.

    >>> import numpy as np
    >>> moved(np.array([0.2, 0.2]), np.array([1.0, -1.0])).sum().round(6)
    np.float64(0.4)
    """
    if not by.any():
        return wrong
    odds = logit(np.clip(wrong, LIMIT, 1.0 - LIMIT)) + by
    total = float(np.clip(wrong, LIMIT, 1.0 - LIMIT).sum())
    shift = brentq(lambda t: float(expit(odds + t).sum()) - total, -80.0, 80.0)
    return expit(odds + shift)


Line = tuple[np.ndarray, float]
"""Coefficients and variance of a regression."""


def _standard(x: np.ndarray) -> np.ndarray:
    spread = x.std()
    return (x - x.mean()) / (spread if spread > 0 else 1.0)


def _regression(s: np.ndarray, H: np.ndarray, weights: np.ndarray) -> Line:
    """Weighted least squares with a little ridge, and a variance that is never nothing."""
    gram = (H * weights[:, None]).T @ H + 1e-3 * np.eye(H.shape[1])
    b = np.linalg.solve(gram, (H * weights[:, None]).T @ s)
    rest = s - H @ b
    return b, float((weights @ rest**2 + 0.1) / (weights.sum() + 1.0)) + 1e-3


def _log(s: np.ndarray, H: np.ndarray, line: Line) -> np.ndarray:
    b, variance = line
    return -0.5 * ((s - H @ b) ** 2 / variance + np.log(2.0 * np.pi * variance))


def _mixed(s: np.ndarray, H: np.ndarray, p: np.ndarray, lines: tuple[Line, Line]) -> np.ndarray:
    right, wronged = lines
    return np.logaddexp(np.log1p(-p) + _log(s, H, right), np.log(p) + _log(s, H, wronged))


def _fit(s: np.ndarray, H: np.ndarray, p: np.ndarray) -> tuple[Line, Line]:
    """Expectation-maximisation. From the probabilities as they are it would hardly move where they
    say little: it starts with those rows likelier wrong whose margin is below what h leads to
    expect."""
    b, variance = _regression(s, H, np.ones(len(s)))
    r = expit(logit(p) - 2.0 * (s - H @ b) / np.sqrt(variance))
    right, wronged = _regression(s, H, 1.0 - r), _regression(s, H, r)
    for _ in range(STEPS):
        new = expit(logit(p) + _log(s, H, wronged) - _log(s, H, right))
        if np.abs(new - r).max() < 1e-4:
            break
        r = new
        right, wronged = _regression(s, H, 1.0 - r), _regression(s, H, r)
    return right, wronged
