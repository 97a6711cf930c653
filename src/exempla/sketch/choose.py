"""Which basis fits this model and so many examples: exact if possible, and it says which."""

from __future__ import annotations

from collections.abc import Iterable

from exempla.errors import ExemplaError
from exempla.oracles.base import Examples, Oracle, ScoreRows
from exempla.sketch.base import Sketch
from exempla.sketch.identity import IdentitySketch
from exempla.sketch.kronecker import KroneckerSketch
from exempla.sketch.moments import Moments
from exempla.sketch.span import SpanSketch

__all__ = ["check_sketch", "choose_sketch"]

PRIMAL_LIMIT = 4096
"""Up to so many parameters the scores are written out: a p×p Cholesky takes a second or two."""
DUAL_LIMIT = 6144
"""Up to so many landmark rows the dual form is used: their Gram matrix takes 300 MB at most."""
DUAL_BYTES = 2**31
"""… and their factors may take up to so much memory."""
WIDTH = 2048
"""Directions kept when nothing exact fits."""


def choose_sketch(
    oracle: Oracle,
    examples: Examples,
    wanted: str | int,
    sample: Examples,
    dual: bool = True,
) -> Sketch:
    """The sketch for this job.

    `wanted` is "auto", "exact", or the number of K-FAC directions to keep. `sample` is the part
    of the examples the K-FAC basis is estimated from. `dual=False` rules out the dual form, whose
    directions mean nothing one by one.
    """
    if isinstance(wanted, int):
        return kronecker(oracle, sample, wanted)
    size, count = oracle.n_parameters, len(examples)
    if size <= PRIMAL_LIMIT and (size <= 2 * count or wanted == "exact"):
        return IdentitySketch(oracle.layers)
    if dual and count <= DUAL_LIMIT:
        fisher = collect(oracle.fisher_rows(examples))
        scores = collect(oracle.scores(examples)) if fisher is not None else None
        if fisher is not None and scores is not None:
            return SpanSketch(oracle.layers, fisher, scores)
    if size <= PRIMAL_LIMIT:
        return IdentitySketch(oracle.layers)
    if wanted == "exact":
        raise ExemplaError(
            f"an exact embedding of {size} parameters and {count} examples does not fit: "
            "use sketch='auto' or a number of directions."
        )
    return kronecker(oracle, sample, WIDTH)


def check_sketch(wanted: object) -> str | int:
    """The option as given, if it means something."""
    if wanted in ("auto", "exact"):
        return str(wanted)
    if isinstance(wanted, bool) or not isinstance(wanted, int) or wanted < 1:
        raise ExemplaError(
            f"sketch={wanted!r} is not known: use 'auto', 'exact' or a number of directions."
        )
    return wanted


def kronecker(oracle: Oracle, sample: Examples, width: int) -> KroneckerSketch:
    return KroneckerSketch(
        oracle.layers, Moments.of(oracle.layers, oracle.fisher_rows(sample)), width
    )


def collect(batches: Iterable[ScoreRows]) -> ScoreRows | None:
    """All rows joined, or None as soon as they are more than the dual form should hold."""
    groups, total, size = [], 0, 0
    for batch in map(ScoreRows.compact, batches):
        total, size = total + len(batch), size + sum(f.nbytes for f in batch.factors)
        if total > DUAL_LIMIT or size > DUAL_BYTES:
            return None
        groups.append(batch)
    return ScoreRows.join(groups) if total else None
