"""The whole kernel between training examples and a few questioned ones, sketch or no sketch.

A sketch keeps the p strongest directions V of parameter space. For influence the rest counts: much
of a hard example's score lies where the Fisher is small. There one number ρ stands in for the
Fisher, so with the raw products s_i·s_j, which factors give without writing a score out,

    s_iᵀM⁻¹s_j ≈ (Vᵀs_i)ᵀ(VᵀMV)⁻¹(Vᵀs_j) + (s_i·s_j − (Vᵀs_i)·(Vᵀs_j)) / (ρ + damping)

and nothing of the scores is lost. ρ = tr(F²)/tr(F) of the Fisher left out: its mean eigenvalue as
the scores themselves weigh directions.

The price is a pass over the training set for every `ROOM` of questioned factors, and the products.
It is paid where the sketch leaves something out that matters (`KEPT`) and the price is no more than
conjugate gradients could ask (`PASSES`); the answer says what was done.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from exempla.arrays import as_like, products
from exempla.embedding import Embedding, energy_of, squares
from exempla.oracles.base import Examples, Labels, Oracle, ScoreRows
from exempla.progress import track_rows
from exempla.sketch.cost import Job

__all__ = ["Kernel", "counts", "energy_of", "kernel_with", "price", "raw_products", "squares"]

KEPT = 0.99
"""Where a sketch keeps this share of the Fisher's trace, what it leaves out changed no answer by as
much as was seen otherwise (`benchmarks.sketch_rest`) …"""
ALWAYS, PASSES = 4e12, 25.0
"""… and elsewhere its products may always cost so many operations (a minute or two of one core),
and beyond that so many passes over the training set, the most that solving exactly takes."""
ROOM = 2**30
"""Bytes of factors of questioned examples that are held for one pass over the training set."""
ALONG = 4.0
"""Passes that products with a sum of questioned examples may take one by one; beyond that they are
taken with the sum itself, written out, where a model offers that (two passes or three)."""


class Kernel(NamedTuple):
    """s_iᵀ M⁻¹ s_j, and how it was come by, in words."""

    values: np.ndarray
    said: str


def counts(embedding: Embedding) -> bool:
    """Whether the sketch leaves out enough to be looked at."""
    return not embedding.sketch.exact and embedding.evidence.share < KEPT


def kernel_with(
    embedding: Embedding,
    examples: Examples,
    damping: float,
    labels: Labels = "true",
    mix: np.ndarray | None = None,
) -> Kernel:
    """The kernel of every training example i and questioned example j, (n_train, n_test).

    With `mix` (n_test, T) the T columns are sums of questioned examples with these weights, and
    no train × test matrix is made: a question about many examples is one column.
    """
    rows, _ = embedding.embed(examples, labels)
    rows = rows if mix is None else as_like(mix.T, rows) @ rows
    # the training rows as they are: only the few questioned ones meet M⁻¹
    train = embedding.rows_near_model()
    inside = products(train, embedding.metric.solve(rows, damping)).astype(np.float64)
    if embedding.sketch.exact:
        return Kernel(inside, "exact")
    note, share = embedding.sketch.note, embedding.evidence.share
    if not counts(embedding):
        return Kernel(inside, f"the sketch alone ({note}), {share:.1%} of the Fisher")
    passes = price(embedding, examples, labels)
    operator = None
    if mix is not None and passes > ALONG and mix.shape[1] < len(examples):
        operator = embedding.oracle.gauss_newton(embedding.train)
    if operator is None and passes > PASSES:
        return Kernel(
            inside,
            f"the sketch alone ({note}), {share:.1%} of the Fisher: products outside it would take "
            f"as long as {passes:,.0f} passes over the training set",
        )
    if operator is None:
        raw = raw_products(embedding.oracle, embedding.train, examples, mix, ("true", labels))
    else:
        raw = operator.along_scores(operator.score_sums(examples, labels, mix))
    beyond = raw - products(train, rows)
    scale = embedding.metric.outside(embedding.left_out_scale, damping)
    return Kernel(inside + beyond * scale, f"{note}, and one mean eigenvalue for the rest")


def price(embedding: Embedding, examples: Examples, labels: Labels) -> float:
    """What raw products with these questioned examples cost, in passes over the training set; 0
    where that is little whatever a pass costs. One questioned example shows how large they are."""
    oracle, n = embedding.oracle, len(embedding.train)
    one = next(iter(oracle.scores(examples.take(np.array([0])), labels)))
    compact = one.compact()
    work = tuple(f.work for f in one.factors)
    job = Job(oracle.n_parameters, n, 1.0, work)
    gram = sum(f.work.gram for f in compact.factors)
    passes = -(-len(examples) * compact.nbytes // ROOM)
    total = passes * job.passes(n) + float(n) * len(examples) * gram
    return 0.0 if total <= ALWAYS else total / job.passes(n)


def raw_products(
    oracle: Oracle,
    left: Examples,
    right: Examples,
    mix: np.ndarray | None = None,
    labels: tuple[Labels, Labels] = ("true", "true"),
) -> np.ndarray:
    """s_i·s_j over all parameters, (n_left, n_right), a pass over the left examples for each group
    of those on the right. `mix` as for `kernel_with`; `labels` of either side."""
    columns, start = [], 0
    for asked in groups(oracle.scores(right, labels[1])):
        own = None if mix is None else mix[start : start + len(asked)]
        start += len(asked)
        batches = track_rows(oracle.scores(left, labels[0]), "beyond the sketch", len(left))
        found = (batch.gram(asked) for batch in batches)
        columns.append(np.concatenate([part if own is None else part @ own for part in found]))
    return np.concatenate(columns, axis=1) if mix is None else np.sum(columns, axis=0)


def groups(batches: Iterator[ScoreRows]) -> Iterator[ScoreRows]:
    """Score rows joined, as many as there is room for."""
    held: list[ScoreRows] = []
    size = 0
    for batch in map(ScoreRows.compact, batches):
        held, size = [*held, batch], size + batch.nbytes
        if size >= ROOM:
            yield ScoreRows.join(held)
            held, size = [], 0
    if held:
        yield ScoreRows.join(held)
