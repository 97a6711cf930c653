"""Labels at every position: language models and token classifiers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from exempla.errors import ExemplaError
from exempla.oracles.torch.inputs.batch import Batch
from exempla.oracles.torch.likelihood.heads import Head, Ranked, draw, refuse_classes

__all__ = ["TokenHead"]

IGNORED = -100
"""The label that marks a position without one."""


@dataclass(frozen=True)
class TokenHead(Head):
    """A label per position, outputs (n, T, V): log p of an example is the sum over its positions.

    With `shift`, the labels are the inputs themselves and position t is scored by output t − 1,
    as Hugging Face's causal language models do; positions labelled −100 or masked do not count.
    """

    shift: bool = True
    draws: int = 1

    @property
    def name(self) -> str:  # type: ignore[override]
        return "causal_lm" if self.shift else "tokens"

    @property
    def fisher_note(self) -> str:  # type: ignore[override]
        return f"{self.draws} sampled label(s) per position, given the true prefix"

    def targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(labels, where they count), aligned with the outputs."""
        labels = batch.labels
        if labels is None:
            labels = batch.kwargs["input_ids"] if "input_ids" in batch.kwargs else batch.args[0]
        counts = labels != IGNORED
        mask = batch.kwargs.get("attention_mask")
        if mask is not None and mask.shape == labels.shape:
            counts = counts & (mask != 0)
        if self.shift:
            labels, counts = labels.roll(-1, 1), counts.roll(-1, 1)
            counts[:, -1] = False
        return labels.masked_fill(~counts, 0), counts

    def log_prob(self, outputs: Tensor, batch: Batch) -> Tensor:
        labels, counts = self.targets(batch)
        flat = F.cross_entropy(outputs.float().flatten(0, 1), labels.flatten(), reduction="none")
        return -(flat.view_as(labels) * counts).sum(1)

    def score(self, outputs: Tensor, batch: Batch, predicted: bool) -> Tensor:
        labels, counts = self.targets(batch)
        if predicted:
            labels = outputs.argmax(2)
        return self._residual(outputs.float().softmax(2), labels, counts)

    @staticmethod
    def _residual(p: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        """(e_y − p) where positions count, written over p: nothing else is as large."""
        out = p.neg_()
        out.scatter_add_(2, labels[:, :, None], torch.ones_like(out[:, :, :1]))
        return out.mul_(counts[:, :, None])

    def fisher(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> Ranked:
        _, counts = self.targets(batch)
        for _ in range(self.draws):
            p = outputs.float().softmax(2)
            labels = draw(p.flatten(0, 1), generator).view_as(counts)
            residual = self._residual(p, labels, counts)
            yield counts.any(1), residual.div_(self.draws**0.5)

    def predict(self, outputs: Tensor, batch: Batch) -> Tensor:
        return outputs.argmax(2)

    def refuse(self, shape: torch.Size, batch: Batch) -> None:
        labels, counts = self.targets(batch)
        if len(shape) != 3 or labels.shape[1:] != shape[1:2]:
            raise ExemplaError(
                f"the model returns {tuple(shape[1:])} per example and the labels are "
                f"{tuple(labels.shape)}: a {self.name} likelihood needs a label per position."
            )
        refuse_classes(labels * counts, shape[2], batch, self.name)
