"""Faithfulness metrics: does an attribution predict what happens when the model is retrained?"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.stats import rankdata
from sklearn.metrics import roc_auc_score

from exempla.arrays import real_numbers, refuse_masked, refuse_overflow, to_numpy
from exempla.checks import check_k
from exempla.errors import ExemplaError
from exempla.kernel.basis import IdentitySketch
from exempla.kernel.damping import check_damping
from exempla.oracles import make_oracle
from exempla.oracles.base import Examples, Oracle

__all__ = [
    "found_share", "hessian_influence", "lds", "lds_per_test", "mislabel_auc", "subset_mask",
]  # fmt: skip

_MAX_HESSIAN_PARAMETERS = 4096
"""Most parameters whose Hessian is computed."""


def subset_mask(subsets: Any, n_train: int) -> np.ndarray:
    """Return subsets of the training set as a matrix of zeros and ones.

    Parameters
    ----------
    subsets : (m, size) indices or (m, n_train) mask
    n_train : int

    Returns
    -------
    (m, n_train) array

    Examples
    --------
    >>> subset_mask([[0, 2], [1, 2]], n_train=3)
    array([[1., 0., 1.],
           [0., 1., 1.]])
    """
    array = _plain(subsets, "subsets")
    if array.ndim != 2:
        raise ExemplaError(f"subsets must be a 2-D array (one row per subset), not {array.ndim}-D.")
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
    """Return the values as one array."""
    refuse_masked(values, what)
    try:
        return np.asarray(values)
    except ValueError:
        raise ExemplaError(f"{what} is nested: give an array.") from None


def _flags(wrong: Any) -> np.ndarray:
    """Return which labels are wrong, from True/False or 1/0 per row."""
    flags = _plain(wrong, "wrong")
    if flags.ndim != 1 or flags.dtype.kind not in "biuf" or not np.isin(flags, (0, 1)).all():
        raise ExemplaError("wrong must be True or False for each row.")
    return flags.astype(bool)


def lds_per_test(attribution: Any, subsets: Any, outcomes: Any) -> np.ndarray:
    """Compute the linear datamodelling score of each test example.

    Parameters
    ----------
    attribution, subsets, outcomes
        As for `lds`, which is the mean of this score.

    Returns
    -------
    (n_test,) array

    Examples
    --------
    >>> lds_per_test([[1.0], [2.0], [4.0]], [[0, 1], [0, 2], [1, 2]], [[0.1], [0.3], [0.2]])
    array([0.5])
    """
    A, Y = real_numbers(attribution, "attribution"), real_numbers(outcomes, "outcomes")
    if A.ndim != 2 or not A.size:
        raise ExemplaError("attribution must be an (n_train, n_test) array.")
    # a log-likelihood may be -inf: it can still be ranked
    if not np.isfinite(A).all() or np.isnan(Y).any():
        raise ExemplaError(
            "attribution and outcomes must not contain NaN: leave those examples out."
        )
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
    """Compute the linear datamodelling score: how well attributions predict retraining.

    Parameters
    ----------
    attribution : (n_train, n_test) array
        Larger = more helpful, as `Explainer.influence` returns it.
    subsets : (m, size) indices or (m, n_train) mask
        The training subsets that were retrained on.
    outcomes : (m, n_test) array
        Outcome of each retrained model on each test example; larger = better (log-likelihood).

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
    """Return the probability that a wrong label is ranked above a right one.

    Parameters
    ----------
    suspicion : (n,) array
        Larger = more suspicious.
    wrong : (n,) array of bool

    Returns
    -------
    float
        The area under the ROC curve.

    Examples
    --------
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
    """Return the share of wrong labels among the first k of a ranking.

    Parameters
    ----------
    ranking : (n,) array
        Row numbers, most suspicious first.
    wrong : (n,) array of bool
    k : int

    Returns
    -------
    float

    Examples
    --------
    >>> found_share([2, 0, 1], [False, False, True], k=2)
    0.5
    """
    ranking, wrong = _plain(ranking, "ranking"), _flags(wrong)
    numbers = ranking.ndim == 1 and ranking.dtype.kind in "iu"
    if not numbers or not np.isin(ranking, np.arange(len(wrong))).all():
        raise ExemplaError(f"ranking must hold row numbers between 0 and {len(wrong) - 1}.")
    return float(wrong[ranking[: check_k(k, len(ranking))]].mean())


def hessian(oracle: Oracle, train: Examples, step: float = 1e-5) -> np.ndarray:
    """Return the Hessian of the mean penalised loss at the model's parameters, (P, P).

    It is computed by central differences of the mean score: 2P passes over the data, and no
    assumption on the model.
    """
    theta = oracle.theta
    if len(theta) > _MAX_HESSIAN_PARAMETERS:
        raise ExemplaError(
            f"a Hessian of {len(theta)} parameters is too large (the limit is "
            f"{_MAX_HESSIAN_PARAMETERS}): use Explainer.influence, whose metric is the Fisher."
        )
    dense = IdentitySketch(oracle.layers)

    def mean_score(at: np.ndarray) -> np.ndarray:
        batches = oracle.at(at).scores(train)
        total: Any = sum(to_numpy(dense.project(batch)).sum(0) for batch in batches)
        return total / len(train)

    columns = []
    for j in range(len(theta)):
        shift = np.zeros_like(theta)
        shift[j] = step * max(1.0, abs(theta[j]))
        change = mean_score(theta - shift) - mean_score(theta + shift)
        columns.append(change / (2 * shift[j]))
    curvature = np.stack(columns, axis=1)
    return (curvature + curvature.T) / 2 + np.diag(dense.penalty)


def hessian_influence(model: Any, train: Any, test: Any, damping: float = 0.0) -> np.ndarray:
    """Compute the influence of Koh and Liang, with the Hessian itself as the metric.

    Parameters
    ----------
    model : fitted model
        A model with at most 4096 parameters.
    train, test : (X, y)
    damping : float
        Added to the diagonal of the Hessian.

    Returns
    -------
    (n_train, n_test) array
        What the log-likelihood of each test example loses if a training example is removed.

    Raises
    ------
    ExemplaError
        If the model is too large, or the Hessian is singular.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = StandardScaler().fit_transform(X)
    >>> model = LogisticRegression().fit(X[:200], y[:200])
    >>> hessian_influence(model, (X[:200], y[:200]), (X[200:203], y[200:203])).shape
    (200, 3)
    """
    added = check_damping(damping)
    if isinstance(added, str):
        raise ExemplaError(
            f"damping={damping!r} is not a number: a Hessian takes a number, 0 by default."
        )
    oracle = make_oracle(model)
    train_examples = oracle.read(train, role="train")
    H = hessian(oracle, train_examples)
    H[np.diag_indices_from(H)] += added
    dense = IdentitySketch(oracle.layers)
    rows, targets = (
        np.concatenate([to_numpy(dense.project(batch)) for batch in oracle.scores(examples)])
        for examples in (train_examples, oracle.read(test, role="test"))
    )
    try:
        found = rows @ np.linalg.solve(H, targets.T) / len(rows)
    except np.linalg.LinAlgError:
        raise ExemplaError("the Hessian is singular: give a damping above zero.") from None
    return refuse_overflow(found, "influence")
