"""One model's training set in sketch space, all rows in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from time import perf_counter
from typing import Any

import numpy as np

from exempla.arrays import Array, concatenate, is_tensor, row_squares, to_numpy
from exempla.embedding.evidence import Seen, refuse_unusable, with_rows
from exempla.embedding.forecast import wanted_forecast
from exempla.embedding.gather import in_one_array
from exempla.embedding.left_out import energy_of, left_out_scale
from exempla.embedding.prepare import Preparing
from exempla.fisher.base import Metric
from exempla.fisher.damping import FisherEvidence
from exempla.oracles.base import Examples, Labels, Oracle
from exempla.progress import say_memory, track_rows
from exempla.sketch import Sketch

__all__ = ["Embedding", "embed_training_set"]


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
    oracle: Oracle, data: Any, *, fisher: str, sketch: str | int, seed: int, models: int = 1
) -> Embedding:
    """Choose the basis, estimate the Fisher in it, and embed every training example.

    `models` are to be embedded in all: it counts for the memory that is said to be needed.
    """
    train = oracle.read(data, role="train")
    begun = Preparing(oracle, train, fisher, sketch, seed)
    basis = begun.basis
    itemsize = 8 if basis.in_double else oracle.itemsize
    kept = basis.kept_bytes + train.made_bytes + oracle.pass_bytes
    say_memory(
        wanted_forecast()(len(train), basis.width, itemsize, kept, basis.built_bytes, models),
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
