"""What the strongest directions leave of a score, not dropped but projected at random.

Where the Fisher's spectrum is flat, the strongest directions are not the kernel. A layer's rest X
(its score without the kept directions) is seen through m pairs of random signs,

    r_c = u_cᵀ X v_c / √m,     so that   E[r·r′] = ⟨X, X′⟩,

whatever X is: inner products are kept in expectation, and one pair costs two dot products a
position. A score is never written out, nor a matrix of (pairs × parameters). The rest's metric is
one number a layer, ρ = tr(F²)/tr(F) of its Fisher outside the kept directions: a p × p Fisher of
random directions would not do, as its inverse sees only the m of many directions that were drawn.
So rows stay unwhitened, and damping a choice of the question: the rest's metric is ρ + damping.

The price is noise, ‖X‖‖X′‖/√m in every product. How far products can be trusted is measured on
pairs of training scores whose products are taken exactly, and the rest is shrunk by what the
measurement says: by nothing if the noise is small, to nothing if there is only noise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from exempla.arrays import Array, as_like
from exempla.factors import Factors
from exempla.oracles.base import Examples, Oracle, in_float64

if TYPE_CHECKING:
    from exempla.sketch.kronecker import KroneckerSketch, LayerBasis

__all__ = ["LayerRest", "RestSpectrum", "agreement", "allotted", "layer_rest"]

LOOKED_AT = 48
"""Training examples whose products are taken exactly, batch by batch."""


@dataclass(frozen=True)
class RestSpectrum:
    """K-FAC's eigenvalues of a layer outside the kept directions."""

    total: float
    """Their sum, in the units of the rows the moments were summed from."""
    squares: float
    """The sum of their squares."""

    @property
    def scale(self) -> float:
        """ρ: the mean eigenvalue as the scores weigh directions."""
        return self.squares / self.total if self.total > 0 else 0.0


@dataclass(frozen=True)
class LayerRest:
    """Random pairs of one layer: columns u (d_in, m), v (d_out, m), and what the kept directions
    have in them, (kept, m)."""

    inputs: Array
    outputs: Array
    kept: Array | None
    spectrum: RestSpectrum

    @property
    def width(self) -> int:
        return self.inputs.shape[1]

    def project(self, factors: Factors, lead: Array | None) -> Array:
        """The rest of these scores, whose coordinates in the kept directions are `lead`."""
        whole = factors.project_matched(self.inputs, self.outputs)
        return whole if self.kept is None or lead is None else whole - lead @ self.kept


def layer_rest(
    sizes: tuple[int, int],
    count: int,
    basis: LayerBasis | None,
    spectrum: RestSpectrum,
    like: Array,
    seed: tuple[int, int],
) -> LayerRest | None:
    """Pairs of random signs for a layer of these sizes; None if it has none."""
    if count == 0:
        return None
    rng = np.random.default_rng(seed)
    u, v = (as_like(rng.choice([-1.0, 1.0], size=(d, count)), like) for d in sizes)
    v = v / count**0.5
    kept = None
    if basis is not None:
        kept = (basis.inputs.T @ u)[basis.pairs.inputs] * (basis.outputs.T @ v)[basis.pairs.outputs]
    return LayerRest(u, v, kept, spectrum)


def allotted(count: int, spectra: Sequence[RestSpectrum]) -> list[int]:
    """How many pairs each layer gets: in proportion to its whitened energy, which makes the noise
    of all layers together smallest.

    >>> allotted(10, [RestSpectrum(6.0, 6.0), RestSpectrum(4.0, 4.0), RestSpectrum(0.0, 0.0)])
    [6, 4, 0]
    """
    total = sum(s.total for s in spectra)
    if total <= 0:
        return [0] * len(spectra)
    mean = sum(s.squares for s in spectra) / total
    energy = np.array([s.total / (s.scale + mean) if s.total > 0 else 0.0 for s in spectra])
    exact = count * energy / energy.sum()
    whole = np.floor(exact).astype(int)
    for place in np.argsort(-(exact - whole), kind="stable")[: count - whole.sum()]:
        whole[place] += 1
    return whole.tolist()


def agreement(sketch: KroneckerSketch, oracle: Oracle, examples: Examples) -> tuple[float, float]:
    """How well the rest's products stand for exact ones, from pairs of training scores.

    Each layer counts by 1/ρ, damped. Returns the weight w that makes w·(sketched product) closest
    to the exact one, between 0 and 1, and the error that is left, as a share of the exact ones.
    """
    some = np.linspace(0, len(examples) - 1, min(len(examples), LOOKED_AT)).astype(np.int64)
    both = sketched2 = exact2 = 0.0
    scales = np.array([s.scale for s in sketch.left])
    mean = float(np.mean(scales[scales > 0])) if scales.any() else 1.0
    for batch in oracle.scores(examples.take(np.unique(some))):
        exact: np.ndarray | float = 0.0
        sketched: np.ndarray | float = 0.0
        each = zip(sketch.bases, sketch.rests, batch.factors, scales, strict=True)
        for basis, rest, factors, scale in each:
            if scale <= 0:
                continue
            lead = None if basis is None else basis.project(factors)
            raw = in_float64(factors.gram(factors))
            if lead is not None:
                raw = raw - in_float64(lead @ lead.T)
            exact = exact + raw / (scale + mean)
            if rest is not None:
                row = in_float64(rest.project(factors, lead))
                sketched = sketched + row @ row.T / (scale + mean)
        pairs = np.triu_indices(len(batch), 1)
        e, s = (np.broadcast_to(k, (len(batch), len(batch)))[pairs] for k in (exact, sketched))
        both, sketched2, exact2 = both + e @ s, sketched2 + s @ s, exact2 + e @ e
    if sketched2 <= 0 or exact2 <= 0:
        return 0.0, 1.0
    weight = float(np.clip(both / sketched2, 0.0, 1.0))
    left = exact2 - 2 * weight * both + weight**2 * sketched2
    return weight, float(np.sqrt(max(left, 0.0) / exact2))
