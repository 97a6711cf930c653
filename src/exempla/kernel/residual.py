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

What sketches leave out, counted towards a question: the kernel that `explain` selects with.

Where a sketch keeps less than half of the Fisher, as of large networks, rows in sketch space are
not the kernel. Of what lies outside, a question sees one direction, that of its own score s_μ. So
the products of all training scores with s_μ, one pass over the training set, are one more
coordinate of every row (`Beyond.toward`): with the question the kernel is then whole, one mean
eigenvalue standing in for the Fisher outside, and between training rows it has
what bears on the question. Unit rows are as long as their whole scores.

Conjugate gradients: M X = B from products M V alone, sped up by an approximate inverse.

Every column is a problem of its own; they share the products, as one pass over the data serves all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from exempla.arrays import Array, as_like, concatenate, products, row_squares, to_numpy
from exempla.kernel.embed import Embedding, energy_of
from exempla.kernel.query import (
    Asked,
    Use,
    dampings,
    mean_embedding,
    questioned_rows,
    shares,
    whitened_rows,
)
from exempla.kernel.sketch import Job
from exempla.oracles.base import Examples, Labels, Oracle, ScoreRows
from exempla.progress import track_rows
from exempla.results import Features
from exempla.store import StoredRows

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


LITTLE = 0.5
"""Where a sketch keeps less than this share of the Fisher's trace, its rows are not enough to
select with. Above it a pass over the training set for every question costs more than it brings."""
WIDER = 4
"""Questions may add one coordinate for so many that the rows have."""
_TINY = 1e-6
"""Directions with less than this of the strongest one's energy are none of their own."""


class Some(NamedTuple):
    """Examples as one model reads and embeds them."""

    examples: Examples
    rows: Array
    """In sketch space."""
    labels: Labels = "true"

    def last(self) -> Some:
        """The last of them alone."""
        place = np.array([len(self.examples) - 1])
        return Some(self.examples.take(place), self.rows[place], self.labels)


class Beyond:
    """The part of the kernel that sketches leave out; false where it is left at that.

    Examples are given as a list, `Some` for each model.
    """

    def __init__(self, embeddings: list[Embedding], wanted: str | float, use: Use) -> None:
        self.embeddings, self.wanted = embeddings, wanted
        self.use: Use = use
        values = [d.value for d in dampings(embeddings, wanted, use)]
        self.parts = [
            (place, e, e.metric.outside(e.left_out_scale, value) / len(embeddings))
            for place, (e, value) in enumerate(zip(embeddings, values, strict=True))
            if little(e)
        ]
        """Places of those whose sketch keeps little, they, and 1 / metric outside."""

    def __bool__(self) -> bool:
        return bool(self.parts)

    def affordable(self, asked: Asked, questions: int = 1) -> bool:
        """Whether so many questions about these examples make the rows little wider, and take a few
        passes over the training set at most."""
        return all(
            0 < questions <= max(1, e.rows.shape[1] // WIDER)
            and price(e, asked.examples[i], asked.labels) <= ALONG
            for i, e, _ in self.parts
        )

    def inside(self, features: Features, asked: Asked) -> Array:
        """The questioned examples in sketch space, as they are where that is all."""
        given = (self.embeddings, asked.rows, self.wanted, self.use, features.rows)
        return questioned_rows(*given)

    def training(self, chosen: np.ndarray) -> list[Some]:
        """Some of the training examples."""
        return [Some(e.train.take(chosen), e.rows[chosen]) for e in self.embeddings]

    def products(
        self, left: Sequence[Some], right: Sequence[Some], mix: np.ndarray | None = None
    ) -> np.ndarray:
        """The kernel outside, (n_left, n_right), or (n_left, T) with sums of the right by `mix`."""
        found: Any = 0.0
        for i, e, scale in self.parts:
            found = found + scale * _outside_products(e, left[i], right[i], mix)
        return found

    def questioned(self, features: Features, asked: Asked) -> tuple[list[Some], Array, np.ndarray]:
        """The questioned examples, their rows, whitened, and what each is divided by."""
        some = read(asked)
        given = (self.embeddings, asked.rows, self.wanted, self.use, features.rows)
        rows, _ = whitened_rows(*given)
        return some, rows, self.lengths(some, rows)

    def lengths(self, some: Sequence[Some], rows: Array) -> np.ndarray:
        """What each example is divided by, (n,): for selection the length of its whole score, of
        which `rows` have the part inside."""
        if self.use == "influence":
            return np.ones(len(rows))
        total = row_squares(rows).astype(np.float64)
        for i, e, scale in self.parts:
            total = total + scale * energy_of(e.oracle, *some[i])
        return np.sqrt(np.maximum(total, np.finfo(float).tiny))

    def training_lengths(self, features: Features) -> tuple[np.ndarray, np.ndarray]:
        """What training rows were divided by, and what they are to be: for selection the length of
        the whole score. A pass over the training set, the first time."""
        if features.lengths is None:
            return np.ones(len(features.rows)), np.ones(len(features.rows))
        total = features.lengths**2
        for _, e, scale in self.parts:
            total = total + scale * e.outside_energy
        return features.lengths, np.sqrt(np.maximum(total, np.finfo(float).tiny))

    def kernel(self, features: Features, chosen: np.ndarray, asked: Asked) -> np.ndarray:
        """The whole kernel of some training examples and each questioned one, (k, n_test)."""
        some, rows, lengths = self.questioned(features, asked)
        own, whole = (x[chosen, None] for x in self.training_lengths(features))
        inside = to_numpy(features.rows[chosen] @ rows.T).astype(np.float64) * own
        return (inside + self.products(self.training(chosen), some)) / whole / lengths

    def toward(self, features: Features, asked: Asked, counted: np.ndarray) -> tuple[Array, Array]:
        """Training rows with a coordinate more for each question, and the questions themselves;
        `counted` (T, n_test) are the shares of the questioned examples in each question."""
        some, rows, lengths = self.questioned(features, asked)
        own, whole = self.training_lengths(features)
        like = features.rows * as_like(own / whole, features.rows)[:, None]
        mix = np.ascontiguousarray((counted / lengths).T)
        columns, targets = [like], [as_like(mix.T, rows) @ rows]
        for i, e, scale in self.parts:
            root, inverse = roots(mix.T @ _outside_products(e, some[i], some[i], mix))
            found = _outside_products(e, Some(e.train, e.rows), some[i], mix) @ inverse
            columns.append(as_like(np.sqrt(scale) * found / whole[:, None], like))
            targets.append(as_like(np.sqrt(scale) * root, like))
        return concatenate(columns, axis=1), concatenate(targets, axis=1)


def kernel_of(
    beyond: Beyond, features: Features, asked: Asked, weights: np.ndarray | None, each: bool
) -> tuple[Array, Array]:
    """Training rows, and one question (p,) or several (T, p), whose products are the kernel: about
    all questioned examples as `weights` count them, or about each."""
    count = len(asked.examples[0])
    counted = np.zeros((0, count)) if each else shares(weights, count)  # refuses what is no weight
    questions = count if each else len(np.atleast_2d(counted))
    if beyond and beyond.affordable(asked, questions):
        wider, targets = beyond.toward(
            features, asked, np.eye(count) if each else np.atleast_2d(counted)
        )
        return wider, targets if each or counted.ndim > 1 else targets[0]
    rows = beyond.inside(features, asked)
    return features.rows, rows if each else mean_embedding(rows, weights)


def affinity(beyond: Beyond, features: Features, chosen: np.ndarray, asked: Asked) -> np.ndarray:
    """The kernel of some training examples and each questioned one, (k, n_test)."""
    if beyond and beyond.affordable(asked):
        return beyond.kernel(features, chosen, asked)
    rows = beyond.inside(features, asked)
    return to_numpy(features.rows[chosen] @ rows.T).astype(np.float64)


def little(embedding: Embedding) -> bool:
    """Whether a sketch keeps too little to select with; rows in a store stay as they are."""
    in_memory = not isinstance(embedding.rows, StoredRows)
    return in_memory and counts(embedding) and embedding.evidence.share < LITTLE


def read(asked: Asked) -> list[Some]:
    """Examples that every model has read and embedded."""
    pairs = zip(asked.examples, asked.rows, strict=True)
    return [Some(examples, rows, asked.labels) for examples, (rows, _) in pairs]


def _outside_products(
    embedding: Embedding, left: Some, right: Some, mix: np.ndarray | None
) -> np.ndarray:
    """s_i·s_j less what the sketch has of it."""
    labels = (left.labels, right.labels)
    raw = raw_products(embedding.oracle, left.examples, right.examples, mix, labels)
    other = right.rows if mix is None else as_like(mix.T, right.rows) @ right.rows
    return raw - products(left.rows, as_like(to_numpy(other), left.rows))


def roots(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R and S with R Rᵀ = gram and Rᵀ S = 1, of as many directions as there are."""
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    kept = values > _TINY * max(values[-1], 0.0)
    if not kept.any():
        return np.zeros((len(gram), 1)), np.zeros((len(gram), 1))
    root = np.sqrt(values[kept])
    return vectors[:, kept] * root, vectors[:, kept] / root


Columns = Any
"""A (P, B) array, NumPy or torch."""


@dataclass(frozen=True)
class _Solution:
    """What was found, and how well it solves the equations."""

    x: Columns
    residual: float
    """‖b − M x‖ / ‖b‖ of the worst column."""
    steps: int
    """Products with M that it took."""


def conjugate_gradients(
    product: Callable[[Columns], Columns],
    b: Columns,
    precondition: Callable[[Columns], Columns],
    tolerance: float,
    limit: int,
) -> Iterator[_Solution]:
    """The solution after each step, until all residuals are small or the steps are used up.

    `product` is V ↦ M V for a symmetric positive M, `precondition` V ↦ C V with C ≈ M⁻¹, symmetric
    and positive too. The first solution given is C b, before any step.
    """
    size = _dots(b, b) ** 0.5
    size = size + (size == 0.0)  # a column of zeros is solved by zeros
    x = precondition(b)
    residual = b - product(x)
    direction, energy = x, None
    for step in range(1, limit + 1):
        left = float((_dots(residual, residual) ** 0.5 / size).max())
        yield _Solution(x, left, step)
        if left <= tolerance or step == limit:
            return
        toward = precondition(residual)
        before, energy = energy, _dots(residual, toward)
        direction = toward if before is None else toward + ratio(energy, before) * direction
        moved = product(direction)
        length = ratio(energy, _dots(direction, moved))
        x, residual = x + length * direction, residual - length * moved


def _dots(a: Columns, b: Columns) -> Any:
    """a·b of each pair of columns, (B,)."""
    return (a * b).sum(0)


def ratio(a: Any, b: Any) -> Any:
    """a / b, and 0 for a column that is solved to the last digit (0 / 0)."""
    done = b == 0.0
    return a * ~done / (b + done)
