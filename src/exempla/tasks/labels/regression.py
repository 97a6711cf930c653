"""Which numbers of a regression are wrong.

Each number is compared with what models of the other folds expect of its row. Wrong numbers spoil
such models: twice the suspects are left out and the rest is asked again.

What models that have not seen a number predict of it, and how far such numbers usually lie off.

The spread s(x) of right numbers may change from row to row. Three guesses of it are compared by
their loss on the residuals, log s + |r|/s (Laplace's, which an outlier moves little): one spread
for all, one that follows the prediction (the median |r| of the rows predicted next to this one),
and one that the caller's own model learns from log |r| by cross-fitting.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.ndimage import median_filter
from sklearn.base import is_classifier
from threadpoolctl import threadpool_limits

from exempla import __version__
from exempla.arrays import is_tensor, to_numpy
from exempla.checks import check_ids, check_k, check_seed
from exempla.data import listing, n_rows, plain_labels, stack_rows, take_rows, unpack
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.progress import track
from exempla.tasks.labels.mixture import KINDS, Assessed, Case, assess, repaired, suspects
from exempla.tasks.labels.result import NumberFixes
from exempla.tasks.retrain import Fit, check_fit, describe, error_line, refit

_FOLDS = 5
_FEWEST_NEAR = 51
"""Rows a local median is taken of, at least; a twentieth of all in larger sets."""
_TO_SIGMA = 1.4826
"""Median |r| of a normal distribution times this is its standard deviation."""


class Numbers(NamedTuple):
    """Rows and their numbers: n_train rows to be judged, then the curated ones."""

    X: Any
    y: np.ndarray
    n_train: int
    weights: np.ndarray | None = None
    ids: np.ndarray | None = None

    @property
    def curated(self) -> np.ndarray:
        """(n + m,) which rows are curated."""
        return np.arange(len(self.y)) >= self.n_train


class _Residuals(NamedTuple):
    """What was expected of every row."""

    expected: np.ndarray
    spread: np.ndarray
    rule: str
    """How the spread was found."""


_Predict = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""(rows to learn from, rows to predict) -> predictions."""


def cross_fitted(
    model: Any,
    given: Numbers,
    targets: np.ndarray,
    seed: int,
    *,
    fit: Fit | None = None,
    learn_from: np.ndarray | None = None,
    what: str = "cross-fitting",
) -> np.ndarray:
    """Predictions of `targets` by models of the other folds; only `learn_from` rows are learnt."""
    n = len(targets)
    allowed = np.ones(n, dtype=bool) if learn_from is None else learn_from
    folds = min(_FOLDS, n)
    fold = np.random.default_rng(seed).permutation(n) % folds
    out = np.empty(n)
    for f in track(range(folds), what, folds):
        rows, held = np.flatnonzero(allowed & (fold != f)), np.flatnonzero(fold == f)
        if len(rows) < 2:
            raise ExemplaError("too few rows are left to learn from; give more rows.")
        weights = None if given.weights is None else given.weights[rows]
        trained = refit(
            model, take_rows(given.X, rows), targets[rows], weights, fit, seed + f,
            keep_random_state=True,
        )  # fmt: skip
        out[held] = predicted(trained, take_rows(given.X, held))
    return out


def predicted(trained: Any, X: Any) -> np.ndarray:
    """One finite number a row."""
    try:
        raw = trained.predict(X) if hasattr(trained, "predict") else _by_module(trained, X)
        out = np.asarray(raw, dtype=np.float64).reshape(n_rows(X))
    except (ExemplaError, MemoryError):
        raise
    except Exception as error:  # the model may be the caller's own, and raise anything
        raise ExemplaError(
            f"the fitted {type(trained).__name__} cannot predict {describe(X)}: {error_line(error)}"
        ) from error
    if not np.isfinite(out).all():
        raise ExemplaError(
            f"the fitted {type(trained).__name__} predicts numbers that are not finite; look at "
            "its settings and the columns it is given."
        )
    return out


def _by_module(module: Any, X: Any) -> np.ndarray:
    import torch

    module.eval()
    with torch.no_grad():
        return module(X if torch.is_tensor(X) else torch.as_tensor(X)).cpu().numpy()


def residuals_of(
    model: Any,
    given: Numbers,
    seed: int,
    *,
    fit: Fit | None = None,
    learn_from: np.ndarray | None = None,
    learn_spread: bool = False,
) -> _Residuals:
    """Expected numbers and their spreads; `learn_spread` lets the model learn the spread as well,
    which costs as much again."""
    mu = cross_fitted(model, given, given.y, seed, fit=fit, learn_from=learn_from)
    size = np.abs(given.y - mu)
    trusted = np.ones(len(mu), dtype=bool) if learn_from is None else learn_from
    floor = _floor(size[trusted], given.y)
    flat = np.full(len(mu), max(_TO_SIGMA * float(np.median(size[trusted])), floor))
    guesses = {"one spread for all": flat}
    if trusted.sum() >= 2 * _FEWEST_NEAR:
        guesses["spread by predicted value"] = np.maximum(_near(mu, size, trusted), floor)
    if learn_spread and len(mu) >= 4 * _FEWEST_NEAR:
        logs = np.log(np.maximum(size, floor))
        learnt = cross_fitted(model, given, logs, seed + 1, fit=fit, learn_from=learn_from,
                              what="learning the spread")  # fmt: skip
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
    """The smallest spread that is told from zero: where most numbers are predicted exactly, the
    tenth that is not, and the digits of the numbers themselves."""
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
    given = _read_numbers(train, curated)
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
    told = np.where(judged.probabilities[:n] > _TELLING, judged.probabilities[:n], 0.0)
    return np.lexsort((-off, -np.round(judged.evidence[:n], 6), -told))


def _residuals(model: Any, given: Numbers, fit: Fit | None, seed: int) -> _Residuals:
    """What is expected, by models that did not learn from the suspects of the round before."""
    found = residuals_of(model, given, seed, fit=fit)
    for step in range(1, _ROUNDS + 1):
        case = Case(given.y, found.expected, found.spread, given.curated)
        with threadpool_limits(1, user_api="blas"):
            keep = ~suspects(case, seed)
        if keep.sum() < max(FEWEST, len(keep) // 2):
            break
        last = step == _ROUNDS
        found = residuals_of(
            model, given, seed + 101 * step, fit=fit, learn_from=keep, learn_spread=last
        )
    return found


def _read_numbers(train: Any, curated: Any) -> Numbers:
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
