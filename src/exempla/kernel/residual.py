"""Residual kernel: the part of the Fisher kernel that the sketch does not represent.

A sketch keeps p leading directions V of parameter space, for a large network often less than half
of the trace of the Fisher matrix. The rest of a score is its *residual*. There the Fisher matrix is
approximated by one number ρ = tr(F²)/tr(F) of the residual Fisher, its mean eigenvalue as the
scores weigh directions. With the raw products s_i·s_j, which factors give without writing a score
out, the kernel is

    s_iᵀM⁻¹s_j ≈ (Vᵀs_i)ᵀ(VᵀMV)⁻¹(Vᵀs_j) + (s_i·s_j − (Vᵀs_i)·(Vᵀs_j)) / (ρ + damping)

`query_kernel` computes it for influence. For selection, a query with mean score s_q depends on the
residual only through the products s_i·s_q, so `ResidualKernel` computes them in one pass over the
training set and appends them to the rows as an extra coordinate. The kernel between training rows
and the query is then exact, up to the residual eigenvalue.

Both cost passes over the training set. They are made where the sketch drops enough to matter
(`MAX_SKETCH_SHARE`) and the products cost little (`FREE_FLOPS`) or few passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from exempla.arrays import Array, as_like, products, row_squares, to_numpy
from exempla.kernel.basis import Sketch
from exempla.kernel.damping import Damping, FisherEvidence
from exempla.kernel.sketch import Job
from exempla.oracles.base import Examples, Labels, Oracle, ScoreRows
from exempla.oracles.factors import MANY
from exempla.progress import track_rows
from exempla.results import Features
from exempla.store import StoredRows

if TYPE_CHECKING:
    from exempla.kernel.embed import Embedding
    from exempla.kernel.kernel import Query

MAX_SKETCH_SHARE = 0.99
"""Where a sketch keeps at least this share of the trace, the residual is ignored: adding it changed
no answer measurably (`benchmarks.sketch_rest`)."""
FREE_FLOPS = 4e12
"""Operations that residual products may always take (a minute or two on one core)."""
MAX_RESIDUAL_PASSES = 25.0
"""Above `FREE_FLOPS`, influence may spend this many passes over the training set, as many as the
exact solve takes at most."""
MAX_SELECTION_PASSES = 4.0
"""Above `FREE_FLOPS`, a selection may spend this many passes. Beyond them, products with a sum of
queries are taken with the sum written out, where the model offers that (two or three passes)."""
MAX_FACTOR_BYTES = 2**30
"""Factors of queried examples that are held during one pass over the training set, in bytes."""
MAX_ADDED_WIDTH = 1 / 4
"""Coordinates added to the rows, relative to their width."""
_MIN_EIGENVALUE_SHARE = 1e-6
"""Directions of several queries with less than this share of the largest eigenvalue are dropped."""
_EIGENVALUE_EXAMPLES, _EIGENVALUE_EXAMPLES_LONG = 4096, 256
"""Examples among which the Fisher rows for ρ are drawn; with `MANY` positions each, the second."""
_MAX_EIGENVALUE_ROWS, _MIN_EIGENVALUE_ROWS, EIGENVALUE_BYTES = 64, 8, 2**31
"""Fisher rows drawn for ρ, fewer if they take more memory than this: one row of a language model
can take more than a GiB."""


class EmbeddedExamples(NamedTuple):
    """Examples as one model reads and embeds them."""

    examples: Examples
    rows: Array
    """In sketch space, not whitened."""
    labels: Labels = "true"

    def last(self) -> EmbeddedExamples:
        """Return the last example alone."""
        place = np.array([len(self.examples) - 1])
        return EmbeddedExamples(self.examples.take(place), self.rows[place], self.labels)


class KernelColumns(NamedTuple):
    """s_iᵀ M⁻¹ s_j, and how it was computed, in words."""

    values: np.ndarray
    solver: str


# ---- measuring the residual


def has_residual(embedding: Embedding) -> bool:
    """Return True if the sketch drops enough of the Fisher matrix for the residual to matter."""
    return not embedding.sketch.exact and embedding.evidence.share < MAX_SKETCH_SHARE


def residual_eigenvalue(
    oracle: Oracle, train: Examples, sketch: Sketch, evidence: FisherEvidence, seed: int = 0
) -> float:
    """Estimate ρ = tr(F²)/tr(F) of the residual Fisher from a few of its rows.

    Rows r_i drawn in proportion to ‖r_i‖² make F/tr(F) the mean of r̂ r̂ᵀ, with r̂ of unit length,
    and tr(F²)/tr(F)² the mean of (r̂_i·r̂_j)² over pairs; here of the residuals of the rows.
    """
    trace = (1.0 - evidence.share) * evidence.trace
    if sketch.exact or trace <= 0.0:
        return 0.0
    rows = _draw_fisher_rows(oracle, train, np.random.default_rng(seed))
    inside = to_numpy(sketch.project(rows)).astype(np.float64)
    gram = rows.gram(rows) - inside @ inside.T
    norms2 = np.maximum(np.diag(gram), 1e-30)
    share = norms2 / np.maximum(rows.norm2(), 1e-30)  # rows were drawn by their full length
    pairs = np.outer(share, share)
    np.fill_diagonal(pairs, 0.0)
    cosine2 = np.minimum(gram**2 / np.outer(norms2, norms2), 1.0)
    return trace * float((pairs * cosine2).sum() / max(pairs.sum(), 1e-300))


def _draw_fisher_rows(oracle: Oracle, train: Examples, rng: np.random.Generator) -> ScoreRows:
    """Draw Fisher rows without replacement, in proportion to their squared length."""
    order = rng.permutation(len(train))
    first = next(oracle.fisher_rows(train.take(order[:1])), None)
    count, looked_at = _MAX_EIGENVALUE_ROWS, _EIGENVALUE_EXAMPLES
    if first is not None and len(first):
        fitting = EIGENVALUE_BYTES // max(first.nbytes // len(first), 1)
        count = int(np.clip(fitting, _MIN_EIGENVALUE_ROWS, _MAX_EIGENVALUE_ROWS))
        if first.thinnest(oracle.layers) >= MANY:
            looked_at = _EIGENVALUE_EXAMPLES_LONG
    kept: ScoreRows | None = None
    keys = np.zeros(0)
    for batch in oracle.fisher_rows(train.take(np.sort(order[:looked_at]))):
        fresh = np.log(rng.random(len(batch))) / np.maximum(batch.norm2(), 1e-30)
        best = np.argsort(-fresh)[:count]
        both = batch.take(best) if kept is None else ScoreRows.join([kept, batch.take(best)])
        keys = np.concatenate([keys, fresh[best]])
        largest = np.argsort(-keys)[:count]
        kept, keys = both.take(largest), keys[largest]
    assert kept is not None
    return kept


def residual_norms2(
    oracle: Oracle, examples: Examples, rows: Array | StoredRows, labels: Labels = "true"
) -> np.ndarray:
    """Return ‖s_i‖² − ‖Vᵀs_i‖² of examples with these rows, (n,), in one pass over them."""
    batches = track_rows(oracle.scores(examples, labels), "residual norms", len(examples))
    full = np.concatenate([batch.norm2() for batch in batches])
    return np.maximum(full - row_squares(rows), 0.0)


def raw_products(
    oracle: Oracle,
    left: Examples,
    right: Examples,
    mix: np.ndarray | None = None,
    labels: tuple[Labels, Labels] = ("true", "true"),
) -> np.ndarray:
    """Return s_i·s_j over all parameters, (n_left, n_right).

    One pass over the left examples is made per `MAX_FACTOR_BYTES` of factors on the right. `mix` is
    as for `query_kernel`; `labels` are those of either side.
    """
    columns, start = [], 0
    for query in _groups(oracle.scores(right, labels[1])):
        own = None if mix is None else mix[start : start + len(query)]
        start += len(query)
        batches = track_rows(oracle.scores(left, labels[0]), "residual products", len(left))
        found = (batch.gram(query) for batch in batches)
        columns.append(np.concatenate([part if own is None else part @ own for part in found]))
    return np.concatenate(columns, axis=1) if mix is None else np.sum(columns, axis=0)


def _groups(batches: Iterator[ScoreRows]) -> Iterator[ScoreRows]:
    """Join score rows into groups of about `MAX_FACTOR_BYTES`."""
    held: list[ScoreRows] = []
    size = 0
    for batch in map(ScoreRows.compact, batches):
        held, size = [*held, batch], size + batch.nbytes
        if size >= MAX_FACTOR_BYTES:
            yield ScoreRows.join(held)
            held, size = [], 0
    if held:
        yield ScoreRows.join(held)


def residual_passes(embedding: Embedding, examples: Examples, labels: Labels) -> float:
    """Return the cost of raw products with these examples, in passes over the training set.

    It is 0 if they take at most `FREE_FLOPS` operations. Scoring one example gives their size.
    """
    oracle, n = embedding.oracle, len(embedding.train)
    one = next(iter(oracle.scores(examples.take(np.array([0])), labels)))
    compact = one.compact()
    job = Job(oracle.n_parameters, n, 1.0, tuple(f.work for f in one.factors))
    gram = sum(f.work.gram for f in compact.factors)
    passes = -(-len(examples) * compact.nbytes // MAX_FACTOR_BYTES)
    total = passes * job.passes(n) + float(n) * len(examples) * gram
    return 0.0 if total <= FREE_FLOPS else total / job.passes(n)


# ---- the kernel for influence


def query_kernel(
    embedding: Embedding,
    examples: Examples,
    damping: float,
    labels: Labels = "true",
    mix: np.ndarray | None = None,
    rows: Array | None = None,
) -> KernelColumns:
    """Compute the kernel of every training example i and queried example j, (n_train, n_test).

    Parameters
    ----------
    embedding : Embedding
    examples : Examples
        The queried examples, as the model of the embedding reads them.
    damping : float
    labels : {"true", "predicted"}
    mix : (n_test, T) array, optional
        Return T columns that are sums of queried examples with these weights. The train × test
        matrix is then never made: a query about many examples is one column.
    rows : array, optional
        The queried examples in sketch space, if they have been embedded already.
    """
    if rows is None:
        rows, _ = embedding.embed(examples, labels)
    rows = rows if mix is None else as_like(mix.T, rows) @ rows
    # the training rows stay as they are: only the few queried rows are multiplied by M⁻¹
    train = embedding.rows_near_model()
    inside = products(train, embedding.metric.solve(rows, damping)).astype(np.float64)
    if embedding.sketch.exact:
        return KernelColumns(inside, "exact")
    note, share = embedding.sketch.note, embedding.evidence.share
    alone = f"the sketch alone ({note}), {share:.1%} of the Fisher"
    if not has_residual(embedding):
        return KernelColumns(inside, alone)
    passes = residual_passes(embedding, examples, labels)
    operator = None
    if mix is not None and passes > MAX_SELECTION_PASSES and mix.shape[1] < len(examples):
        operator = embedding.oracle.gauss_newton(embedding.train)
    if operator is None and passes > MAX_RESIDUAL_PASSES:
        return KernelColumns(
            inside, f"{alone}: residual products would cost {passes:,.0f} passes over the data"
        )
    if operator is None:
        raw = raw_products(embedding.oracle, embedding.train, examples, mix, ("true", labels))
    else:
        raw = operator.along_scores(operator.score_sums(examples, labels, mix))
    scale = embedding.metric.residual_inverse(embedding.residual_eigenvalue, damping)
    residual = (raw - products(train, rows)) * scale
    return KernelColumns(inside + residual, f"{note}, and one mean eigenvalue for the residual")


# ---- the kernel for selection


class ResidualKernel:
    """The residual part of the kernel of one or several models; false if there is none to add.

    Examples are given as a list with one `EmbeddedExamples` per model. Rows in a store are never
    widened.
    """

    def __init__(
        self, embeddings: list[Embedding], dampings: list[Damping], normalized: bool
    ) -> None:
        self.normalized = normalized
        self._embeddings, self._dampings = embeddings, dampings
        self._places = [
            i
            for i, e in enumerate(embeddings)
            if has_residual(e) and not isinstance(e.rows, StoredRows)
        ]

    def __bool__(self) -> bool:
        return bool(self._places)

    def is_affordable(self, query: Query, n_targets: int = 1) -> bool:
        """Return True if the residual can be added within the width and cost limits.

        Adding it appends `n_targets` coordinates to every row (at most a quarter of the sketch
        width) and takes residual products with every example of the query (at most
        `MAX_SELECTION_PASSES` passes over the training set, or `FREE_FLOPS` operations).
        """
        return bool(self) and all(
            0 < n_targets <= max(1, int(self._embeddings[i].rows.shape[1] * MAX_ADDED_WIDTH))
            and residual_passes(self._embeddings[i], query.examples[i], query.labels)
            <= MAX_SELECTION_PASSES
            for i in self._places
        )

    def parts(self) -> Iterator[tuple[int, Embedding, float]]:
        """Yield the place of each model with a residual, its embedding, and 1 / metric there."""
        for i in self._places:
            e = self._embeddings[i]
            scale = e.metric.residual_inverse(e.residual_eigenvalue, self._dampings[i].value)
            yield i, e, scale / len(self._embeddings)

    def products(
        self,
        left: Sequence[EmbeddedExamples],
        right: Sequence[EmbeddedExamples],
        mix: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the residual kernel, (n_left, n_right), or (n_left, T) with sums by `mix`."""
        found: Any = 0.0
        for i, e, scale in self.parts():
            found = found + scale * _residual_products(e.oracle, left[i], right[i], mix)
        return found

    def norms(self, examples: Sequence[EmbeddedExamples], rows: Array) -> np.ndarray:
        """Return what each example is divided by: for unit rows the length of its full score.

        `rows` are the whitened rows of the examples, the part of the score in the sketch.
        """
        if not self.normalized:
            return np.ones(len(rows))
        total = row_squares(rows).astype(np.float64)
        for i, e, scale in self.parts():
            total = total + scale * residual_norms2(e.oracle, *examples[i])
        return np.sqrt(np.maximum(total, np.finfo(float).tiny))

    def train_norms(self, features: Features) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths that training rows were divided by, and those with the residual.

        The first call makes a pass over the training set.
        """
        if features.lengths is None:
            return np.ones(len(features.rows)), np.ones(len(features.rows))
        total = features.lengths**2
        for _, e, scale in self.parts():
            total = total + scale * e.residual_norms2
        return features.lengths, np.sqrt(np.maximum(total, np.finfo(float).tiny))

    def affinity(
        self,
        features: Features,
        chosen: np.ndarray,
        query: Sequence[EmbeddedExamples],
        rows: Array,
    ) -> np.ndarray:
        """Return the full kernel of some training examples and each queried one, (k, n_test)."""
        train = [EmbeddedExamples(e.train.take(chosen), e.rows[chosen]) for e in self._embeddings]
        own, full = (x[chosen, None] for x in self.train_norms(features))
        inside = to_numpy(features.rows[chosen] @ rows.T).astype(np.float64) * own
        return (inside + self.products(train, query)) / full / self.norms(query, rows)

    def extend(
        self,
        features: Features,
        query: Sequence[EmbeddedExamples],
        rows: Array,
        shares: np.ndarray,
    ) -> tuple[Array, Array]:
        """Append residual coordinates to the training rows and to the targets.

        `rows` are the whitened queried rows, and `shares` (T, n_test) the share of each queried
        example in each of T targets.
        """
        own, full = self.train_norms(features)
        mix = np.ascontiguousarray((shares / self.norms(query, rows)).T)
        added, targets = [], [to_numpy(as_like(mix.T, rows) @ rows)]
        for i, e, scale in self.parts():
            oracle, train = e.oracle, EmbeddedExamples(e.train, e.rows)
            root, inverse = roots(mix.T @ _residual_products(oracle, query[i], query[i], mix))
            found = _residual_products(oracle, train, query[i], mix) @ inverse
            added.append(np.sqrt(scale) * found / full[:, None])
            targets.append(np.sqrt(scale) * root)
        extra, like = np.concatenate(added, axis=1), features.rows
        n, width = like.shape
        shape = (n, width + extra.shape[1])  # filled in place: no second copy of the rows
        wide = (
            np.empty(shape, like.dtype) if isinstance(like, np.ndarray) else like.new_empty(shape)
        )
        wide[:, :width] = like
        wide[:, :width] *= as_like(own / full, like)[:, None]
        wide[:, width:] = as_like(extra, like)
        return wide, as_like(np.concatenate(targets, axis=1), like)


def _residual_products(
    oracle: Oracle, left: EmbeddedExamples, right: EmbeddedExamples, mix: np.ndarray | None
) -> np.ndarray:
    """Return s_i·s_j minus its part in the sketch."""
    raw = raw_products(oracle, left.examples, right.examples, mix, (left.labels, right.labels))
    other = right.rows if mix is None else as_like(mix.T, right.rows) @ right.rows
    return raw - products(left.rows, as_like(to_numpy(other), left.rows))


def roots(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return R and S with R Rᵀ = gram and Rᵀ S = 1, one column per independent direction."""
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    kept = values > _MIN_EIGENVALUE_SHARE * max(values[-1], 0.0)
    if not kept.any():
        return np.zeros((len(gram), 1)), np.zeros((len(gram), 1))
    root = np.sqrt(values[kept])
    return vectors[:, kept] * root, vectors[:, kept] / root
