"""Faithfulness: does the explanation hold when the model is trained again?"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score

from exempla.arrays import real_numbers, refuse_masked
from exempla.checks import check_k
from exempla.errors import ExemplaError

__all__ = ["found_share", "lds", "lds_per_test", "mislabel_auc", "subset_mask"]


def subset_mask(subsets: Any, n_train: int) -> np.ndarray:
    """(m, n_train) of zeros and ones, from a mask or from m lists of indices."""
    array = _plain(subsets, "subsets")
    if array.ndim != 2:
        raise ExemplaError(f"subsets must be a 2-D array (one line a subset), not {array.ndim}-D.")
    if array.dtype == bool or (array.shape[1] == n_train and np.isin(array, (0, 1)).all()):
        if array.shape[1] != n_train:
            raise ExemplaError(f"the subset mask has {array.shape[1]} columns, not {n_train}.")
        return array.astype(np.float64)
    if array.dtype.kind not in "iu" or array.min() < 0 or array.max() >= n_train:
        raise ExemplaError(f"subsets must hold indices between 0 and {n_train - 1}.")
    mask = np.zeros((len(array), n_train))
    np.put_along_axis(mask, array, 1.0, axis=1)
    return mask


def _plain(values: Any, what: str) -> np.ndarray:
    """What was given as one array."""
    refuse_masked(values, what)
    try:
        return np.asarray(values)
    except ValueError:
        raise ExemplaError(f"{what} is nested: give an array.") from None


def _flags(wrong: Any) -> np.ndarray:
    """Which labels are wrong: True or False, or 1 or 0, for each row."""
    flags = _plain(wrong, "wrong")
    if flags.ndim != 1 or flags.dtype.kind not in "biuf" or not np.isin(flags, (0, 1)).all():
        raise ExemplaError("wrong must say True or False for each row.")
    return flags.astype(bool)


def lds_per_test(attribution: Any, subsets: Any, outcomes: Any) -> np.ndarray:
    """Linear datamodelling score of each test point; see `lds`."""
    A, Y = real_numbers(attribution, "attribution"), real_numbers(outcomes, "outcomes")
    if A.ndim != 2 or not A.size:
        raise ExemplaError("attribution must be an (n_train, n_test) array.")
    # a log-likelihood may be -inf: it has its place in a ranking
    if not np.isfinite(A).all() or np.isnan(Y).any():
        raise ExemplaError("attribution and outcomes must be numbers: leave out what has none.")
    mask = subset_mask(subsets, A.shape[0])
    if Y.shape != (len(mask), A.shape[1]):
        raise ExemplaError(
            f"outcomes have shape {Y.shape}, but {len(mask)} subsets and {A.shape[1]} test points "
            f"need {(len(mask), A.shape[1])}."
        )
    predicted, actual = rankdata(mask @ A, axis=0), rankdata(Y, axis=0)
    predicted, actual = predicted - predicted.mean(0), actual - actual.mean(0)
    scale = np.sqrt((predicted**2).sum(0) * (actual**2).sum(0))
    covariance = (predicted * actual).sum(0)
    return np.divide(covariance, scale, out=np.zeros_like(scale), where=scale > 0)


def lds(attribution: Any, subsets: Any, outcomes: Any) -> float:
    """Linear datamodelling score: how well attributions predict the effect of retraining.

    Parameters
    ----------
    attribution : (n_train, n_test) array
        Larger = more helpful, as `Explainer.influence` returns it.
    subsets : (m, size) indices or (m, n_train) mask
        The training subsets that were retrained on.
    outcomes : (m, n_test) array
        What each retrained model made of each test point; larger = better (log-likelihood).

    Returns
    -------
    float
        Mean over test points of the Spearman correlation, over subsets, between the summed
        attributions of a subset and its outcome.

    Examples
    --------
    >>> import numpy as np
    >>> A = np.array([[1.0], [2.0], [4.0]])
    >>> lds(A, [[0, 1], [0, 2], [1, 2]], np.array([[0.1], [0.2], [0.3]]))
    1.0
    """
    return float(lds_per_test(attribution, subsets, outcomes).mean())


def mislabel_auc(suspicion: Any, wrong: Any) -> float:
    """Chance that a wrong label is ranked above a right one.

    >>> mislabel_auc([0.9, 0.2, 0.8, 0.1], [True, False, True, False])
    1.0
    """
    wrong, scores = _flags(wrong), real_numbers(suspicion, "suspicion")
    if scores.shape != wrong.shape or not np.isfinite(scores).all():
        raise ExemplaError(f"suspicion must be a finite number for each of the {len(wrong)} rows.")
    if wrong.all() or not wrong.any():
        raise ExemplaError("mislabel_auc needs both wrong and right labels.")
    return float(roc_auc_score(wrong, scores))


def found_share(ranking: Any, wrong: Any, k: int) -> float:
    """Share of wrong labels among the first k of a ranking (all of them wrong = 1).

    >>> found_share([2, 0, 1], [False, False, True], k=2)
    0.5
    """
    ranking, wrong = _plain(ranking, "ranking"), _flags(wrong)
    numbers = ranking.ndim == 1 and ranking.dtype.kind in "iu"
    if not numbers or not np.isin(ranking, np.arange(len(wrong))).all():
        raise ExemplaError(f"ranking must hold row numbers between 0 and {len(wrong) - 1}.")
    return float(wrong[ranking[: check_k(k, len(ranking))]].mean())
