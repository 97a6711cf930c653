"""Embeddings: one model's training set in sketch space, with the metric and the training rows.

    basis ──▶ Fisher matrix of a sample in that basis ──▶ rows of every training example

Rows are kept unwhitened, so that the damping can be chosen per query without embedding again.

A sketch keeps p leading directions V of parameter space, for a large network often less than half
of the trace of the Fisher matrix. The rest of a score is its *residual*. There the Fisher matrix is
approximated by one number ρ = tr(F²)/tr(F) of the residual Fisher, its mean eigenvalue as the
scores weigh directions. With the raw products s_i·s_j, which factors give without writing a score
out, the kernel is

    s_iᵀM⁻¹s_j ≈ (Vᵀs_i)ᵀ(VᵀMV)⁻¹(Vᵀs_j) + (s_i·s_j − (Vᵀs_i)·(Vᵀs_j)) / (ρ + damping)

for influence (`solve`) and for selection (`kernel`). The products cost passes over the training
set. They are made where the sketch drops enough to matter (`MAX_SKETCH_SHARE`) and they cost
little (`FREE_FLOPS`) or few passes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import numpy as np

from exempla.arrays import (
    Array,
    as_like,
    concatenate,
    is_tensor,
    on_device_of,
    row_squares,
    to_numpy,
)
from exempla.checks import whole_number
from exempla.errors import ExemplaError
from exempla.kernel.basis import Sketch
from exempla.kernel.damping import FisherEvidence
from exempla.kernel.fisher import Metric, TrainingRows, estimate_fisher
from exempla.kernel.sketch import SAMPLE_PER_DIRECTION, FitCost, auto_width, choose_sketch
from exempla.memory import Forecast, announce, available_memory, explain_bytes
from exempla.oracles import is_checkpoint
from exempla.oracles.base import MANY, Examples, Labels, Oracle, ScoreRows
from exempla.progress import track_rows
from exempla.store import StoredRows


def with_rows(
    evidence: FisherEvidence, oracle: Oracle, basis: Sketch, rows: Array | StoredRows
) -> FisherEvidence:
    """Add what the training rows show to the evidence for a damping."""
    count, energy, total = len(rows), 0.0, np.zeros(rows.shape[1])
    parts: Any = (part for _, part in rows.stream()) if isinstance(rows, StoredRows) else (rows,)
    for part in parts:  # in double precision, without a copy of the rows, which may fill memory
        if is_tensor(part):
            total += to_numpy(part.sum(0)).astype(np.float64)
            energy += float(part.norm()) ** 2
        else:
            total += part.sum(0, dtype=np.float64)
            energy += float(np.einsum("ij,ij->", part, part, dtype=np.float64))
    expected = evidence.trace * evidence.share  # both as far as the sketch shows them
    return replace(
        evidence,
        gradient_gap=_gradient_gap(oracle, basis, total / count),
        trained=count,
        misfit=energy / count / expected if expected > 0 else 1.0,
        weight_square=typical_square(oracle.theta_squares),
    )


def _gradient_gap(oracle: Oracle, basis: Sketch, mean_score: np.ndarray) -> float | None:
    """Return ‖mean score − λRθ̂‖ / ‖θ̂‖, the mean taken in sketch space."""
    if oracle.implicit_penalty is not None:
        return oracle.implicit_penalty
    if not oracle.theta_norm:
        return None
    penalty = oracle.penalty_rows()
    if penalty is not None:
        mean_score = mean_score - to_numpy(basis.project(penalty)).sum(0)
    return float(np.linalg.norm(mean_score)) / oracle.theta_norm


def typical_square(squares: list[tuple[int, float]] | None) -> float | None:
    """Return the harmonic mean over parameters of the mean square of their layer; None for one."""
    used = [(size, square) for size, square in squares or [] if square > 0]
    if len(used) < 2:
        return None
    return sum(size for size, _ in used) / sum(size * size / square for size, square in used)


def refuse_unusable(rows: Array, whose: str, first: int = 0) -> None:
    """Raise if a row is not finite, and name it; `first` is the number of the first row."""
    sums = to_numpy(rows.sum(1))
    bad = first + np.flatnonzero(~np.isfinite(sums))
    if len(bad):
        named = ", ".join(map(str, bad[:5])) + ("…" if len(bad) > 5 else "")
        raise ExemplaError(
            f"{len(bad)} of {whose} have a score that is not finite (rows {named}): "
            "check those inputs and the model's weights for NaN and infinity."
        )


def unit_rows(rows: Array, residual: np.ndarray | None = None, *, overwrite: bool = False) -> Array:
    """Divide each row by its norm, in place with `overwrite`; a zero row stays zero.

    `residual` is the squared norm of each row in directions that the rows do not show.
    """
    scale = as_like(unit_scale(rows, residual), rows)[:, None]
    if overwrite:
        rows *= scale
        return rows
    return rows * scale


def unit_scale(rows: Array, residual: np.ndarray | None = None) -> np.ndarray:
    """Return the factor that brings each row to unit length; 0 for a zero row."""
    norm2 = row_squares(rows).astype(np.float64)
    if residual is not None:
        norm2 = norm2 + residual
    return np.where(norm2 > 0, 1.0 / np.sqrt(np.where(norm2 > 0, norm2, 1.0)), 0.0)


FISHERS = ("true", "empirical", "diagonal", "identity")
"""Metrics that can be chosen."""
MAX_SKETCH_SHARE = 0.99
"""Where a sketch keeps at least this share of the trace, the residual is ignored: adding it changed
no answer measurably (`benchmarks.sketch_rest`)."""
FREE_FLOPS = 4e12
"""Operations that residual products may always take (a minute or two on one core)."""
MAX_FACTOR_BYTES = 2**30
"""Factors of queried examples that are held during one pass over the training set, in bytes."""
_EIGENVALUE_EXAMPLES, _EIGENVALUE_EXAMPLES_LONG = 4096, 256
"""Examples among which the Fisher rows for ρ are drawn; with `MANY` positions each, the second."""
_MAX_EIGENVALUE_ROWS, _MIN_EIGENVALUE_ROWS, EIGENVALUE_BYTES = 64, 8, 2**31
"""Fisher rows drawn for ρ, fewer if they take more memory than this: one row of a language model
can take more than a GiB."""


class EmbeddingOptions(NamedTuple):
    """How a training set is embedded; `Explainer` documents the options."""

    fisher: str = "true"
    sketch: str | int = "auto"
    seed: int = 0
    budget: str | float = "exact"


def find_basis(
    oracle: Oracle, train: Examples, options: EmbeddingOptions
) -> tuple[Sketch, np.ndarray]:
    """Return the basis, and the positions of the examples to estimate the Fisher matrix from."""
    fisher, sketch, seed, budget = options
    count = len(train)
    positions, sample = np.arange(count), train
    wanted = SAMPLE_PER_DIRECTION * (sketch if isinstance(sketch, int) else auto_width(count))
    if count > wanted:
        positions = np.sort(np.random.default_rng(seed).choice(count, wanted, replace=False))
        sample = train.take(positions)
    limit = budget if not isinstance(budget, str) else oracle.budget if budget == "auto" else None
    diagonal = fisher == "diagonal" and not oracle.whitened
    basis = choose_sketch(oracle, train, sketch, sample, dual=not diagonal, budget=limit)
    if basis.exact:
        return basis, np.arange(count)
    # the examples that the basis was computed from come first
    first = positions[:0] if basis.seen is None else positions[basis.seen]
    others = positions if basis.seen is None else np.delete(positions, basis.seen)
    wanted = max(SAMPLE_PER_DIRECTION * basis.width - len(first), 0)
    if basis.given_up and len(others) > wanted:
        others = others[np.linspace(0, len(others) - 1, wanted).astype(np.int64)]
    return basis, np.concatenate([first, others])


@dataclass(frozen=True)
class Embedding:
    """One model's oracle, basis and metric, and its training rows."""

    oracle: Oracle
    train: Examples
    sketch: Sketch
    metric: Metric
    evidence: FisherEvidence
    rows: Array
    """(t, p) in memory, or `StoredRows`; not whitened."""
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage: basis, fisher, scores."""

    # ---- the residual: the part of a score that the sketch does not represent

    @property
    def has_residual(self) -> bool:
        """Whether the sketch drops enough of the Fisher matrix for the residual to matter."""
        return not self.sketch.exact and self.evidence.share < MAX_SKETCH_SHARE

    @cached_property
    def residual_eigenvalue(self) -> float:
        """ρ = tr(F²)/tr(F) of the residual Fisher matrix, estimated from a few of its rows.

        Rows r_i drawn in proportion to ‖r_i‖² make F/tr(F) the mean of r̂ r̂ᵀ, with r̂ of unit length,
        and tr(F²)/tr(F)² the mean of (r̂_i·r̂_j)² over pairs; here of the residuals of the rows. 0 if
        there is no residual.
        """
        trace = (1.0 - self.evidence.share) * self.evidence.trace
        if self.sketch.exact or trace <= 0.0:
            return 0.0
        rows = _draw_fisher_rows(self.oracle, self.train, np.random.default_rng(0))
        inside = to_numpy(self.sketch.project(rows)).astype(np.float64)
        gram = rows.gram(rows) - inside @ inside.T
        norms2 = np.maximum(np.diag(gram), 1e-30)
        share = norms2 / np.maximum(rows.norm2(), 1e-30)  # rows were drawn by their full length
        pairs = np.outer(share, share)
        np.fill_diagonal(pairs, 0.0)
        cosine2 = np.minimum(gram**2 / np.outer(norms2, norms2), 1.0)
        return trace * float((pairs * cosine2).sum() / max(pairs.sum(), 1e-300))

    @cached_property
    def residual_norms2(self) -> np.ndarray:
        """Squared norm of the residual of every training score, (n_train,)."""
        return residual_norms2(self.oracle, self.train, self.rows)

    def residual_inverse(self, damping: float) -> float:
        """Return 1 / metric in the directions that the sketch drops."""
        return self.metric.residual_inverse(self.residual_eigenvalue, damping)

    @cached_property
    def _example_cost(self) -> tuple[FitCost, float, int]:
        """Cost of passes, operations of a product of two scores, and memory of one, in bytes."""
        one = next(iter(self.oracle.scores(self.train.take(np.array([0])))))
        compact, work = one.compact(), tuple(f.work for f in one.factors)
        job = FitCost(self.oracle.n_parameters, len(self.train), 1.0, work)
        return job, sum(f.work.gram for f in compact.factors), compact.nbytes

    def residual_passes(self, count: int) -> float:
        """Return the cost of raw products with so many examples, in passes over the training set.

        It is 0 if they take at most `FREE_FLOPS` operations.
        """
        n, (job, gram, size) = len(self.train), self._example_cost
        total = -(-count * size // MAX_FACTOR_BYTES) * job.passes(n) + float(n) * count * gram
        return 0.0 if total <= FREE_FLOPS else total / job.passes(n)

    # ---- rows

    def _gpu(self) -> Any:
        """Return the model's GPU, if it has one."""
        device = getattr(self.oracle, "device", None)
        return device if getattr(device, "type", "cpu") == "cuda" else None

    def rows_near_model(self) -> Any:
        """Return the training rows on the model's GPU if it has room for them and a copy."""
        device = self._gpu()
        if device is None or not is_tensor(self.rows):
            return self.rows
        fits = 3 * self.rows.nbytes < available_memory(device)
        return self.rows.to(device) if fits else self.rows

    def near_model(self, rows: Array) -> Array:
        """Return some of the rows on the model's GPU, if it has one."""
        device = self._gpu()
        if device is None:
            return rows
        import torch

        return torch.as_tensor(rows).to(device)

    def train_products(
        self,
        right: Examples,
        labels: Labels,
        mix: np.ndarray | None,
        scores: ScoreRows | None,
        norms: bool = False,
    ) -> np.ndarray:
        """Return raw products with all training scores.

        With `norms` the pass also gives `residual_norms2`, unless they are known.
        """
        norms2: Any = [] if norms and "residual_norms2" not in self.__dict__ else None
        both: tuple[Labels, Labels] = "true", labels
        found = raw_products(self.oracle, self.train, right, mix, both, (None, scores), norms2)
        if norms2:
            inside = row_squares(self.rows)
            self.__dict__["residual_norms2"] = np.maximum(np.concatenate(norms2) - inside, 0.0)
        return found

    def embed(
        self, examples: Examples, labels: Labels, held: list[ScoreRows] | None = None
    ) -> tuple[Array, np.ndarray]:
        """Embed other examples; return rows and, for an exact span, squared residual norms.

        `held` receives their scores, if they take no more than `MAX_FACTOR_BYTES`.
        """
        parts, residual, size = [], [], 0
        batches = self.oracle.scores(examples, labels)
        for batch in track_rows(batches, "scoring the test examples", len(examples)):
            rows = self.sketch.project(batch)
            parts.append(rows)
            if held is not None:
                held.append(batch.compact())
                size += held[-1].nbytes
                if size > MAX_FACTOR_BYTES:
                    held.clear()
                    held = None
            if self.sketch.residual_penalty is not None:
                inside = row_squares(rows).astype(np.float64)
                residual.append(np.maximum(batch.norm2() - inside, 0.0))
            else:
                residual.append(np.zeros(len(rows)))
        rows = concatenate(parts)
        rows = rows.to(self.rows.device) if is_tensor(self.rows) else to_numpy(rows)
        refuse_unusable(rows, "the test examples")
        return rows, np.concatenate(residual)


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
    held: tuple[ScoreRows | None, ScoreRows | None] = (None, None),
    norms2: list[np.ndarray] | None = None,
) -> np.ndarray:
    """Return s_i·s_j over all parameters, (n_left, n_right).

    One pass over the left examples is made per `MAX_FACTOR_BYTES` of factors on the right. `mix` is
    as for `solve.query_kernel`; `labels` are those of either side, and `held` its scores if they
    are in memory. The first pass adds ‖s_i‖² of the left examples to `norms2`.
    """
    columns, start = [], 0
    for query in _groups(oracle.scores(right, labels[1])) if held[1] is None else [held[1]]:
        own = None if mix is None else mix[start : start + len(query)]
        start += len(query)
        batches = oracle.scores(left, labels[0]) if held[0] is None else iter([held[0]])
        parts = []
        for batch in track_rows(batches, "residual products", len(left)):
            found = batch.gram(query)
            parts.append(found if own is None else found @ own)
            if norms2 is not None:
                norms2.append(batch.norm2())
            del batch  # the next pass needs its memory
        columns.append(np.concatenate(parts))
        norms2 = None
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


def embed_training_set(
    oracle: Oracle,
    data: Any,
    options: EmbeddingOptions,
    models: int = 1,
    forecast: Forecast = explain_bytes,
) -> Embedding:
    """Choose the basis, estimate the Fisher matrix in it, and embed every training example.

    `data` may be `Examples` that the oracle has read. `forecast` is for `models` models in all.
    """
    train = data if isinstance(data, Examples) else oracle.read(data, role="train")
    times = [perf_counter()]
    basis, positions = find_basis(oracle, train, options)
    itemsize = 8 if basis.in_double else oracle.itemsize
    kept = basis.kept_bytes + train.made_bytes + oracle.pass_bytes
    announce(
        forecast(len(train), basis.width, itemsize, kept, basis.built_bytes, models),
        f"{len(train)} examples, {oracle.n_parameters} parameters; {basis.note}",
    )
    times.append(perf_counter())
    found = TrainingRows(len(train), positions)
    metric, evidence = estimate_fisher(oracle, train, positions, basis, options.fisher, found)
    times.append(perf_counter())
    rows, basis.score_rows = basis.score_rows, None
    if rows is None:
        missing = found.missing
        if len(missing):
            rest = train if len(missing) == len(train) else train.take(missing)
            for batch in track_rows(oracle.scores(rest), "scoring the training set", len(rest)):
                found.put(missing[batch.sample], basis.project(batch))
                del batch  # the next pass needs its memory
        rows = found.rows
    refuse_unusable(rows, "the training examples")
    evidence = with_rows(evidence, oracle, basis, rows)
    seconds = np.diff([*times, perf_counter()]).tolist()
    stages: Any = dict(zip(("basis", "fisher", "scores"), seconds, strict=True))
    return Embedding(oracle, train, basis, metric, evidence, rows, stages)


def embed_models(
    models: list[Any],
    oracles: list[Oracle],
    trains: list[Examples],
    data: Any,
    options: EmbeddingOptions,
    store: Path | None = None,
    part: tuple[int, int] | None = None,
    forecast: Forecast = explain_bytes,
    **score_options: Any,
) -> list[Embedding]:
    """Embed the training set with every model, in memory or in a store.

    `models`, `oracles` and `trains` have each model, its oracle, and the training set as the oracle
    read it. The identity of a store depends on the training `data` as given, on the options and on
    those of the scores. `part` (i, n) adds the i-th of n parts to the store; nothing is returned.
    """
    if store is not None:
        from exempla.kernel.stored import embed_into_store

        # a saved Explainer names the folder, and may be loaded from elsewhere
        fitted = embed_into_store(
            models, oracles, trains, data, options, store.absolute(), part, score_options
        )
    else:
        fitted = []
        for i, (oracle, train) in enumerate(zip(oracles, trains, strict=True)):
            with announce(0.0, "") if i else nullcontext():  # the first forecast covers all models
                fitted.append(embed_training_set(oracle, train, options, len(oracles), forecast))
    snapshots = [is_checkpoint(model) for model in models]
    if not fitted or not any(snapshots) or all(snapshots):
        return fitted
    # snapshots of a run are damped by the size of the weights at its end
    last = fitted[snapshots.index(False)].evidence.weight_square
    return [
        replace(e, evidence=replace(e.evidence, weight_square=last, from_run=True)) for e in fitted
    ]


def concatenate_models(parts: list[Array]) -> Array:
    """Put the rows of m models side by side, divided by √m: their kernels are then averaged."""
    if len(parts) == 1:
        return parts[0]
    joined = concatenate(parts, axis=1)
    joined /= np.sqrt(len(parts))
    return joined


def whiten_rows(embeddings: list[Embedding], dampings: list[float], where: Any) -> Array:
    """Whiten the training rows at `where`, of all models side by side, at their own length."""
    each = zip(embeddings, dampings, strict=True)
    parts = [e.metric.whiten(e.near_model(e.rows[where]), damping) for e, damping in each]
    return concatenate_models([on_device_of(part, parts[0]) for part in parts])


def check_part(part: Any, store: Path | None) -> tuple[int, int] | None:
    """Return (i, n) with 1 ≤ i ≤ n, or None."""
    if part is None:
        return None
    if store is None:
        raise ExemplaError("part= divides the rows of a store: give store=FOLDER too.")
    sound = isinstance(part, tuple) and len(part) == 2 and all(map(whole_number, part))
    if not sound or not 1 <= part[0] <= part[1] <= 2**20:
        raise ExemplaError(
            f"part is {part!r:.60}: give (i, n), the i-th of n parts, with 1 <= i <= n <= 2**20."
        )
    return int(part[0]), int(part[1])
