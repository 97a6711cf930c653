"""The user's own file, images or texts: read, asked about, shown, and exchanged with other tools.

Imports: shared/, tables, tasks, report, review; never a command.

The user's own file, read, understood, split and modelled: what every command on a file needs.

How a report shows rows of the user's file: text, cells and images, with what decided.

A summary of the user's file: judged, shown, and written.

The labels that trusted rows had before they were put right, from a column of the file.

Where a label was corrected, the column holds the label it once had; an empty cell means that it was
right from the start. From both it shows what kind of mistakes the file has.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from exempla.cli.console import Console, plain
from exempla.cli.kinds import (
    ImageClassifier,
    blaming,
    has_images,
    image_classifier,
    load_model,
    prepared,
    split_pictures,
)
from exempla.cli.output import prepare_folder
from exempla.data import take_rows
from exempla.errors import ExemplaError
from exempla.kernel.sketch import auto_width
from exempla.progress import showing, waiting
from exempla.report.evidence import decisive_parts
from exempla.report.views import LONGEST_TEXT, Content, ImageView, View, mark_words, rounded
from exempla.results import Selection
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
from exempla.tables.formats.folder import safe_path
from exempla.tables.infer import label_values, same_labels
from exempla.tables.models.choose import Compared
from exempla.tables.table import show
from exempla.tasks.retrain import refit
from exempla.tasks.summarize import Summary

_LONG_NUMBER = 7
"""Characters up to which a number is shown as the file has it."""


@dataclass(frozen=True)
class RowView(View):
    """Rows of a table by their number in the file, or by position among `rows` of it."""

    table: Table
    columns: tuple[Column, ...]
    rows: Any = None
    """Row numbers in the file, where positions are asked for; None: asked by row number."""
    words: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    strengths: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    longest: int = LONGEST_TEXT
    """Characters of one text that are shown."""

    def columns_of(self, index: int) -> dict[str, str | None]:
        """The row as the file has it: every column, the whole text, the name of an image."""
        return self.table.row(int(index if self.rows is None else self.rows[index]))

    def show(self, index: int) -> Content:
        """The row's text with its decisive words, its cells, its image."""
        row = int(index if self.rows is None else self.rows[index])
        values = self.table.row(row)
        texts = [c.name for c in self.columns if c.kind == "text"]
        pieces: list[tuple[str, float]] = []
        marked = scaled(self.words.get(index, {}))
        for name in texts:
            if len(texts) > 1:
                pieces.append((f"{chr(10) if pieces else ''}{name}: ", 0.0))
            pieces += mark_words(values[name] or "", marked, self.longest)
        strengths = scaled(self.strengths.get(index, {}))
        cells = [
            (c.name, _shown(c, values[c.name] or ""), strengths.get(c.name, 0.0))
            for c in self.columns
            if c.kind in ("number", "category", "date") and self.table.images is None
        ]
        ids = [values[c.name] for c in self.columns if c.kind == "id"]
        if self.table.format == "images":
            ids = [values["file"]]
        name = f"#{row}" + (f" · {ids[0]}" if ids and ids[0] else "")
        return self._with(
            index,
            name=name,
            pieces=tuple(pieces),
            cells=tuple(sorted(cells, key=lambda cell: -abs(cell[2]))),
            image=self._image(row, values),
        )

    def _image(self, row: int, values: Mapping[str, str | None]) -> Any:
        if self.table.images is not None:
            return ImageView(self.table.images).show(row).image
        if self.table.format == "images":
            return safe_path(self.table.path, values["file"] or "")
        return None


def _shown(column: Column, value: str) -> str:
    """A cell as a person reads it: a measured number to a few digits, anything else as it is."""
    if column.kind != "number" or len(value) <= _LONG_NUMBER:
        return value
    try:
        return rounded(float(value.replace(",", ".") if column.detail == "," else value))
    except ValueError:
        return value


def scaled(strengths: Mapping[str, float]) -> dict[str, float]:
    """Strengths with the strongest at ±1."""
    top = max((abs(value) for value in strengths.values()), default=0.0)
    return {name: value / top for name, value in strengths.items()} if top > 0 else {}


def decisive(model: Any, X: Any, labels: Any, keys: Iterable[int]) -> dict[str, Any]:
    """What decided about these rows, by the keys they are shown by; nothing if that is unknown."""
    found = decisive_parts(model, X, labels)
    if found is None:
        return {}
    keys = list(keys)
    return {"words": dict(zip(keys, found.words)), "strengths": dict(zip(keys, found.columns))}


def row_view(table: Table, columns: list[Column], **parts: Any) -> RowView:
    """The view of a table; image folders show the picture and no path."""
    shown = [] if table.format == "images" else columns
    return RowView(table=table, columns=tuple(shown), **parts)


_MOST_IMAGES = 6_000
"""Images that cross-validation uses: training a network three times over takes its time."""
_MEMORY_SHARE = 0.25
"""Share of the free memory that the rows of all checkpoints may take."""
_MOST_COLUMNS = 20
"""A wider file is told in short."""
_OWN_LABELS = {"npz": "y", "images": "label"}
"""Formats that name their own label column."""


_HeldOut = Callable[[Table], "np.ndarray | None"]
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
        from exempla.memory import available_memory, explain_bytes

        count = len(self.parts.train)
        needed = explain_bytes(count, auto_width(count), 4, models=1 + len(earlier))
        if needed > _MEMORY_SHARE * available_memory():
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
    held_out: _HeldOut = nothing,
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
    held_out: _HeldOut = nothing,
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
    few = {"folds": 3, "max_rows": _MOST_IMAGES} if pictures else {}
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
    if len(columns) <= _MOST_COLUMNS:
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
    if table.format in _OWN_LABELS:
        return _OWN_LABELS[table.format]
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


def judged(given: UserFile, picked: Summary) -> tuple[float | None, float | None]:
    """Scores on the test rows: of the model of all rows, and of one of the summary alone."""
    parts = given.parts
    if parts.X_test is None or parts.y_test is None:
        return None, None
    if isinstance(given.model, ImageClassifier) or not hasattr(given.model, "score"):
        return None, None
    X, y = take_rows(parts.X_train, picked.indices), parts.y_train[picked.indices]
    small = refit(
        given.model, X, y, picked.weights, None, picked.seed, keep_random_state=True, quiet=False
    )
    whole: Any = given.model
    return float(whole.score(parts.X_test, parts.y_test)), float(
        small.score(parts.X_test, parts.y_test)
    )


FILES = ("summary.csv", "summary.parquet")


def write_rows(stage: Path, given: UserFile, found: Selection) -> Path:
    """The rows themselves, with their weights, as Parquet or CSV."""
    rows = given.table.data.take(found.indices).to_pandas()
    name = "weight"
    while name in rows.columns:
        name = f"exempla_{name}"
    rows.insert(0, "row", found.indices, allow_duplicates=True)
    rows.insert(1, name, found.weights)
    if given.table.format == "parquet":
        rows.columns = [str(column) for column in rows.columns]
        rows.to_parquet(stage / "summary.parquet", index=False)
        return stage / "summary.parquet"
    rows.to_csv(stage / "summary.csv", index=False)
    return stage / "summary.csv"


def original_labels(given: UserFile, options: Namespace, console: Console) -> np.ndarray | None:
    """The labels the trusted rows once had, as the model knows them; None if none are named."""
    name, parts = options.original_column, given.parts
    if name is None:
        return None
    if given.regression:
        raise ExemplaError("--original-column is for labels that are classes; leave it out.")
    if options.method != "calibrated":
        raise ExemplaError(
            f"--original-column has no use with --method {options.method}; leave one of them out."
        )
    if parts.y_curated is None:
        raise ExemplaError(
            "--original-column tells what trusted rows were once called, but no row is trusted: "
            "name such rows with --curated-column or --curated."
        )
    table = given.table if parts.curated_table is None else parts.curated_table
    column = table.names[table.position(name)]  # raises if there is none of that name
    known = ~table.missing(column)[parts.curated]
    once = parts.y_curated.copy()
    if known.any():
        rows = parts.curated[known]
        own = np.unique(parts.y_train)
        told = label_values(table, column, "classes", rows).astype(str)
        both, seen, _ = same_labels(np.concatenate([told, own.astype(str)]), own)
        told, seen = both[: len(rows)], seen[: len(rows)]
        if not seen.all():
            strange = np.unique(table.strings(column, rows[~seen])).tolist()  # pyright: ignore
            raise ExemplaError(
                f"Column {column!r} holds {show(strange, 3)}, which no training row is labelled; "
                "write labels there as in the label column."
            )
        once[known] = told
    changed = int((once != parts.y_curated).sum())
    console.say(f"{changed:,} of the {len(once):,} trusted rows once had another label.")
    return once
