"""Images from the user: a folder with one sub-folder per class, or an NPZ of pixels.

`--model package.module:name`: the user's own model. Importing it runs the user's own code.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

from exempla.errors import ExemplaError
from exempla.images import as_image
from exempla.oracles.trees import is_trees
from exempla.tables import ImageModel, Split, Table, default_image_model, load_images, stratified
from exempla.tables.features import with_tree_columns
from exempla.tables.infer import Column, label_values
from exempla.tables.split import check_classes_left, check_held_out, known_labels, untested


def has_images(table: Table) -> bool:
    """Whether the rows of this table are pictures."""
    return table.format == "images" or table.images is not None


@dataclass(frozen=True)
class _Pictures:
    """Pixels and labels of the readable images, and their rows in the file."""

    pixels: np.ndarray
    labels: np.ndarray
    rows: np.ndarray
    notes: tuple[str, ...] = ()

    def some(self, marked: np.ndarray) -> _Pictures:
        """Those that are marked."""
        return replace(
            self, pixels=self.pixels[marked], labels=self.labels[marked], rows=self.rows[marked]
        )


def _read_pictures(table: Table, size: tuple[int, int] | None = None) -> _Pictures:
    """All images of a file that have a label, of one size."""
    if table.images is not None:
        missing = table.missing("y")
        rows = np.flatnonzero(~missing)
        said = [f"{missing.sum():,} image(s) have no label: left out."] if missing.any() else []
        pixels = table.images[rows] if said else table.images
        return _Pictures(pixels, label_values(table, "y", "classes", rows), rows, tuple(said))
    images = load_images(table, size=size)
    return _Pictures(images.pixels, images.labels, images.rows, images.notes)


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
    whole = _read_pictures(table)
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


def _other(table: Table, train: _Pictures, notes: list[str]) -> _Pictures:
    """The images of another file, in the size, the colours and the labels of the training ones."""
    height, width = train.pixels.shape[1:3]
    found = _read_pictures(table, (height, width))
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
            self.model_ = made.fit(_flat(X), y)
            self.classes_ = self.model_.classes_  # a class may be missing among these rows
        return self

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.classes_[self.predict_proba(X).argmax(1)]

    def predict_proba(self, X: np.ndarray) -> np.ndarray:
        if self.recipe.kind == "mlp":
            return self.model_.predict_proba(_flat(X))
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
        ready = self.recipe.prepare(X) if cnn else _flat(X)
        return ready if y is None else (ready, self.recipe.encode(y))

    def names(self, labels: Any) -> np.ndarray:
        """Labels of the model inside in the user's own words: the way back from `data`."""
        return self.recipe.decode(labels)

    def untrained(self) -> Any:
        """The model inside before any training, for jobs that train it on parts of the data.

        They get no weights that have seen a row they are to judge.
        """
        return self.recipe.model if self.recipe.build is None else self.recipe.build()


def _flat(X: np.ndarray) -> np.ndarray:
    """Pixels as rows."""
    return np.asarray(X).reshape(len(X), -1)


def image_classifier(parts: Split, seed: int) -> tuple[ImageClassifier, str]:
    """The default model for these pictures, and what it is."""
    recipe = default_image_model(np.asarray(parts.X_train), parts.y_train, seed=seed)
    words = {"cnn": "a small convolutional network", "mlp": "a perceptron on the pixels"}
    return ImageClassifier(recipe), words[recipe.kind]


_TREES = ("lightgbm", "xgboost", "catboost")
"""Libraries of the extra [trees]."""
_QUIET: dict[str, dict[str, Any]] = {
    "lightgbm": {"verbosity": -1},
    "catboost": {"verbose": 0, "allow_writing_files": False},
}
"""What keeps a library from talking at every one of many trainings, unless the user set it."""


def load_model(place: str) -> Any:
    """The scikit-learn model at `package.module:name`; a class or a function is called for it.

    >>> load_model("sklearn.linear_model:LogisticRegression")
    LogisticRegression()
    """
    found = named_object(place, made=lambda named: hasattr(named, "fit"))
    if not (hasattr(found, "fit") and hasattr(found, "predict")):
        raise ExemplaError(
            f"--model {place} gives {type(found).__name__}, which has no fit and predict; give a "
            "scikit-learn model (for PyTorch use exempla.explain in Python)."
        )
    return found


def named_object(place: str, made: Callable[[Any], bool]) -> Any:
    """What `package.module:name` names; what is not `made` yet, and any class, is called for it."""
    module_name, _, name = place.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise ExemplaError(f"--model {place} is not understood; write package.module:name.")
    package = module_name.partition(".")[0]
    if package in _TREES and package not in sys.modules and find_spec(package) is None:
        raise ExemplaError(
            f"--model {place} needs {package}, which is not installed: "
            "pip install 'exempla[trees]'."
        )
    with _importable(package):
        with blaming(f"The module {module_name!r} of --model cannot be imported"):
            found = getattr(import_module(module_name), name, None)
        if found is None:
            raise ExemplaError(f"{module_name!r} has no {name!r}; check --model {place}.")
        return found if made(found) and not isinstance(found, type) else _call(found, place)


def prepared(model: Any, columns: Collection[Column]) -> Any:
    """The user's model ready for a file's columns and labels, which bare trees are not; anything
    else is taken as it is."""
    if hasattr(model, "steps") or not is_trees(model):
        return model
    if type(model).__name__ == "XGBClassifier":
        from exempla.oracles.trees.xgboost_labels import AnyLabelXGBClassifier

        model = AnyLabelXGBClassifier(**model.get_params())
    library = type(model).__module__.partition(".")[0]
    given = model.get_params()
    model.set_params(**{k: v for k, v in _QUIET.get(library, {}).items() if k not in given})
    return with_tree_columns(model, columns)


@contextmanager
def _importable(package: str) -> Iterator[None]:
    """What is not installed is looked for in the current folder: after everything else, and only
    while the model is made. No file there can pass for a library."""
    if package in sys.modules or find_spec(package) is not None:
        yield
        return
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _call(made: Any, place: str) -> Any:
    if not callable(made):
        raise ExemplaError(
            f"--model {place} is {type(made).__name__}; give a model, or a function that makes one."
        )
    with blaming(f"--model {place} makes no model when it is called without arguments"):
        return made()


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Whatever the user's own code raises is one sentence of ours, which begins so.

    >>> with blaming("Your function fails"):
    ...     1 / 0
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: Your function fails (ZeroDivisionError: division by zero).
    """
    try:
        yield
    except ExemplaError:
        raise
    except (Exception, SystemExit) as error:
        said = str(error).strip().split("\n")[0].rstrip(".")
        kind = type(error).__name__
        raise ExemplaError(f"{what} ({kind}: {said})." if said else f"{what} ({kind}).") from error
