"""Influence with the exact damped Gauss–Newton matrix, at many dampings: the slow reference.

Every row of the Gauss–Newton matrix is written out, √p_c ∇ log p_c for each example and class, so
this is for networks of a few ten thousand parameters on a GPU. Solves are in double precision, by
Cholesky in whichever space is smaller.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

__all__ = ["DAMPINGS", "exact_influences"]

DAMPINGS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1, 3e-1, 1.0, 3.0)


def exact_influences(
    network: nn.Module, X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor,
    dampings: tuple[float, ...] = DAMPINGS,
) -> tuple[list[Tensor], list[float]]:  # fmt: skip
    """(n_train, n_test) for each damping, and the effective dimension tr F(F+δ)⁻¹ at each."""
    fisher, scores = rows_of(network, X, y)
    _, targets = rows_of(network, X_test, y_test, fisher=False)
    A = fisher.double() / len(X) ** 0.5
    scores, targets = scores.double(), targets.double()
    dual = A.shape[0] < A.shape[1]
    gram = A @ A.T if dual else A.T @ A
    seen = A @ targets.T if dual else targets.T
    generator = torch.Generator(X.device).manual_seed(0)
    probes = torch.randn(len(gram), 30, generator=generator, device=X.device, dtype=A.dtype)
    found, dimensions = [], []
    for damping in dampings:
        factor = gram + damping * torch.eye(len(gram), device=X.device, dtype=A.dtype)
        torch.linalg.cholesky(factor, out=factor)
        solved = torch.cholesky_solve(seen, factor)
        if dual:
            solved = (targets.T - A.T @ solved) / damping
        found.append((scores @ solved / len(X)).float())
        inverse = (probes * torch.cholesky_solve(probes, factor)).sum() / probes.shape[1]
        dimensions.append(float(len(gram) - damping * inverse))
    return found, dimensions


def rows_of(network: nn.Module, X: Tensor, y: Tensor, fisher: bool = True) -> tuple[Tensor, Tensor]:
    """√p_c ∇ log p_c of every example and class (rows, P), and the scores ∇ log p_y (n, P)."""
    weights = {name: w.detach() for name, w in network.named_parameters()}
    buffers = dict(network.named_buffers())

    def logits(one: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(network, (one, buffers), (x[None],))[0]

    rows, scores = [], []
    for x, label in zip(X.split(100), y.split(100), strict=True):
        J = vmap(jacrev(logits), (None, 0))(weights, x)
        J = torch.cat([part.flatten(2) for part in J.values()], 2)
        with torch.no_grad():
            p = torch.softmax(network(x), 1)
        J -= (p[..., None] * J).sum(1, keepdim=True)
        scores.append(J[torch.arange(len(x)), label])
        if fisher:
            rows.append((p.sqrt()[..., None] * J).flatten(0, 1))
    return (torch.cat(rows) if fisher else scores[0]), torch.cat(scores)
