"""Labels at every position: language models, token classifiers, segmentation of images."""

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
    With `classes_first`, outputs are (n, V, H, W) and labels (n, H, W), as torch's losses have
    them for images: a pixel is then a position.
    """

    shift: bool = True
    draws: int = 1
    classes_first: bool = False
    ignored: tuple[int, ...] = (IGNORED,)

    @property
    def name(self) -> str:  # type: ignore[override]
        if self.classes_first:
            return "pixels"
        return "causal_lm" if self.shift else "tokens"

    @property
    def fisher_note(self) -> str:  # type: ignore[override]
        where = "position, given the true prefix" if self.shift else "position"
        return f"{self.draws} sampled label(s) per {where}"

    @property
    def _axis(self) -> int:
        """Where the classes stand in the outputs."""
        return 1 if self.classes_first else -1

    def _lined_up(self, outputs: Tensor) -> Tensor:
        """(n, positions, classes), whatever the axes were."""
        return outputs.movedim(self._axis, -1).flatten(1, -2)

    def _back(self, cotangent: Tensor, outputs: Tensor) -> Tensor:
        """The axes as the outputs have them."""
        shape = outputs.movedim(self._axis, -1).shape
        return cotangent.reshape(shape).movedim(-1, self._axis)

    def targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(labels, where they count), (n, positions) each, aligned with the outputs."""
        labels = batch.labels
        if labels is None:
            labels = batch.kwargs["input_ids"] if "input_ids" in batch.kwargs else batch.args[0]
        counts = torch.ones_like(labels, dtype=torch.bool)
        for value in self.ignored:
            counts &= labels != value
        mask = batch.kwargs.get("attention_mask")
        if mask is not None and mask.shape == labels.shape:
            counts = counts & (mask != 0)
        if self.shift:
            labels, counts = labels.roll(-1, 1), counts.roll(-1, 1)
            counts[:, -1] = False
        return labels.masked_fill(~counts, 0).flatten(1).long(), counts.flatten(1)

    def log_prob(self, outputs: Tensor, batch: Batch) -> Tensor:
        labels, counts = self.targets(batch)
        lined = self._lined_up(outputs).float().flatten(0, 1)
        flat = F.cross_entropy(lined, labels.flatten(), reduction="none")
        return -(flat.view_as(labels) * counts).sum(1)

    def score(self, outputs: Tensor, batch: Batch, predicted: bool) -> Tensor:
        labels, counts = self.targets(batch)
        lined = self._lined_up(outputs)
        if predicted:
            labels = lined.argmax(2)
        return self._back(self._residual(lined.float().softmax(2), labels, counts), outputs)

    @staticmethod
    def _residual(p: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        """(e_y − p) where positions count, written over p: nothing else is as large."""
        out = p.neg_()
        out.scatter_add_(2, labels[:, :, None], torch.ones_like(out[:, :, :1]))
        return out.mul_(counts[:, :, None])

    def fisher(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> Ranked:
        _, counts = self.targets(batch)
        lined = self._lined_up(outputs)
        for _ in range(self.draws):
            p = lined.float().softmax(2)
            labels = draw(p.flatten(0, 1), generator).view_as(counts)
            residual = self._residual(p, labels, counts)
            yield counts.any(1), self._back(residual.div_(self.draws**0.5), outputs)

    def predict(self, outputs: Tensor, batch: Batch) -> Tensor:
        return outputs.argmax(self._axis)

    def refuse(self, shape: torch.Size, batch: Batch) -> None:
        labels = batch.labels if batch.labels is not None else self.targets(batch)[0]
        places = list(shape[1:])
        count = places.pop(0 if self.classes_first else -1)
        if not places or labels.shape[1:].numel() != torch.Size(places).numel():
            wanted = "pixel" if self.classes_first else "position"
            raise ExemplaError(
                f"the model returns {tuple(shape[1:])} per example and the labels are "
                f"{tuple(labels.shape)}: a {self.name} likelihood needs a label per {wanted}; let "
                "the model return outputs of the labels' size, or resize the labels."
            )
        targets = self.targets(batch)[0]
        if labels.is_floating_point() and not bool((labels == labels.round()).all()):
            targets = labels  # refused below, as fractions
        refuse_classes(targets, count, batch, self.name)
