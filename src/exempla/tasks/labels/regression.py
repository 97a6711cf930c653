"""Which numbers of a regression are wrong.

Each number is compared with what models of the other folds predict for its row. Wrong numbers
spoil such models, so the suspects are left out and the models are trained again, twice.

The spread s(x) of right numbers may change from row to row. Three guesses of it are compared by
their loss on the residuals, log s + |r|/s (Laplace's, which an outlier moves little): one spread
for all, one that follows the prediction (the median |r| of the rows predicted next to this one),
and one that the caller's own model learns from log |r| by cross-fitting.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import median_filter
from sklearn.base import is_classifier

from exempla.data import listing
from exempla.errors import UnsupportedModelError
from exempla.tasks.labels.crossfit import cross_validated_numbers
from exempla.tasks.labels.mixture import KINDS, Assessed, Case, assess, repaired
from exempla.tasks.labels.problem import LabelRequest, Rows, read_rows
from exempla.tasks.labels.result import LabelFixes
from exempla.tasks.labels.wrong import Z90
from exempla.tasks.retrain import Fit, check_fit

_DRAWS = 3
"""Draws of folds that the last round averages."""
_FEWEST_NEAR = 51
"""Rows a local median is taken of, at least; a twentieth of all in larger sets."""
_TO_SIGMA = 1.4826
"""Median |r| of a normal distribution times this is its standard deviation."""


class _Residuals(NamedTuple):
    """What was expected of every row."""

    expected: np.ndarray
    spread: np.ndarray
    rule: str
    """How the spread was found."""


def residuals_of(
    model: Any,
    given: Rows,
    seed: int,
    *,
    fit: Fit | None = None,
    learn_from: np.ndarray | None = None,
    learn_spread: bool = False,
) -> _Residuals:
    """Expected numbers and their spreads; `learn_spread` lets the model learn the spread as well,
    which costs as much again."""
    options: Any = {"weights": given.weights, "fit": fit, "learn_from": learn_from}
    draws = _DRAWS if learn_spread else 1
    mu = cross_validated_numbers(model, given.X, given.y, seed, draws=draws, **options)
    size = np.abs(given.y - mu)
    trusted = np.ones(len(mu), dtype=bool) if learn_from is None else learn_from
    floor = _floor(size[trusted], given.y)
    flat = np.full(len(mu), max(_TO_SIGMA * float(np.median(size[trusted])), floor))
    guesses = {"one spread for all": flat}
    if trusted.sum() >= 2 * _FEWEST_NEAR:
        guesses["spread by predicted value"] = np.maximum(_near(mu, size, trusted), floor)
    if learn_spread and len(mu) >= 4 * _FEWEST_NEAR:
        logs = np.log(np.maximum(size, floor))
        learnt = cross_validated_numbers(
            model, given.X, logs, seed + 1, what="learning the spread", **options
        )
        learnt = np.exp(np.clip(learnt, logs[trusted].min(), logs[trusted].max()))
        share = np.median(size[trusted] / learnt[trusted])
        guesses["spread learnt by the model"] = np.maximum(_TO_SIGMA * share * learnt, floor)
    losses = {rule: _loss(size[trusted], s[trusted]) for rule, s in guesses.items()}
    best = min(guesses, key=lambda rule: losses[rule] - 1e-12 * (rule == "one spread for all"))
    return _Residuals(mu, guesses[best], best)


def _loss(size: np.ndarray, spread: np.ndarray) -> float:
    """Laplace's −log-likelihood, with the surest outliers counted as if they were large."""
    scaled = size / spread
    return float(np.mean(np.log(spread) + np.minimum(scaled, 10.0) / np.median(scaled)))


def _floor(size: np.ndarray, y: np.ndarray) -> float:
    """Return the smallest spread that is distinguished from zero, where most numbers are predicted
    exactly: from the tenth that is not, and from the digits of the numbers themselves."""
    typical = float(np.quantile(size, 0.9))
    middle = np.quantile(y, [0.1, 0.9])
    return max(0.01 * typical, 1e-9 * float(np.max(np.abs(middle))), np.finfo(float).tiny * 1e30)


def _near(mu: np.ndarray, size: np.ndarray, trusted: np.ndarray) -> np.ndarray:
    """Median |r| of the trusted rows predicted nearest, as a standard deviation."""
    rows = np.flatnonzero(trusted)
    order = rows[np.argsort(mu[rows], kind="stable")]
    width = max(_FEWEST_NEAR, len(order) // 20) | 1
    local = median_filter(size[order], size=width, mode="nearest")
    where = np.clip(np.searchsorted(mu[order], mu), 0, len(order) - 1)
    return _TO_SIGMA * local[where]


_ROUNDS = 2
_TELLING = 0.5
"""Probabilities below this differ by which kinds were found elsewhere more than by the row."""
FEWEST = 20
"""Rows below which no spread can be told."""


def fix_numbers(asked: LabelRequest) -> LabelFixes:
    """Rank training rows by how likely their numbers are wrong; see `exempla.fix_labels`."""
    given = read_rows(asked.train, asked.curated, _as_floats, _compare, "numbers")
    _check_model(asked.model, asked.fit)
    n, seed = given.n_train, asked.seed
    k, names = asked.listed(n, "training rows"), asked.names(n, given.ids)
    found = _residuals(asked.model, given, asked.fit, seed)
    case = Case(given.y, found.expected, found.spread, given.curated)
    judged = assess(case, seed)
    p = judged.probabilities[:n]
    order = _order(case, judged, n)[:k]
    # wrong numbers that look like noise are not counted, but may be as many as lie in its tails
    far = np.abs(case.y - case.expected)[:n] > Z90 * case.spread[:n]
    mended = repaired(case, judged.kinds)[:n]
    return LabelFixes(
        probabilities=p[order],
        given=given.y[order],
        suggested=np.where(p > 0.5, mended, given.y[:n])[order],
        expected=found.expected[order],
        spread=found.spread[order],
        kind=np.array(KINDS)[judged.kinds[order]],
        expected_errors=judged.expected_errors,
        interval=(judged.interval[0], max(judged.interval[1], float(np.sum(far)))),
        tail=judged.tail,
        spread_rule=found.rule,
        method="residuals",
        task="regression",
        **asked.fields(order, names, n, n, len(given.y) - n),
    )


def _order(case: Case, judged: Assessed, n: int) -> np.ndarray:
    """Return the order: probable mistakes first, then by the size of the residual."""
    # neither |r| nor |r|/s is reliable alone: s is a guess, and large numbers have large residuals
    off = np.abs(case.y - case.expected)[:n] / np.sqrt(case.spread[:n])
    told = np.where(judged.probabilities[:n] > _TELLING, judged.probabilities[:n], 0.0)
    return np.lexsort((-off, -told))


def _residuals(model: Any, given: Rows, fit: Fit | None, seed: int) -> _Residuals:
    """What is expected, by models that did not learn from the suspects of the round before."""
    found = residuals_of(model, given, seed, fit=fit)
    for step in range(1, _ROUNDS + 1):
        case = Case(given.y, found.expected, found.spread, given.curated)
        keep = assess(case, seed).probabilities <= 0.5
        if keep.sum() < max(FEWEST, len(keep) // 2):
            break
        last = step == _ROUNDS
        found = residuals_of(
            model, given, seed + 101 * step, fit=fit, learn_from=keep, learn_spread=last
        )
    return found


def _compare(train: Rows, curated: Rows | None, problems: list[str]) -> None:
    if not problems and len(train.y) < FEWEST:
        problems.append(
            f"train: {len(train.y)} rows are too few to tell a wrong number; give {FEWEST}"
        )
    elif not problems and np.ptp(train.y) == 0:
        problems.append(
            f"train: all numbers are {train.y[0]:g}, and nothing can be learnt from that"
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
    if len(bad := np.flatnonzero(~np.isfinite(out))):
        found.append(f"numbers are missing or infinite in {listing(bad)}")
    elif np.abs(out).max(initial=0.0) > 1e150:
        found.append("numbers beyond 1e150 cannot be computed with: change their unit")
    return out


def _check_model(model: Any, fit: Fit | None) -> None:
    check_fit(model, fit)
    if fit is None and (is_classifier(model) or not hasattr(model, "predict")):
        raise UnsupportedModelError(
            f"{type(model).__name__} predicts no numbers, which finding wrong ones needs: use a "
            "regressor, such as Ridge."
        )
