"""Which rows train, which are questioned, which are trusted, by the file's own row numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

from exempla.data import absent_labels
from exempla.errors import ExemplaError
from exempla.tables.features import feature_frame
from exempla.tables.infer import FEATURES, Column, label_of, label_values, same_labels
from exempla.tables.read import borrow_names, read_table
from exempla.tables.table import Table, show, to_strings

__all__ = [
    "Split", "check_classes_left", "check_held_out", "known_labels", "split", "stratified",
    "untested",
]  # fmt: skip

YES = frozenset({"1", "1.0", "true", "yes", "y", "t", "x", "on"})


@dataclass(frozen=True)
class Split:
    """Rows and features of each part.

    `train` are rows of the table. `test` and `curated` are rows of the table too, or of their own
    file where `test_table` / `curated_table` is given. `y_test` is None if that file has no labels.
    """

    train: np.ndarray
    X_train: pd.DataFrame
    y_train: np.ndarray
    test: np.ndarray
    X_test: pd.DataFrame | None
    y_test: np.ndarray | None
    curated: np.ndarray
    X_curated: pd.DataFrame | None
    y_curated: np.ndarray | None
    unlabelled: np.ndarray
    """Rows without a label: left out of training, exported untouched."""
    test_table: Table | None = None
    curated_table: Table | None = None
    notes: tuple[str, ...] = ()
    asked: np.ndarray | None = None
    """Rows of the table that were held out by name, if any."""


def split(
    table: Table,
    columns: Sequence[Column],
    *,
    test: str | Path | Table | None = None,
    test_size: float = 0.2,
    curated: str | Path | Table | None = None,
    seed: int = 0,
    held_out: np.ndarray | None = None,
) -> Split:
    """Split a table, class by class, or take test and curated rows from other files.

    Parameters
    ----------
    test
        A file with the same columns; else `test_size` of the table's rows (0: no test rows).
    curated
        A file with the same columns, or a column of the table that marks trusted rows (1, yes,
        true, x). Such a column should be inferred as "ignored".
    held_out
        Rows of the table that must be among the test rows, whatever chance says.

    >>> import tempfile, pathlib
    >>> from exempla.tables import infer_columns, read_table
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("size,y\\n" + "1,a\\n2,b\\n1,b\\n2,a\\n" * 5 + "3,\\n")
    >>> table = read_table(path)
    >>> parts = split(table, infer_columns(table, label="y"))
    >>> len(parts.train), len(parts.test), parts.unlabelled.tolist()
    (16, 4, [20])
    """
    label = label_of(columns)
    missing = table.missing(label.name)
    unlabelled = np.flatnonzero(missing)
    notes = []
    if len(unlabelled):
        notes.append(
            f"{len(unlabelled):,} row(s) have no label (rows {show(unlabelled.tolist(), 5)}): left "
            "out of training, exported untouched."
        )
    trusted, columns, curated_table = _curated(table, columns, curated)
    pool = np.setdiff1d(np.flatnonzero(~missing), trusted)
    trusted = np.setdiff1d(trusted, unlabelled)
    if held_out is not None and test is None:
        check_held_out(held_out, unlabelled, len(table), label.name)
        trusted = np.setdiff1d(trusted, held_out)
        pool = np.union1d(pool, held_out)
    if test is None:
        y = label_values(table, label.name, label.detail, pool)
        asked = stratified(y, test_size, seed, classes=label.detail == "classes")
        if held_out is not None:
            asked |= np.isin(pool, held_out)
            if label.detail == "classes":
                check_classes_left(y, asked)
        train, questioned = pool[~asked], pool[asked]
        if label.detail == "classes" and test_size > 0:
            notes += untested(y, asked)
        other = None
    else:
        train, questioned, other = pool, np.arange(0), _read(test)
    y_train = _training_labels(table, label, train)
    parts = _Maker(table, columns, label, y_train, notes)
    questioned, X_test, y_test, other = parts.part(questioned, other, "test")
    trusted, X_curated, y_curated, curated_table = parts.part(trusted, curated_table, "curated")
    return Split(
        train=train,
        X_train=feature_frame(table, columns, train),
        y_train=y_train,
        test=questioned,
        X_test=X_test,
        y_test=y_test,
        curated=trusted,
        X_curated=X_curated,
        y_curated=y_curated,
        unlabelled=unlabelled,
        test_table=other,
        curated_table=curated_table,
        notes=tuple(notes),
        asked=None if held_out is None else np.asarray(held_out),
    )


def check_held_out(rows: np.ndarray, unlabelled: np.ndarray, length: int, label: str) -> None:
    """Raise if these rows cannot be held out: they have no label, or too few others are left."""
    silent = np.intersect1d(rows, unlabelled)
    if len(silent):
        raise ExemplaError(
            f"Row {silent[0]} has no label in {label!r}, so it cannot be asked about here; put "
            "such rows into a file of their own and give it with --ask FILE."
        )
    if len(rows) > length / 2:
        raise ExemplaError(
            f"{len(rows):,} of {length:,} rows are asked about, and none of them may be learned "
            "from; ask about fewer, or about a file of new rows."
        )


def check_classes_left(y: np.ndarray, asked: np.ndarray) -> None:
    """Raise if a class has no row left to learn from."""
    gone = absent_labels(y, y[~asked])
    if len(gone):
        raise ExemplaError(
            f"All rows labelled {gone[0]!s} are asked about, so none is left to learn from; ask "
            "about fewer of them."
        )


def _read(source: str | Path | Table) -> Table:
    return source if isinstance(source, Table) else read_table(source)


def _curated(
    table: Table, columns: Sequence[Column], curated: str | Path | Table | None
) -> tuple[np.ndarray, Sequence[Column], Table | None]:
    if curated is None:
        return np.arange(0), columns, None
    if isinstance(curated, str) and curated in table.names:
        marks = to_strings(table.column(curated))
        rows = np.array([i for i, m in enumerate(marks) if m and m.strip().casefold() in YES])
        if not len(rows):
            raise ExemplaError(
                f"No row is marked in the curated column {curated!r}; mark trusted rows with 1."
            )
        kept = [
            replace(c, kind="ignored", reason="marks trusted rows") if c.name == curated else c
            for c in columns
        ]
        return rows, kept, None
    return np.arange(0), columns, _read(curated)


def _training_labels(table: Table, label: Column, rows: np.ndarray) -> np.ndarray:
    y = label_values(table, label.name, label.detail, rows)
    if len(y) == 0 or (label.detail == "classes" and len(np.unique(y)) < 2):
        raise ExemplaError(
            f"Only {len(y):,} row(s) of a single class are left for training; take a smaller test "
            "or curated share."
        )
    return y


def stratified(
    y: np.ndarray, size: float = 0.2, seed: int = 0, *, classes: bool = True
) -> np.ndarray:
    """Mark about `size` of every class for the test; a class keeps at least one row for training.

    For image folders and image arrays, which have no feature columns for `split`.

    >>> import numpy as np
    >>> stratified(np.array(["a", "a", "a", "a", "b"]), 0.25).sum()
    np.int64(1)
    """
    y = np.asarray(y)
    if not 0 <= size < 1:
        raise ExemplaError(f"The test size must be a share from 0 up to, not including, 1: {size}.")
    rng = np.random.default_rng(seed)
    marked = np.zeros(len(y), dtype=bool)
    groups = np.unique(y, return_inverse=True)[1] if classes else np.zeros(len(y), dtype=int)
    for group in range(groups.max() + 1 if len(y) else 0):
        members = rng.permutation(np.flatnonzero(groups == group))
        marked[members[: min(round(size * len(members)), len(members) - 1)]] = True
    return marked


def untested(y: np.ndarray, asked: np.ndarray) -> list[str]:
    """A note on the classes with too few rows to give any to the test.

    >>> import numpy as np
    >>> untested(np.array(["a", "a", "b"]), np.array([True, False, False]))
    ["1 class(es) have too few rows to be tested and stay in training: 'b'."]
    """
    small = absent_labels(y, y[asked])
    if not len(small) or not asked.any():
        return []
    return [
        f"{len(small):,} class(es) have too few rows to be tested and stay in training: "
        f"{show(small.tolist(), 5)}."
    ]


def known_labels(
    y: np.ndarray, y_train: np.ndarray, name: str
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Labels of another file as the training file has them, which it knows, and notes on both.

    >>> import numpy as np
    >>> known_labels(np.array(["a", "c"]), np.array(["a", "b"]), "t.csv")[1:]
    (array([ True, False]), ["1 row(s) of t.csv have labels that training never saw ('c'): left \
out."])
    """
    as_read = y.astype(str)
    y, known, said = same_labels(y, y_train)
    notes = [said] if said else []
    if not known.all():
        notes.append(
            f"{int((~known).sum()):,} row(s) of {name} have labels that training never saw "
            f"({show(np.unique(as_read[~known]).tolist(), 3)}): left out."
        )
    return y, known, notes


@dataclass(frozen=True)
class _Maker:
    table: Table
    columns: Sequence[Column]
    label: Column
    y_train: np.ndarray
    notes: list[str]

    def part(
        self, rows: np.ndarray, other: Table | None, what: str
    ) -> tuple[np.ndarray, pd.DataFrame | None, np.ndarray | None, Table | None]:
        """Features and labels of rows of this table, or of all usable rows of another file."""
        if other is None:
            if not len(rows):
                return rows, None, None, None
            X = feature_frame(self.table, self.columns, rows)
            return rows, X, label_values(self.table, self.label.name, self.label.detail, rows), None
        other = self._aligned(other, what)
        rows = np.setdiff1d(np.arange(len(other)), np.asarray(other.ragged, dtype=np.int64))
        if self.label.name not in other.names:
            self.notes.append(
                f"{other.path.name} has no label column: the model's own predictions are "
                "questioned."
            )
            return rows, feature_frame(other, self.columns, rows), None, other
        rows = np.intersect1d(rows, np.flatnonzero(~other.missing(self.label.name)))
        y = label_values(other, self.label.name, self.label.detail, rows)
        if self.label.detail == "classes":
            y, known, said = known_labels(y, self.y_train, other.path.name)
            self.notes.extend(said)
            rows, y = rows[known], y[known]
        if len(rows) < len(other):
            self.notes.append(
                f"{len(other) - len(rows):,} of {len(other):,} rows of {other.path.name} were "
                "left out."
            )
        if not len(rows):
            raise ExemplaError(f"{other.path.name} has no row with a label; is it the right file?")
        return rows, feature_frame(other, self.columns, rows), y, other

    def _aligned(self, other: Table, what: str) -> Table:
        needed = [column.name for column in self.columns if column.kind in FEATURES]
        absent = [name for name in needed if name not in other.names]
        if not absent:
            return other
        if len(other.names) == len(self.table.names) and not (self.table.header and other.header):
            # One of the two has no header: columns are the same by position.
            self.notes.append(f"Columns of {other.path.name} were matched by position.")
            return replace(other, data=other.data.rename_columns(list(self.table.names)))
        other = borrow_names(other, self.table)
        raise ExemplaError(
            f"The {what} file {other.path.name} lacks the column(s) {show(absent)} of "
            f"{self.table.path.name}; give a file with the same columns."
        )
