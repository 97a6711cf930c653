"""Which numbers of a regression are wrong.

Each number is compared with what models of the other folds expect of its row. Wrong numbers spoil
such models: twice the suspects are left out and the rest is asked again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.base import is_classifier
from threadpoolctl import threadpool_limits

from exempla.arrays import is_tensor, to_numpy
from exempla.checks import check_ids, check_k, check_seed
from exempla.data import listing, plain_labels, stack_rows, unpack
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.tasks.label_jobs.mixture import (
    KINDS,
    Assessed,
    Case,
    assess,
    repaired,
    suspects,
)
from exempla.tasks.label_jobs.residuals import Numbers, Residuals, residuals_of
from exempla.tasks.label_jobs.results import NumberFixes
from exempla.tasks.retrain import Fit, check_fit
from exempla.version import __version__

__all__ = ["fix_numbers", "read_numbers"]

ROUNDS = 2
TELLING = 0.5
"""Probabilities below this differ by which kinds were found elsewhere more than by the row."""
FEWEST = 20
"""Rows below which no spread can be told."""


def fix_numbers(
    model: Any,
    train: Any,
    curated: Any = None,
    k: int | None = None,
    *,
    fit: Fit | None = None,
    seed: int = 0,
    ids: Any = None,
) -> NumberFixes:
    """Rank training rows by how likely their numbers are wrong; see `exempla.fix_labels`."""
    given = read_numbers(train, curated)
    _check_model(model, fit)
    seed, n = check_seed(seed), given.n_train
    k = None if k is None else check_k(k, n, "training rows")
    names = check_ids(given.ids if ids is None else ids, n)
    found = _residuals(model, given, fit, seed)
    case = Case(given.y, found.expected, found.spread, given.curated)
    with threadpool_limits(1, user_api="blas"):  # short vectors only wait for threads
        judged = assess(case, seed)
    p = judged.probabilities[:n]
    order = _order(case, judged, n)[:k]
    mended = repaired(case, judged.kinds)[:n]
    return NumberFixes(
        indices=order.astype(np.int64),
        ids=None if names is None else names[order],
        probabilities=p[order],
        given=given.y[order],
        suggested=np.where(p > 0.5, mended, given.y[:n])[order],
        expected=found.expected[order],
        spread=found.spread[order],
        kind=np.array(KINDS)[judged.kinds[order]],
        expected_errors=judged.expected_errors,
        interval=judged.interval,
        tail=judged.tail,
        spread_rule=found.rule,
        method="residuals",
        k=n if k is None else k,
        n_train=n,
        n_labels=n,
        n_trusted=len(given.y) - n,
        seed=seed,
        version=__version__,
    )


def _order(case: Case, judged: Assessed, n: int) -> np.ndarray:
    """By probability where that says something, then by the evidence, then by the residual."""
    off = np.abs(case.y - case.expected)[:n] / case.spread[:n]
    told = np.where(judged.probabilities[:n] > TELLING, judged.probabilities[:n], 0.0)
    return np.lexsort((-off, -np.round(judged.evidence[:n], 6), -told))


def _residuals(model: Any, given: Numbers, fit: Fit | None, seed: int) -> Residuals:
    """What is expected, by models that did not learn from the suspects of the round before."""
    found = residuals_of(model, given, seed, fit=fit)
    for step in range(1, ROUNDS + 1):
        case = Case(given.y, found.expected, found.spread, given.curated)
        with threadpool_limits(1, user_api="blas"):
            keep = ~suspects(case, seed)
        if keep.sum() < max(FEWEST, len(keep) // 2):
            break
        last = step == ROUNDS
        found = residuals_of(
            model, given, seed + 101 * step, fit=fit, learn_from=keep, learn_spread=last
        )
    return found


def read_numbers(train: Any, curated: Any) -> Numbers:
    """Check both sets; every problem found is told at once."""
    problems: list[str] = []
    X, y, weights, ids = _read(train, "train", problems)
    if not problems and len(y) < FEWEST:
        problems.append(f"train: {len(y)} rows are too few to tell a wrong number; give {FEWEST}")
    if not problems and np.ptp(y) == 0:
        problems.append(f"train: all numbers are {y[0]:g}, and nothing can be learnt from that")
    n = len(y)
    if curated is not None and not problems:
        Xc, yc, wc, _ = _read(curated, "curated", problems)
        if not problems:
            if weights is not None or wc is not None:
                both = ((y, weights), (yc, wc))
                weights = np.concatenate([np.ones(len(v)) if w is None else w for v, w in both])
            X, y = stack_rows(X, Xc), np.concatenate([y, yc])
    if problems:
        raise ExemplaError(f"the numbers cannot be checked: {'; '.join(problems)}.")
    return Numbers(X, y, n, weights, ids)


def _read(
    data: Any, whose: str, problems: list[str]
) -> tuple[Any, np.ndarray, np.ndarray | None, np.ndarray | None]:
    if not isinstance(data, tuple) or len(data) < 2 or data[1] is None:
        raise ExemplaError(f"{whose} has no numbers to judge: give (X, y) as {whose}.")
    found: list[str] = []
    given = unpack((data[0], *(to_numpy(p) if is_tensor(p) else p for p in data[1:])), found)
    y = np.array([])
    if given.y is not None:
        y = plain_labels(given.y)
        if y.ndim != 1:
            found.append(f"y must hold one number per row, but has shape {y.shape}")
        else:
            y = _as_floats(y, found)
    problems.extend(f"{whose}: {problem}" for problem in found)
    return given.X, y, given.weights, given.ids


def _as_floats(y: np.ndarray, found: list[str]) -> np.ndarray:
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
