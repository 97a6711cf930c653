"""The default model for images: a small CNN where torch is installed, else an MLP on pixels.

A small convolutional network and its training loop; the only file here that imports torch.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from torch import nn

from exempla.errors import ExemplaError
from exempla.oracles.torch.restore import few_threads
from exempla.progress import track


class _Pixels(TransformerMixin, BaseEstimator):
    """Images of any shape as rows of numbers, divided by `scale`.

    >>> import numpy as np
    >>> _Pixels(255.0).fit_transform(np.full((2, 3, 3), 255, dtype=np.uint8)).shape
    (2, 9)
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def fit(self, X: Any, y: Any = None) -> _Pixels:
        self.n_features_in_ = int(np.prod(np.shape(X)[1:]))
        return self

    def transform(self, X: Any) -> np.ndarray:
        X = np.asarray(X)
        return X.reshape(len(X), -1).astype(np.float64) / self.scale


@dataclass(frozen=True)
class ImageModel:
    """What `default_image_model` proposes.

    `kind` is "cnn" or "mlp". For an MLP, `model` is an unfitted Pipeline that takes the pixels as
    they are. For a CNN, `build()` makes a fresh module, `fit(module, X, y, sample_weight)` trains
    it, `prepare(pixels)` and `encode(labels)` make the arrays it takes, and `decode` gives the
    user's labels back.
    """

    kind: str
    classes: np.ndarray
    model: Pipeline | None = None
    build: Callable[[], Any] | None = None
    fit: Callable[..., Any] | None = None
    scale: float = 1.0
    """What pixels are divided by."""

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        """Pixels as the model takes them: (n, channels, h, w) float32 in [0, 1] for the CNN."""
        if self.kind == "mlp":
            return pixels
        scaled = np.asarray(pixels, dtype=np.float32) / np.float32(self.scale)
        return scaled[:, None] if scaled.ndim == 3 else np.moveaxis(scaled, -1, 1).copy()

    def encode(self, labels: Any) -> np.ndarray:
        """Labels as the model takes them: positions in `classes` for the CNN."""
        labels = np.asarray(labels)
        if self.kind == "mlp":
            return labels
        place = np.searchsorted(self.classes, labels).clip(max=len(self.classes) - 1)
        if (self.classes[place] != labels).any():
            raise ExemplaError("Some labels are no class the model was made for.")
        return place.astype(np.int64)

    def decode(self, labels: Any) -> np.ndarray:
        """What `encode` made, as the user's labels again.

        >>> import numpy as np
        >>> made = ImageModel("cnn", np.array(["0", "1", "10"]))
        >>> made.decode(made.encode(["10", "0"])).tolist()
        ['10', '0']
        """
        labels = np.asarray(labels)
        return labels if self.kind == "mlp" else self.classes[labels]


def _has_torch() -> bool:
    """Whether torch is installed (without importing it)."""
    return importlib.util.find_spec("torch") is not None


def _scale(pixels: np.ndarray) -> float:
    """255 for bytes; 1 for what was scaled already; the largest value of 16 bits and the like."""
    if pixels.dtype == np.uint8:
        return 255.0
    top = float(np.nanmax(np.abs(pixels.astype(np.float64, copy=False)), initial=0.0))
    return top if 255.0 < top < np.inf else 1.0


def default_image_model(
    pixels: np.ndarray, labels: Any, *, kind: str = "auto", epochs: int | None = None, seed: int = 0
) -> ImageModel:
    """A small model for these images; nothing is fitted yet.

    `kind`: "cnn", "mlp", or "auto" (the CNN if torch is installed and the images are at least
    8 × 8).

    >>> import numpy as np
    >>> made = default_image_model(np.zeros((4, 8, 8), np.uint8), ["a", "b", "a", "b"], kind="mlp")
    >>> made.model.fit(np.zeros((4, 8, 8), np.uint8), ["a", "b", "a", "b"]).classes_.tolist()
    ['a', 'b']
    """
    pixels, classes = np.asarray(pixels), np.unique(np.asarray(labels))
    if pixels.ndim not in (3, 4) or len(classes) < 2:
        raise ExemplaError(
            f"An image model needs pixels (n, h, w[, 3]) of at least two classes; these are "
            f"{pixels.shape} of {len(classes)}."
        )
    if kind == "auto":
        kind = "cnn" if _has_torch() and min(pixels.shape[1:3]) >= 8 else "mlp"
    if kind == "mlp":
        # About 3,000 steps of 200 images, however many images there are.
        rounds = epochs or int(np.clip(600_000 / len(pixels), 20, 300))
        net = MLPClassifier((64,), alpha=1e-3, max_iter=rounds, random_state=seed)
        steps = [("pixels", _Pixels(_scale(pixels))), ("model", net)]
        return ImageModel("mlp", classes, model=Pipeline(steps))
    if kind != "cnn":
        raise ExemplaError(f"There is no image model {kind!r}; choose 'cnn', 'mlp' or 'auto'.")
    if not _has_torch():
        raise ExemplaError("The CNN needs torch: pip install 'exempla[torch]', or choose 'mlp'.")

    channels = 1 if pixels.ndim == 3 else int(pixels.shape[3])
    recipe = SmallCNN(
        channels, (int(pixels.shape[1]), int(pixels.shape[2])), len(classes), epochs, seed
    )
    return ImageModel("cnn", classes, build=recipe.build, fit=recipe.fit, scale=_scale(pixels))


_EARLIER = 3
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
        kept = {rounds * (i + 1) // (_EARLIER + 1) for i in range(_EARLIER)} - {0, rounds}
        small = sum(p.numel() for p in module.parameters())
        for done in track(range(1, rounds + 1), "training the network", rounds):
            with few_threads(small):
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
