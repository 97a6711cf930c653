"""Scores of any length become rows of one width: exactly where that fits and its cost is fair, else
in K-FAC's basis.

Inside: choose (which form), cost (what each would cost), identity, span (the dual form), kronecker
with its moments, rest (what that leaves, seen at random). Imports: oracles.base, factors, arrays,
progress, errors.

Which basis fits this model and so many examples: exact if possible, and it says which.

What each way to embed a training set costs, in floating-point operations, before it is taken.

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
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from exempla.checks import whole_number
from exempla.errors import ExemplaError
from exempla.kernel.basis import IdentitySketch, KroneckerSketch, Sketch, SpanSketch
from exempla.kernel.moments import (
    LARGE,
    LONG_SIDE,
    ROUNDS,
    WHOLE,
    Moments,
    columns,
    few_columns,
    moments_bytes,
)
from exempla.memory import announce, available_memory
from exempla.oracles.base import Examples, Layer, Oracle, ScoreRows
from exempla.oracles.factors import Work
from exempla.progress import say, track_rows

_LOOKED_AT, _LOOKED_POSITIONS = 32, 512
"""Examples whose Fisher rows are counted, and their factors looked at; of long ones, so many that
they have as many positions."""
_BASIS_EXAMPLES = 32, 512
"""Examples that a basis is found from: so many at least, and at most …"""
_BASIS_PER_SIDE = 4
"""… and between the two so many that each layer sees this many positions for every coordinate of
its wider side (as far as that is found whole)."""
_EIGEN = 10.0
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
        return (ROUNDS + 1) * (2.0 * d**2 * few + 4.0 * d * few**2) + _EIGEN * few**3
    if d <= WHOLE:
        return _EIGEN * d**3
    few = columns(int(other), width)
    return 2 * _EIGEN * few**3 + 6.0 * d * few**2


def look_at(oracle: Oracle, examples: Examples) -> Job:
    """The job, from the Fisher rows of a few examples spread over the data."""
    n = len(examples)
    some = np.unique(np.linspace(0, n - 1, min(n, _LOOKED_AT)).astype(np.int64))
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
        if count == len(batch) == reached and reached * batch.thinnest(layers) >= _LOOKED_POSITIONS:
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
    least, most = _BASIS_EXAMPLES
    needed = [
        _BASIS_PER_SIDE * min(max(layer.d_in, layer.d_out), WHOLE) / w.positions
        for layer, w in zip(layers, work, strict=True)
        if layer.d_in > 1
    ]
    return int(np.clip(max(needed, default=most), least, most))


PRIMAL_LIMIT = 4096
"""Up to so many parameters the scores are written out: a p×p Cholesky takes a second or two."""
DUAL_LIMIT = 6144
"""Up to so many landmark rows the dual form is used: their Gram matrix takes 300 MB at most."""
DUAL_BYTES = 2**31
"""… and their factors may take up to so much memory."""
WIDTH, WIDEST = 2048, 8192
"""Directions kept when nothing exact fits: so many at least, and up to so many …"""
_WIDE_BYTES = 2**28
"""… while the rows take no more memory than this in single precision."""
SAMPLE_PER_DIRECTION = 4
"""A Fisher of p directions is estimated from at least so many examples a direction (or all)."""

MEMORY_SHARE, NARROWEST = 0.7, 128
"""Of the memory that is free an automatic sketch takes no more than this share, as long as it keeps
so many directions."""

EXACT_FLOPS = 4e12
"""An exact form may always cost so many operations (a minute or two of one core) …"""
EXACT_TIMES = 2.0
"""… and beyond that so many times what the sketch would cost: it is exact, but not at any price."""
_LARGE_BYTES = 32
"""From `LARGE` parameters on a fit is measured against an epoch of training: an exact form may cost
no more than the sketch, and its factors so many bytes a parameter, weights, gradients and optimiser
taking 16."""
LEAST_WHOLE = 256
"""A moment of so many coordinates is always summed whole."""
_TOO_MANY = 1.25
"""Times a limit at which a look at a few examples is enough to say that it will be passed."""


def choose_sketch(
    oracle: Oracle,
    examples: Examples,
    wanted: str | int,
    sample: Examples,
    dual: bool = True,
) -> Sketch:
    """The sketch for this job.

    `wanted` is "auto", "exact", or the number of K-FAC directions to keep. `sample` is the part
    of the examples the K-FAC basis may be estimated from. `dual=False` rules out the dual form,
    whose directions mean nothing one by one.
    """
    if isinstance(wanted, int):
        return kronecker(oracle, sample, wanted)
    size, count = oracle.n_parameters, len(examples)
    price = Price(oracle, examples, len(sample), insists=wanted == "exact")
    # without cross-correlations (dual=False) nothing of size p×p is ever computed
    primal = size <= PRIMAL_LIMIT and (not dual or price.primal_is_fair())
    if primal and (size <= 2 * count or wanted == "exact"):
        return IdentitySketch(oracle.layers)
    if dual and count <= DUAL_LIMIT and price.dual_is_fair():
        room = _dual_bytes(size)
        fisher = collect(
            oracle.fisher_rows(examples), "Fisher rows of the training set", count, room
        )
        scores = None
        if fisher is not None:
            scores = collect(oracle.scores(examples), "scoring the training set", count, room)
        if fisher is not None and scores is not None:
            return SpanSketch(oracle.layers, fisher, scores)
    if primal:
        return IdentitySketch(oracle.layers)
    if wanted == "exact":
        raise ExemplaError(
            f"an exact embedding of {size} parameters and {count} examples does not fit: "
            "use sketch='auto' or a number of directions."
        )
    return kronecker(oracle, sample, price.width())


def auto_width(count: int) -> int:
    """Directions that so many examples may have, as far as memory goes.

    >>> auto_width(5_000), auto_width(60_000)
    (8192, 2048)
    """
    width = WIDEST
    while width > WIDTH and 4 * count * width > _WIDE_BYTES:
        width //= 2
    return width


def _dual_bytes(parameters: int) -> int:
    """Memory that the dual form's factors may take."""
    return DUAL_BYTES if parameters < LARGE else min(DUAL_BYTES, _LARGE_BYTES * parameters)


def fitting(width: int, count: int, itemsize: int) -> int:
    """This width, or the largest half, quarter, … of it whose rows and Fisher memory has room for;
    said if it is a smaller one."""
    room, wanted = MEMORY_SHARE * available_memory(), width
    while width > NARROWEST and 3 * (count * width * itemsize + 8 * width**2) > room:
        width //= 2
    if width < wanted:
        say(
            f"memory has no room for {count} rows of {wanted} directions: {width} are taken "
            "(store=FOLDER keeps rows on disk)"
        )
    return width


class Price:
    """Whether an exact form costs little, or little beside the sketch that would replace it."""

    def __init__(self, oracle: Oracle, examples: Examples, sample: int, insists: bool) -> None:
        self.oracle, self.examples, self.sample, self.insists = oracle, examples, sample, insists
        large = oracle.n_parameters >= LARGE
        self.always, self.times = (0.0, 1.0) if large else (EXACT_FLOPS, EXACT_TIMES)

    @cached_property
    def job(self) -> Job:
        """From a look at a few examples: only where a bound does not settle the question."""
        return look_at(self.oracle, self.examples)

    @property
    def basis(self) -> int:
        """Examples that the sketch's basis would be found from."""
        return min(self.sample, basis_examples(self.oracle.layers, self.job.work))

    @property
    def bound(self) -> Job:
        """Hardly a job of so many parameters and examples costs more than this, passes apart (they
        are the same for every form): a row for every output, dot products of whole scores."""
        layers = self.oracle.layers
        work = tuple(Work(1, x.d_in, x.d_out, 2.0 * x.size) for x in layers)
        outputs = max(layer.d_out for layer in layers)
        return Job(self.oracle.n_parameters, len(self.examples), outputs, work)

    def primal_is_fair(self) -> bool:
        if self.insists or self.bound.primal() <= self.always:
            return True
        return self._fair(self.job.primal())

    def dual_is_fair(self) -> bool:
        rows = min(self.bound.rows, DUAL_LIMIT) / len(self.examples)
        if self.insists or replace(self.bound, rows_each=rows).dual() <= self.always:
            return True
        rows, size = self.job.rows, self.job.rows * self.job.row_bytes
        if rows > _TOO_MANY * DUAL_LIMIT or size > _TOO_MANY * _dual_bytes(self.job.parameters):
            return False
        return self._fair(self.job.dual())

    def width(self) -> int:
        """How many K-FAC directions: those that memory allows, at a price that is fair."""
        count = len(self.examples)
        width = auto_width(count)
        while width > WIDTH:
            sample = min(count, SAMPLE_PER_DIRECTION * width)
            if self._fair(self.job.sketch(width, self.basis, sample), say_so=False):
                break
            width //= 2
        return fitting(width, count, self.oracle.itemsize)

    def _fair(self, exact: float, say_so: bool = True) -> bool:
        sample = min(len(self.examples), SAMPLE_PER_DIRECTION * WIDTH)
        sketch = self.job.sketch(WIDTH, self.basis, sample)
        fair = exact <= max(self.always, self.times * sketch)
        if say_so and not fair:
            say(
                f"an exact embedding would take {exact / sketch:.1f} times the work of "
                f"{WIDTH} K-FAC directions, which are taken (sketch='exact' insists)"
            )
        return fair


def check_sketch(wanted: object) -> str | int:
    """The option as given, if it means something."""
    if isinstance(wanted, str) and wanted in ("auto", "exact"):
        return str(wanted)
    if not whole_number(wanted) or not isinstance(wanted, int) or wanted < 1:
        raise ExemplaError(
            f"sketch={wanted!r} is not known: use 'auto', 'exact' or a number of directions."
        )
    return wanted


def kronecker(oracle: Oracle, sample: Examples, width: int) -> KroneckerSketch:
    whole, needed = _moments_plan(oracle, width)
    part = basis_sample(oracle, sample)
    rows = track_rows(oracle.fisher_rows(part), "finding the basis", len(part))
    moments = Moments.of(oracle.layers, rows, width, whole)
    found = KroneckerSketch.of(oracle.layers, moments, width)
    found.built_bytes = needed
    return found


def _moments_plan(oracle: Oracle, width: int) -> tuple[int, int]:
    """Up to how many coordinates a moment is summed whole, so that there is room for all of them,
    and the memory they take; both are printed before the first pass if they are large."""
    layers, whole = oracle.layers, WHOLE
    room = MEMORY_SHARE * _free_memory(oracle)
    while whole > LEAST_WHOLE and moments_bytes(layers, width, oracle.itemsize, whole) > room:
        whole //= 2
    needed = moments_bytes(layers, width, oracle.itemsize, whole) + oracle.pass_bytes
    if whole < WHOLE:
        say(f"memory has no room for moments of {WHOLE} coordinates: those of {whole} are taken")
    announce(needed, f"{oracle.n_parameters} parameters; moments of {len(layers)} layers")
    return whole, needed


def _free_memory(oracle: Oracle) -> int:
    """Where the model is."""
    device = getattr(oracle, "device", None)
    if getattr(device, "type", "cpu") != "cuda":
        return available_memory()
    import torch

    return torch.cuda.mem_get_info(device)[0]


def basis_sample(oracle: Oracle, sample: Examples) -> Examples:
    """Moments of a layer's two sides settle on fewer examples than the p × p Fisher does, and on
    fewer long ones than short ones: one of them shows how long they are."""
    least, wanted = _BASIS_EXAMPLES
    if len(sample) > least:
        for rows in oracle.fisher_rows(sample.take(np.array([0]))):
            if len(rows):
                wanted = basis_examples(oracle.layers, [f.work for f in rows.factors])
                break
    if len(sample) <= wanted:
        return sample
    return sample.take(np.linspace(0, len(sample) - 1, wanted).astype(np.int64))


def collect(batches: Iterable[ScoreRows], what: str, examples: int, room: int) -> ScoreRows | None:
    """All rows joined, or None as soon as they are more than the dual form should hold."""
    groups, total, size = [], 0, 0
    for batch in map(ScoreRows.compact, track_rows(batches, what, examples)):
        total, size = total + len(batch), size + batch.nbytes
        if total > DUAL_LIMIT or size > room:
            return None
        groups.append(batch)
    return ScoreRows.join(groups) if total else None
