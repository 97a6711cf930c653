"""A small convolutional network and its training loop; the only file here that imports torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from exempla.progress import track

__all__ = ["SmallCNN"]

EARLIER = 3
"""Moments of a training, evenly spread, whose weights are kept beside the last ones."""
STEPS = 1_500
"""Training steps aimed at when the number of epochs is left open."""


@dataclass(frozen=True)
class SmallCNN:
    """Two convolutions and two linear layers, about 50,000 weights for 28 × 28 pixels.

    No batch normalisation: it would let one example's score depend on the others of its batch.

    >>> import numpy as np
    >>> recipe = SmallCNN(1, (8, 8), 2, epochs=1)
    >>> X, y = np.zeros((4, 1, 8, 8), np.float32), np.array([0, 1, 0, 1])
    >>> module = recipe.fit(recipe.build(), X, y)
    >>> module(torch.zeros(3, 1, 8, 8)).shape
    torch.Size([3, 2])
    """

    channels: int
    size: tuple[int, int]
    classes: int
    epochs: int | None = None
    seed: int = 0
    batch: int = 64
    rate: float = 3e-3
    decay: float = 1e-4

    def build(self) -> nn.Module:
        """A fresh module with the weights of `seed`; the caller's random state stays as it is."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            head = nn.Sequential(
                nn.Conv2d(self.channels, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(8, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            )  # fmt: skip
            width = 16 * (self.size[0] // 4) * (self.size[1] // 4)
            return nn.Sequential(
                *head, nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, self.classes)
            )

    def fit(
        self,
        module: nn.Module,
        X: Any,
        y: Any,
        sample_weight: Any = None,
        earlier: list[dict[str, torch.Tensor]] | None = None,
    ) -> nn.Module:
        """Minimise Σ wᵢ·(−log p(yᵢ|xᵢ)) / Σ wᵢ with Adam; the module is trained and returned.

        A list given as `earlier` gets the state dicts of a few moments on the way.
        """
        device = next(module.parameters()).device
        x = torch.as_tensor(np.asarray(X), dtype=torch.float32)
        target = torch.as_tensor(np.asarray(y), dtype=torch.int64)
        weight = torch.ones(len(x))
        if sample_weight is not None:
            weight = torch.as_tensor(np.asarray(sample_weight), dtype=torch.float32)
            weight = weight / weight.mean().clamp_min(1e-12)
        rounds = self.epochs or int(np.clip(STEPS * self.batch / len(x), 2, 80))
        order = torch.Generator().manual_seed(self.seed)
        adam = torch.optim.AdamW(module.parameters(), lr=self.rate, weight_decay=self.decay)
        slow = torch.optim.lr_scheduler.CosineAnnealingLR(adam, rounds)
        loss = nn.CrossEntropyLoss(reduction="none")
        arranged: Any = module.train()  # torch's own types do not know memory_format
        arranged.to(memory_format=torch.channels_last)  # half as fast again on a CPU
        kept = {rounds * (i + 1) // (EARLIER + 1) for i in range(EARLIER)} - {0, rounds}
        for done in track(range(1, rounds + 1), "training the network", rounds):
            for some in torch.randperm(len(x), generator=order).split(self.batch):
                adam.zero_grad()
                each = loss(module(x[some].to(device)), target[some].to(device))
                (each * weight[some].to(device)).mean().backward()
                adam.step()
            slow.step()
            if earlier is not None and done in kept:
                earlier.append(
                    {
                        name: value.clone(memory_format=torch.contiguous_format)
                        for name, value in module.state_dict().items()
                    }
                )
        arranged.to(memory_format=torch.contiguous_format)
        return module.eval()
