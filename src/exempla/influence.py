"""The special case the paper starts from: influence functions, for one test point or many.

    influence[i, j] = s_iᵀ M⁻¹ s_j / n

is what test point j's log-likelihood loses, to first order, when training point i is removed.
With M the Hessian of the mean penalised loss this is Koh and Liang's influence; with M the model's
own Fisher it is the Fisher kernel over n. For models with a canonical link the two are one, at any
θ; elsewhere (a perceptron) they differ, and the Fisher is the one that is always positive.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from exempla.arrays import Array, to_numpy
from exempla.errors import ExemplaError
from exempla.fisher import check_damping
from exempla.oracles import make_oracle
from exempla.oracles.base import Examples, Oracle
from exempla.sketch.identity import IdentitySketch

__all__ = ["hessian", "hessian_influence", "self_influence"]

HESSIAN_LIMIT = 4096
"""Most parameters whose Hessian is written out."""


def self_influence(train_rows: Array) -> np.ndarray:
    """Influence of every whitened training row on itself, (n_train,).

    >>> import numpy as np
    >>> self_influence(np.array([[2.0, 0.0], [0.0, 1.0]]))
    array([2. , 0.5])
    """
    return to_numpy((train_rows * train_rows).sum(1)) / len(train_rows)


def hessian(oracle: Oracle, train: Examples, step: float = 1e-5) -> np.ndarray:
    """Hessian of the mean penalised loss at the model's parameters, (P, P).

    Central differences of the mean score: no assumption on the model, 2P passes over the data.
    """
    theta = oracle.theta
    if len(theta) > HESSIAN_LIMIT:
        raise ExemplaError(
            f"a Hessian of {len(theta)} parameters is too large to write out (the limit is "
            f"{HESSIAN_LIMIT}): use Explainer.influence, whose metric is the Fisher."
        )
    columns = []
    for j in range(len(theta)):
        shift = np.zeros_like(theta)
        shift[j] = step * max(1.0, abs(theta[j]))
        up = mean_score(oracle.at(theta + shift), train)
        down = mean_score(oracle.at(theta - shift), train)
        columns.append((down - up) / (2 * shift[j]))
    curvature = np.stack(columns, axis=1)
    return (curvature + curvature.T) / 2 + np.diag(IdentitySketch(oracle.layers).penalty)


def mean_score(oracle: Oracle, examples: Examples) -> np.ndarray:
    """(1/n) Σ s_i, summed batch by batch."""
    total = sum(batch.sum(0) for batch in written_out(oracle, examples))
    return np.asarray(total) / len(examples)


def written_out(oracle: Oracle, examples: Examples) -> Iterator[np.ndarray]:
    """The scores in full, (n, P) a batch."""
    write = IdentitySketch(oracle.layers).project
    return (to_numpy(write(batch)) for batch in oracle.scores(examples))


def hessian_influence(model: Any, train: Any, test: Any, damping: float = 0.0) -> np.ndarray:
    """Koh and Liang's influence, with the Hessian itself as the metric: (n_train, n_test).

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
        raise ExemplaError(f"damping={damping!r}: beside a Hessian it is a number, 0 by default.")
    oracle = make_oracle(model)
    train_examples = oracle.read(train, role="train")
    H = hessian(oracle, train_examples)
    H[np.diag_indices_from(H)] += added
    rows = np.concatenate(list(written_out(oracle, train_examples)))
    targets = np.concatenate(list(written_out(oracle, oracle.read(test, role="test"))))
    try:
        found = rows @ np.linalg.solve(H, targets.T) / len(rows)
    except np.linalg.LinAlgError:
        raise ExemplaError("the Hessian has no inverse: give a damping above zero.") from None
    if not np.isfinite(found).all():
        raise ExemplaError("influence overflows: are the inputs of all examples scaled alike?")
    return found
