"""Read a user's file, fit a model to it, and report how good the model is.

`fit_file` infers columns, splits, chooses a model (or imports the user's own: `--model
package.module:name`) and fits it; `reading` prepares the results folder and reads the files too,
which is what most commands need.
"""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from sklearn.pipeline import Pipeline
from threadpoolctl import threadpool_limits

from exempla.cli.options import command_line, plain
from exempla.cli.output import Job
from exempla.data import take_rows
from exempla.errors import ExemplaError
from exempla.oracles import is_trees
from exempla.progress import stage, waiting
from exempla.report import About
from exempla.report.views import decisive_parts
from exempla.tables import (
    Chosen,
    Column,
    CrossValidation,
    Split,
    Table,
    borrow_names,
    choose_model,
    cross_validated_accuracy,
    image_features,
    read_table,
    show_columns,
    split,
    tuned_classifier,
)
from exempla.tables.dataset import Dataset, RowView, merge_labels, spellings
from exempla.tables.models.choose import Compared, tree_columns
from exempla.tables.table import show
from exempla.tasks.retrain import refit

_MAX_LISTED_COLUMNS = 20
"""Columns up to which every one is listed."""
_HeldOut = Callable[[Table], "np.ndarray | None"]
"""Rows of a file that the query names, if any."""


class Files(NamedTuple):
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
    options: Namespace
    compared: tuple[Compared, ...] = ()
    """The candidates among which the model was chosen by cross-validation."""
    features: Any = None
    """The fitted features of images, which `parts` has in place of their pixels."""

    @property
    def regression(self) -> bool:
        """Whether the label is a number."""
        return self.dataset.regression

    @property
    def train(self) -> tuple[Any, np.ndarray]:
        """Inputs and labels of the training part."""
        return self.parts.X_train, self.parts.y_train

    def head(self) -> tuple[Any, Callable[[Any], Any]]:
        """Return the model that jobs with many fits refit, and the transformation before it.

        A user's Pipeline is refitted as a whole, because it may look at labels.
        """
        if self.options.model is None and hasattr(self.model, "steps"):
            return self.model[-1], self.model[:-1].transform
        return self.model, lambda X: X

    def featured(self, X: Any) -> Any:
        """Return the features of images; other inputs as they are."""
        return X if self.features is None else self.features.transform(X)

    def refit(self, positions: np.ndarray, weights: np.ndarray | None = None) -> Any:
        """Return the model trained on some of the training rows, with the same random state."""
        X, y = take_rows(self.parts.X_train, positions), self.parts.y_train[positions]
        seed = self.options.seed
        return refit(self.model, X, y, weights, None, seed, keep_random_state=True, quiet=False)

    def view(self, rows: np.ndarray, why: bool = False) -> RowView:
        """Return the view of these training rows, by row number of the file.

        With `why`, the words and columns that decided each prediction are marked.
        """
        positions = np.searchsorted(self.parts.train, rows)
        X, labels = take_rows(self.parts.X_train, positions), self.parts.y_train[positions]
        n = len(self.dataset)
        return self.dataset.view(
            labels=spread(self.parts.y_train, self.parts.train, n),  # the map shows other rows too
            predicted=spread(self.model.predict(X), rows, n),
            **(decisive(self.model, X, labels, rows.tolist()) if why else {}),
        )

    def about(self, **more: Any) -> About:
        """Return what a report says about the file, its model and the command."""
        accuracy, against = self.accuracy_words()
        return About(
            data=plain(self.dataset.name),
            model=f"{against}; {self.described}",
            accuracy=accuracy,
            command=command_line(self.options),
            **more,
        )

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
    """Place values of some rows where those rows are in the file."""
    known = dict(zip(rows.tolist(), values))
    return [known.get(row) for row in range(length)]


@contextmanager
def reading(
    options: Namespace,
    test_size: float,
    files: Iterable[str] = (),
    others: Iterable[str] = (),
    **how: Any,
) -> Iterator[tuple[Fitted, Job]]:
    """Read the user's file and fit a model to it; `how` are the options of `fit_file`."""
    with Job.opened(options, files, others) as job:
        yield fit_file(job, read_files(job), test_size, **how), job


def read_files(job: Job) -> Files:
    """Read the main file, the test file and the curated file, and print what was found out."""
    options = job.options
    how: dict[str, Any] = {"encoding": options.encoding, "delimiter": options.delimiter}
    header = {"yes": True, "no": False}.get(options.header)
    # A header with a column that the options name is recognised.
    named = ("curated_column", "original_column", "completion", "prompt", "label")
    names = [getattr(options, name, None) for name in named]
    names += [*options.text, *(k.rpartition("=")[0] for k in options.kind)]
    names += (options.label or "").split(",")
    expected = [name for name in names if name]
    with waiting(f"reading {Path(options.file).name}"):
        table = read_table(options.file, header=header, expected=expected, **how)
        test = read_table(options.test, expected=expected, **how) if options.test else None
        curated = read_table(options.curated, expected=expected) if options.curated else None
    if test is not None:  # it may know the column names when the main file does not
        table = borrow_names(table, test)
    for note in (*table.notes, *(test.notes if test else ())):
        job.say(note)
    return Files(table, test, curated)


def fit_file(
    job: Job,
    files: Files,
    test_size: float,
    *,
    linear: bool = False,
    differentiable: bool = False,
    check: Callable[[Split], object] = bool,
    held_out: _HeldOut = lambda table: None,
) -> Fitted:
    """Infer columns, split, choose a model, report its accuracy, and fit it.

    With `linear`, only linear models compete; with `differentiable`, the model of images takes
    their pixels. `check` raises if the query makes no sense for a split; `held_out` returns the
    rows that it names.
    """
    options = job.options
    stage("choosing a model")
    with waiting("inferring the columns"):
        kinds = column_kinds(options, files.table)
        dataset = Dataset.of(files.table, options.label, options.text, kinds, options.task)
        dataset, files = _respelt(dataset, files, job)
    if not dataset.is_images:
        job.say(_column_table(dataset.columns))
    elif options.curated_column:
        raise ExemplaError("Images have no columns; give trusted images with --curated.")
    parts = split(
        dataset.table,
        dataset.columns,
        test=files.test,
        test_size=test_size if options.test_size is None else options.test_size,
        curated=options.curated_column or files.curated,
        seed=options.seed,
        held_out=None if files.test is not None else held_out(files.table),
    )
    check(parts)
    for note in parts.notes:
        job.say(note)
    with one_thread(parts.X_train):
        found = _fit(job, dataset, parts, linear, differentiable)
    stage()
    return found


_MAX_SERIAL_CELLS = 5_000_000
"""Cells of data up to which products are so short that threads only wait for each other."""


def one_thread(X: Any) -> AbstractContextManager[Any]:
    """Limit BLAS to one thread for small data."""
    return threadpool_limits(1) if getattr(X, "size", 0) <= _MAX_SERIAL_CELLS else nullcontext()


def _fit(job: Job, dataset: Dataset, parts: Split, linear: bool, differentiable: bool) -> Fitted:
    """Choose the model, report its accuracy, and fit it."""
    options = job.options
    features = None
    if dataset.is_images and options.model is None:
        # They look at no label, so they are computed once, for all fits and for the question.
        kind = "pixels" if differentiable else "patches"
        features = image_features(parts.X_train, parts.y_train, kind=kind, seed=options.seed)
        with waiting(f"computing the features of {len(dataset):,} images"):
            features.fit(parts.X_train)
            names = ("X_train", "X_test", "X_curated")
            inputs = {name: getattr(parts, name) for name in names}
            found = {n: features.transform(X) for n, X in inputs.items() if X is not None}
            parts = replace(parts, **found)
        chosen = Chosen(tuned_classifier(parts.X_train, parts.y_train, options.seed))
        described = f"logistic regression on the {kind} of the images"
    else:
        chosen, described = _chosen_model(options, dataset, parts, linear)
    if chosen.compared:
        job.say(chosen.table())
    model, (X, y) = chosen.model, (parts.X_train, parts.y_train)
    own = blaming(f"--model {options.model} cannot be trained on this file")
    with own if options.model else nullcontext():
        accuracy = chosen.accuracy
        if accuracy is None:
            accuracy = cross_validated_accuracy(model, X, y, seed=options.seed)
        known = accuracy, described, options, chosen.compared, features
        found = Fitted(dataset, parts, model, *known)
        job.say(f"Model: {described}; {' '.join(found.accuracy_words())}.")
        if accuracy.warning:
            job.warn(accuracy.warning)
        stage("training the model")
        with waiting(f"training the model on {len(y):,} rows"):
            model.fit(X, y)
    return found


def _chosen_model(
    options: Namespace, dataset: Dataset, parts: Split, linear: bool
) -> tuple[Chosen, str]:
    """Return the unfitted model, with its comparison if there was one, and its description."""
    X, y = parts.X_train, parts.y_train
    if options.model:
        return Chosen(_prepared(load_model(options.model), dataset.columns)), options.model
    chosen = choose_model(
        dataset.table, dataset.columns, X, y, rows=parts.train, seed=options.seed, linear=linear
    )
    return chosen, describe(chosen.model)


def describe(model: Any) -> str:
    """Return the default model in words."""
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


def _respelt(dataset: Dataset, files: Files, job: Job) -> tuple[Dataset, Files]:
    """Merge labels as --merge-labels says; otherwise point out labels that look alike."""
    options = job.options
    if dataset.regression or dataset.is_images:
        return dataset, files
    label, proposed = dataset.label.name, spellings(dataset.table, dataset.label)
    wanted = options.merge_labels
    if wanted is None:
        if proposed:
            pairs = ", ".join(f"{old!r} → {new!r}" for old, new in list(proposed.items())[:8])
            job.warn(
                f"{len(proposed):,} label(s) in {label!r} look like other spellings: {pairs}"
                f"{' …' if len(proposed) > 8 else ''}. They count as separate classes. To merge "
                "them, add --merge-labels auto."
            )
        return dataset, files
    mapping = proposed if wanted == "auto" else _label_map(wanted, dataset.table, label)
    if not mapping:
        job.say("--merge-labels auto: no labels look alike.")
        return dataset, files
    job.say("Labels merged: " + show([f"{old} → {new}" for old, new in mapping.items()], 8) + ".")
    merged: Any = (None if t is None else merge_labels(t, label, mapping) for t in files)
    files = Files(*merged)
    kinds = column_kinds(options, files.table)
    return Dataset.of(files.table, label, options.text, kinds, options.task), files


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


_TREE_LIBRARIES = ("lightgbm", "xgboost", "catboost")
"""Libraries of the extra [trees]."""
_QUIET: dict[str, dict[str, Any]] = {
    "lightgbm": {"verbosity": -1},
    "catboost": {"verbose": 0, "allow_writing_files": False},
}
"""Parameters that silence a library during many fits, unless the user set them."""


def load_model(place: str) -> Any:
    """Return the scikit-learn model at `package.module:name`; classes and functions are called."""
    found = named_object(place, is_ready=lambda named: hasattr(named, "fit"))
    if not (hasattr(found, "fit") and hasattr(found, "predict")):
        raise ExemplaError(
            f"--model {place} gives {type(found).__name__}, which has no fit and predict; give a "
            "scikit-learn model (for PyTorch use exempla.explain in Python)."
        )
    return found


def named_object(place: str, is_ready: Callable[[Any], bool]) -> Any:
    """Return what `package.module:name` names; classes and what is not ready are called."""
    module_name, _, name = place.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise ExemplaError(f"--model {place} is not understood; write package.module:name.")
    package = module_name.partition(".")[0]
    if package in _TREE_LIBRARIES and package not in sys.modules and find_spec(package) is None:
        raise ExemplaError(
            f"--model {place} needs {package}, which is not installed: "
            "pip install 'exempla[trees]'."
        )
    with _importable(package):
        with blaming(f"The module {module_name!r} of --model cannot be imported"):
            found = getattr(import_module(module_name), name, None)
        if found is None:
            raise ExemplaError(f"{module_name!r} has no {name!r}; check --model {place}.")
        if is_ready(found) and not isinstance(found, type):
            return found
        if not callable(found):
            raise ExemplaError(
                f"--model {place} is {type(found).__name__}; give a model, or a function that "
                "returns one."
            )
        with blaming(f"--model {place} does not return a model when called without arguments"):
            return found()


def _prepared(model: Any, columns: Collection[Column]) -> Any:
    """Put a bare tree model behind a preparation of the file's columns; return others unchanged."""
    if hasattr(model, "steps") or not is_trees(model):
        return model
    if type(model).__name__ == "XGBClassifier":
        from exempla.oracles.trees import AnyLabelXGBClassifier

        model = AnyLabelXGBClassifier(**model.get_params())
    library = type(model).__module__.partition(".")[0]
    given = model.get_params()
    model.set_params(**{k: v for k, v in _QUIET.get(library, {}).items() if k not in given})
    return Pipeline([("prepare", tree_columns(columns, words=True)), ("model", model)])


@contextmanager
def _importable(package: str) -> Iterator[None]:
    """Look for a package that is not installed in the current folder, after everything else.

    No file there can take the place of an installed library.
    """
    if package in sys.modules or find_spec(package) is not None:
        yield
        return
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn whatever the user's code raises into one sentence that begins with `what`."""
    try:
        yield
    except ExemplaError:
        raise
    except (Exception, SystemExit) as error:
        text = str(error).strip().split("\n")[0].rstrip(".")
        kind = type(error).__name__
        raise ExemplaError(f"{what} ({kind}: {text})." if text else f"{what} ({kind}).") from error
