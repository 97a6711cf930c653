"""SBQ in input space: the RBF kernel in place of the Fisher kernel.

k((x, y), (x', y')) = exp(−γ‖x − x'‖²) · ỹ·ỹ', ỹ being the one-hot label minus its mean 1/C and
scaled to unit length: near rows of one label agree, near rows of two labels oppose each other.
γ = 1 / (median squared distance); the kernel is written out by Nyström features.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from sklearn.kernel_approximation import Nystroem
from sklearn.metrics.pairwise import euclidean_distances

from exempla.arrays import to_numpy
from exempla.data import as_matrix, take_rows
from exempla.errors import ExemplaWarning
from exempla.kernel.embed import unit_rows
from exempla.oracles.sklearn.base import unwrap_estimator
from exempla.selection import SBQ, select
from exempla.tasks.labels.evidence import Evidence

__all__ = ["rbf_sbq"]

WIDTH = 512
"""Numbers a row, over all classes."""
NOISE = 10.0
MOST_PICKS = 1000


def rbf_sbq(evidence: Evidence) -> np.ndarray:
    """Scores by SBQ's order of the opponents; the other rows follow by −z."""
    problem = evidence.problem
    n, C = problem.n_train, len(problem.classes)
    inputs = _inputs(evidence)
    sides = np.eye(C) - 1.0 / C
    sides = sides[:, :1] / abs(sides[0, 0]) if C == 2 else sides / np.linalg.norm(sides[0])
    gamma = 1.0 / max(_median_distance2(inputs, evidence.seed), 1e-12)
    width = min(max(WIDTH // sides.shape[1], 1), len(problem))
    basis = Nystroem(gamma=gamma, n_components=width, random_state=evidence.seed)
    features = unit_rows(basis.fit_transform(inputs))
    rows = (features[:, :, None] * sides[problem.codes][:, None, :]).reshape(len(problem), -1)
    mu = rows[np.repeat(evidence.calibration_rows, 2)[evidence.reference - n]].mean(0)
    z = rows[:n] @ mu
    picks = min(int((z < 0).sum()), MOST_PICKS)
    score = -z / max(float(np.abs(z).max()), 1e-300)
    if picks:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExemplaWarning)
            chosen = select(rows[:n], mu, picks, SBQ(noise=NOISE), side="opponents").indices
        score[chosen] = 2.0 + np.arange(len(chosen), 0, -1)
    return score


def _inputs(evidence: Evidence) -> Any:
    """What the last step of the model sees; images and the like as flat rows."""
    X = evidence.problem.X
    if evidence.learner.fit is None:
        transform = unwrap_estimator(evidence.model).transform
        return as_matrix(X if transform is None else transform(X))
    return to_numpy(X).reshape(len(evidence.problem), -1)


def _median_distance2(X: Any, seed: int) -> float:
    rows = np.random.default_rng(seed).permutation(X.shape[0])[:500]
    distance2 = euclidean_distances(take_rows(X, rows), squared=True)
    return float(np.median(distance2[np.triu_indices(len(rows), 1)]))
