"""The user's own file, read, understood, split and modelled: what every command on a file needs."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from exempla.cli.shared.console import Console, plain
from exempla.cli.shared.output import prepare_folder
from exempla.cli.userdata.images import (
    ImageClassifier,
    has_images,
    image_classifier,
    split_pictures,
)
from exempla.cli.userdata.models import blaming, load_model, prepared
from exempla.cli.userdata.rows import RowView, decisive, row_view
from exempla.data import take_rows
from exempla.embedding import forecast_bytes
from exempla.errors import ExemplaError
from exempla.progress import showing, waiting
from exempla.sketch.choose import auto_width
from exempla.tables import (
    Chosen,
    Column,
    CrossValidation,
    Split,
    Table,
    borrow_names,
    choose_model,
    cross_validated_accuracy,
    infer_columns,
    label_of,
    read_table,
    show_columns,
    split,
)
from exempla.tables.models.choose import Compared

__all__ = ["UserFile", "read_user_file"]

MOST_IMAGES = 6_000
"""Images that cross-validation uses: training a network three times over takes its time."""
MEMORY_SHARE = 0.25
"""Share of the free memory that the rows of all checkpoints may take."""
MOST_COLUMNS = 20
"""A wider file is told in short."""
OWN_LABELS = {"npz": "y", "images": "label"}
"""Formats that name their own label column."""


HeldOut = Callable[[Table], "np.ndarray | None"]
"""Rows of a file that are asked about by name, if any."""


def nothing(table: Table) -> np.ndarray | None:
    """No row is asked about by name."""
    return None


@dataclass(frozen=True)
class UserFile:
    """A file, its columns, its parts, and the model fitted to the training part."""

    table: Table
    columns: list[Column]
    parts: Split
    model: Any
    accuracy: CrossValidation
    described: str
    """The model in words."""
    compared: tuple[Compared, ...] = ()
    """What the model was chosen among, by cross-validation."""

    @property
    def label(self) -> Column:
        """The column to predict."""
        return label_of(self.columns)

    @property
    def regression(self) -> bool:
        """Whether a number is predicted instead of a class."""
        return self.label.detail == "regression"

    @property
    def inner(self) -> Any:
        """The fitted model as the engine takes it."""
        return self.model.model_ if isinstance(self.model, ImageClassifier) else self.model

    def recorded(self) -> tuple[Any, str | None]:
        """The fitted model with its earlier checkpoints, which make answers truer, where there are
        any and memory has room for all their rows; and what to say if it has not."""
        earlier = getattr(self.model, "earlier_", [])
        if not earlier:
            return self.inner, None
        from exempla.oracles.torch.tape.network import available_memory

        count = len(self.parts.train)
        needed = forecast_bytes(count, auto_width(count), 4, models=1 + len(earlier))
        if needed > MEMORY_SHARE * available_memory():
            return self.inner, (
                f"Only the trained network is asked, not its {len(earlier)} checkpoints too: their "
                f"rows would take {needed / 2**30:.1f} GiB."
            )
        return [self.inner, *earlier], None

    @property
    def fit(self) -> Any:
        """How to train a torch module again; None for scikit-learn models."""
        return self.model.recipe.fit if isinstance(self.model, ImageClassifier) else None

    def data(self, X: Any, y: Any = None) -> Any:
        """X (and y) as the engine takes them."""
        if isinstance(self.model, ImageClassifier):
            return self.model.data(X, y)
        return X if y is None else (X, y)

    def train(self) -> Any:
        """The training part."""
        return self.data(self.parts.X_train, self.parts.y_train)

    def head(self, default: bool) -> tuple[Any, Any]:
        """The model that jobs with many trainings train again, and what its rows go through first.

        The default model's preparation (scaling, one-hot, TF-IDF) never looks at labels: it is
        done once, not once per training, which for texts is most of the time. Another Pipeline may
        look at them, so it is trained as a whole.
        """
        if default and hasattr(self.model, "steps"):
            return self.model[-1], self.model[:-1].transform
        return self.inner, lambda X: X

    def untrained(self, model: Any) -> Any:
        """The same model for a job that only trains it again: no network that has seen the rows."""
        return self.model.untrained() if isinstance(self.model, ImageClassifier) else model

    def in_words(self, fixes: Any) -> Any:
        """The result of `fix_labels` in the labels of the file, where a network knows numbers."""
        if not isinstance(self.model, ImageClassifier):
            return fixes
        given, suggested = self.parts.y_train[fixes.indices], self.model.names(fixes.suggested)
        other = self.model.names(fixes.alternative)
        pairs = tuple(
            replace(pair, labels=tuple(self.model.names(np.array(pair.labels)).tolist()))
            for pair in fixes.conflicts
        )
        return replace(fixes, given=given, suggested=suggested, alternative=other, conflicts=pairs)

    def at_most(self, k: int) -> int:
        """k, or all training rows if they are fewer; what makes no sense is left to be refused."""
        return min(k, len(self.parts.train)) if k > 0 else k

    def view(self, rows: np.ndarray, why: bool = False) -> RowView:
        """How to show these training rows, by their numbers in the file; with `why`, what decided
        about each is marked."""
        positions = np.searchsorted(self.parts.train, rows)
        X, labels = take_rows(self.parts.X_train, positions), self.parts.y_train[positions]
        return row_view(
            self.table,
            self.columns,
            labels=spread(labels, rows, len(self.table)),
            predicted=spread(self.model.predict(X), rows, len(self.table)),
            **(decisive(self.model, X, labels, rows.tolist()) if why else {}),
        )

    def facts(self) -> dict[str, Any]:
        """What a report says of the file and its model."""
        accuracy, against = self.accuracy_words()
        model = f"{against}; {self.described}"
        # a name may be no text at all, and the page is
        return {"data": plain(self.table.path.name), "model": model, "accuracy": accuracy}

    def accuracy_words(self) -> tuple[str, str]:
        """The cross-validated accuracy, and what to compare it with."""
        cv = self.accuracy
        if self.regression:
            return f"R² {cv.mean:.3f} ± {cv.se:.3f}", "cross-validated; guessing the mean gets 0"
        against = f"cross-validated accuracy; the commonest class alone gets {cv.majority:.1%}"
        return f"{cv.mean:.1%} ± {cv.se:.1%}", against


@contextmanager
def reading(
    options: Namespace,
    test_size: float,
    files: Iterable[str] = (),
    others: Iterable[str] = (),
    *,
    linear: bool = False,
    check: Callable[[Split], object] = bool,
    held_out: HeldOut = nothing,
) -> Iterator[tuple[UserFile, Console, Path]]:
    """The user's file read and fitted, with the console, which hears warnings, and the folder for
    the results (`files` and `others`: see `prepare_folder`). `linear`: the job takes no other
    model, so that none is chosen. `check` looks at the rows before a model is trained; `held_out`
    names rows of the file that must not be learned from."""
    console = Console.of(options)
    new = not options.out.exists()
    folder = prepare_folder(options, files, others)
    try:
        with console.hearing_warnings(), showing(console.progress):
            given = read_user_file(
                options, console, test_size, linear=linear, check=check, held_out=held_out
            )
            yield given, console, folder
    except BaseException:
        if new:  # nothing was found: no empty folder stays behind
            with suppress(OSError):
                folder.rmdir()
        raise


def read_user_file(
    options: Namespace,
    console: Console,
    test_size: float,
    *,
    linear: bool = False,
    check: Callable[[Split], object] = bool,
    held_out: HeldOut = nothing,
) -> UserFile:
    """Read, infer, split and fit, saying each step; the accuracy is said before anything else."""
    with waiting(f"reading {Path(options.file).name}"):
        table, test = _read(options, console)
    with waiting("looking at the columns"):
        columns = infer_columns(
            table, _label(table, options), options.text, _kinds(options, table), options.task
        )
    size = test_size if options.test_size is None else options.test_size
    pictures = has_images(table)
    held = None if test is not None else held_out(table)
    if pictures:
        curated = read_table(options.curated) if options.curated else None
        parts = split_pictures(table, test, curated, size, options, held)
    else:
        console.say(_columns(columns))
        curated = options.curated_column or options.curated
        parts = split(
            table, columns, test=test, test_size=size, curated=curated, seed=options.seed,
            held_out=held,
        )  # fmt: skip
    check(parts)
    for note in parts.notes:
        console.say(note)
    X: Any = parts.X_train
    y, chosen = parts.y_train, Chosen(None)
    if options.model:
        model, described = prepared(load_model(options.model), columns), options.model
    elif pictures:
        model, described = image_classifier(parts, options.seed)
    else:
        chosen = choose_model(
            table, columns, X, y, rows=parts.train, seed=options.seed, linear=linear
        )
        model, described = chosen.model, describe(chosen.model)
        if chosen.compared:
            console.say(chosen.table())
    few = {"folds": 3, "max_rows": MOST_IMAGES} if pictures else {}
    own = blaming(f"--model {options.model} cannot be trained on this file")
    with own if options.model else nullcontext():
        accuracy = chosen.accuracy
        if accuracy is None:
            accuracy = cross_validated_accuracy(model, X, y, seed=options.seed, **few)
        found = UserFile(table, columns, parts, model, accuracy, described, chosen.compared)
        console.say(f"Model: {described}; {' '.join(found.accuracy_words())}.")
        if accuracy.warning:
            console.warn(accuracy.warning)
        with waiting(f"training the model on {len(y):,} rows"):
            model.fit(X, y)
    return found


def describe(model: Any) -> str:
    """The default model in words.

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


def _columns(columns: list[Column]) -> str:
    """What each column is; in a wide file, what is not an ordinary number."""
    if len(columns) <= MOST_COLUMNS:
        return show_columns(columns)
    plain = [c for c in columns if c.kind == "number" and c.reason.startswith("all ")]
    if not plain:
        return show_columns(columns)
    said = f"{len(plain)} columns are numbers ({plain[0].name} … {plain[-1].name})"
    others = [c for c in columns if c not in plain]
    return f"{said}; the others:\n{show_columns(others)}"


def _read(options: Namespace, console: Console) -> tuple[Table, Table | None]:
    """The file and its test file, which may know the column names when the first does not."""
    how = {"encoding": options.encoding, "delimiter": options.delimiter}
    header = {"yes": True, "no": False}.get(options.header)
    table = read_table(options.file, header=header, **how)
    test = read_table(options.test, **how) if options.test else None
    for note in (*table.notes, *(test.notes if test else ())):
        console.say(note)
    return (table, None) if test is None else (borrow_names(table, test), test)


def _label(table: Table, options: Namespace) -> str:
    if options.label is not None:
        return str(options.label)
    if table.format in OWN_LABELS:
        return OWN_LABELS[table.format]
    listed = ", ".join(table.names[:12]) + (", …" if len(table.names) > 12 else "")
    raise ExemplaError(
        f"Say which column of {table.path.name} is the label with --label COLUMN; it has {listed}."
    )


def _kinds(options: Namespace, table: Table) -> dict[str, str]:
    kinds = {}
    for given in options.kind:
        column, mark, kind = given.rpartition("=")
        if not mark:
            raise ExemplaError(f"--kind {given} is not understood; write --kind COLUMN=KIND.")
        kinds[column] = kind
    if options.curated_column:
        kinds[options.curated_column] = "ignored"
    once = getattr(options, "original_column", None)
    if once is not None and (options.curated is None or once in table.names):
        kinds[table.names[table.position(once)]] = "ignored"  # it would give the label away
    return kinds


def spread(values: Any, rows: np.ndarray, length: int) -> list[Any]:
    """Values of some rows, placed where those rows stand in the whole file.

    >>> import numpy as np
    >>> spread(["a", "b"], np.array([2, 0]), 4)
    ['b', None, 'a', None]
    """
    out: list[Any] = [None] * length
    for row, value in zip(rows.tolist(), values):
        out[row] = value
    return out
