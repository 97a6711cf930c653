"""What each way to embed a training set costs, in floating-point operations, before it is taken.

With P parameters, n examples, R Fisher rows, s positions of a layer, and G the operations of one
dot product of two scores (from the factors themselves, as their Gram matrix is computed):

    passes   4·Σ s·d_in·d_out a row                     forward, and backward to the layers
    primal   passes + 2RP² + P³/3 + 2nP²                Fisher, its factor, whitened rows
    dual     passes + (R²/2 + nR)·G + 5/3·R³ + 3nR²     Gram matrix, its factor, scores in its basis
    sketch   passes + moments + their eigenbases + projections + 2Rp² + p³/3 + 2np²

The constants are those of the textbook; what was left out (copies, indices) is smaller.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from exempla.factors import Work
from exempla.oracles.base import Examples, Layer, Oracle
from exempla.sketch.moments import LARGE, LONG_SIDE, ROUNDS, WHOLE, columns, few_columns

__all__ = ["BASIS_EXAMPLES", "Job", "basis_examples", "look_at"]

LOOKED_AT, LOOKED_POSITIONS = 32, 512
"""Examples whose Fisher rows are counted, and their factors looked at; of long ones, so many that
they have as many positions."""
BASIS_EXAMPLES = 32, 512
"""Examples that a basis is found from: so many at least, and at most …"""
BASIS_PER_SIDE = 4
"""… and between the two so many that each layer sees this many positions for every coordinate of
its wider side (as far as that is found whole)."""
EIGEN = 10.0
"""Operations of an eigenbasis of a d × d matrix, in units of d³."""


@dataclass(frozen=True)
class Job:
    """A model and so many examples."""

    parameters: int
    examples: int
    rows_each: float
    """Fisher rows an example has."""
    work: tuple[Work, ...]
    """What each layer costs."""
    row_bytes: float = 0.0
    """Memory that a row's factors take in their compact form."""

    @property
    def rows(self) -> float:
        """R, the Fisher rows of all examples."""
        return self.rows_each * self.examples

    @property
    def gram(self) -> float:
        """G, operations of a dot product of two scores."""
        return sum(layer.gram for layer in self.work)

    def passes(self, rows: float) -> float:
        """Forward and backward through the model for so many rows."""
        return 4.0 * rows * sum(w.positions * w.d_in * w.d_out for w in self.work)

    def primal(self) -> float:
        """Scores written out."""
        P, n, R = self.parameters, self.examples, self.rows
        return self.passes(n + R) + 2.0 * R * P**2 + P**3 / 3 + 2.0 * n * P**2

    def dual(self) -> float:
        """The span of scores and Fisher rows, from their dot products."""
        n, R = self.examples, self.rows
        products = (R**2 / 2 + n * R) * self.gram
        return self.passes(n + R) + products + 5 / 3 * R**3 + 3.0 * n * R**2

    def sketch(self, width: int, basis: int, sample: int) -> float:
        """K-FAC: a basis from so many examples, the Fisher from a sample, every example's row."""
        n, p = self.examples, min(width, self.parameters)
        basis_rows, sample_rows = self.rows_each * basis, self.rows_each * sample
        share = -(-p // max(len(self.work), 1))  # directions a layer keeps, taken to be equal
        moments = project = 0.0
        for s, d_in, d_out, _ in self.work:
            r_in, r_out = min(d_in, share), min(d_out, share)
            # an example's input is the same in all of its rows, and its moment is taken once
            moments += basis * moment(s, d_in, d_out, p) + basis_rows * moment(s, d_out, d_in, p)
            layers = len(self.work) if self.parameters >= LARGE else 0
            moments += eigenbasis(d_in, d_out, p, layers) + eigenbasis(d_out, d_in, p, layers)
            project += 2.0 * s * (d_in * r_in + d_out * r_out + r_in * r_out)
        fisher = 2.0 * sample_rows * p**2 + p**3 / 3 + 2.0 * n * p**2
        passes = self.passes(basis_rows + sample_rows + n)
        return passes + moments + (sample_rows + n) * project + fisher


def moment(positions: int, d: float, other: float, width: int) -> float:
    """Operations of adding one row's v vᵀ to a side's moment, or to what stands for a wide one."""
    return 2.0 * positions * d * (d if d <= WHOLE else 2 * columns(int(other), width))


def eigenbasis(d: float, other: float, width: int, layers: int) -> float:
    """Operations of finding a side's strongest directions; `layers` of a large model, else 0."""
    few = few_columns(int(other), width, layers) if layers else d
    if d <= WHOLE and d > max(LONG_SIDE, 2 * few):
        return (ROUNDS + 1) * (2.0 * d**2 * few + 4.0 * d * few**2) + EIGEN * few**3
    if d <= WHOLE:
        return EIGEN * d**3
    few = columns(int(other), width)
    return 2 * EIGEN * few**3 + 6.0 * d * few**2


def look_at(oracle: Oracle, examples: Examples) -> Job:
    """The job, from the Fisher rows of a few examples spread over the data."""
    n = len(examples)
    some = np.unique(np.linspace(0, n - 1, min(n, LOOKED_AT)).astype(np.int64))
    layers = oracle.layers
    count, work, row_bytes, seen = 0, (), 0.0, len(some)
    for batch in oracle.fisher_rows(examples.take(some)):
        count += len(batch)
        if len(batch) and not work:  # dot products are taken of the compact form
            compact = batch.compact().factors
            pairs = zip(batch.factors, compact, strict=True)
            work = tuple(f.work._replace(gram=small.work.gram) for f, small in pairs)
            row_bytes = sum(f.nbytes for f in compact) / len(batch)
        reached = len(np.unique(batch.sample))
        if count == len(batch) == reached and reached * batch.thinnest(layers) >= LOOKED_POSITIONS:
            seen = reached  # one row an example, and long ones: the others are like them
            break
    return Job(oracle.n_parameters, n, count / seen, work, row_bytes)


def basis_examples(layers: tuple[Layer, ...], work: Iterable[Work]) -> int:
    """How many examples the moments of these layers' sides settle on.

    >>> from exempla.oracles.base import Layer
    >>> layer = Layer("head", 128, 8000, np.zeros(128))
    >>> [basis_examples((layer,), [Work(s, 128, 8000, 0.0)]) for s in (1, 64, 512)]
    [512, 128, 32]
    """
    least, most = BASIS_EXAMPLES
    needed = [
        BASIS_PER_SIDE * min(max(layer.d_in, layer.d_out), WHOLE) / w.positions
        for layer, w in zip(layers, work, strict=True)
        if layer.d_in > 1
    ]
    return int(np.clip(max(needed, default=most), least, most))
