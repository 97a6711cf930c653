"""Choose a sketch: exact where its cost is acceptable, otherwise leading K-FAC directions.

The cost of every form is forecast in floating-point operations before it is built. With P
parameters, n examples, R Fisher rows, s positions of a layer, and G the operations of one dot
product of two scores (by their factors, as their Gram matrix is computed):

    epoch    6·Σ s·d_in·d_out per example                     forward and backward
    passes   4·Σ s·d_in·d_out per row                         forward, and backward to the layers
    primal   passes + 2RP² + P³/3 + 2nP²                      Fisher, its factor, whitened rows
    dual     passes + (R²/2 + mR)·G + 5/3·R³ + 3mR²           Gram matrix, its factor, m scores
    sketch   passes + moments + eigenbases + projections + 2Rp² + p³/3 + 2np²

m is the number of examples whose score is not a multiple of one of their Fisher rows.

A *budget* limits the cost of a fit to a multiple of an epoch of training (`Price`). Operations of
matrix algebra count less than those of passes, because they run faster (`_ALGEBRA_SPEED`). The
forecast counts operations and does not measure time, so that the same data and options give the
same sketch on every machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from exempla.checks import is_real, whole_number
from exempla.errors import ExemplaError
from exempla.kernel.basis import IdentitySketch, KroneckerSketch, Sketch, SpanSketch
from exempla.kernel.moments import LARGE, WHOLE, Moments, limits, moments_bytes, plan_side
from exempla.memory import announce, available_memory
from exempla.oracles.base import Examples, Layer, Oracle, ScoreRows, Work
from exempla.progress import say, track_rows

PRIMAL_LIMIT = 4096
"""Parameters up to which scores may be written out; a p × p Cholesky takes a second or two."""
DUAL_LIMIT = 6144
"""Landmark rows up to which the dual form may be used; their Gram matrix takes 300 MB."""
DUAL_BYTES = 2**31
"""Memory that the factors of these rows may take …"""
_LARGE_BYTES = 32
"""… and from `LARGE` parameters on, bytes per parameter; weights, gradients and optimiser take
16."""
WIDTH, WIDEST = 2048, 8192
"""K-FAC directions kept if nothing exact fits: at least the first, and up to the second while the
rows take no more than `_WIDE_BYTES` in single precision."""
_WIDE_BYTES = 2**28
SAMPLE_PER_DIRECTION = 4
"""Examples per direction from which a Fisher matrix is estimated, if there are as many."""
MEMORY_SHARE, NARROWEST = 0.7, 128
"""Share of the free memory that an automatic sketch may take, and the width down to which it is
reduced to fit."""
LEAST_WHOLE = 256
"""A moment of up to this many coordinates is always summed in full."""

EXACT_FLOPS, EXACT_TIMES = 4e12, 2.0
"""Without a budget, an exact form may always cost so many operations (a minute or two on one core),
and beyond that this many times the cost of the sketch."""
FREE_FLOPS = 2e10
"""An exact form that costs no more operations than this (half a second on one core) is within
every budget."""
BUDGET_WIDTH = 640
"""K-FAC directions that are kept whatever the budget. With 512 directions and the mean eigenvalue
of the residual, LDS fell by at most 0.008 on 17 truths and rose on 14 (docs/scaling.md), but by
0.011 on a CNN of `benchmarks.fit_cost`; with 640 by at most 0.005 there."""
_ALGEBRA_SPEED = 4.0
"""Operations of matrix algebra that take as long as one of a pass through a small network."""
_EIGEN = 10.0
"""Operations of an eigenbasis of a d × d matrix, in units of d³."""

_N_PROBED, _PROBED_POSITIONS = 32, 512
"""Examples whose Fisher rows are counted; of long ones only as many as have the second number of
positions together."""
_BASIS_EXAMPLES, _BASIS_PER_SIDE = (32, 512), 4
"""Smallest and largest number of examples from which a basis is computed; between the two, each
layer sees so many positions per coordinate of its wider side."""


@dataclass(frozen=True)
class FitCost:
    """Sizes that the cost of a fit depends on. A cost is (operations of passes, of algebra)."""

    parameters: int
    examples: int
    rows_each: float
    """Fisher rows per example."""
    work: tuple[Work, ...]
    """Arithmetic of each layer."""
    row_bytes: float = 0.0
    """Memory of one row's factors in compact form."""
    scored_share: float = 1.0
    """Share of the examples that need a scoring pass besides the Fisher rows."""

    @property
    def rows(self) -> float:
        """R, the number of Fisher rows."""
        return self.rows_each * self.examples

    @property
    def gram(self) -> float:
        """G, the operations of a dot product of two scores."""
        return sum(layer.gram for layer in self.work)

    def passes(self, rows: float) -> float:
        """Return the operations of forward and backward passes for this many rows."""
        return 4.0 * rows * sum(w.positions * w.d_in * w.d_out for w in self.work)

    def epochs(self, cost: tuple[float, float]) -> float:
        """Return the cost in epochs of training."""
        return (cost[0] + cost[1] / _ALGEBRA_SPEED) / max(1.5 * self.passes(self.examples), 1.0)

    def primal(self) -> tuple[float, float]:
        """Return the cost of scores written out."""
        P, n, R = self.parameters, self.examples, self.rows
        scored = self.scored_share * n
        return self.passes(scored + R), 2.0 * R * P**2 + P**3 / 3 + 2.0 * n * P**2

    def dual(self) -> tuple[float, float]:
        """Return the cost of the span of scores and Fisher rows, from their dot products."""
        R, m = self.rows, self.scored_share * self.examples
        products = (R**2 / 2 + m * R) * self.gram
        return self.passes(m + R), products + 5 / 3 * R**3 + 3.0 * m * R**2

    def sketch(self, width: int, basis: int, sample: int) -> tuple[float, float]:
        """Return the cost of K-FAC directions.

        The basis is computed from `basis` examples and the Fisher from `sample` examples.
        """
        n, p = self.examples, min(width, self.parameters)
        rows = self.rows_each * sample
        scored = n - sample * (1.0 - self.scored_share)
        share = -(-p // max(len(self.work), 1))  # directions per layer, taken to be equal
        widest, most = limits(self.parameters, len(self.work), p)
        moments = eigen = project = 0.0
        for s, d_in, d_out, _ in self.work:
            # all rows of an example have the same input, whose moment is computed once
            for d, other, each in ((d_in, d_out, 1.0), (d_out, d_in, self.rows_each)):
                in_full, few = plan_side(int(d), int(other), p, widest, most)
                summed = d if in_full else 2 * few
                moments += 2.0 * each * basis * s * d * summed
                # all eigenvectors; or of the products with `few` directions, twice
                eigen += _EIGEN * d**3 if few == int(d) else 4.0 * d * (summed + few) * few
                project += 2.0 * s * d * min(d, share)
            project += 2.0 * s * min(d_in, share) * min(d_out, share)
        # rows that the basis was computed from are used again
        again = 0.0 if self.parameters < LARGE else self.rows_each * basis
        passes = self.passes(again + max(rows, self.rows_each * basis) + scored)
        fisher = 2.0 * rows * p**2 + p**3 / 3 + 2.0 * n * p**2
        return passes + moments + (rows + scored) * project, eigen + fisher


def look_at(oracle: Oracle, examples: Examples) -> FitCost:
    """Measure the sizes of a job on the Fisher rows of a few examples."""
    n = len(examples)
    some = np.unique(np.linspace(0, n - 1, min(n, _N_PROBED)).astype(np.int64))
    count, scored, work, row_bytes, seen = 0, 0, (), 0.0, len(some)
    for batch in oracle.fisher_rows(examples.take(some)):
        count += len(batch)
        scored += 0 if batch.to_score is None else len(np.unique(batch.sample[batch.to_score != 0]))
        if len(batch) and not work:  # dot products are computed on the compact form
            compact = batch.compact().factors
            pairs = zip(batch.factors, compact, strict=True)
            work = tuple(f.work._replace(gram=small.work.gram) for f, small in pairs)
            row_bytes = sum(f.nbytes for f in compact) / len(batch)
        reached, positions = len(np.unique(batch.sample)), batch.thinnest(oracle.layers)
        if count == len(batch) == reached and reached * positions >= _PROBED_POSITIONS:
            seen = reached  # one row per example, and long ones: the others are like them
            break
    missing = max(0.0, 1.0 - scored / seen)
    return FitCost(oracle.n_parameters, n, count / seen, work, row_bytes, missing)


def basis_examples(layers: tuple[Layer, ...], work: Iterable[Work]) -> int:
    """Return the number of examples from which the moments of these layers are computed."""
    least, most = _BASIS_EXAMPLES
    needed = [
        _BASIS_PER_SIDE * min(max(layer.d_in, layer.d_out), WHOLE) / w.positions
        for layer, w in zip(layers, work, strict=False)  # no work: the example has no rows
        if layer.d_in > 1
    ]
    return int(np.clip(max(needed, default=most), least, most))


def choose_sketch(
    oracle: Oracle,
    examples: Examples,
    wanted: str | int,
    sample: Examples,
    dual: bool = True,
    budget: float | None = None,
) -> Sketch:
    """Return the sketch of a training set: "auto", "exact", or a number of K-FAC directions.

    The K-FAC basis is computed from the `sample`. `dual` allows the dual form, whose directions
    have no meaning one by one. `budget` limits an automatic sketch, in epochs of training.
    """
    if isinstance(wanted, int):
        return kronecker(oracle, sample, wanted)
    size, count, insists = oracle.n_parameters, len(examples), wanted == "exact"
    price = Price(oracle, examples, len(sample), insists, budget)
    # a diagonal metric (dual=False) needs no p × p matrix
    primal = size <= PRIMAL_LIMIT and (not dual or price.accepts(price.job.primal()))
    if primal and (size <= 2 * count or insists):
        return IdentitySketch(oracle.layers)
    if dual and count <= DUAL_LIMIT and price.accepts_dual():
        span = _span_sketch(oracle, examples)
        if span is not None:
            return span
    if primal:
        return IdentitySketch(oracle.layers)
    if insists:
        raise ExemplaError(
            f"an exact embedding of {size} parameters and {count} examples does not fit: "
            "use sketch='auto' or a number of directions."
        )
    found = kronecker(oracle, sample, price.width(), price.job.work)
    found.given_up = price.given_up
    return found


def _span_sketch(oracle: Oracle, examples: Examples) -> SpanSketch | None:
    """Return the dual form; None if its rows exceed the limits."""
    count, scores = len(examples), None
    room = _dual_bytes(oracle.n_parameters)
    fisher = collect(oracle.fisher_rows(examples), "Fisher rows of the training set", count, room)
    if fisher is None:
        return None
    has_score = np.zeros(count, dtype=bool)
    if fisher.to_score is not None:
        has_score[fisher.sample[fisher.to_score != 0]] = True
    missing = np.flatnonzero(~has_score)
    if len(missing):
        some = examples if len(missing) == count else examples.take(missing)
        scores = collect(oracle.scores(some), "scoring the training set", len(some), room)
        if scores is None:
            return None
    return SpanSketch(oracle.layers, fisher, scores, missing, count)


def _dual_bytes(parameters: int) -> int:
    """Return the memory that the factors of the dual form may take."""
    return DUAL_BYTES if parameters < LARGE else min(DUAL_BYTES, _LARGE_BYTES * parameters)


def collect(batches: Iterable[ScoreRows], what: str, examples: int, room: int) -> ScoreRows | None:
    """Join all rows; return None as soon as they exceed the limits of the dual form."""
    groups, total, size = [], 0, 0
    for batch in map(ScoreRows.compact, track_rows(batches, what, examples)):
        total, size = total + len(batch), size + batch.nbytes
        if total > DUAL_LIMIT or size > room:
            return None
        groups.append(batch)
    return ScoreRows.join(groups) if total else None


def auto_width(count: int) -> int:
    """Return the number of directions for this many examples, as far as memory goes."""
    width = WIDEST
    while width > WIDTH and 4 * count * width > _WIDE_BYTES:
        width //= 2
    return width


def fitting(width: int, count: int, itemsize: int) -> int:
    """Halve the width until rows and Fisher fit in memory; print a line if it was reduced."""
    room, wanted = MEMORY_SHARE * available_memory(), width
    while width > NARROWEST and 3 * (count * width * itemsize + 8 * width**2) > room:
        width //= 2
    if width < wanted:
        say(
            f"Not enough memory for {count} rows of {wanted} directions; using {width} "
            "(store=FOLDER keeps rows on disk)"
        )
    return width


class Price:
    """Decide whether a form costs too much, by the budget or beside the sketch that replaces it."""

    def __init__(
        self,
        oracle: Oracle,
        examples: Examples,
        sample: int,
        insists: bool,
        budget: float | None = None,
    ) -> None:
        self.oracle, self.examples, self.sample, self.insists = oracle, examples, sample, insists
        self.budget = budget
        self.given_up = ""
        """What the budget did not allow, in words."""

    @cached_property
    def job(self) -> FitCost:
        """Sizes measured on a few examples."""
        return look_at(self.oracle, self.examples)

    def accepts_dual(self) -> bool:
        """Return True if the dual form is acceptable."""
        rows, size = self.job.rows, self.job.rows * self.job.row_bytes
        if rows > DUAL_LIMIT or size > _dual_bytes(self.job.parameters):
            return self.insists
        return self.accepts(self.job.dual())

    def width(self) -> int:
        """Return how many K-FAC directions memory and cost allow."""
        count = len(self.examples)
        width = widest = auto_width(count)
        least = WIDTH if self.budget is None else min(BUDGET_WIDTH, WIDTH)
        while width > least and not self.accepts(self._sketch(width), exact=False):
            width = max(width // 2, least)
        if width < min(widest, WIDTH) and self.budget is not None:
            self.given_up = self.given_up or f"{widest - width:,} of {widest:,} K-FAC directions"
        return fitting(width, count, self.oracle.itemsize)

    def _sketch(self, width: int) -> tuple[float, float]:
        basis = min(self.sample, basis_examples(self.oracle.layers, self.job.work))
        sample = min(len(self.examples), SAMPLE_PER_DIRECTION * width)
        return self.job.sketch(width, basis, sample)

    def accepts(self, cost: tuple[float, float], exact: bool = True) -> bool:
        """Return True if a form of this cost is acceptable; if an exact one is not, print why.

        An exact form below `FREE_FLOPS` always is.
        """
        total, large = sum(cost), self.oracle.n_parameters >= LARGE
        free = min(FREE_FLOPS, EXACT_FLOPS) if exact else 0.0
        if self.insists or (total <= free and not large):
            return True
        times = total / sum(self._sketch(WIDTH))
        fair = (total <= EXACT_FLOPS and not large) or times <= (1.0 if large else EXACT_TIMES)
        words = f"{times:.1f} times the work of {WIDTH} K-FAC directions"
        if fair and self.budget is not None:
            epochs = self.job.epochs(cost)
            fair = epochs <= self.budget
            words = f"about {epochs:,.0f} epochs of training, and the budget is {self.budget:g}"
        if exact and not fair:
            self.given_up = f"an exact embedding would cost {words}"
            say(f"{self.given_up}; using K-FAC directions (sketch='exact' insists)")
        return fair


def check_sketch(wanted: object) -> str | int:
    """Return the option if it is "auto", "exact" or a number of directions."""
    if isinstance(wanted, str) and wanted in ("auto", "exact"):
        return str(wanted)
    if not whole_number(wanted) or not isinstance(wanted, int) or wanted < 1:
        raise ExemplaError(
            f"sketch={wanted!r} is not known: use 'auto', 'exact' or a number of directions."
        )
    return wanted


def check_budget(wanted: Any) -> str | float:
    """Return the option if it is "auto", "exact" or a positive number of epochs."""
    if isinstance(wanted, str) and wanted in ("auto", "exact"):
        return str(wanted)
    if not is_real(wanted) or not float(wanted) > 0:
        raise ExemplaError(
            f"budget={wanted!r} is not known: use 'auto', 'exact' or a positive number of epochs."
        )
    return float(wanted)


def kronecker(
    oracle: Oracle, sample: Examples, width: int, work: tuple[Work, ...] = ()
) -> KroneckerSketch:
    """Return the leading K-FAC directions, computed from some of the sample.

    Moments need fewer examples than the p × p Fisher, and fewer if examples have many positions,
    which `work`, or the first example, shows.
    """
    layers, whole, count = oracle.layers, WHOLE, len(sample)
    room = MEMORY_SHARE * available_memory(getattr(oracle, "device", None))
    while whole > LEAST_WHOLE and moments_bytes(layers, width, oracle.itemsize, whole) > room:
        whole //= 2
    needed = moments_bytes(layers, width, oracle.itemsize, whole) + oracle.pass_bytes
    if whole < WHOLE:
        say(f"Not enough memory for moments of {WHOLE} coordinates; using {whole}")
    announce(needed, f"{oracle.n_parameters} parameters; moments of {len(layers)} layers")
    if count > _BASIS_EXAMPLES[0]:
        work = work or look_at(oracle, sample.take(np.array([0]))).work
        count = min(count, basis_examples(layers, work))
    seen = np.linspace(0, len(sample) - 1, count).astype(np.int64)
    sample = sample if count == len(sample) else sample.take(seen)
    kept: list[ScoreRows] = []
    # at most as much as a pass takes
    room = oracle.pass_bytes if oracle.n_parameters < LARGE else 0

    def keeping(batches: Iterable[ScoreRows]) -> Iterator[ScoreRows]:
        nonlocal room
        for batch in batches:
            room -= batch.nbytes
            if room > 0:
                kept.append(batch)
            else:
                kept.clear()
            yield batch
            del batch  # the next pass needs its memory

    rows = keeping(track_rows(oracle.fisher_rows(sample), "finding the basis", count))
    found = KroneckerSketch.of(layers, Moments.of(layers, rows, width, whole), width)
    found.built_bytes = needed
    if kept:
        found.seen, found.seen_rows = seen, tuple(kept)
    return found
