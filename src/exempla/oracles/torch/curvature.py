"""Products with the Fisher of a whole data set, without writing a row of it out.

With J the derivative of a batch's outputs in the parameters and C the cotangents of its Fisher
rows, F v = Σ Jᵀ C Cᵀ J v. J v comes from two backward passes (the derivative of Jᵀw in w), which
serves every model that autograd can differentiate twice. Vectors are laid out as the oracle's
layers are, so that a sketch of its scores can act on them; they are the columns of (P, B), and a
batch runs once for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from exempla.oracles.base import Labels
from exempla.oracles.torch.examples import Batch, TorchExamples
from exempla.oracles.torch.likelihood import Head, scaled, weighted

if TYPE_CHECKING:
    from exempla.oracles.torch.oracle import TorchOracle


class GaussNewton:
    """F = (1/n) Σ over the training examples, and the scores of examples, as operators."""

    def __init__(self, oracle: TorchOracle, train: TorchExamples) -> None:
        assert isinstance(oracle.head, Head)
        self.oracle, self.train, self.head = oracle, train, oracle.head
        names = [name for block in oracle.network.blocks for name in block.parameters]
        self.parameters = [oracle.network.parameters[name] for name in names]
        sizes = [p.numel() for p in self.parameters]
        numbers = torch.arange(sum(sizes), device=self.parameters[0].device).split(sizes)
        own = {x: n.reshape(1, *p.shape) for x, n, p in zip(names, numbers, self.parameters)}
        self.places = torch.cat([block.pack(own).reshape(-1) for block in oracle.network.blocks])
        """Where each entry of the layers' blocks stands among the flattened parameters."""
        self._device, self._dtype = self.parameters[0].device, oracle.network.like.dtype

    def product(self, v: Tensor) -> Tensor:
        """Return F v of every column."""
        total = torch.zeros_like(v)
        tangents = [self._parameters_of(column) for column in v.T]
        generator = torch.Generator(self.oracle.device).manual_seed(0)
        for batch, outputs in self._forward(self.train):
            along = list(self._derivatives(outputs, tangents))
            cotangents = [torch.zeros_like(outputs) for _ in along]
            for active, rows in self.head.fisher(outputs.detach(), batch, generator):
                if not bool(active.any()):
                    break
                row = weighted(scaled(rows, active), batch, root=True)  # zero unless active
                for cotangent, one in zip(cotangents, along, strict=True):
                    cotangent += scaled(row, (row * one).flatten(1).sum(1))
            for place, cotangent in enumerate(cotangents):
                total[:, place] += self._pulled(outputs, cotangent)
        return total / len(self.train)

    def along_scores(self, v: Tensor) -> np.ndarray:
        """Return s_i·v of every training example and column, (n, B)."""
        tangents, parts = [self._parameters_of(column) for column in v.T], []
        for batch, outputs in self._forward(self.train):
            cotangent = weighted(self.head.score(outputs.detach(), batch, False), batch)
            found = [
                (cotangent * along).flatten(1).sum(1)
                for along in self._derivatives(outputs, tangents)
            ]
            parts.append(torch.stack(found, 1).double().cpu().numpy())
        return np.concatenate(parts)

    def score_sums(self, examples: TorchExamples, labels: Labels, weights: np.ndarray) -> Tensor:
        """Return Σ_j w_jb s_j over other examples, for each column of weights: (P, B)."""
        size = (len(self.places), weights.shape[1])
        total, start = torch.zeros(size, dtype=self._dtype, device=self._device), 0
        for batch, outputs in self._forward(examples):
            cotangent = self.head.score(outputs.detach(), batch, labels == "predicted")
            own = torch.from_numpy(weights[start : start + len(batch)]).to(cotangent)
            for place in np.flatnonzero(weights[start : start + len(batch)].any(0)):
                total[:, place] += self._pulled(outputs, scaled(cotangent, own[:, place]))
            start += len(batch)
        return total

    def _forward(self, examples: TorchExamples) -> Iterator[tuple[Batch, Tensor]]:
        """Yield batches and their outputs, attached to the parameters."""
        oracle = self.oracle
        for batch in oracle.batches(examples):
            with oracle.restorer.borrowed():
                with sdpa_kernel(SDPBackend.MATH):  # the only attention with second derivatives
                    outputs = oracle.run(oracle.model, batch)
                yield batch, outputs

    def _derivatives(self, outputs: Tensor, tangents: list[list[Tensor]]) -> Iterator[Tensor]:
        """Yield J v at the outputs, for each v."""
        w = torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(
            outputs, self.parameters, w, create_graph=True, retain_graph=True, allow_unused=True
        )
        used = [place for place, g in enumerate(pulled) if g is not None]
        for one in tangents:
            (found,) = torch.autograd.grad(
                [pulled[place] for place in used], w, [one[place] for place in used],
                retain_graph=True, materialize_grads=True,
            )  # fmt: skip
            yield found.detach()

    def _pulled(self, outputs: Tensor, cotangent: Tensor) -> Tensor:
        """Return Jᵀ c, in the layout of the layers."""
        found = torch.autograd.grad(
            outputs, self.parameters, cotangent.to(outputs.dtype), retain_graph=True,
            materialize_grads=True,
        )  # fmt: skip
        return torch.cat([g.reshape(-1) for g in found]).to(self._dtype)[self.places]

    def _parameters_of(self, v: Tensor) -> list[Tensor]:
        """Return a vector in the layout of the layers as one tensor for each parameter."""
        flat = torch.zeros_like(v)
        flat[self.places] = v
        parts = flat.split([p.numel() for p in self.parameters])
        return [
            part.reshape(p.shape).to(p.dtype)
            for part, p in zip(parts, self.parameters, strict=True)
        ]
