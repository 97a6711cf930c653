"""Images from the user: a folder with one sub-folder per class, or an NPZ of pixels."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.model_selection import train_test_split

from exempla.errors import ExemplaError
from exempla.tables import ImageModel, Split, Table, default_image_model, load_images

__all__ = ["ImageClassifier", "Pictures", "has_images", "read_pictures", "split_pictures"]


def has_images(table: Table) -> bool:
    """Whether the rows of this table are pictures."""
    return table.format == "images" or table.images is not None


@dataclass(frozen=True)
class Pictures:
    """Pixels and labels of the readable images, and their rows in the file."""

    pixels: np.ndarray
    labels: np.ndarray
    rows: np.ndarray
    notes: tuple[str, ...] = ()


def read_pictures(table: Table, size: tuple[int, int] | None = None) -> Pictures:
    """All images of a file, of one size."""
    if table.images is not None:
        labels = table.column("y").to_numpy()
        return Pictures(table.images, labels, np.arange(len(table)))
    images = load_images(table, size=size)
    return Pictures(images.pixels, images.labels, images.rows, images.notes)


def split_pictures(
    table: Table, test: Table | None, curated: Table | None, test_size: float, options: Namespace
) -> Split:
    """Train, test and curated parts, as `exempla.tables.split` makes them for tables."""
    if options.curated_column:
        raise ExemplaError("A folder of images has no columns; give trusted images with --curated.")
    whole = read_pictures(table)
    height, width = whole.pixels.shape[1:3]
    other = None if test is None else read_pictures(test, (height, width))
    trusted = None if curated is None else read_pictures(curated, (height, width))
    train = asked = np.arange(len(whole.rows))
    if test is None and test_size > 0:
        train, asked = _halves(whole.labels, test_size, options.seed)
    questioned = other or (whole if test_size > 0 else None)
    picked = np.arange(len(other.rows)) if other else asked
    return Split(
        train=whole.rows[train],
        X_train=whole.pixels[train],  # pyright: ignore[reportArgumentType]
        y_train=whole.labels[train],
        test=np.arange(0) if questioned is None else questioned.rows[picked],
        X_test=None if questioned is None else questioned.pixels[picked],  # pyright: ignore
        y_test=None if questioned is None else questioned.labels[picked],
        curated=np.arange(0) if trusted is None else trusted.rows,
        X_curated=None if trusted is None else trusted.pixels,  # pyright: ignore
        y_curated=None if trusted is None else trusted.labels,
        unlabelled=np.arange(0),
        test_table=test,
        curated_table=curated,
        notes=whole.notes,
    )


def _halves(labels: np.ndarray, size: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    try:
        train, test = train_test_split(
            np.arange(len(labels)), test_size=size, random_state=seed, stratify=labels
        )
    except ValueError as error:
        raise ExemplaError(
            f"The images cannot be split ({error}); give more images per class, or --test."
        ) from error
    return np.sort(train), np.sort(test)


class ImageClassifier(ClassifierMixin, BaseEstimator):
    """The default image model behind scikit-learn's fit and predict.

    >>> import numpy as np
    >>> X, y = np.zeros((4, 8, 8), np.uint8), np.array(["a", "b", "a", "b"])
    >>> recipe = default_image_model(X, y, kind="mlp")
    >>> ImageClassifier(recipe).fit(X, y).predict(X).shape
    (4,)
    """

    def __init__(self, recipe: ImageModel) -> None:
        self.recipe = recipe

    def fit(self, X: np.ndarray, y: Any) -> ImageClassifier:
        recipe = self.recipe
        self.classes_ = recipe.classes
        if recipe.build is not None and recipe.fit is not None:
            self.model_ = recipe.fit(recipe.build(), recipe.prepare(X), recipe.encode(y))
        else:
            from sklearn.base import clone

            made: Any = clone(recipe.model)  # pyright: ignore[reportArgumentType]
            self.model_ = made.fit(flat(X), y)
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(1)]

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        if self.recipe.kind == "mlp":
            return self.model_.predict_proba(flat(X))
        import torch

        ready, out = self.recipe.prepare(X), []
        with torch.no_grad():
            for start in range(0, len(ready), 1024):
                batch = torch.as_tensor(ready[start : start + 1024])
                out.append(self.model_(batch).softmax(1).numpy())
        return np.concatenate(out) if out else np.empty((0, len(self.classes_)))

    def data(self, X: np.ndarray, y: Any = None) -> Any:
        """X (and y) as the model inside takes them: a network knows classes by their numbers."""
        cnn = self.recipe.kind == "cnn"
        ready = self.recipe.prepare(X) if cnn else flat(X)
        return ready if y is None else (ready, self.recipe.encode(y))

    def names(self, labels: Any) -> np.ndarray:
        """Labels of the model inside in the user's own words: the way back from `data`."""
        return self.recipe.decode(labels)

    def untrained(self) -> Any:
        """The model inside before any training, for jobs that train it on parts of the data.

        They get no weights that have seen a row they are to judge.
        """
        return self.recipe.model if self.recipe.build is None else self.recipe.build()


def flat(X: np.ndarray) -> np.ndarray:
    """Pixels as rows."""
    return np.asarray(X).reshape(len(X), -1)


def image_classifier(parts: Split, seed: int) -> tuple[ImageClassifier, str]:
    """The default model for these pictures, and what it is."""
    recipe = default_image_model(np.asarray(parts.X_train), parts.y_train, seed=seed)
    words = {"cnn": "a small convolutional network", "mlp": "a perceptron on the pixels"}
    return ImageClassifier(recipe), words[recipe.kind]
