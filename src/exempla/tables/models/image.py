"""Default models for images.

By default, images are compared with small patches that k-means found in them (Coates and Ng, 2011),
and a logistic regression is fitted to the result. These features look at no label, so jobs that fit
the model many times (`fix_labels`, `clean`) compute them once and fit only the linear model.
`attack` moves pixels and therefore needs a model that is differentiable in them: a logistic
regression on the pixels.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import PCA
from sklearn.preprocessing import FunctionTransformer

from exempla.errors import ExemplaError

_SIDE = 6
"""Pixels along the side of a patch; of a small image, at most half of its side."""
_MAX_SIDE = 32
"""Larger images are reduced until their shorter side has fewer than twice as many pixels."""
_CENTROIDS, _COMPONENTS = 256, 256
_FIT_IMAGES, _FIT_PATCHES = 1_000, 20_000
"""Images and patches from which the centroids are learned."""
_BATCH = 64
"""Images whose features are computed at a time."""


class PatchFeatures(TransformerMixin, BaseEstimator):
    """How similar the patches of each quarter of an image are to typical patches.

    Patches are normalised and whitened, and k-means finds their centroids. The activation of a
    centroid is max(0, mean distance − distance to it). Activations and mean colours of each quarter
    are reduced by PCA. `scale` is the pixel value that means full brightness.
    """

    def __init__(self, scale: float = 1.0, seed: int = 0) -> None:
        self.scale = scale
        self.seed = seed

    def fit(self, X: Any, y: Any = None) -> PatchFeatures:
        """Learn the whitening, the centroids and the principal components."""
        X, rng = np.asarray(X), np.random.default_rng(self.seed)
        self.n_features_in_ = int(np.prod(X.shape[1:]))
        few = X[np.sort(rng.permutation(len(X))[:_FIT_IMAGES])]
        patches = self._patches(self._pixels(few))
        patches = patches.reshape(-1, patches.shape[-1])
        patches = patches[rng.permutation(len(patches))[:_FIT_PATCHES]]
        self.mean_ = patches.mean(axis=0)
        values, vectors = np.linalg.eigh(np.cov(patches, rowvar=False))
        self.whitening_ = ((vectors / np.sqrt(values.clip(0) + 0.1)) @ vectors.T).astype(np.float32)
        white = (patches - self.mean_) @ self.whitening_
        count = min(_CENTROIDS, len(np.unique(white, axis=0)))
        one: Any = 1  # scikit-learn's types take "auto" alone
        means = MiniBatchKMeans(count, batch_size=2048, n_init=one, random_state=self.seed)
        self.centroids_: Any = means.fit(white).cluster_centers_
        pooled = self._pooled(few)
        self.pca_ = PCA(min(_COMPONENTS, *pooled.shape), svd_solver="full").fit(pooled)
        # One scale for all, so that regularisation has the same meaning for every file.
        self.unit_ = float(np.sqrt(self.pca_.explained_variance_.mean())) or 1.0
        return self

    def transform(self, X: Any) -> np.ndarray:
        """Return one row of features per image."""
        if not len(X):
            return np.empty((0, self.pca_.n_components_))
        return self.pca_.transform(self._pooled(np.asarray(X))) / self.unit_

    def _pixels(self, X: np.ndarray) -> np.ndarray:
        """Return (n, height, width, channels), full brightness being 1, at most 63 pixels wide."""
        x = np.nan_to_num(X.astype(np.float32) / self.scale)
        x = x[..., None] if x.ndim == 3 else x
        n, height, width, channels = x.shape
        step = max(1, min(height, width) // _MAX_SIDE)
        height, width = height // step, width // step
        x = x[:, : height * step, : width * step]
        return x.reshape(n, height, step, width, step, channels).mean(axis=(2, 4))

    def _patches(self, x: np.ndarray) -> np.ndarray:
        """Return the normalised patches at every position, (n, rows, columns, pixels)."""
        side = min(_SIDE, (min(x.shape[1:3]) + 1) // 2)
        found = sliding_window_view(x, (side, side), axis=(1, 2))
        found = found.reshape(*found.shape[:3], -1)
        found = found - found.mean(axis=-1, keepdims=True)
        return found / np.sqrt(found.var(axis=-1, keepdims=True) + 0.01)

    def _pooled(self, X: np.ndarray) -> np.ndarray:
        """Return the mean activations and colours of each quarter, (n, 4 × (centroids + c))."""
        batches, c = [], self.centroids_
        for start in range(0, len(X), _BATCH):
            x = self._pixels(X[start : start + _BATCH])
            white = (self._patches(x) - self.mean_) @ self.whitening_
            squares = (white**2).sum(axis=-1, keepdims=True) - 2 * white @ c.T + (c**2).sum(axis=1)
            distances = np.sqrt(squares.clip(min=0))
            active = (distances.mean(axis=-1, keepdims=True) - distances).clip(min=0)
            batches.append(np.hstack([*_quarters(active), *_quarters(x)]))
        return np.concatenate(batches)


def _quarters(values: np.ndarray) -> list[np.ndarray]:
    """Return the means over the four quarters of (n, rows, columns, k), each (n, k)."""
    rows, columns = ((size + 1) // 2 for size in values.shape[1:3])
    halves = [values[:, :rows], values[:, -rows:]]
    return [
        part.mean(axis=(1, 2))
        for half in halves
        for part in (half[:, :, :columns], half[:, :, -columns:])
    ]


def _flat_pixels(X: Any, scale: float) -> np.ndarray:
    """Flatten images into rows of numbers, divided by `scale`."""
    return np.asarray(X).reshape(len(X), -1).astype(np.float64) / scale


def _scale(pixels: np.ndarray) -> float:
    """Return the pixel value that means full brightness."""
    if pixels.dtype == np.uint8:
        return 255.0
    top = float(np.nanmax(np.abs(pixels.astype(np.float64, copy=False)), initial=0.0))
    return top if 255.0 < top < np.inf else 1.0


def image_features(pixels: np.ndarray, labels: Any, *, kind: str = "patches", seed: int = 0) -> Any:
    """Return the unfitted features of images (n, h, w) or (n, h, w, channels) with these labels.

    They are `PatchFeatures`, or the pixels if `kind` is "pixels".
    """
    pixels, classes = np.asarray(pixels), np.unique(np.asarray(labels))
    if pixels.ndim not in (3, 4) or len(classes) < 2:
        raise ExemplaError(
            f"An image model needs pixels of shape (n, h, w[, 3]) and at least two classes; these "
            f"are {pixels.shape} and {len(classes)}."
        )
    if kind not in ("patches", "pixels"):
        raise ExemplaError(f"There is no image model {kind!r}; choose 'patches' or 'pixels'.")
    if kind == "pixels":
        return FunctionTransformer(_flat_pixels, kw_args={"scale": _scale(pixels)})
    return PatchFeatures(_scale(pixels), seed)
