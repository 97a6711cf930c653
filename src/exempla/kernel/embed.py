"""One model's training set in sketch space, all rows in memory.

What the training rows add to the evidence that a damping is chosen by.

Rows of many batches in one array, on the device that makes them or in main memory.

Before the first row: the basis, and the Fisher of a sample in it.

What a job will take before it begins: memory, and for a store the disk.

ρ: how large the Fisher is, along the scores, in the directions a sketch leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from exempla.arrays import Array, concatenate, is_tensor, row_squares, to_numpy
from exempla.checks import check_choice
from exempla.errors import ExemplaError
from exempla.kernel.basis import Sketch
from exempla.kernel.damping import FisherEvidence
from exempla.kernel.fisher import Metric, estimate_fisher
from exempla.kernel.sketch import SAMPLE_PER_DIRECTION, auto_width, choose_sketch
from exempla.memory import Forecast, announce, explain_bytes
from exempla.oracles.base import Examples, Labels, Oracle, ScoreRows
from exempla.oracles.factors import MANY
from exempla.progress import track_rows
from exempla.store import StoredRows


class Seen:
    """Σ s_i and Σ ‖s_i‖², in double precision; no copy of the rows is made, as they may be nearly
    all the memory there is."""

    def __init__(self, rows: Array | StoredRows) -> None:
        self.count, self.energy = len(rows), 0.0
        self.total = np.zeros(rows.shape[1])
        for part in _parts(rows):
            own: Any = part
            if is_tensor(part):
                self.total += to_numpy(own.sum(0)).astype(np.float64)
                self.energy += float(own.norm()) ** 2
            else:
                self.total += own.sum(0, dtype=np.float64)
                self.energy += float(np.einsum("ij,ij->", own, own, dtype=np.float64))


def _parts(rows: Array | StoredRows) -> Iterator[Array]:
    if isinstance(rows, StoredRows):
        yield from (part for _, part in rows.stream())
    else:
        yield rows


def with_rows(
    evidence: FisherEvidence, oracle: Oracle, basis: Sketch, seen: Seen
) -> FisherEvidence:
    """The evidence of the Fisher with that of the training rows."""
    return replace(
        evidence,
        pull=_distance_from_stationary(oracle, basis, seen),
        trained=seen.count,
        misfit=misfit(seen, evidence),
        weight_square=typical_square(oracle.theta_squares),
    )


def _distance_from_stationary(oracle: Oracle, basis: Sketch, seen: Seen) -> float | None:
    """‖mean score − λRθ̂‖ / ‖θ̂‖, the mean taken in sketch space."""
    known = oracle.implicit_penalty
    if known is not None:
        return known
    size = oracle.theta_norm
    if not size:
        return None
    left = seen.total / seen.count
    penalty = oracle.penalty_rows()
    if penalty is not None:
        left = left - to_numpy(basis.project(penalty)).sum(0)
    return float(np.linalg.norm(left)) / size


def misfit(seen: Seen, evidence: FisherEvidence) -> float:
    """Mean squared length of the scores over the Fisher's trace, both as far as the sketch shows
    them."""
    expected = evidence.trace * evidence.share
    return seen.energy / seen.count / expected if expected > 0 else 1.0


def typical_square(squares: list[tuple[int, float]] | None) -> float | None:
    """The harmonic mean over parameters of their layer's mean square, of two layers or more."""
    used = [(size, square) for size, square in squares or [] if square > 0]
    if len(used) < 2:
        return None
    return sum(size for size, _ in used) / sum(size * size / square for size, square in used)


def refuse_unusable(rows: Array, whose: str, first: int = 0) -> None:
    """NaN and infinity stop here, by name: further on they would spoil everything silently.

    `first` is the number of the first of the rows.
    """
    sums = to_numpy(rows.sum(1))
    bad = first + np.flatnonzero(~np.isfinite(sums))
    if len(bad):
        named = ", ".join(map(str, bad[:5])) + ("…" if len(bad) > 5 else "")
        raise ExemplaError(
            f"{len(bad)} of {whose} have a score that is not finite (rows {named}): "
            "check those inputs and the model's weights for NaN and infinity."
        )


_GPU_SHARE = 1 / 8
"""Share of the GPU's free memory that rows may take before they move to main memory."""
_TRANSFER_BYTES = 2**26
"""Bytes of rows put in their place at a time."""


def in_one_array(batches: Iterable[Array], count: int) -> Array:
    """All rows in one array: on the GPU that makes them while they are few beside its memory,
    else in main memory, carried there many batches at a time (each transfer is a wait)."""
    out: Any = None
    waiting: list[Array] = []
    start = 0
    for rows in batches:
        if out is None:
            out = _room_for(rows, count)
        waiting.append(rows)
        there = isinstance(rows, np.ndarray) or rows.device == out.device
        if there or sum(r.nbytes for r in waiting) >= _TRANSFER_BYTES:
            start = put(out, start, waiting)
    put(out, start, waiting)
    return out


def _room_for(rows: Array, count: int) -> Array:
    """An empty array for `count` such rows."""
    if isinstance(rows, np.ndarray):
        return np.empty((count, rows.shape[1]), rows.dtype)
    import torch

    needed = count * rows.shape[1] * rows.element_size()
    on_gpu = rows.is_cuda and needed < _GPU_SHARE * torch.cuda.mem_get_info(rows.device)[0]
    where = rows.device if on_gpu else "cpu"
    return torch.empty(count, rows.shape[1], dtype=rows.dtype, device=where)


def put(out: Array, start: int, waiting: list[Array]) -> int:
    """Move what waits to its place and forget it; where the next rows go."""
    if waiting:
        rows = concatenate(waiting)
        out[start : start + len(rows)] = rows
        start += len(rows)
        waiting.clear()
    return start


_FISHERS = ("true", "empirical", "diagonal", "identity")


@dataclass(frozen=True)
class Prepared:
    """What rows are made and read with."""

    basis: Sketch
    metric: Metric
    evidence: FisherEvidence
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage."""


class Preparing:
    """The two steps, for one model; the memory a job takes is known between them."""

    def __init__(
        self, oracle: Oracle, train: Examples, fisher: str, sketch: str | int, seed: int
    ) -> None:
        self.oracle, self.train = oracle, train
        self.fisher = "identity" if oracle.whitened else fisher
        self.sample = _fisher_sample(train, sketch, seed)
        start = perf_counter()
        self.basis = choose_sketch(
            oracle, train, sketch, self.sample, dual=self.fisher != "diagonal"
        )
        self.seconds = perf_counter() - start

    def done(self) -> Prepared:
        """With the Fisher."""
        start, basis = perf_counter(), self.basis
        examples = self.train if basis.exact else self.sample
        metric, evidence = estimate_fisher(self.oracle, examples, basis, self.fisher)
        took = {"basis": self.seconds, "fisher": perf_counter() - start}
        return Prepared(basis, metric, evidence, took)


def _fisher_sample(train: Examples, sketch: str | int, seed: int) -> Examples:
    """The part of a large training set that basis and Fisher are estimated from."""
    width = sketch if isinstance(sketch, int) else auto_width(len(train))
    wanted = SAMPLE_PER_DIRECTION * width
    if len(train) <= wanted:
        return train
    chosen = np.random.default_rng(seed).choice(len(train), wanted, replace=False)
    return train.take(np.sort(chosen))


def check_fisher(wanted: str) -> str:
    """The option as given, if it means something."""
    return check_choice("fisher", wanted, _FISHERS)


_LOOKED_AT, _LOOKED_AT_LONG = 4096, 256
"""Training examples among which Fisher rows are drawn, and of those with `MANY` positions."""
_DRAWN, _LEAST_DRAWN, HELD_BYTES = 64, 8, 2**31
"""Fisher rows drawn, all of whose products are taken; fewer where they take more memory, since one
row of a language model can take more than a GiB."""


def left_out_scale(embedding: Embedding, seed: int = 0) -> float:
    """ρ = tr(F²)/tr(F) for the Fisher outside the sketch, estimated from a few of its rows.

    Rows r_i drawn in proportion to ‖r_i‖² make F/tr(F) the mean of r̂ r̂ᵀ, r̂ of unit length, and
    tr(F²)/tr(F)² the mean of (r̂_i·r̂_j)² over pairs; here for what each row has outside.
    """
    trace = (1.0 - embedding.evidence.share) * embedding.evidence.trace
    if embedding.sketch.exact or trace <= 0.0:
        return 0.0
    rows = _drawn_rows(embedding, np.random.default_rng(seed))
    inside = to_numpy(embedding.sketch.project(rows)).astype(np.float64)
    products = rows.gram(rows) - inside @ inside.T
    energy = np.maximum(np.diag(products), 1e-30)
    drawn_for = np.maximum(rows.norm2(), 1e-30)
    pairs = np.outer(energy / drawn_for, energy / drawn_for)  # drawn for the whole row's energy
    np.fill_diagonal(pairs, 0.0)
    cosine2 = np.minimum(products**2 / np.outer(energy, energy), 1.0)
    return trace * float((pairs * cosine2).sum() / max(pairs.sum(), 1e-300))


def _drawn_rows(embedding: Embedding, rng: np.random.Generator) -> ScoreRows:
    """Fisher rows drawn without replacement in proportion to their energy."""
    oracle, train = embedding.oracle, embedding.train
    order = rng.permutation(len(train))
    first = next(oracle.fisher_rows(train.take(order[:1])), None)
    count, looked_at = _DRAWN, _LOOKED_AT
    if first is not None and len(first):
        count = int(np.clip(HELD_BYTES // max(first.nbytes // len(first), 1), _LEAST_DRAWN, _DRAWN))
        looked_at = _LOOKED_AT_LONG if first.thinnest(oracle.layers) >= MANY else _LOOKED_AT
    some = np.sort(order[:looked_at])
    kept: ScoreRows | None = None
    keys = np.zeros(0)
    for batch in oracle.fisher_rows(train.take(some)):
        fresh = np.log(rng.random(len(batch))) / np.maximum(batch.norm2(), 1e-30)
        best = np.argsort(-fresh)[:count]
        joined = batch.take(best) if kept is None else ScoreRows.join([kept, batch.take(best)])
        keys = np.concatenate([keys, fresh[best]])
        order = np.argsort(-keys)[:count]
        kept, keys = joined.take(order), keys[order]
    assert kept is not None
    return kept


def energy_of(
    oracle: Oracle, examples: Examples, rows: Array | StoredRows, labels: Labels = "true"
) -> np.ndarray:
    """‖s_i‖² − ‖Vᵀs_i‖² of examples with these rows, (n,): a pass over them."""
    batches = track_rows(oracle.scores(examples, labels), "beyond the sketch", len(examples))
    whole = np.concatenate([batch.norm2() for batch in batches])
    return np.maximum(whole - squares(rows), 0.0)


def squares(rows: Array | StoredRows) -> np.ndarray:
    """Squared length of every row, (t,)."""
    if isinstance(rows, StoredRows):
        return rows.squares()
    return row_squares(rows)


@dataclass(frozen=True)
class Embedding:
    """Everything later steps need of one model: how to embed, and the training rows."""

    oracle: Oracle
    train: Examples
    sketch: Sketch
    metric: Metric
    evidence: FisherEvidence
    rows: Array
    """(t, p) in memory, or `StoredRows`."""
    seconds: dict[str, float]
    """Wall time of each stage: basis, fisher, scores."""

    @cached_property
    def left_out_scale(self) -> float:
        """ρ, the mean eigenvalue of the Fisher outside the sketch; 0 where nothing is outside."""
        return left_out_scale(self)

    @cached_property
    def outside_energy(self) -> np.ndarray:
        """Squared length of every training score outside the sketch, (n_train,)."""
        return energy_of(self.oracle, self.train, self.rows)

    def rows_near_model(self) -> Any:
        """The training rows on the model's GPU, if it has one with room for them and a copy; stored
        rows where they are."""
        device = getattr(self.oracle, "device", None)
        if not is_tensor(self.rows) or getattr(device, "type", "cpu") != "cuda":
            return self.rows
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        return self.rows.to(device) if 3 * self.rows.nbytes < free else self.rows

    def near_model(self, rows: np.ndarray) -> Array:
        """Some stored rows on the model's GPU, if it has one."""
        device = getattr(self.oracle, "device", None)
        if getattr(device, "type", "cpu") != "cuda":
            return rows
        import torch

        return torch.from_numpy(rows).to(device)

    def embed(self, examples: Examples, labels: Labels) -> tuple[Array, np.ndarray]:
        """Rows of other examples, and each one's squared norm outside the basis."""
        parts, outside = [], []
        batches = self.oracle.scores(examples, labels)
        for batch in track_rows(batches, "scoring the target", len(examples)):
            rows = self.sketch.project(batch)
            parts.append(rows)
            if self.sketch.outside is not None:
                inside = row_squares(rows).astype(np.float64)
                outside.append(np.maximum(batch.norm2() - inside, 0.0))
            else:
                outside.append(np.zeros(len(rows)))
        rows = concatenate(parts)
        rows = rows.to(self.rows.device) if is_tensor(self.rows) else to_numpy(rows)
        refuse_unusable(rows, "the questioned examples")
        return rows, np.concatenate(outside)


def embed_training_set(
    oracle: Oracle, data: Any, *, fisher: str, sketch: str | int, seed: int, models: int = 1,
    forecast: Forecast = explain_bytes,
) -> Embedding:  # fmt: skip
    """Choose the basis, estimate the Fisher in it, and embed every training example.

    `models` are to be embedded in all: it counts for the memory that is said to be needed.
    """
    train = oracle.read(data, role="train")
    begun = Preparing(oracle, train, fisher, sketch, seed)
    basis = begun.basis
    itemsize = 8 if basis.in_double else oracle.itemsize
    kept = basis.kept_bytes + train.made_bytes + oracle.pass_bytes
    announce(
        forecast(len(train), basis.width, itemsize, kept, basis.built_bytes, models),
        f"{len(train)} examples, {oracle.n_parameters} parameters; {basis.note}",
    )
    prepared = begun.done()
    start = perf_counter()
    if basis.score_rows is not None:
        rows, basis.score_rows = basis.score_rows, None
    else:
        batches = track_rows(oracle.scores(train), "scoring the training set", len(train))
        rows = in_one_array((basis.project(batch) for batch in batches), len(train))
    refuse_unusable(rows, "the training examples")
    evidence = with_rows(prepared.evidence, oracle, basis, Seen(rows))
    seconds = {**prepared.seconds, "scores": perf_counter() - start}
    return Embedding(oracle, train, basis, prepared.metric, evidence, rows, seconds)
