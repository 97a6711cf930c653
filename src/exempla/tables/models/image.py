"""Default models for images.

By default, images become histograms of oriented gradients and mean colours on a grid, and a
logistic regression is fitted to them. These features need no training, so jobs that fit the model
many times (`fix_labels`, `clean`) fit only the linear model. `attack` moves pixels and therefore
needs a model that is differentiable in them: a small convolutional network if torch is installed,
otherwise a multilayer perceptron.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin, clone
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

from exempla.errors import ExemplaError
from exempla.progress import track
from exempla.tables.models.choose import tuned_classifier

if TYPE_CHECKING:
    from torch import nn

_CELLS_PER_SIDE = 6
"""Cells along the shorter side of an image, about."""
_DIRECTIONS = 8
"""Bins of a histogram of gradient directions."""
_CLIP = 0.4
"""Largest value of a normalised histogram, so that single strong edges do not dominate."""
_BATCH = 512
"""Images whose features are computed at a time."""


class ImageFeatures(TransformerMixin, BaseEstimator):
    """Histograms of oriented gradients and mean colours of an image, on a grid of cells.

    Parameters
    ----------
    scale
        Pixel value that means full brightness.

    Examples
    --------
    >>> import numpy as np
    >>> ImageFeatures(255.0).fit_transform(np.zeros((2, 16, 16), np.uint8)).shape
    (2, 537)
    """

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale

    def fit(self, X: Any, y: Any = None) -> ImageFeatures:
        """Remember the number of pixels; nothing is learned."""
        self.n_features_in_ = int(np.prod(np.shape(X)[1:]))
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return one row of features per image."""
        X = np.asarray(X)
        if not len(X):
            return np.empty((0, self._batch(np.zeros((1, *X.shape[1:]))).shape[1]))
        return np.concatenate(
            [self._batch(X[start : start + _BATCH]) for start in range(0, len(X), _BATCH)]
        )

    def _batch(self, X: np.ndarray) -> np.ndarray:
        x = np.nan_to_num(X.astype(np.float64) / self.scale)
        x = x[..., None] if x.ndim == 3 else x
        n, height, width, _ = x.shape
        cell = max(2, round(min(height, width) / _CELLS_PER_SIDE))
        if min(height, width) < 2 * cell:  # too small for a grid: the pixels themselves
            return x.reshape(n, -1)
        rows, columns = height // cell, width // cell

        def cell_means(values: np.ndarray) -> np.ndarray:
            cut = values[:, : rows * cell, : columns * cell]
            return cut.reshape(n, rows, cell, columns, cell, -1).mean(axis=(2, 4))

        down, right = np.gradient(x.mean(axis=3), axis=(1, 2))
        angle = np.mod(np.arctan2(down, right) / (2 * np.pi), 1.0) * _DIRECTIONS
        # Each gradient is shared between the two nearest directions.
        near = 1 - np.abs(np.mod(angle[..., None] - np.arange(_DIRECTIONS) + 1, _DIRECTIONS) - 1)
        strength = np.hypot(right, down)[..., None]
        histograms = cell_means(strength * near.clip(min=0.0))
        blocks = [
            histograms[:, i : i + 2, j : j + 2].reshape(n, -1)
            for i in range(rows - 1)
            for j in range(columns - 1)
        ]
        scaled = [b / np.sqrt((b**2).sum(axis=1, keepdims=True) + 1e-3) for b in blocks]
        return np.hstack([*(b.clip(max=_CLIP) for b in scaled), cell_means(x).reshape(n, -1)])


def _flat_pixels(X: Any, scale: float) -> np.ndarray:
    """Flatten images into rows of numbers, divided by `scale`."""
    return np.asarray(X).reshape(len(X), -1).astype(np.float64) / scale


@dataclass(frozen=True)
class ImageModel:
    """An unfitted model for images, as proposed by `default_image_model`.

    `kind` is "features", "cnn" or "mlp". For "features" and "mlp", `model` is a Pipeline that takes
    the pixels. For a CNN, `build()` makes a new module, `fit(module, X, y, sample_weight)` trains
    it, and `prepare(pixels)` and `encode(labels)` make the arrays it takes.
    """

    kind: str
    classes: np.ndarray
    model: Pipeline | None = None
    build: Callable[[], Any] | None = None
    fit: Callable[..., Any] | None = None
    scale: float = 1.0
    """Pixel value that means full brightness."""

    def prepare(self, pixels: np.ndarray) -> np.ndarray:
        """Return pixels as the model takes them: (n, channels, h, w) in [0, 1] for a CNN."""
        if self.kind != "cnn":
            return pixels
        scaled = np.asarray(pixels, dtype=np.float32) / np.float32(self.scale)
        return scaled[:, None] if scaled.ndim == 3 else np.moveaxis(scaled, -1, 1).copy()

    def encode(self, labels: Any) -> np.ndarray:
        """Return labels as the model takes them: positions in `classes` for a CNN."""
        labels = np.asarray(labels)
        if self.kind != "cnn":
            return labels
        place = np.searchsorted(self.classes, labels).clip(max=len(self.classes) - 1)
        if (self.classes[place] != labels).any():
            raise ExemplaError("Some labels are not among the classes of this model.")
        return place.astype(np.int64)


class NetworkClassifier(ClassifierMixin, BaseEstimator):
    """A differentiable image model (CNN or MLP) with scikit-learn's fit and predict.

    >>> import numpy as np
    >>> X, y = np.zeros((4, 8, 8), np.uint8), np.array(["a", "b", "a", "b"])
    >>> recipe = default_image_model(X, y, kind="mlp")
    >>> NetworkClassifier(recipe).fit(X, y).predict(X).shape
    (4,)
    """

    def __init__(self, recipe: ImageModel) -> None:
        self.recipe = recipe

    def fit(self, X: np.ndarray, y: Any) -> NetworkClassifier:
        """Train a new network."""
        recipe, data = self.recipe, self.data(X, y)
        if recipe.build is not None and recipe.fit is not None:
            self.model_ = recipe.fit(recipe.build(), *data)
        else:
            self.model_ = clone(recipe.model).fit(*data)  # pyright: ignore
        self.classes_ = getattr(self.model_, "classes_", recipe.classes)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        """Return the most likely class of each image."""
        return self.classes_[self.predict_proba(X).argmax(1)]

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        """Return the probability of each class."""
        if self.recipe.kind == "mlp":
            return self.model_.predict_proba(self.data(X))
        import torch

        batches = torch.as_tensor(self.data(X)).split(1024)
        with torch.no_grad(), _one_thread():
            return np.concatenate([self.model_(batch).softmax(1).numpy() for batch in batches])

    def data(self, X: np.ndarray, y: Any = None) -> Any:
        """Return X (and y) as the network itself takes them."""
        cnn = self.recipe.kind == "cnn"
        ready = self.recipe.prepare(X) if cnn else np.asarray(X).reshape(len(X), -1)
        return ready if y is None else (ready, self.recipe.encode(y))


def _scale(pixels: np.ndarray) -> float:
    """Return the pixel value that means full brightness."""
    if pixels.dtype == np.uint8:
        return 255.0
    top = float(np.nanmax(np.abs(pixels.astype(np.float64, copy=False)), initial=0.0))
    return top if 255.0 < top < np.inf else 1.0


def _has_torch() -> bool:
    """Return True if torch is installed, without importing it."""
    return importlib.util.find_spec("torch") is not None


def default_image_model(
    pixels: np.ndarray, labels: Any, *, kind: str = "auto", epochs: int | None = None, seed: int = 0
) -> ImageModel:
    """Return an unfitted model for these images.

    Parameters
    ----------
    pixels
        (n, h, w) or (n, h, w, channels).
    labels
        The class of each image.
    kind
        "features" for a logistic regression on `ImageFeatures`, "cnn" for a small convolutional
        network, "mlp" for a multilayer perceptron on the pixels, "network" for the CNN if torch is
        installed and images are at least 8 × 8, otherwise the MLP. "auto" is "features".
    epochs
        Training epochs of a network; by default chosen from the number of images.
    seed
        Seed of initial weights and of the cross-validation that tunes regularisation.

    Examples
    --------
    >>> import numpy as np
    >>> X, y = np.zeros((4, 8, 8), np.uint8), ["a", "b", "a", "b"]
    >>> default_image_model(X, y).model.fit(X, y).classes_.tolist()
    ['a', 'b']
    """
    pixels, labels = np.asarray(pixels), np.asarray(labels)
    classes = np.unique(labels)
    if pixels.ndim not in (3, 4) or len(classes) < 2:
        raise ExemplaError(
            f"An image model needs pixels of shape (n, h, w[, 3]) and at least two classes; these "
            f"are {pixels.shape} and {len(classes)}."
        )
    if kind == "network":
        kind = "cnn" if min(pixels.shape[1:3]) >= 8 and _has_torch() else "mlp"
    scale = _scale(pixels)
    if kind in ("auto", "features"):
        features = ImageFeatures(scale)
        model = tuned_classifier(features, pixels, labels, seed)
        steps = [("features", features), ("model", model)]
        return ImageModel("features", classes, model=Pipeline(steps))
    if kind == "mlp":
        # About 3,000 steps of 200 images, however many images there are.
        rounds = epochs or int(np.clip(600_000 / len(pixels), 20, 300))
        net = MLPClassifier((64,), alpha=1e-3, max_iter=rounds, random_state=seed)
        pixels_ready = FunctionTransformer(_flat_pixels, kw_args={"scale": scale})
        steps = [("pixels", pixels_ready), ("model", net)]
        return ImageModel("mlp", classes, model=Pipeline(steps))
    if kind != "cnn":
        raise ExemplaError(
            f"There is no image model {kind!r}; choose 'features', 'cnn', 'mlp' or 'auto'."
        )
    if not _has_torch():
        raise ExemplaError("The CNN needs torch: pip install 'exempla[torch]', or choose 'mlp'.")
    channels = 1 if pixels.ndim == 3 else int(pixels.shape[3])
    size = (int(pixels.shape[1]), int(pixels.shape[2]))
    recipe = _SmallCNN(channels, size, len(classes), epochs, seed)
    return ImageModel("cnn", classes, build=recipe.build, fit=recipe.fit, scale=scale)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Run torch on one thread: small networks gain nothing from more, and threads spin."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


STEPS = 1_500
"""Training steps of a network if the number of epochs is not given."""
_TRAIN_BATCH = 64


@dataclass(frozen=True)
class _SmallCNN:
    """Two convolutions and two linear layers, about 50,000 weights for 28 × 28 pixels.

    There is no batch normalisation: with it, the score of one example would depend on the others
    in its batch.
    """

    channels: int
    size: tuple[int, int]
    classes: int
    epochs: int | None
    seed: int

    def build(self) -> nn.Module:
        """Return a new module with the weights of `seed`; the global random state is unchanged."""
        import torch
        from torch import nn

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

    def fit(self, module: nn.Module, X: Any, y: Any, sample_weight: Any = None) -> nn.Module:
        """Minimise Σ wᵢ·(−log p(yᵢ|xᵢ)) / Σ wᵢ with AdamW; train the module and return it."""
        import torch
        from torch import nn

        device = next(module.parameters()).device
        x = torch.as_tensor(np.asarray(X), dtype=torch.float32)
        target = torch.as_tensor(np.asarray(y), dtype=torch.int64)
        weight = torch.ones(len(x))
        if sample_weight is not None:
            weight = torch.as_tensor(np.asarray(sample_weight), dtype=torch.float32)
            weight = weight / weight.mean().clamp_min(1e-12)
        rounds = self.epochs or int(np.clip(STEPS * _TRAIN_BATCH / len(x), 2, 80))
        order = torch.Generator().manual_seed(self.seed)
        adam = torch.optim.AdamW(module.parameters(), lr=3e-3, weight_decay=1e-4)
        slow = torch.optim.lr_scheduler.CosineAnnealingLR(adam, rounds)
        loss = nn.CrossEntropyLoss(reduction="none")
        arranged: Any = module.train()  # torch's own types do not know memory_format
        arranged.to(memory_format=torch.channels_last)  # 1.5 times as fast on a CPU
        with _one_thread():
            for _ in track(range(rounds), "training the network", rounds):
                for some in torch.randperm(len(x), generator=order).split(_TRAIN_BATCH):
                    adam.zero_grad()
                    each = loss(module(x[some].to(device)), target[some].to(device))
                    (each * weight[some].to(device)).mean().backward()
                    adam.step()
                slow.step()
        arranged.to(memory_format=torch.contiguous_format)
        return module.eval()
