"""A torch classifier as a function of its inputs, by differentiating the score once more.

k(z, v) = ⟨∇θ log p(y | x), v⟩ is differentiated in x. v = M⁻¹μ comes from conjugate gradients on
products with the damped Fisher of a sample of the training set (`GaussNewton`, whose layout of θ is
used throughout).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from exempla.errors import ExemplaError
from exempla.oracles.torch.oracle import TorchOracle
from exempla.tasks.attack.ascent import conjugate_gradient

_CHUNK = 512
"""Examples per forward pass."""


class NetworkScores:
    """Logits of a torch module; θ are the parameters that its oracle scores."""

    def __init__(self, oracle: TorchOracle, sample: Any, damping: float) -> None:
        self.oracle, self.damping = oracle, damping
        self.fisher: Any = oracle.gauss_newton(sample)
        if oracle.likelihood != "categorical":
            raise ExemplaError(
                "attack needs a classifier with one logit per class, and the likelihood of this "
                f"model is {oracle.likelihood}."
            )

    def encode(self, X: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
        X, y = (
            a.detach().cpu().numpy() if isinstance(a, Tensor) else np.asarray(a) for a in (X, y)
        )
        if X.dtype.kind != "f" or y.dtype.kind not in "iu":
            raise ExemplaError("attack needs float inputs and class labels 0, 1, 2, …")
        return np.array(X), y.astype(np.int64)

    def _tensor(self, values: np.ndarray) -> Tensor:
        kind = self.oracle.dtype if values.dtype.kind == "f" else torch.long
        return torch.as_tensor(values, dtype=kind, device=self.oracle.device)

    def _log_probs(self, X: np.ndarray, y: np.ndarray) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs, and log p(y | x) attached to them and to the parameters, in chunks."""
        for i in range(0, len(X), _CHUNK):
            x, labels = self._tensor(X[i : i + _CHUNK]), self._tensor(y[i : i + _CHUNK])
            with self.oracle.restorer.borrowed():
                x.requires_grad_()
                yield x, -F.cross_entropy(self.oracle.model(x), labels, reduction="none")

    def _gradient(self, log_prob: Tensor, weights: Tensor, attached: bool = False) -> Tensor:
        """Return Σ weights_i s_i as one vector."""
        found = torch.autograd.grad(
            log_prob, self.fisher.parameters, weights, create_graph=attached, materialize_grads=True
        )
        return torch.cat([part.reshape(-1) for part in found])[self.fisher.places]

    def mean_score(self, X: np.ndarray, y: np.ndarray) -> Tensor:
        parts = [self._gradient(p, torch.ones_like(p)) for _, p in self._log_probs(X, y)]
        return torch.stack(parts).sum(0) / len(X)

    def _product(self, vector: np.ndarray) -> np.ndarray:
        v = self._tensor(vector)
        found = self.fisher.product(v[:, None])[:, 0] + self.damping * v
        return found.double().cpu().numpy()

    def solve(self, mu: Tensor) -> Tensor:
        goal = mu.double().cpu().numpy()
        return self._tensor(conjugate_gradient(self._product, goal, 1e-5, 200))

    def pull(self, X: np.ndarray, y: np.ndarray, v: Any) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = [], []
        for x, log_prob in self._log_probs(X, y):
            u = torch.ones_like(log_prob, requires_grad=True)
            # Σ u_i s_iᵀv: rows do not interact in evaluation mode, so its derivatives in u and in
            # x are the values and the gradients of each row
            total = self._gradient(log_prob, u, attached=True) @ v
            value, gradient = torch.autograd.grad(total, [u, x])
            values.append(value.cpu().numpy())
            gradients.append(gradient.cpu().numpy())
        return np.concatenate(values), np.concatenate(gradients)

    def loss(self, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        values, gradients = [], []
        for x, log_prob in self._log_probs(X, y):
            values.append(-log_prob.detach().cpu().numpy())
            gradients.append(-torch.autograd.grad(log_prob.sum(), x)[0].cpu().numpy())
        return np.concatenate(values), np.concatenate(gradients)

    @torch.no_grad()
    def predict(self, X: np.ndarray) -> np.ndarray:
        with self.oracle.restorer.borrowed():
            parts = [self.oracle.model(x).argmax(1) for x in self._tensor(X).split(_CHUNK)]
        return torch.cat(parts).cpu().numpy()
