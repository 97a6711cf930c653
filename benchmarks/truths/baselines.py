"""Influence with the exact damped Gauss–Newton matrix, and four published methods beside it.

Each is written from its paper, for networks small enough to write every per-example gradient out:
TracIn (Pruthi et al. 2020), the cosine of gradients, TRAK (Park et al. 2023) and EK-FAC influence
(George et al. 2018, Grosse et al. 2023). A matrix (training rows, questions) is larger where a row
helps more.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jacrev, vmap

__all__ = [
    "Gradients",
    "damped_influence",
    "ekfac",
    "gradients_of",
    "levelled",
    "trak",
    "trust_scales",
]

EKFAC_DAMPING = 0.1
"""Share of a layer's mean eigenvalue (Grosse et al. 2023)."""
TRAK_WIDTH = 512


@dataclass(frozen=True)
class Gradients:
    """Per-example gradients of one network, (rows, parameters) each."""

    fisher: Tensor
    """√p_c ∇ log p_c of every training row and class."""
    scores: Tensor
    """∇ log p of the given label, training rows."""
    targets: Tensor
    """The same of every question: a test example, or the mean over a set of them."""
    margins: tuple[Tensor, Tensor]
    """∇ log p/(1−p) of training rows and questions, projected to `TRAK_WIDTH` for TRAK."""
    doubt: Tensor
    """1 − p of the given label, training rows."""

    @cached_property
    def misfit(self) -> float:
        """Squared length of the scores by what the model expects of it."""
        return float(self.scores.square().sum() / self.fisher.square().sum())


def gradients_of(
    network: nn.Module, X: Tensor, y: Tensor, X_test: Tensor, y_test: Tensor, mix: Tensor
) -> Gradients:
    """Of a network; `mix` (questions, tests) makes questions of test examples."""
    size = sum(w.numel() for w in network.parameters())
    generator = torch.Generator(X.device).manual_seed(0)
    projection = torch.randn(size, TRAK_WIDTH, generator=generator, device=X.device)
    fisher, scores, margins, doubt = _gradients(network, X, y, projection, True)
    _, targets, test_margins, _ = _gradients(network, X_test, y_test, projection, False)
    return Gradients(fisher, scores, mix @ targets, (margins, mix @ test_margins), doubt)


def _gradients(
    network: nn.Module, X: Tensor, y: Tensor, projection: Tensor, fisher: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    weights = {name: w.detach() for name, w in network.named_parameters()}
    buffers = dict(network.named_buffers())

    def logits(one: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(network, (one, buffers), (x[None],))[0]

    rows, scores, margins, doubts = [], [], [], []
    for x, label in zip(X.split(100), y.split(100), strict=True):
        J = vmap(jacrev(logits), (None, 0))(weights, x)
        J = torch.cat([part.flatten(2) for part in J.values()], 2)
        with torch.no_grad():
            p = torch.softmax(network(x).double(), 1)
        classes = p.shape[1]
        # ∇ log p_c = Σ_d (1[c=d] − p_d) J_d, with 1 − p_c in double where p_c is nearly 1
        mix = torch.eye(classes, device=x.device, dtype=p.dtype) - p[:, None, :]
        every = torch.arange(len(x), device=x.device)
        own = mix[every, label]
        doubt = own[every, label].clamp_min(1e-12)
        scores.append(torch.bmm(own[:, None].float(), J)[:, 0])
        margin = torch.bmm((own / doubt[:, None])[:, None].float(), J)[:, 0]
        margins.append(margin @ projection)
        doubts.append(doubt.float())
        if fisher:
            rows.append(torch.bmm((p.sqrt()[..., None] * mix).float(), J).flatten(0, 1))
    found = torch.cat(rows) if fisher else scores[0]
    return found, torch.cat(scores), torch.cat(margins), torch.cat(doubts)


# ---- the Gauss–Newton matrix


def trust_scales(network: nn.Module, misfit: float, n: int) -> dict[str, Tensor]:
    """κ/(n w²) of every parameter: with one w² for the network, and with each layer's own."""
    layers: dict[str, list[Tensor]] = {}
    for name, weight in network.named_parameters():
        layers.setdefault(name.rpartition(".")[0], []).append(weight.detach())
    sizes = [sum(w.numel() for w in own) for own in layers.values()]
    squares = [sum(float(w.double().square().sum()) for w in own) for own in layers.values()]
    typical = sum(sizes) / sum(n * n / q for n, q in zip(sizes, squares, strict=True) if q > 0)
    each = [q / n if q > 0 else typical for n, q in zip(sizes, squares, strict=True)]
    whole = torch.full((sum(sizes),), misfit / (n * typical))
    own = torch.cat([torch.full((m,), misfit / (n * w)) for m, w in zip(sizes, each, strict=True)])
    return {"one": whole, "each layer": own}


def damped_influence(g: Gradients, scale: Tensor, multiples: tuple[float, ...]) -> Tensor:
    """(multiples, n, questions): s_iᵀ (F + m·diag(scale))⁻¹ s_j / n, solved in double."""
    n, root = len(g.scores), scale.to(g.scores).double().rsqrt()
    A = g.fisher.double() * (root / n**0.5)
    scores, targets = g.scores.double() * root, (g.targets.double() * root).T
    dual = A.shape[0] < A.shape[1]
    gram = A @ A.T if dual else A.T @ A
    seen = A @ targets if dual else targets
    out = []
    for multiple in multiples:
        factor = gram.clone()
        factor.diagonal().add_(multiple)
        solved = torch.cholesky_solve(seen, torch.linalg.cholesky(factor))
        if dual:
            solved = (targets - A.T @ solved) / multiple
        out.append((scores @ solved / n).float())
    return torch.stack(out)


# ---- published methods


def trak(several: list[Gradients]) -> Tensor:
    """TRAK of one network or several snapshots."""
    parts = []
    for g in several:
        phi, asked = (m.double() for m in g.margins)
        gram = phi.T @ phi
        gram.diagonal().add_(1e-9 * gram.diagonal().mean())
        parts.append(phi @ torch.linalg.solve(gram, asked.T))
    doubt = torch.stack([g.doubt for g in several]).mean(0)
    return torch.stack(parts).mean(0).float() * doubt[:, None]


def ekfac(network: nn.Module, g: Gradients, X: Tensor) -> Tensor:
    """EK-FAC influence: Kronecker eigenbases of linear and convolutional layers, their eigenvalues
    measured; other layers are left out, as in public implementations."""
    layers = {n: m for n, m in network.named_modules() if isinstance(m, nn.Linear | nn.Conv2d)}
    factors = _kronecker_factors(network, layers, X)
    total, start = torch.zeros(len(g.scores), len(g.targets), device=X.device), 0
    places: dict[str, int] = {}
    for name, weight in network.named_parameters():
        places[name] = start
        start += weight.numel()
    for name, layer in layers.items():
        inputs, outputs = (torch.linalg.eigh(side)[1].float() for side in factors[name])
        d_out, first = layer.weight.shape[0], places[name + ".weight"]
        size = layer.weight.numel()

        def rotated(rows: Tensor) -> Tensor:
            matrix = rows[:, first : first + size].unflatten(1, (d_out, -1))  # noqa: B023
            if layer.bias is not None:  # noqa: B023
                at = places[name + ".bias"]  # noqa: B023
                matrix = torch.cat([matrix, rows[:, at : at + d_out, None]], 2)  # noqa: B023
            return (outputs.T @ matrix @ inputs).flatten(1)  # noqa: B023

        values = sum(rotated(part).double().square().sum(0) for part in g.fisher.split(1000))
        values = values / len(g.scores)
        inverse = (1 / (values + EKFAC_DAMPING * values.mean())).float()
        total += rotated(g.scores) @ (rotated(g.targets) * inverse).T
    return total / len(g.scores)


def _kronecker_factors(
    network: nn.Module, layers: dict[str, nn.Module], X: Tensor
) -> dict[str, list[Tensor]]:
    """Second moments of each layer's inputs (with a one for the bias) and output gradients."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}
    hooks = [
        layer.register_forward_hook(lambda _, a, out, name=name: seen.update({name: (a[0], out)}))
        for name, layer in layers.items()
    ]
    sums: dict[str, list[Tensor]] = {}
    for x in X.split(250):
        log_p = torch.log_softmax(network(x), 1)
        outs = [out for _, out in seen.values()]
        root = log_p.detach().exp().sqrt()
        for name, (a, _) in seen.items():
            layer = layers[name]
            if isinstance(layer, nn.Conv2d):
                a = F.unfold(a, layer.kernel_size, padding=layer.padding).transpose(1, 2)
            a = a.flatten(0, -2)
            if layer.bias is not None:
                a = torch.cat([a, torch.ones_like(a[:, :1])], 1)
            _add(sums, name, 0, a.double().T @ a.double())
        for c in range(log_p.shape[1]):
            asked = (root[:, c] * log_p[:, c]).sum()
            for name, found in zip(
                seen, torch.autograd.grad(asked, outs, retain_graph=True), strict=True
            ):
                if isinstance(layers[name], nn.Conv2d):
                    found = found.flatten(2).transpose(1, 2)
                found = found.flatten(0, -2).double()
                _add(sums, name, 1, found.T @ found)
    for hook in hooks:
        hook.remove()
    return sums


def _add(sums: dict[str, list[Tensor]], name: str, side: int, more: Tensor) -> None:
    own = sums.setdefault(name, [])
    if len(own) <= side:
        own.append(more)
    else:
        own[side] = own[side] + more


def levelled(influence: Tensor, exponent: float = 1.0) -> Tensor:
    """Divide each question's influence by a power of its root mean square over the rows."""
    size = influence.double().square().mean(0, keepdim=True).sqrt().clamp_min(1e-30)
    return influence.double() * size**-exponent
