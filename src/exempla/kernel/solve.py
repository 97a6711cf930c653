"""Influence of training examples on a query: one model at a time, then averaged over models.

    influence[i, j] = s_iᵀ M⁻¹ s_j / n

is what the log-likelihood of test example j loses, to first order, if training example i is
removed. M is the model's Fisher matrix with penalty and damping. For models with a canonical link
the Fisher matrix is the Hessian, and influence is that of Koh and Liang
(`exempla.metrics.hessian_influence`). There are two ways to apply M⁻¹:

* solve="sketch": by the sketch, with one mean eigenvalue for the residual (`embed`);
* solve="exact": with the Fisher matrix of all parameters, by conjugate gradients. The sketch gives
  the first guess and the preconditioner, so a few passes over the training set suffice.

`average` combines the models of a list and the snapshots of a run. Every job that averages
influence calls it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from exempla.arrays import Array, as_like, concatenate, products, to_numpy
from exempla.kernel.basis import KroneckerSketch
from exempla.kernel.embed import Embedding
from exempla.oracles.base import Examples, Labels, ScoreRows
from exempla.progress import say, track

if TYPE_CHECKING:
    from exempla.kernel.kernel import Query

Solve = Literal["sketch", "exact"]
Columns = Any
"""A (P, B) array, NumPy or torch."""

_MAX_CG_STEPS, _CG_TOLERANCE = 25, 1e-2
"""Most passes over the data that conjugate gradients take, and the residual they stop at."""
LEVELLING_EXPONENT = 0.75
"""How far snapshots of a run are brought to the same size: 0 is a plain mean, 1 gives each the same
weight. Chosen by a criterion stated before the truths existed (`benchmarks.truths.settings`)."""
MAX_SOLVE_BYTES = 2**28
"""Memory of the columns solved together, at ten numbers per parameter and column."""
_MIN_COLUMN_SIZE = 1e-30
MAX_RESIDUAL_PASSES = 25.0
"""Above `embed.FREE_FLOPS`, residual products of influence may take this many passes over the
training set, as many as the exact solve takes at most."""
MAX_SELECTION_PASSES = 4.0
"""Above `embed.FREE_FLOPS`, a selection may spend this many passes. Beyond them, products with a
sum of queries are taken with the sum written out, where the model offers that (two or three
passes)."""


@dataclass(frozen=True)
class SetInfluence:
    """Influence of every training example on a query, and how it was computed.

    Attributes
    ----------
    values : array
        (n_train,): what the mean log-likelihood of the queried set loses if a training example is
        removed; (n_train, n_test) for one column per queried example.
    solver : str
        How it was computed, in words.
    residual : float
        Relative residual ‖b − M x‖ / ‖b‖ with the Fisher matrix of all parameters, of the worst
        model: 0 for an exact embedding, infinite if it was not measured.
    steps : int
        Passes over the training set spent on solving, over all models.
    """

    values: np.ndarray
    solver: str
    residual: float
    steps: int


def relative_influence(values: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Divide the influence of each training example by the root of its self-influence.

    Among all examples that would move the model as far as this one, how strongly does it act on the
    query (Barshan, Brunet and Dziugaite 2020)? Examples without self-influence get 0.
    """
    root = np.sqrt(own)[:, None]
    return np.divide(values, root, out=np.zeros_like(values), where=root > 0)


def query_influence(
    query: Query,
    dampings: list[float],
    mix: np.ndarray | None = None,
    solve: Solve = "sketch",
) -> SetInfluence:
    """Compute the influence on each queried example, or on sums of them, averaged over models.

    `dampings` has one value per model. `mix`, (n_test, T), has the weights of T sums of queried
    examples.
    """
    if solve == "exact" and mix is None:
        return _exact_in_blocks(query, dampings)
    found = (_one_model(query, i, damping, mix, solve) for i, damping in enumerate(dampings))
    evidence = query.embeddings[0].evidence
    # only snapshots of one network's training are levelled
    return average(found, evidence.from_run and evidence.weight_square is not None)


def _exact_in_blocks(query: Query, dampings: list[float]) -> SetInfluence:
    """Solve for as many queried examples at a time as `MAX_SOLVE_BYTES` allows."""
    count, parameters = len(query), max(e.evidence.parameters for e in query.embeddings)
    width = int(np.clip(MAX_SOLVE_BYTES // (40 * parameters), 1, count))
    parts = []
    for start in range(0, count, width):
        block = query.take(np.arange(start, min(start + width, count)))
        parts.append(query_influence(block, dampings, np.eye(len(block)), "exact"))
    return replace(
        max(parts, key=lambda found: found.residual),
        values=np.concatenate([found.values for found in parts], axis=1),
        steps=sum(found.steps for found in parts),
    )


# ---- averaging over models and snapshots


def average(found: Iterable[SetInfluence], from_run: bool) -> SetInfluence:
    """Average influence over models, one at a time; `solver` describes the worst of them.

    Snapshots of one run differ in the size of their effects on a query, because the model was more
    or less sure of it at the time, and a plain sum is dominated by the largest. Each snapshot is
    therefore divided by a power of its size (`LEVELLING_EXPONENT`), column by column, and the
    result is brought to the size of the plain mean.
    """
    total, scale, size, count, worst, steps = 0.0, 0.0, 0.0, 0, None, 0
    for one in found:
        own = _column_sizes(one.values) if from_run else np.ones(one.values.shape[1])
        power = own**-LEVELLING_EXPONENT
        total = total + one.values * power
        scale, size, count = scale + own * power, size + own, count + 1
        worst = one if worst is None or one.residual > worst.residual else worst
        steps += one.steps
    assert worst is not None
    return replace(worst, values=total * (size / scale / count), steps=steps)


def _column_sizes(values: np.ndarray) -> np.ndarray:
    """Return the root mean square of each column."""
    squares = np.einsum("ij,ij->j", values, values, dtype=np.float64)
    return np.maximum(np.sqrt(squares / len(values)), _MIN_COLUMN_SIZE)


# ---- one model


def _one_model(
    query: Query, place: int, damping: float, mix: np.ndarray | None, solve: Solve
) -> SetInfluence:
    embedding, examples = query.embeddings[place], query.examples[place]
    # The sketch answers where it is exact, and where the model offers no operator (not torch).
    sketch, operator = embedding.sketch, None
    if solve == "exact" and isinstance(sketch, KroneckerSketch) and embedding.metric.name == "full":
        operator = embedding.oracle.gauss_newton(embedding.train)
    if operator is None:
        known = query.embedded[place]
        found = query_kernel(
            embedding, examples, damping, query.labels, mix, known.rows, known.scores
        )
        if not sketch.exact:
            say(f"influence by {found.solver}")
        return replace(found, values=found.values / len(embedding.train))
    steps = conjugate_gradients(
        lambda v: operator.product(v) + damping * v,
        operator.score_sums(examples, query.labels, mix),
        _sketch_inverse(embedding, damping),
        _CG_TOLERANCE,
        _MAX_CG_STEPS,
    )
    steps = track(steps, "solving, one pass over the training set per step", _MAX_CG_STEPS)
    passes, (solution, residual) = deque(enumerate(steps, 1), maxlen=1).pop()
    solver = f"conjugate gradients, {passes} passes, residual {residual:.1e}"
    say(f"influence by {solver}")
    values = operator.along_scores(solution) / len(embedding.train)
    return SetInfluence(values, solver, residual, passes)


def _sketch_inverse(embedding: Embedding, damping: float) -> Callable[[Columns], Columns]:
    """Return V ↦ about (F + δ)⁻¹ V: the inverse in the sketch, one mean eigenvalue outside it."""
    sketch, evidence = embedding.sketch, embedding.evidence
    assert isinstance(sketch, KroneckerSketch)
    dropped = max(evidence.parameters - sketch.width, 1)
    eigenvalue = damping + (1.0 - evidence.share) * evidence.trace / dropped

    def apply(v: Columns) -> Columns:
        inside = concatenate([sketch.coordinates(column)[None] for column in v.T])
        solved = as_like(to_numpy(embedding.metric.solve(inside, damping)), v)
        change = solved - inside / eigenvalue
        lifted = concatenate([sketch.lifted(row)[:, None] for row in change], axis=1)
        return lifted + v / eigenvalue

    return apply


def query_kernel(
    embedding: Embedding,
    examples: Examples,
    damping: float,
    labels: Labels = "true",
    mix: np.ndarray | None = None,
    rows: Array | None = None,
    scores: ScoreRows | None = None,
) -> SetInfluence:
    """Compute the kernel of every training example i and queried example j, (n_train, n_test).

    It is n_train times the influence, by the sketch and one mean eigenvalue for the residual.
    `mix`, (n_test, T), asks for T sums of queried examples; the train × test matrix is then never
    made. `rows` and `scores` are those of the queried examples, where they are known.
    """
    if rows is None:
        rows, _ = embedding.embed(examples, labels)
    rows = rows if mix is None else as_like(mix.T, rows) @ rows
    # the training rows stay as they are: only the few queried rows are multiplied by M⁻¹
    train = embedding.rows_near_model()
    inside = products(train, embedding.metric.solve(rows, damping)).astype(np.float64)
    if embedding.sketch.exact:
        return SetInfluence(inside, "exact", 0.0, 0)
    note, share = embedding.sketch.note, embedding.evidence.share
    alone = f"the sketch alone ({note}), {share:.1%} of the Fisher"
    if not embedding.has_residual:
        return SetInfluence(inside, alone, np.inf, 0)
    passes = embedding.residual_passes(len(examples))
    operator = None
    if mix is not None and passes > MAX_SELECTION_PASSES and mix.shape[1] < len(examples):
        operator = embedding.oracle.gauss_newton(embedding.train)
    if operator is None and passes > MAX_RESIDUAL_PASSES:
        alone = f"{alone}: residual products would cost {passes:,.0f} passes over the data"
        return SetInfluence(inside, alone, np.inf, 0)
    if operator is None:
        raw = embedding.train_products(examples, labels, mix, scores)
    else:
        raw = operator.along_scores(operator.score_sums(examples, labels, mix))
    residual = (raw - products(train, rows)) * embedding.residual_inverse(damping)
    solver = f"{note}, and one mean eigenvalue for the residual"
    return SetInfluence(inside + residual, solver, np.inf, 0)


# ---- conjugate gradients


def conjugate_gradients(
    product: Callable[[Columns], Columns],
    b: Columns,
    precondition: Callable[[Columns], Columns],
    tolerance: float,
    limit: int,
) -> Iterator[tuple[Columns, float]]:
    """Yield the solution X of M X = B after each product with M, and its largest residual.

    Every column is a separate problem; the products V ↦ M V are shared. `precondition` is V ↦ C V
    with C ≈ M⁻¹; the first solution is C b. The residual is ‖b − M x‖ / ‖b‖ of a column.
    """
    size = _dots(b, b) ** 0.5
    size = size + (size == 0.0)  # zeros solve a column of zeros
    x = precondition(b)
    residual = b - product(x)
    direction, energy = x, None
    for step in range(1, limit + 1):
        left = float((_dots(residual, residual) ** 0.5 / size).max())
        yield x, left
        if left <= tolerance or step == limit:
            return
        toward = precondition(residual)
        before, energy = energy, _dots(residual, toward)
        direction = toward if before is None else toward + _ratio(energy, before) * direction
        moved = product(direction)
        length = _ratio(energy, _dots(direction, moved))
        x, residual = x + length * direction, residual - length * moved


def _dots(a: Columns, b: Columns) -> Any:
    """Return a·b of each pair of columns, (B,)."""
    return (a * b).sum(0)


def _ratio(a: Any, b: Any) -> Any:
    """Return a / b, and 0 for a column that is solved exactly (0 / 0)."""
    done = b == 0.0
    return a * ~done / (b + done)
