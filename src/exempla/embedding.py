"""One model's training set in sketch space: the streaming loop from factors to rows.

    basis ──▶ Fisher of the sample in that basis ──▶ rows of every training example

Rows are kept unwhitened, so that damping stays a choice of the question, not of the embedding.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np

from exempla.arrays import Array, concatenate, to_numpy
from exempla.checks import check_choice
from exempla.errors import ExemplaError
from exempla.fisher.base import Metric
from exempla.fisher.damping import FisherEvidence
from exempla.fisher.estimate import PIECE_BYTES, estimate_fisher
from exempla.oracles.base import Examples, Labels, Oracle
from exempla.progress import say_memory, track_rows
from exempla.sketch import Sketch, choose_sketch
from exempla.sketch.choose import SAMPLE_PER_DIRECTION, WIDTH

__all__ = ["FISHERS", "Embedding", "check_fisher", "embed_training_set", "forecast_bytes"]

FISHERS = ("true", "empirical", "diagonal", "identity")
BASIS_SAMPLE = 512
"""Examples the K-FAC basis is estimated from, at most."""
GPU_SHARE = 1 / 8
"""Share of the GPU's free memory that rows may take before they move to main memory."""
TRANSFER_BYTES = 2**26
"""Bytes of rows put in their place at a time."""
LOADING, COMPILING = 40 * 2**20, 100 * 2**20
"""Bytes that modules loaded on the way take, and the compiler of the selection's inner loop."""


@dataclass(frozen=True)
class Embedding:
    """Everything later steps need of one model: how to embed, and the training rows."""

    oracle: Oracle
    train: Examples
    sketch: Sketch
    metric: Metric
    evidence: FisherEvidence
    rows: Array
    seconds: dict[str, float]
    """Wall time of each stage: basis, fisher, scores."""

    def rows_near_model(self) -> Array:
        """The training rows on the model's GPU, if it has one with room for them and a copy."""
        device = getattr(self.oracle, "device", None)
        if isinstance(self.rows, np.ndarray) or getattr(device, "type", "cpu") != "cuda":
            return self.rows
        import torch

        free, _ = torch.cuda.mem_get_info(device)
        return self.rows.to(device) if 3 * self.rows.nbytes < free else self.rows

    def embed(self, examples: Examples, labels: Labels) -> tuple[Array, np.ndarray]:
        """Rows of other examples, and each one's squared norm outside the basis."""
        parts, outside = [], []
        batches = self.oracle.scores(examples, labels)
        for batch in track_rows(batches, "scoring the target", len(examples)):
            rows = self.sketch.project(batch)
            parts.append(rows)
            if self.sketch.outside is not None:
                inside = to_numpy((rows * rows).sum(1)).astype(np.float64)
                outside.append(np.maximum(batch.norm2() - inside, 0.0))
            else:
                outside.append(np.zeros(len(rows)))
        rows = concatenate(parts)
        if isinstance(self.rows, np.ndarray):
            rows = to_numpy(rows)
        else:
            rows = rows.to(self.rows.device)
        refuse_unusable(rows, "the questioned examples")
        return rows, np.concatenate(outside)


def embed_training_set(
    oracle: Oracle, data: Any, *, fisher: str, sketch: str | int, seed: int, models: int = 1
) -> Embedding:
    """Choose the basis, estimate the Fisher in it, and embed every training example.

    `models` are to be embedded in all: it counts for the memory that is said to be needed.
    """
    train = oracle.read(data, role="train")
    sample = fisher_sample(train, sketch, seed)
    clock = [perf_counter()]
    basis = choose_sketch(oracle, train, sketch, basis_sample(sample), dual=fisher != "diagonal")
    clock.append(perf_counter())
    itemsize = 8 if basis.in_double else oracle.itemsize
    kept = basis.kept_bytes + train.made_bytes
    say_memory(
        forecast_bytes(len(train), basis.width, itemsize, kept, basis.built_bytes, models),
        f"{len(train)} examples, {oracle.n_parameters} parameters; {basis.note}",
    )
    metric, evidence = estimate_fisher(oracle, train if basis.exact else sample, basis, fisher)
    clock.append(perf_counter())
    if basis.score_rows is not None:
        rows, basis.score_rows = basis.score_rows, None
    else:
        batches = track_rows(oracle.scores(train), "scoring the training set", len(train))
        rows = in_one_array((basis.project(batch) for batch in batches), len(train))
    refuse_unusable(rows, "the training examples")
    evidence = replace(evidence, pull=distance_from_stationary(oracle, basis, rows))
    clock.append(perf_counter())
    basis_s, fisher_s, scores_s = np.diff(clock).tolist()
    seconds = {"basis": basis_s, "fisher": fisher_s, "scores": scores_s}
    return Embedding(oracle, train, basis, metric, evidence, rows, seconds)


def forecast_bytes(
    examples: int, width: int, itemsize: int = 8, kept: int = 0, built: int = 0, models: int = 1
) -> int:
    """Main memory that an explanation takes at its peak, beyond the model and the data as given.

    Rows of `width` numbers of `itemsize` bytes take R = examples·width·itemsize, a Fisher in double
    precision S = 8·width². `kept` is what the basis takes (the dual form's factor and landmarks,
    K-FAC's directions) and inputs transformed once, `built` what finding the basis took. The
    largest of these counts:

        basis       built
        fit         kept + R + 2S + 2B         rows, the Fisher's sum and a batch's share of it, and
                                               a batch of rows twice
        explain     kept + 3R + S (or 3S)      rows, whitened rows, and those of unit length; of
                                               torch's rows the factor's inverse besides
        selection   kept + 2R + S + 48n + C    rows and unit rows, six numbers for each, and the
                                               compiler of the inner loop

    Several models' bases, rows and Fishers stay together, and their whitened rows are put side by
    side, for which torch takes one copy more of them.

    >>> round(forecast_bytes(400_000, 41) / 2**20)
    415
    """
    rows, square = examples * width * itemsize, 8 * width**2
    batch = min(rows, PIECE_BYTES)
    before = (models - 1) * (kept + rows + square)
    metric = models * (kept + square) + (0 if itemsize == 8 else 2 * square)
    rows *= models
    return LOADING + max(
        before + built,
        before + kept + rows // models + 2 * square + 2 * batch,
        metric + (4 if models > 1 and itemsize < 8 else 3) * rows,
        metric + 2 * rows + 48 * examples + COMPILING,
    )


def fisher_sample(train: Examples, sketch: str | int, seed: int) -> Examples:
    """The part of a large training set that basis and Fisher are estimated from."""
    width = sketch if isinstance(sketch, int) else WIDTH
    wanted = SAMPLE_PER_DIRECTION * width
    if len(train) <= wanted:
        return train
    chosen = np.random.default_rng(seed).choice(len(train), wanted, replace=False)
    return train.take(np.sort(chosen))


def basis_sample(sample: Examples) -> Examples:
    """Moments of a layer's two sides settle on fewer examples than the p × p Fisher does."""
    if len(sample) <= BASIS_SAMPLE:
        return sample
    return sample.take(np.linspace(0, len(sample) - 1, BASIS_SAMPLE).astype(np.int64))


def in_one_array(batches: Iterable[Array], count: int) -> Array:
    """All rows in one array: on the GPU that makes them while they are few beside its memory,
    else in main memory, carried there many batches at a time (each transfer is a wait)."""
    out: Any = None
    waiting: list[Array] = []
    start = 0
    for rows in batches:
        if out is None:
            out = room_for(rows, count)
        waiting.append(rows)
        there = isinstance(rows, np.ndarray) or rows.device == out.device
        if there or sum(r.nbytes for r in waiting) >= TRANSFER_BYTES:
            start = put(out, start, waiting)
    put(out, start, waiting)
    return out


def room_for(rows: Array, count: int) -> Array:
    """An empty array for `count` such rows."""
    if isinstance(rows, np.ndarray):
        return np.empty((count, rows.shape[1]), rows.dtype)
    import torch

    needed = count * rows.shape[1] * rows.element_size()
    on_gpu = rows.is_cuda and needed < GPU_SHARE * torch.cuda.mem_get_info(rows.device)[0]
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


def distance_from_stationary(oracle: Oracle, basis: Sketch, rows: Array) -> float | None:
    """‖mean score − λRθ̂‖ / ‖θ̂‖, the mean taken in sketch space."""
    size = oracle.theta_norm
    if not size:
        return None
    left = to_numpy(rows.sum(0)).astype(np.float64) / len(rows)
    penalty = oracle.penalty_rows()
    if penalty is not None:
        left = left - to_numpy(basis.project(penalty)).sum(0)
    return float(np.linalg.norm(left)) / size


def check_fisher(wanted: str) -> str:
    """The option as given, if it means something."""
    return check_choice("fisher", wanted, FISHERS)


def refuse_unusable(rows: Array, whose: str) -> None:
    """NaN and infinity stop here, by name: further on they would spoil everything silently."""
    sums = to_numpy(rows.sum(1))
    bad = np.flatnonzero(~np.isfinite(sums))
    if len(bad):
        named = ", ".join(map(str, bad[:5])) + ("…" if len(bad) > 5 else "")
        raise ExemplaError(
            f"{len(bad)} of {whose} have a score that is not finite (rows {named}): "
            "check those inputs and the model's weights for NaN and infinity."
        )
