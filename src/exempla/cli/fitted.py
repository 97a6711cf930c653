"""Read a user's file, fit a model to it, and report how good the model is.

`opened` prepares the results folder and reads the files; `fit_file` infers columns, splits, chooses
a model and fits it; `reading` does both, which is what most commands need.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from exempla.cli.console import Console, plain
from exempla.cli.models import blaming, load_model, prepared
from exempla.cli.output import prepare_folder
from exempla.data import take_rows
from exempla.errors import ExemplaError
from exempla.progress import showing, stage, waiting
from exempla.report.evidence import decisive_parts
from exempla.tables import (
    Chosen,
    Column,
    CrossValidation,
    Split,
    Table,
    borrow_names,
    choose_model,
    cross_validated_accuracy,
    default_image_model,
    read_table,
    show_columns,
)
from exempla.tables.dataset import Dataset, RowView, merge_labels, spellings
from exempla.tables.models.choose import Compared
from exempla.tables.models.image import NetworkClassifier
from exempla.tables.table import show

_MAX_LISTED_COLUMNS = 20
"""Columns up to which every one is listed."""
_HeldOut = Callable[[Table], "np.ndarray | None"]
"""Rows of a file that the query names, if any."""


@dataclass(frozen=True)
class Files:
    """The files a command reads."""

    table: Table
    test: Table | None
    curated: Table | None


@dataclass(frozen=True)
class Fitted:
    """A dataset, its parts, and the model fitted to the training part."""

    dataset: Dataset
    parts: Split
    model: Any
    accuracy: CrossValidation
    described: str
    """The model in words."""
    compared: tuple[Compared, ...] = ()
    """The candidates among which the model was chosen by cross-validation."""

    @property
    def regression(self) -> bool:
        """Whether the label is a number."""
        return self.dataset.regression

    @property
    def train(self) -> tuple[Any, np.ndarray]:
        """Inputs and labels of the training part."""
        return self.parts.X_train, self.parts.y_train

    def head(self, is_default: bool) -> tuple[Any, Callable[[Any], Any]]:
        """Return the model that jobs with many fits refit, and the transformation before it.

        The default models prepare rows without looking at labels (scaling, one-hot, TF-IDF, image
        features), so the preparation is done once instead of once per fit. A user's Pipeline may
        look at labels, so it is refitted as a whole.
        """
        if is_default and hasattr(self.model, "steps"):
            return self.model[-1], self.model[:-1].transform
        return self.model, lambda X: X

    def at_most(self, k: int) -> int:
        """Return k, or the number of training rows if that is smaller."""
        return min(k, len(self.parts.train)) if k > 0 else k

    def view(self, rows: np.ndarray, why: bool = False) -> RowView:
        """Return the view of these training rows, by row number of the file.

        With `why`, the words and columns that decided each prediction are marked.
        """
        positions = np.searchsorted(self.parts.train, rows)
        X, labels = take_rows(self.parts.X_train, positions), self.parts.y_train[positions]
        n = len(self.dataset)
        return self.dataset.view(
            labels=spread(labels, rows, n),
            predicted=spread(self.model.predict(X), rows, n),
            **(decisive(self.model, X, labels, rows.tolist()) if why else {}),
        )

    def facts(self) -> dict[str, Any]:
        """Return what a report says about the file and its model."""
        accuracy, against = self.accuracy_words()
        model = f"{against}; {self.described}"
        return {"data": plain(self.dataset.name), "model": model, "accuracy": accuracy}

    def accuracy_words(self) -> tuple[str, str]:
        """Return the cross-validated accuracy and what to compare it with, in words."""
        cv = self.accuracy
        if self.regression:
            return f"R² {cv.mean:.3f} ± {cv.se:.3f}", "cross-validated; predicting the mean gets 0"
        against = f"cross-validated accuracy; majority-class baseline {cv.majority:.1%}"
        return f"{cv.mean:.1%} ± {cv.se:.1%}", against

    @property
    def warnings(self) -> tuple[str, ...]:
        """What the reader should know before trusting an answer."""
        return (self.accuracy.warning,) if self.accuracy.warning else ()


def decisive(model: Any, X: Any, labels: Any, keys: Iterable[int]) -> dict[str, Any]:
    """Return the words and columns that decided these rows, by key; {} if unknown."""
    found = decisive_parts(model, X, labels) if len(labels) else None
    if found is None:
        return {}
    keys = list(keys)
    return {"words": dict(zip(keys, found.words)), "strengths": dict(zip(keys, found.columns))}


def spread(values: Any, rows: np.ndarray, length: int) -> list[Any]:
    """Place values of some rows where those rows are in the file.

    >>> import numpy as np
    >>> spread(["a", "b"], np.array([2, 0]), 4)
    ['b', None, 'a', None]
    """
    out: list[Any] = [None] * length
    for row, value in zip(rows.tolist(), values):
        out[row] = value
    return out


@contextmanager
def opened(
    options: Namespace, files: Iterable[str] = (), others: Iterable[str] = ()
) -> Iterator[tuple[Console, Path]]:
    """Prepare the results folder and the console; `files` and `others`: see `prepare_folder`.

    A new folder is removed if the command fails.
    """
    console, is_new = Console.of(options), not options.out.exists()
    folder = prepare_folder(options, files, others)
    try:
        with console.hearing_warnings(), showing(console.progress):
            yield console, folder
    except BaseException:
        if is_new:
            with suppress(OSError):
                folder.rmdir()
        raise


@contextmanager
def reading(
    options: Namespace,
    test_size: float,
    files: Iterable[str] = (),
    others: Iterable[str] = (),
    **how: Any,
) -> Iterator[tuple[Fitted, Console, Path]]:
    """Read the user's file and fit a model to it; `how` are the options of `fit_file`."""
    with opened(options, files, others) as (console, folder):
        yield (
            fit_file(options, console, read_files(options, console), test_size, **how),
            console,
            folder,
        )


def read_files(options: Namespace, console: Console) -> Files:
    """Read the main file, the test file and the curated file, and print what was found out."""
    how = {"encoding": options.encoding, "delimiter": options.delimiter}
    header = {"yes": True, "no": False}.get(options.header)
    expected = _expected_names(options)
    with waiting(f"reading {Path(options.file).name}"):
        table = read_table(options.file, header=header, expected=expected, **how)
        test = read_table(options.test, expected=expected, **how) if options.test else None
        curated = read_table(options.curated, expected=expected) if options.curated else None
    if test is not None:  # it may know the column names when the main file does not
        table = borrow_names(table, test)
    for note in (*table.notes, *(test.notes if test else ())):
        console.say(note)
    return Files(table, test, curated)


def _expected_names(options: Namespace) -> list[str]:
    """Return the columns that the options name, so that a header with them is recognised."""
    names = [options.curated_column, *options.text, *(k.rpartition("=")[0] for k in options.kind)]
    for extra in ("original_column", "completion", "prompt"):
        names.append(getattr(options, extra, None))
    if options.label is not None:
        names += [options.label, *options.label.split(",")]
    return [name for name in names if name]


def fit_file(
    options: Namespace,
    console: Console,
    files: Files,
    test_size: float,
    *,
    linear: bool = False,
    differentiable: bool = False,
    check: Callable[[Split], object] = bool,
    held_out: _HeldOut = lambda table: None,
) -> Fitted:
    """Infer columns, split, choose a model, report its accuracy, and fit it.

    Parameters
    ----------
    options, console, files
        The command line, where to print, and the files that were read.
    test_size
        Fraction of the rows to hold out unless the user gives one.
    linear
        Choose among linear models only.
    differentiable
        For images, use a model that is differentiable in the pixels.
    check
        Called with the split before anything is fitted; raises if the query makes no sense.
    held_out
        Returns the rows that the query names, which must not be trained on.
    """
    stage("choosing a model")
    with waiting("inferring the columns"):
        kinds = column_kinds(options, files.table)
        dataset = Dataset.of(files.table, options.label, options.text, kinds, options.task)
        dataset, files = _respelt(dataset, files, options, console)
    if not dataset.is_images:
        console.say(_column_table(dataset.columns))
    elif options.curated_column:
        raise ExemplaError("Images have no columns; give trusted images with --curated.")
    parts = dataset.split(
        test=files.test,
        test_size=test_size if options.test_size is None else options.test_size,
        curated=options.curated_column or files.curated,
        seed=options.seed,
        held_out=None if files.test is not None else held_out(files.table),
    )
    check(parts)
    for note in parts.notes:
        console.say(note)
    chosen, described = _chosen_model(options, dataset, parts, linear, differentiable)
    if chosen.compared:
        console.say(chosen.table())
    model, (X, y) = chosen.model, (parts.X_train, parts.y_train)
    own = blaming(f"--model {options.model} cannot be trained on this file")
    with own if options.model else nullcontext():
        accuracy = chosen.accuracy
        if accuracy is None:
            # Image features are not learned, so they are computed once, not once per fold.
            cached = dataset.is_images and options.model is None and hasattr(model, "steps")
            scored = (model[-1], model[:-1].fit(X).transform(X)) if cached else (model, X)
            accuracy = cross_validated_accuracy(*scored, y, seed=options.seed)
        found = Fitted(dataset, parts, model, accuracy, described, chosen.compared)
        console.say(f"Model: {described}; {' '.join(found.accuracy_words())}.")
        if accuracy.warning:
            console.warn(accuracy.warning)
        stage("training the model")
        with waiting(f"training the model on {len(y):,} rows"):
            model.fit(X, y)
    stage()
    return found


def _chosen_model(
    options: Namespace, dataset: Dataset, parts: Split, linear: bool, differentiable: bool
) -> tuple[Chosen, str]:
    """Return the unfitted model, with its comparison if there was one, and its description."""
    X, y = parts.X_train, parts.y_train
    if options.model:
        return Chosen(prepared(load_model(options.model), dataset.columns)), options.model
    if dataset.is_images:
        kind = "network" if differentiable else "auto"
        recipe = default_image_model(X, y, kind=kind, seed=options.seed)
        names = {
            "features": "logistic regression on gradient histograms",
            "cnn": "a small convolutional network",
            "mlp": "a multilayer perceptron on the pixels",
        }
        model = recipe.model if recipe.kind == "features" else NetworkClassifier(recipe)
        return Chosen(model), names[recipe.kind]
    chosen = choose_model(
        dataset.table, dataset.columns, X, y, rows=parts.train, seed=options.seed, linear=linear
    )
    return chosen, describe(chosen.model)


def describe(model: Any) -> str:
    """Return the default model in words.

    >>> from sklearn.linear_model import Ridge
    >>> describe(Ridge(alpha=2))
    'Ridge(alpha=2)'
    """
    last = model[-1] if hasattr(model, "steps") else model
    if type(last).__name__ == "LogisticRegression":
        return f"logistic regression (C={last.C:g}, chosen by cross-validation)"
    if type(last).__name__.startswith("HistGradientBoosting"):
        return f"histogram gradient boosting ({last.max_iter} rounds, chosen by cross-validation)"
    return " ".join(str(last).split())


def _column_table(columns: list[Column]) -> str:
    """Return what each column is; for a wide file, only those that are not plain numbers."""
    numbers = [c for c in columns if c.kind == "number" and c.reason.startswith("all ")]
    if len(columns) <= _MAX_LISTED_COLUMNS or not numbers:
        return show_columns(columns)
    first = f"{len(numbers)} columns are numbers ({numbers[0].name} … {numbers[-1].name})"
    return f"{first}; the others:\n{show_columns([c for c in columns if c not in numbers])}"


def column_kinds(options: Namespace, table: Table) -> dict[str, str]:
    """Return the kinds that the user gave, and "ignored" for columns that are about labels."""
    kinds = {}
    for given in options.kind:
        column, mark, kind = given.rpartition("=")
        if not mark:
            raise ExemplaError(f"--kind {given} is not understood; write --kind COLUMN=KIND.")
        kinds[column] = kind
    if options.curated_column and not table.is_images:
        kinds[options.curated_column] = "ignored"
    once = getattr(options, "original_column", None)
    if once is not None and (options.curated is None or once in table.names):
        kinds[table.names[table.position(once)]] = "ignored"  # it would reveal the label
    return kinds


def _respelt(
    dataset: Dataset, files: Files, options: Namespace, console: Console
) -> tuple[Dataset, Files]:
    """Merge labels as --merge-labels says; otherwise point out labels that look alike."""
    if dataset.regression or dataset.is_images:
        return dataset, files
    label, proposed = dataset.label.name, spellings(dataset.table, dataset.label)
    wanted = options.merge_labels
    if wanted is None:
        if proposed:
            pairs = ", ".join(f"{old!r} → {new!r}" for old, new in list(proposed.items())[:8])
            more = f" and {len(proposed) - 8:,} more" if len(proposed) > 8 else ""
            console.warn(
                f"{len(proposed):,} label(s) in {label!r} look like other spellings: "
                f"{pairs}{more}. They count as separate classes. To merge them, add "
                "--merge-labels auto."
            )
        return dataset, files
    mapping = proposed if wanted == "auto" else _label_map(wanted, dataset.table, label)
    if not mapping:
        console.say("--merge-labels auto: no labels look alike.")
        return dataset, files
    console.say(
        "Labels merged: " + show([f"{old} → {new}" for old, new in mapping.items()], 8) + "."
    )
    table, test, curated = (
        None if t is None else merge_labels(t, label, mapping)
        for t in (files.table, files.test, files.curated)
    )
    assert table is not None
    again = Dataset.of(table, label, options.text, column_kinds(options, table), options.task)
    return again, Files(table, test, curated)


def _label_map(wanted: str, table: Table, label: str) -> dict[str, str]:
    """Parse OLD=NEW,OLD=NEW; every OLD must be a label of the file."""
    known, mapping = set(table.strings(label)), {}
    for pair in wanted.split(","):
        old, mark, new = pair.partition("=")
        if not mark or old not in known or not new.strip():
            raise ExemplaError(
                f"--merge-labels {wanted} is not understood at {pair!r}; write auto, or OLD=NEW "
                f"with labels of the column {label!r}, separated by commas."
            )
        mapping[old] = new
    return mapping
