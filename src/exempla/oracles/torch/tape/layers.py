"""From uses of parameters to layers: which parameters form one block, and its factors.

A weight and a bias that are always used together form one layer: for a matrix the bias is one
more row of inputs equal to one; for element-wise parameters the two stand side by side. What the
tape could not describe is a layer of its own, filled by the fallback.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from exempla.factors import Factors
from exempla.oracles.base import Layer
from exempla.oracles.torch.factors.factors import DenseFactors, PairFactors, SumFactors
from exempla.oracles.torch.factors.operands import Vectors, beside
from exempla.oracles.torch.tape.uses import ConvUse, Layout, Rows, StackUse, Use

__all__ = ["Block", "Seen", "plan_blocks"]

Seen = tuple[Use, Tensor, Layout | Rows]
"""A use, the gradient at its output, and where its samples stand."""


@dataclass(frozen=True)
class Block:
    """One layer: its parameters and how their scores are arranged as (d_in, d_out)."""

    name: str
    kind: Literal["matrix", "vector", "fallback"]
    weight: str
    bias: str | None
    shape: torch.Size
    table: bool = False
    """True if the weight is stored (d_in, d_out), False if (d_out, d_in, …)."""
    stack: bool = False
    """True for a stack of matrices, (pieces, …): its pieces' inputs stand side by side."""

    @property
    def layer(self) -> Layer:
        d_in, d_out = self.sizes
        return Layer(self.name, d_in, d_out, np.zeros(d_in))

    @property
    def sizes(self) -> tuple[int, int]:
        if self.kind == "vector" or len(self.shape) < 2:
            return 1, self.shape.numel() * (2 if self.bias else 1)
        if self.stack:
            pieces, one, other = self.shape
            return (pieces * one, other) if self.table else (pieces * other, one)
        rest = self.shape[1:].numel()
        d_in, d_out = (self.shape[0], rest) if self.table else (rest, self.shape[0])
        return d_in + (self.bias is not None), d_out

    @property
    def parameters(self) -> tuple[str, ...]:
        return (self.weight,) if self.bias is None else (self.weight, self.bias)

    def pack(self, gradients: Mapping[str, Tensor]) -> Tensor:
        """Written-out gradients (n, *shape) of the block's parameters, as (n, d_in, d_out)."""
        weight = gradients[self.weight]
        n, (_, d_out) = len(weight), self.sizes
        if self.kind == "vector" or len(self.shape) < 2:
            parts = [gradients[name].reshape(n, -1) for name in self.parameters]
            return torch.cat(parts, 1)[:, None, :]
        if self.stack:
            weight = weight if self.table else weight.transpose(2, 3)
            return weight.reshape(n, -1, d_out)
        stored = (n, -1, d_out) if self.table else (n, d_out, -1)
        matrix = weight.reshape(stored)
        matrix = matrix if self.table else matrix.transpose(1, 2)
        if self.bias is None:
            return matrix
        return torch.cat([matrix, gradients[self.bias].reshape(n, 1, d_out)], 1)

    def factors(self, seen: list[Seen], n: int, like: Tensor) -> Factors:
        """The block's scores from the uses of its parameters in one pass."""
        if self.kind == "vector":
            return DenseFactors(self._vector(seen, n, like)[:, None, :])
        parts = []
        for use, g, layout in seen:
            part = use.factors(g, n, layout, self.bias is not None)
            if getattr(use, "table", False) != self.table:
                assert isinstance(part, PairFactors)
                part = part.flip()
            parts.append(part)
        return merged(parts) or self._zero(n, like)

    def _vector(self, seen: list[Seen], n: int, like: Tensor) -> Tensor:
        columns = []
        for name in self.parameters:
            total = like.new_zeros(n, self.shape.numel())
            for use, g, layout in seen:
                for role in ("weight", "bias"):
                    if getattr(use, role) == name:
                        total = total + use.vector(role, g, n, layout)
            columns.append(total)
        return torch.cat(columns, 1)

    def _zero(self, n: int, like: Tensor) -> Factors:
        """The parameter played no part in this pass."""
        d_in, d_out = self.sizes
        return PairFactors(*(Vectors(like.new_zeros(n, 1, d)) for d in (d_in, d_out)))


def merged(parts: list[Factors]) -> Factors | None:
    """One parameter's uses as one: positions side by side where possible, else a sum."""
    if len(parts) < 2:
        return parts[0] if parts else None
    pairs = [p for p in parts if isinstance(p, PairFactors)]
    if len(pairs) == len(parts):
        inputs, outputs = (beside([getattr(p, x) for p in pairs]) for x in ("inputs", "outputs"))
        if inputs is not None and outputs is not None:
            return PairFactors(inputs, outputs)
    return SumFactors(parts)


def plan_blocks(
    shapes: Mapping[str, torch.Size], uses: list[Use], fallback: set[str]
) -> tuple[Block, ...]:
    """The layers of a model, in the order of its parameters, from the uses one pass showed."""
    uses_of: dict[str, list[Use]] = {name: [] for name in shapes}
    for use in uses:
        for name in {use.weight, use.bias} - {None}:
            uses_of[name].append(use)  # type: ignore[index]
    blocks: list[Block] = []
    taken: set[str] = set()
    for name, shape in shapes.items():
        if name in taken or not (uses_of[name] or name in fallback):
            continue
        kind = "fallback" if name in fallback else kind_of(name, uses_of[name])
        bias = None if kind == "fallback" else partner(name, uses_of, fallback | taken, shapes)
        if kind == "matrix" and bias and any(u.bias == name for u in uses_of[bias]):
            bias = None
        taken |= {name} | ({bias} if bias else set())
        table = kind == "matrix" and bool(getattr(uses_of[name][0], "table", False))
        stack = kind == "matrix" and isinstance(uses_of[name][0], StackUse)
        blocks.append(Block(title(name, bias), kind, name, bias, shape, table, stack))
    return tuple(blocks)


def kind_of(name: str, uses: list[Use]) -> Literal["matrix", "vector", "fallback"]:
    as_matrix = [u.matrix and u.weight == name for u in uses]
    if not any(as_matrix):
        return "vector"
    convolutions = {
        isinstance(u, ConvUse) and (type(u), u.conv.kernel, u.conv.groups)  # type: ignore
        for u in uses
    }
    stacks = {(type(u) is StackUse, type(u) is StackUse and u.table) for u in uses}  # type: ignore
    alike = len(convolutions) == len(stacks) == 1
    return "matrix" if all(as_matrix) and alike else "fallback"


def partner(
    name: str, uses_of: dict[str, list[Use]], excluded: set[str], shapes: Mapping[str, torch.Size]
) -> str | None:
    """The bias that is used with this weight always, and with nothing else."""
    biases = {u.bias if u.weight == name else None for u in uses_of[name]}
    bias = biases.pop()
    if biases or bias is None or bias in excluded or bias == name:
        return None
    if not uses_of[name][0].bias_beside:
        return None
    together = [id(u) for u in uses_of[bias]] == [id(u) for u in uses_of[name]]
    alike = uses_of[name][0].matrix or shapes[bias] == shapes[name]
    return bias if together and alike else None


def title(weight: str, bias: str | None) -> str:
    """The module's name for a weight and its bias, else the parameter's own."""
    if bias is None:
        return weight
    owner = weight.removesuffix(".weight")
    return owner if bias == owner + ".bias" else weight
