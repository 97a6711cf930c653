"""Images from the user: a folder with one sub-folder per class, or an NPZ of pixels."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from exempla.errors import ExemplaError
from exempla.images import as_image
from exempla.tables import (
    ImageModel,
    Split,
    Table,
    default_image_model,
    load_images,
    stratified,
)
from exempla.tables.columns.label import label_values
from exempla.tables.split import check_classes_left, check_held_out, known_labels, untested

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

    def some(self, marked: np.ndarray) -> Pictures:
        """Those that are marked."""
        return replace(
            self, pixels=self.pixels[marked], labels=self.labels[marked], rows=self.rows[marked]
        )


def read_pictures(table: Table, size: tuple[int, int] | None = None) -> Pictures:
    """All images of a file that have a label, of one size."""
    if table.images is not None:
        missing = table.missing("y")
        rows = np.flatnonzero(~missing)
        said = [f"{missing.sum():,} image(s) have no label: left out."] if missing.any() else []
        pixels = table.images[rows] if said else table.images
        return Pictures(pixels, label_values(table, "y", "classes", rows), rows, tuple(said))
    images = load_images(table, size=size)
    return Pictures(images.pixels, images.labels, images.rows, images.notes)


def split_pictures(
    table: Table,
    test: Table | None,
    curated: Table | None,
    test_size: float,
    options: Namespace,
    held_out: np.ndarray | None = None,
) -> Split:
    """Train, test and curated parts, as `exempla.tables.split` makes them for tables."""
    if options.curated_column:
        raise ExemplaError("A folder of images has no columns; give trusted images with --curated.")
    if options.task == "regression":
        raise ExemplaError("Images are told apart by classes, not by a number; leave --task out.")
    whole = read_pictures(table)
    notes = [*whole.notes]
    asked = np.zeros(len(whole.rows), dtype=bool)
    if test is None:
        asked = stratified(whole.labels, test_size, options.seed)
        if held_out is not None:
            unread = np.setdiff1d(np.arange(len(table)), whole.rows)
            check_held_out(held_out, unread, len(table), "label")
            asked |= np.isin(whole.rows, held_out)
            check_classes_left(whole.labels, asked)
        notes += untested(whole.labels, asked)
    train = whole.some(~asked) if asked.any() else whole
    questioned = whole.some(asked) if asked.any() else None
    if test is not None:
        questioned = _other(test, train, notes)
    trusted = None if curated is None else _other(curated, train, notes)
    return Split(
        train=train.rows,
        X_train=train.pixels,  # pyright: ignore[reportArgumentType]
        y_train=train.labels,
        test=np.arange(0) if questioned is None else questioned.rows,
        X_test=None if questioned is None else questioned.pixels,  # pyright: ignore
        y_test=None if questioned is None else questioned.labels,
        curated=np.arange(0) if trusted is None else trusted.rows,
        X_curated=None if trusted is None else trusted.pixels,  # pyright: ignore
        y_curated=None if trusted is None else trusted.labels,
        unlabelled=np.arange(0),
        test_table=test,
        curated_table=curated,
        notes=tuple(notes),
        asked=held_out,
    )


def _other(table: Table, train: Pictures, notes: list[str]) -> Pictures:
    """The images of another file, in the size, the colours and the labels of the training ones."""
    height, width = train.pixels.shape[1:3]
    found = read_pictures(table, (height, width))
    y, known, said = known_labels(found.labels, train.labels, table.path.name)
    notes += [*found.notes, *said]
    pixels = _coloured(found.pixels, grey=train.pixels.ndim == 3)
    if pixels.shape[1:] != train.pixels.shape[1:]:
        raise ExemplaError(
            f"Images of {table.path.name} have shape {pixels.shape[1:]}, those to learn from "
            f"{train.pixels.shape[1:]}; give images of one shape."
        )
    return replace(found, pixels=pixels, labels=y).some(known)


def _coloured(pixels: np.ndarray, grey: bool) -> np.ndarray:
    """A stack of grey images in colours, or of coloured ones in grey, where that is asked for."""
    if grey == (pixels.ndim == 3):
        return pixels
    if grey:
        return np.stack([np.asarray(as_image(each).convert("L")) for each in pixels])
    return np.repeat(pixels[:, :, :, None], 3, axis=3)


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
        self.earlier_: list[Any] = []
        """State dicts of a network while it was trained."""
        if recipe.build is not None and recipe.fit is not None:
            ready = recipe.prepare(X), recipe.encode(y)
            self.model_ = recipe.fit(recipe.build(), *ready, earlier=self.earlier_)
        else:
            from sklearn.base import clone

            made: Any = clone(recipe.model)  # pyright: ignore[reportArgumentType]
            self.model_ = made.fit(flat(X), y)
            self.classes_ = self.model_.classes_  # a class may be missing among these rows
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
