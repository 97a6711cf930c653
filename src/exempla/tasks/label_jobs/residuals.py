"""What models that have not seen a number predict of it, and how far such numbers usually lie off.

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

from exempla.data import n_rows, take_rows
from exempla.errors import ExemplaError
from exempla.progress import track
from exempla.tasks.retrain import Fit, in_words, named, refit

__all__ = ["Numbers", "Residuals", "cross_fitted", "residuals_of"]

FOLDS = 5
FEWEST_NEAR = 51
"""Rows a local median is taken of, at least; a twentieth of all in larger sets."""
TO_SIGMA = 1.4826
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


class Residuals(NamedTuple):
    """What was expected of every row."""

    expected: np.ndarray
    spread: np.ndarray
    rule: str
    """How the spread was found."""


Predict = Callable[[np.ndarray, np.ndarray], np.ndarray]
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
    folds = min(FOLDS, n)
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
            f"the fitted {type(trained).__name__} cannot predict {in_words(X)}: {named(error)}"
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
) -> Residuals:
    """Expected numbers and their spreads; `learn_spread` lets the model learn the spread as well,
    which costs as much again."""
    mu = cross_fitted(model, given, given.y, seed, fit=fit, learn_from=learn_from)
    size = np.abs(given.y - mu)
    trusted = np.ones(len(mu), dtype=bool) if learn_from is None else learn_from
    floor = _floor(size[trusted], given.y)
    flat = np.full(len(mu), max(TO_SIGMA * float(np.median(size[trusted])), floor))
    guesses = {"one spread for all": flat}
    if trusted.sum() >= 2 * FEWEST_NEAR:
        guesses["spread by predicted value"] = np.maximum(_near(mu, size, trusted), floor)
    if learn_spread and len(mu) >= 4 * FEWEST_NEAR:
        logs = np.log(np.maximum(size, floor))
        learnt = cross_fitted(model, given, logs, seed + 1, fit=fit, learn_from=learn_from,
                              what="learning the spread")  # fmt: skip
        learnt = np.exp(np.clip(learnt, logs[trusted].min(), logs[trusted].max()))
        share = np.median(size[trusted] / learnt[trusted])
        guesses["spread learnt by the model"] = np.maximum(TO_SIGMA * share * learnt, floor)
    losses = {rule: _loss(size[trusted], s[trusted]) for rule, s in guesses.items()}
    best = min(guesses, key=lambda rule: losses[rule] - 1e-12 * (rule == "one spread for all"))
    return Residuals(mu, guesses[best], best)


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
    width = max(FEWEST_NEAR, len(order) // 20) | 1
    local = median_filter(size[order], size=width, mode="nearest")
    where = np.clip(np.searchsorted(mu[order], mu), 0, len(order) - 1)
    return TO_SIGMA * local[where]
