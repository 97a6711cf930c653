"""The ridge that boosting with a learning rate amounts to.

A leaf's step η·G/(H + l2), G and H its sums of gradients and Hessians when its tree was grown, is
the optimum of that tree alone under the penalty (H + l2)/η on the leaf's value. All trees together
are held back alike: their mean over all leaves is the penalty δ under which a refit would stop
where boosting stops. In the mean-loss objective

    δ = (mean over leaves of H/n + l2/n) / η,    Σ_leaves H/n = mean Hessian of an example

so that no leaf has to be looked at one by one.
"""

from __future__ import annotations

import numpy as np

from exempla.likelihoods import Gaussian, Likelihood
from exempla.oracles.trees.columns import LeafColumns, summed_values
from exempla.oracles.trees.leaves import LeafReader
from exempla.oracles.trees.quantile import AsymmetricLaplace

__all__ = ["learning_rate_penalty"]

STAGES = 20
"""Stages of boosting at which the mean Hessian is taken; it changes slowly."""


def learning_rate_penalty(
    reader: LeafReader,
    family: Likelihood,
    columns: list[LeafColumns],
    values: list[np.ndarray],
    base: np.ndarray,
    leaves: np.ndarray,
    weights: np.ndarray | None,
    n: int,
) -> tuple[float, float]:
    """δ, from the leaves of some training rows of so many; and the Hessian that is left at the end
    of boosting, as a share of its mean over the stages."""
    used = sum(len(np.unique(leaves[:, c.trees] + c.starts)) * len(c.outputs) for c in columns)
    rounds = max(len(c.trees) for c in columns)
    stages = np.unique(np.linspace(0, rounds - 1, STAGES).astype(np.int64))
    found = []
    for stage in [*stages, rounds]:
        first = [c.first(stage) for c in columns]
        parts = [value[: c.width] for c, value in zip(first, values, strict=True)]
        outputs = base + summed_values(first, parts, leaves, len(base))
        found.append(mean_hessian(family, outputs, weights))
    mean, last = float(np.mean(found[:-1])), found[-1]
    total = mean * rounds
    penalty = (total / used + reader.l2 * unit_of(family) / n) / reader.rate
    return penalty, last / mean if mean > 0 else 1.0


def mean_hessian(family: Likelihood, outputs: np.ndarray, weights: np.ndarray | None) -> float:
    """Mean over examples of the trace of the output Fisher."""
    at, root = family.fisher_root(outputs)
    energy = np.bincount(at, weights=np.einsum("ij,ij->i", root, root), minlength=len(outputs))
    return float(np.mean(energy if weights is None else energy * weights))


def unit_of(family: Likelihood) -> float:
    """What a Hessian of 1 in the library's loss is in minus the log-likelihood."""
    if isinstance(family, Gaussian):
        return 1.0 / (family.variance or 1.0)
    if isinstance(family, AsymmetricLaplace):
        return family.quantile * (1 - family.quantile) / (family.scale or 1.0) ** 2
    return 1.0
