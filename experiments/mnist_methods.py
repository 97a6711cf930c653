"""Every way of choosing training digits to remove, each a ranking per target (or one for all).

The Fisher methods read one fitted Explainer; what several targets share (embedding, raw products)
is computed once for all questioned digits, and a target is a set of columns.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exempla import SBQ, ExemplaWarning, Explainer, select
from exempla.kernel.damping import resolve_damping
from exempla.kernel.embed import unit_rows
from exempla.kernel.kernel import KernelUse
from exempla.kernel.solve import query_kernel

__all__ = ["FisherRankings", "mmd_prototypes", "random_rows", "rbf_opponents"]

LANDMARKS = 512


class FisherRankings:
    """Rankings from the Fisher kernel of one choice of layers, averaged over the models."""

    def __init__(self, explainer: Explainer, test: tuple[Tensor, Tensor]) -> None:
        self.explainer, self.test = explainer, test
        self.pairs = [(e, e.oracle.read(test, role="test")) for e in explainer.embeddings]

    def influence(self, targets: Sequence[np.ndarray]) -> list[np.ndarray]:
        """What `clean` does: most negative influence on the mean of the target first."""
        mix = np.zeros((len(self.pairs[0][1]), len(targets)))
        for column, target in enumerate(targets):
            mix[target, column] = 1.0 / len(target)
        each = [query_kernel(e, x, damping_of(e), mix=mix).values for e, x in self.pairs]
        harm = np.mean(each, axis=0)
        return [np.argsort(column, kind="stable") for column in harm.T]

    def sbq(self, targets: Sequence[np.ndarray], k: int, noise: float = 10.0) -> list[np.ndarray]:
        """SBQ on unit rows, opponents only."""
        unit = self.explainer.kernel("selection").features.rows
        asked = self._asked("selection", unit)
        means = torch.stack([asked[t].mean(0) for t in targets])
        return chosen(select(unit, means, k, SBQ(noise=noise), side="opponents"))

    def literal(self, targets: Sequence[np.ndarray], k: int) -> list[np.ndarray]:
        """The paper to the letter: raw rows, no noise, no sign."""
        features = self.explainer.kernel("influence").features.rows
        asked = self._asked("influence", features)
        means = torch.stack([asked[t].mean(0) for t in targets])
        return chosen(select(features, means, k, SBQ(), side="both"))

    def _asked(self, use: KernelUse, like: Any) -> Any:
        """Rows of the test set beside the training rows of this use."""
        kernel = self.explainer.kernel(use)
        return kernel.query_rows(kernel.query(self.test), like)

    def self_influence(self) -> np.ndarray:
        """Largest first; no target needed."""
        return np.argsort(-self.explainer.self_influence(), kind="stable")

    def describe(self) -> str:
        embedding = self.explainer.embeddings[0]
        damping, row = damping_of(embedding), damping_of(embedding, "per-row")
        return (
            f"{embedding.sketch.note}; {embedding.evidence.share:.3f} of the Fisher's trace; "
            f"damping {damping:.3g} = {damping / row:.3g} × per-row"
        )


def damping_of(embedding: Any, rule: str = "auto") -> float:
    return resolve_damping(rule, embedding.evidence, embedding.metric.name).value


def chosen(selections: Any) -> list[np.ndarray]:
    return [s.indices for s in selections]


def random_rows(n: int, k: int, seed: int) -> np.ndarray:
    return np.random.default_rng(10_000 + seed).choice(n, k, replace=False)


def rbf_opponents(
    x: Tensor, y: Tensor, qx: Tensor, qy: Tensor, targets: Sequence[np.ndarray], k: int
) -> list[np.ndarray]:
    """SBQ on opponents with an RBF kernel on pixels, times agreement of the centred labels.

    Nyström features of the RBF kernel, outer product with the one-hot label minus its mean.
    """
    gamma = 1.0 / median_distance2(x)
    generator = torch.Generator().manual_seed(0)
    landmarks = x[torch.randperm(len(x), generator=generator)[:LANDMARKS].to(x.device)]
    values, vectors = torch.linalg.eigh(rbf(landmarks, landmarks, gamma).double())
    root = (vectors / values.clamp_min(1e-6).sqrt()).to(x.dtype)
    centred = torch.eye(10, device=x.device) - 0.1

    def features(images: Tensor, labels: Tensor) -> Tensor:
        parts = []
        for part, digit in zip(images.split(4096), labels.split(4096), strict=True):
            seen = rbf(part, landmarks, gamma) @ root
            parts.append((seen[:, :, None] * centred[digit][:, None, :]).flatten(1))
        return unit_rows(torch.cat(parts))

    asked = features(qx, qy)
    means = torch.stack([asked[t].mean(0) for t in targets])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExemplaWarning)
        return chosen(select(features(x, y), means, k, SBQ(noise=10.0), side="opponents"))


def mmd_prototypes(
    x: Tensor, qx: Tensor, targets: Sequence[np.ndarray], k: int
) -> list[np.ndarray]:
    """Unweighted MMD prototypes of the target on pixels (Kim et al. 2016): labels play no part.

    Greedy on 2/(m) Σ_s mean_i k(s, i) − 1/m² Σ_{s,s'} k(s, s').
    """
    gamma = 1.0 / median_distance2(x)
    near = torch.cat([rbf(part, qx, gamma) for part in x.split(8192)])
    out = []
    for target in targets:
        pull = near[:, torch.as_tensor(target, device=x.device)].mean(1)
        crowd, taken = torch.zeros_like(pull), []
        free = torch.zeros_like(pull)
        for m in range(1, k + 1):
            # terms of the objective that depend on the candidate j, with m picks in all
            gain = 2 * pull / m - (2 * crowd + 1.0) / m**2 + free
            j = int(gain.argmax())
            taken.append(j)
            free[j] = -torch.inf
            crowd = crowd + torch.cat([rbf(p, x[j : j + 1], gamma) for p in x.split(16384)])[:, 0]
        out.append(np.array(taken))
    return out


def rbf(one: Tensor, other: Tensor, gamma: float) -> Tensor:
    return torch.exp(-gamma * torch.cdist(one.flatten(1), other.flatten(1)).square())


def median_distance2(x: Tensor) -> float:
    sample = x[:: max(1, len(x) // 1000)].flatten(1)
    return float(torch.pdist(sample).square().median())
