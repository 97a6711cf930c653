"""A torch classifier as a function of its inputs, by differentiating the score once more.

k(z, v) = ⟨∇θ log p(y | x), v⟩ is differentiated in x. v = M⁻¹μ comes from conjugate gradients on
products with the damped Gauss-Newton matrix, which for a softmax is the true Fisher:
Fv = mean Jᵀ(diag(p) − ppᵀ)Jv, two backward passes through one stored forward pass.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call

from exempla.errors import ExemplaError
from exempla.oracles.base import Oracle
from exempla.oracles.torch.trainers import select_parameters
from exempla.recorder.weights import unwrap_module
from exempla.tasks.attack.ascent import InputScores, conjugate_gradient

_CHUNK = 512
"""Examples per forward pass."""


class NetworkScores(InputScores):
    """Logits of a torch module; only the chosen trainable parameters count as θ."""

    def __init__(
        self,
        oracle: Oracle,
        model: torch.nn.Module,
        train: Any,
        damping: float,
        parameters: Any,
        sample: np.ndarray,
    ) -> None:
        self.oracle = oracle
        names = select_parameters(unwrap_module(model), parameters)
        self.model = copy.deepcopy(unwrap_module(model)).eval()
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)
        own = dict(self.model.named_parameters())
        self.theta = {name: own[name].detach() for name in names}
        first = next(iter(self.theta.values()))
        self.device, self.dtype, self.damping = first.device, first.dtype, damping
        X, _ = self.encode(*train[:2])
        self.sample = self._tensor(X[sample])
        self._chunks: list[Any] | None = None
        with torch.no_grad():
            logits = self.model(self.sample[:2])
        if logits.ndim != 2 or logits.shape[1] < 2:
            raise ExemplaError(
                f"attack needs a classifier with one logit per class, and this model returned "
                f"{tuple(logits.shape)} for 2 examples."
            )

    def encode(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        X, y = (
            a.detach().cpu().numpy() if isinstance(a, Tensor) else np.asarray(a) for a in (X, y)
        )
        if X.dtype.kind != "f" or y.dtype.kind not in "iu":
            raise ExemplaError("attack needs float inputs and class labels 0, 1, 2, …")
        return np.array(X), y.astype(np.int64)

    def _tensor(self, X: np.ndarray) -> Tensor:
        kind = self.dtype if X.dtype.kind == "f" else torch.long
        return torch.as_tensor(X, dtype=kind, device=self.device)

    def _flat(self, parts: Any) -> Tensor:
        return torch.cat([p.reshape(-1) for p in parts])

    def _log_prob(self, theta: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return -F.cross_entropy(functional_call(self.model, theta, (x,)), y, reduction="none")

    def mean_score(self, X: np.ndarray, y: np.ndarray) -> Tensor:
        total: Any = 0.0
        for i in range(0, len(X), _CHUNK):
            x, labels = self._tensor(X[i : i + _CHUNK]), self._tensor(y[i : i + _CHUNK])
            theta = {n: p.clone().requires_grad_() for n, p in self.theta.items()}
            value = self._log_prob(theta, x, labels).sum()
            total = total + self._flat(torch.autograd.grad(value, list(theta.values())))
        return total / len(X)

    def _linearised(self) -> list[Any]:
        """Each chunk of the sample run once: p, the outputs, θ, and Jᵀu as a function of u."""
        if self._chunks is None:
            self._chunks = []
            for x in self.sample.split(_CHUNK):
                theta = {n: p.clone().requires_grad_() for n, p in self.theta.items()}
                out = functional_call(self.model, theta, (x,))
                u = torch.zeros_like(out, requires_grad=True)
                leaves = list(theta.values())
                pulled = self._flat(torch.autograd.grad(out, leaves, u, create_graph=True))
                self._chunks.append((out.detach().softmax(1), out, leaves, u, pulled))
        return self._chunks

    def _product(self, vector: np.ndarray) -> np.ndarray:
        """Mv on the sample of training examples: Jv is the derivative of (Jᵀu)ᵀv in u."""
        v = self._tensor(vector)
        total = torch.zeros_like(v)
        for p, out, leaves, u, pulled in self._linearised():
            moved = torch.autograd.grad(pulled, u, v, retain_graph=True)[0]
            curved = p * (moved - (p * moved).sum(1, keepdim=True))
            total += self._flat(torch.autograd.grad(out, leaves, curved, retain_graph=True))
        return (total / len(self.sample) + self.damping * v).double().cpu().numpy()

    def solve(self, mu: Tensor) -> Tensor:
        goal = mu.double().cpu().numpy()
        return self._tensor(conjugate_gradient(self._product, goal, 1e-5, 200))

    def pull(self, X: np.ndarray, y: np.ndarray, v: Any) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = [], []
        for i in range(0, len(X), _CHUNK):
            x = self._tensor(X[i : i + _CHUNK]).requires_grad_()
            labels = self._tensor(y[i : i + _CHUNK])
            theta = {n: p.clone().requires_grad_() for n, p in self.theta.items()}
            u = torch.ones(len(x), dtype=self.dtype, device=self.device, requires_grad=True)
            log_prob = self._log_prob(theta, x, labels)
            pulled = torch.autograd.grad(log_prob, list(theta.values()), u, create_graph=True)
            # Σ u_i s_iᵀv: rows do not interact in evaluation mode, so its derivatives in u and in
            # x are the values and the gradients of each row
            total = self._flat(pulled) @ v
            value, gradient = torch.autograd.grad(total, [u, x])
            values.append(value.cpu().numpy())
            gradients.append(gradient.cpu().numpy())
        return np.concatenate(values), np.concatenate(gradients)

    def loss(self, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        x = self._tensor(X).requires_grad_()
        value = -self._log_prob(self.theta, x, self._tensor(y))
        gradient = torch.autograd.grad(value.sum(), x)[0]
        return value.detach().cpu().numpy(), gradient.cpu().numpy()

    @torch.no_grad()
    def predict(self, X: np.ndarray) -> np.ndarray:
        parts = [self.model(x).argmax(1) for x in self._tensor(X).split(_CHUNK)]
        return torch.cat(parts).cpu().numpy()
