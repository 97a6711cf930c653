"""One model's training set in sketch space: the streaming loop from factors to rows.

    basis ──▶ Fisher of the sample in that basis ──▶ rows of every training example

Rows are kept unwhitened, so that damping stays a choice of the question, not of the embedding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from exempla.arrays import Array, concatenate, to_numpy
from exempla.checks import check_choice
from exempla.errors import ExemplaError
from exempla.fisher.base import Metric
from exempla.fisher.damping import FisherEvidence
from exempla.fisher.estimate import PIECE_BYTES, estimate_fisher
from exempla.oracles import is_checkpoint
from exempla.oracles.base import Examples, Labels, Oracle
from exempla.progress import memory_said, say_memory, track_rows
from exempla.sketch import Sketch, choose_sketch
from exempla.sketch.choose import SAMPLE_PER_DIRECTION, auto_width
from exempla.store import on_disk

__all__ = [
    "FISHERS",
    "Embedding",
    "check_fisher",
    "embed_models",
    "embed_training_set",
    "forecast_bytes",
    "forecasting",
]

FISHERS = ("true", "empirical", "diagonal", "identity")
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


def embed_models(
    oracles: list[Oracle],
    data: Any,
    *,
    fisher: str,
    sketch: str | int,
    seed: int,
    store: Path | None = None,
) -> list[Embedding]:
    """The training set as each model embeds it; its rows in the folder `store`, if one is given."""
    fitted = []
    for i, oracle in enumerate(oracles):
        with memory_said() if i else nullcontext():  # the first says what all of them will take
            made = embed_training_set(
                oracle, data, fisher=fisher, sketch=sketch, seed=seed, models=len(oracles)
            )
        if store is not None:
            made = replace(made, rows=on_disk(made.rows, store, f"rows-{i}"))
        fitted.append(made)
    return fitted


def embed_training_set(
    oracle: Oracle, data: Any, *, fisher: str, sketch: str | int, seed: int, models: int = 1
) -> Embedding:
    """Choose the basis, estimate the Fisher in it, and embed every training example.

    `models` are to be embedded in all: it counts for the memory that is said to be needed.
    """
    train = oracle.read(data, role="train")
    fisher = "identity" if oracle.whitened else fisher
    sample = fisher_sample(train, sketch, seed)
    clock = [perf_counter()]
    basis = choose_sketch(oracle, train, sketch, sample, dual=fisher != "diagonal")
    clock.append(perf_counter())
    itemsize = 8 if basis.in_double else oracle.itemsize
    kept = basis.kept_bytes + train.made_bytes + oracle.pass_bytes
    say_memory(
        _FORECAST.get()(len(train), basis.width, itemsize, kept, basis.built_bytes, models),
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
    evidence = replace(
        evidence,
        pull=distance_from_stationary(oracle, basis, rows),
        trained=len(train),
        misfit=misfit(rows[:, : basis.lead], evidence),
        weight_square=typical_square(oracle.theta_squares),
    )
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


Forecast = Callable[[int, int, int, int, int, int], int]
"""`forecast_bytes`, or one like it for another job."""
_FORECAST: ContextVar[Forecast] = ContextVar("exempla_forecast", default=forecast_bytes)


@contextmanager
def forecasting(forecast: Forecast) -> Iterator[None]:
    """What is embedded below this call is for another job than an explanation: the memory it will
    take is that job's."""
    token = _FORECAST.set(forecast)
    try:
        yield
    finally:
        _FORECAST.reset(token)


def fisher_sample(train: Examples, sketch: str | int, seed: int) -> Examples:
    """The part of a large training set that basis and Fisher are estimated from."""
    width = sketch if isinstance(sketch, int) else auto_width(len(train))
    wanted = SAMPLE_PER_DIRECTION * width
    if len(train) <= wanted:
        return train
    chosen = np.random.default_rng(seed).choice(len(train), wanted, replace=False)
    return train.take(np.sort(chosen))


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
    known = oracle.implicit_penalty
    if known is not None:
        return known
    size = oracle.theta_norm
    if not size:
        return None
    left = to_numpy(rows.sum(0)).astype(np.float64) / len(rows)
    penalty = oracle.penalty_rows()
    if penalty is not None:
        left = left - to_numpy(basis.project(penalty)).sum(0)
    return float(np.linalg.norm(left)) / size


def misfit(rows: Array, evidence: FisherEvidence) -> float:
    """Mean squared length of the scores over the Fisher's trace, both as far as the sketch shows
    them."""
    expected = evidence.trace * evidence.share
    if expected <= 0:
        return 1.0
    # no copy of the rows: they may be nearly all the memory there is
    if isinstance(rows, np.ndarray):
        energy = float(np.einsum("ij,ij->", rows, rows, dtype=np.float64))
    else:
        energy = float(rows.norm()) ** 2
    return energy / len(rows) / expected


def typical_square(squares: list[tuple[int, float]] | None) -> float | None:
    """The harmonic mean over parameters of their layer's mean square, of two layers or more."""
    used = [(size, square) for size, square in squares or [] if square > 0]
    if len(used) < 2:
        return None
    return sum(size for size, _ in used) / sum(size * size / square for size, square in used)


def of_one_run(fitted: list[Embedding], models: list[Any]) -> list[Embedding]:
    """Where some of the models are earlier weights of another, each knows of the weights at the
    end of the training."""
    earlier = [is_checkpoint(model) for model in models]
    if not any(earlier) or all(earlier):
        return fitted
    last = fitted[earlier.index(False)].evidence.weight_square
    return [
        replace(e, evidence=replace(e.evidence, weight_square=last, of_run=True)) for e in fitted
    ]


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
