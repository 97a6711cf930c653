"""Which examples a summary may pick, and their feature rows.

Equal examples have equal rows, to the last bit, so that the choice between them is a tie and goes
to the first. (A product computes a row a little differently at another place of its batch.)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.arrays import is_sparse
from exempla.progress import say
from exempla.tasks.summarize.classes import stratified_sample
from exempla.tasks.summarize.last_layer import LastLayer
from exempla.tasks.summarize.posterior import Posterior

__all__ = ["Pool", "candidates", "pool_size"]

FEWEST_CANDIDATES, PER_PICK = 5000, 5
ROW_BYTES = 2**30
"""Of a large training set a random part are candidates, so many for each pick and no more than
this memory holds, while the target stays the mean of all. Half of them are drawn by leverage, or
what only a few examples show (a rare feature) would be missing."""
NO_LEVERAGE = 1e-12
"""Leverage below this share of the largest is rounding."""
BITS = 40
"""Inputs that agree in so many leading bits are equal: the rest is rounding of the layers below."""


@dataclass(frozen=True)
class Pool:
    """The candidates' feature rows, and the mean row to match.

    The last columns say which class an example is of, scaled like the rest of the row. They are
    zero while the classes' shares are left free.
    """

    examples: np.ndarray
    """Rows of the training data."""
    rows: np.ndarray
    target: np.ndarray
    shares: np.ndarray
    """Share of each class in the training data; empty where labels are no classes."""
    typical: float
    """Median squared norm of the rows, classes aside."""

    def mark_classes(self, codes: np.ndarray, by_class: bool) -> None:
        """Fill the last columns, in place: the rows may be too many to copy."""
        if len(self.shares):
            width = self.rows.shape[1] - len(self.shares)
            height = np.sqrt(self.typical) * by_class
            same = codes[self.examples][:, None] == np.arange(len(self.shares))
            self.rows[:, width:] = height * same
            self.target[width:] = height * self.shares


def candidates(layer: LastLayer, around: Posterior, k: int, rng: np.random.Generator) -> Pool:
    """Feature rows of the examples that may be picked, and of all of them the mean."""
    shares = np.empty(0)
    if layer.discrete:
        shares = np.bincount(layer.codes, weights=layer.counts) / layer.size
    width = around.width + len(shares)
    examples = _sample(layer, around, k, width, rng)
    if 4 * len(examples) * width > 2**28:
        say(f"{len(examples)} of {len(layer)} examples are candidates, in rows of {width} numbers")
    rows = np.empty((len(examples), width), dtype=np.float32)
    chosen = layer.take(examples)
    around.fill(rows, chosen)
    first = first_equal(chosen)
    copies = np.flatnonzero(first != np.arange(len(first)))
    rows[copies] = rows[first[copies]]
    rows[:, around.width :] = 0.0
    target = np.concatenate([around.mean(layer), np.zeros(len(shares))])
    typical = float(np.median(np.einsum("ij,ij->i", rows, rows)))
    return Pool(examples, rows, target, shares, typical)


def pool_size(k: int, width: int) -> int:
    """How many candidates there are for k picks, in rows of so many numbers."""
    return max(k, min(max(FEWEST_CANDIDATES, PER_PICK * k), ROW_BYTES // (4 * width)))


def _sample(
    layer: LastLayer, around: Posterior, k: int, width: int, rng: np.random.Generator
) -> np.ndarray:
    size = pool_size(k, width)
    counted = np.arange(len(layer))
    counted = counted if layer.counts is None else counted[layer.counts > 0]
    classes = layer.codes if layer.discrete else None
    leverage = None
    if size < len(counted):
        leverage = around.leverage(layer.take(counted))
        leverage[leverage < NO_LEVERAGE * leverage.max()] = 0.0
    return stratified_sample(classes, counted, size, rng, leverage)


def first_equal(layer: LastLayer) -> np.ndarray:
    """For each example the first one with the same inputs, label and scale."""
    inputs = layer.a.tocsr().sorted_indices() if is_sparse(layer.a) else layer.a
    values = leading_bits(inputs.data if is_sparse(inputs) else inputs)
    scale = np.ones(len(layer)) if layer.scale is None else layer.scale
    first: dict[bytes, int] = {}
    found = np.empty(len(layer), dtype=np.int64)
    for i in range(len(layer)):
        if is_sparse(inputs):
            mine = slice(inputs.indptr[i], inputs.indptr[i + 1])
            key = inputs.indices[mine].tobytes() + values[mine].tobytes()
        else:
            key = values[i].tobytes()
        key += layer.codes[i : i + 1].tobytes() + scale[i : i + 1].tobytes()
        found[i] = first.setdefault(key, i)
    return found


def leading_bits(values: np.ndarray, bits: int = BITS) -> np.ndarray:
    """Numbers rounded to so many binary digits.

    >>> leading_bits(np.array([1.0, 1.01, -3.3]), bits=3)
    array([ 1. ,  1. , -3.5])
    """
    mantissa, exponent = np.frexp(values)
    # adding zero makes -0.0 and 0.0 the same bytes
    return np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits) + 0.0
