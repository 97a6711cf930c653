"""Split a user's data into training, test and curated rows, by row numbers of the file.

Tables and images are split by the same rules. They differ only in how rows become model inputs:
tables have typed columns (`feature_frame`), images have pixels.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from exempla.data import absent_labels
from exempla.errors import ExemplaError
from exempla.images import as_image
from exempla.tables.dataset import read_table
from exempla.tables.formats.folder import load_images
from exempla.tables.infer import FEATURES, Column, label_of, label_values, same_labels, to_dates
from exempla.tables.table import (
    LARGEST,
    Table,
    encoded,
    is_text,
    missing_mask,
    pc,
    show,
    to_numbers,
)

_MISSING_LEVEL = "missing"


def feature_frame(
    table: Table, columns: Collection[Column], rows: np.ndarray | None = None
) -> pd.DataFrame:
    """Return typed features of some rows: floats, strings, dates; the index has the row numbers.

    Missing numbers and dates stay NaN and NaT; missing categories become "missing", text "".
    """
    used = [column for column in columns if column.kind in FEATURES]
    if not used:
        left = show([f"{column.name} ({column.kind})" for column in columns])
        raise ExemplaError(
            f"No usable feature column: {left}. Set the kind of one with --kind COLUMN=KIND."
        )
    rows = np.arange(len(table)) if rows is None else np.asarray(rows)
    data = {column.name: _typed(table, column, rows) for column in used}
    return pd.DataFrame(data, index=rows, copy=False)


def _typed(table: Table, column: Column, rows: np.ndarray) -> Any:
    values = table.column(column.name)
    if not np.array_equal(rows, np.arange(len(table))):
        values = values.take(pa.array(rows))
    if column.kind == "date":
        return to_dates(values, column.detail or None)
    missing = missing_mask(values)
    if column.kind == "number":
        if pa.types.is_integer(values.type) and not missing.any():
            return values.to_numpy()
        numbers = to_numbers(values, column.detail or ".")
        return np.where(np.abs(numbers) > LARGEST, np.nan, numbers)
    fill = "" if column.kind == "text" else _MISSING_LEVEL
    words = values if is_text(values) else pc.cast(values, pa.string())
    codes, levels = encoded(words)
    filled = np.array([*levels, fill], dtype=object)[codes]
    filled[missing] = fill
    # Plain Python strings work with every version of scikit-learn and every model.
    return pd.Series(filled, index=rows, dtype=object)


_YES = frozenset({"1", "1.0", "true", "yes", "y", "t", "x", "on"})
"""Values that mark a trusted row in a curated column."""


@dataclass(frozen=True)
class Split:
    """Rows, inputs and labels of each part.

    `train` holds rows of the table. `test` and `curated` hold rows of the table too, or of their
    own file if `test_table` or `curated_table` is set. Inputs are data frames, or pixel arrays for
    images. `y_test` is None if the test file has no labels.
    """

    train: np.ndarray
    X_train: Any
    y_train: np.ndarray
    test: np.ndarray
    X_test: Any
    y_test: np.ndarray | None
    curated: np.ndarray
    X_curated: Any
    y_curated: np.ndarray | None
    unlabelled: np.ndarray
    """Rows without a label: not used for training, exported unchanged."""
    test_table: Table | None = None
    curated_table: Table | None = None
    notes: tuple[str, ...] = ()
    asked: np.ndarray | None = None
    """Rows of the table that were held out because the query names them."""


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
    """Split a table, stratified by class, or take test and curated rows from other files.

    Without a `test` file, `test_size` of the rows are held out. `curated` is a file, or the name of
    a column that marks trusted rows with 1, yes, true or x. Rows of the table that are `held_out`
    are among the test rows.
    """
    label, notes = label_of(columns), []
    classes = label.detail == "classes"
    marked = np.arange(0)
    if isinstance(curated, str) and curated in table.names:
        marked = marked_rows(table, curated)
        mark = Column(curated, "ignored", "marks trusted rows")
        columns, curated = [mark if c.name == curated else c for c in columns], None
    kind = _ImageRows if table.is_images else _TableRows
    data = kind(table, columns, label, notes)
    unlabelled = np.flatnonzero(table.missing(label.name))
    if len(unlabelled):
        notes.append(
            f"{len(unlabelled):,} row(s) have no label (rows {show(unlabelled.tolist(), 5)}): not "
            "used for training, exported unchanged."
        )
    trusted = np.intersect1d(marked, data.rows)
    pool = np.setdiff1d(data.rows, trusted)
    asked = np.zeros(len(pool), dtype=bool)
    if test is None:
        if held_out is not None:
            _check_held_out(held_out, data.rows, len(table), label.name)
            trusted, pool = np.setdiff1d(trusted, held_out), np.union1d(pool, held_out)
        y = data.labels(pool)
        asked = _stratified(y, test_size, seed, classes=classes)
        if held_out is not None:
            asked |= np.isin(pool, held_out)
            if classes and len(gone := absent_labels(y, y[~asked])):
                raise ExemplaError(
                    f"You asked about all rows labelled {gone[0]!s}, so none is left for training; "
                    "ask about fewer of them."
                )
        if classes and asked.any() and len(small := absent_labels(y, y[asked])):
            notes.append(
                f"{len(small):,} class(es) have too few rows to be tested and stay in training: "
                f"{show(small.tolist(), 5)}."
            )
    train, y_train = pool[~asked], data.labels(pool[~asked])
    if len(y_train) == 0 or (classes and len(np.unique(y_train)) < 2):
        raise ExemplaError(
            f"Only {len(y_train):,} row(s) of a single class are left for training; use a smaller "
            "test or curated share."
        )
    X_train = data.inputs(train)

    def part(rows: np.ndarray, other: str | Path | Table | None) -> _Part:
        if other is not None:
            other = other if isinstance(other, Table) else read_table(other)
            return data.part_of(other, X_train, y_train)
        if not len(rows):
            return rows, None, None, None
        return rows, data.inputs(rows), data.labels(rows), None

    test_part, curated_part = part(pool[asked], test), part(trusted, curated)
    return Split(
        train, X_train, y_train, *test_part[:3], *curated_part[:3], unlabelled,
        test_table=test_part[3], curated_table=curated_part[3], notes=tuple(notes),
        asked=None if held_out is None else np.asarray(held_out),
    )  # fmt: skip


def _stratified(
    y: np.ndarray, size: float = 0.2, seed: int = 0, *, classes: bool = True
) -> np.ndarray:
    """Mark about `size` of every class for the test; each class keeps a row for training."""
    y = np.asarray(y)
    if not 0 <= size < 1:
        raise ExemplaError(f"The test size is {size}; give a fraction of at least 0 and below 1.")
    rng = np.random.default_rng(seed)
    marked = np.zeros(len(y), dtype=bool)
    groups = np.unique(y, return_inverse=True)[1] if classes else np.zeros(len(y), dtype=int)
    for group in range(groups.max() + 1 if len(y) else 0):
        members = rng.permutation(np.flatnonzero(groups == group))
        marked[members[: min(round(size * len(members)), len(members) - 1)]] = True
    return marked


def _check_held_out(rows: np.ndarray, usable: np.ndarray, length: int, label: str) -> None:
    """Raise if these rows cannot be held out for the query."""
    unusable = np.setdiff1d(rows, usable)
    if len(unusable):
        raise ExemplaError(
            f"Row {unusable[0]} has no label in {label!r}, so it cannot be asked about here; put "
            "such rows into a separate file and pass it with --ask FILE."
        )
    if len(rows) > length / 2:
        raise ExemplaError(
            f"You asked about {len(rows):,} of {length:,} rows, and rows that are asked about are "
            "not used for training; ask about fewer, or about a file of new rows."
        )


def _known_labels(
    y: np.ndarray, y_train: np.ndarray, name: str, notes: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """Spell the labels of another file as in training; return them and which are known."""
    as_read = y.astype(str)
    y, known, note = same_labels(y, y_train)
    notes += [note] if note else []
    if not known.all():
        notes.append(
            f"{int((~known).sum()):,} row(s) of {name} have labels that do not occur in training "
            f"({show(np.unique(as_read[~known]).tolist(), 3)}): left out."
        )
    return y, known


def marked_rows(table: Table, column: str) -> np.ndarray:
    """Return the rows that a curated column marks as trusted."""
    name, marks = table.names[table.position(column)], table.strings(column)
    rows = np.array([i for i, m in enumerate(marks) if m and m.strip().casefold() in _YES])
    if not len(rows):
        raise ExemplaError(
            f"No row is marked in the curated column {name!r}; mark trusted rows with 1."
        )
    return rows


_Part = tuple[np.ndarray, Any, "np.ndarray | None", "Table | None"]
"""Rows, inputs, labels, and the file they come from if it is not the main one."""


@dataclass(frozen=True)
class _TableRows:
    """Labelled rows of a table, with their typed features."""

    table: Table
    columns: Sequence[Column]
    label: Column
    notes: list[str]

    @property
    def rows(self) -> np.ndarray:
        return np.flatnonzero(~self.table.missing(self.label.name))

    def inputs(self, rows: np.ndarray) -> Any:
        return feature_frame(self.table, self.columns, rows)

    def labels(self, rows: np.ndarray) -> np.ndarray:
        return label_values(self.table, self.label.name, self.label.detail, rows)

    def part_of(self, other: Table, X_train: Any, y_train: np.ndarray) -> _Part:
        """Return all usable rows of another file."""
        other = self._aligned(other)
        rows = np.setdiff1d(np.arange(len(other)), np.asarray(other.ragged, dtype=np.int64))
        if self.label.name not in other.names:
            self.notes.append(
                f"{other.path.name} has no label column: the query uses the model's predictions."
            )
            return rows, feature_frame(other, self.columns, rows), None, other
        rows = np.intersect1d(rows, np.flatnonzero(~other.missing(self.label.name)))
        y = label_values(other, self.label.name, self.label.detail, rows)
        if self.label.detail == "classes":
            y, known = _known_labels(y, y_train, other.path.name, self.notes)
            rows, y = rows[known], y[known]
        if len(rows) < len(other):
            self.notes.append(
                f"{len(other) - len(rows):,} of {len(other):,} rows of {other.path.name} were "
                "left out."
            )
        if not len(rows):
            raise ExemplaError(f"{other.path.name} has no row with a label; is it the right file?")
        return rows, feature_frame(other, self.columns, rows), y, other

    def _aligned(self, other: Table) -> Table:
        """Return the other file with the columns of this one."""
        needed = [column.name for column in self.columns if column.kind in FEATURES]
        absent = [name for name in needed if name not in other.names]
        if not absent:
            return other
        if len(other.names) == len(self.table.names) and not (self.table.header and other.header):
            # One of the two has no header: columns are the same by position.
            self.notes.append(f"Columns of {other.path.name} were matched by position.")
            return replace(other, data=other.data.rename_columns(list(self.table.names)))
        raise ExemplaError(
            f"The file {other.path.name} lacks the column(s) {show(absent)} of "
            f"{self.table.path.name}; give a file with the same columns."
        )


class _ImageRows:
    """Readable images that have a label, in one size."""

    def __init__(
        self, table: Table, columns: Sequence[Column], label: Column, notes: list[str]
    ) -> None:
        if label.detail != "classes":
            raise ExemplaError("Images need classes as labels, not numbers; leave out --task.")
        self.label, self.notes = label, notes
        self.pixels, self.y, self.rows = self._loaded(table)

    def _loaded(
        self, table: Table, size: tuple[int, int] | None = None
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if table.images is None:
            images = load_images(table, size=size)
            self.notes.extend(images.notes)
            return images.pixels, images.labels, images.rows
        if self.label.name not in table.names:
            return table.images, np.zeros(len(table), dtype=str), np.arange(len(table))
        rows = np.flatnonzero(~table.missing(self.label.name))
        pixels = table.images if len(rows) == len(table) else table.images[rows]
        return pixels, label_values(table, self.label.name, "classes", rows), rows

    def inputs(self, rows: np.ndarray) -> np.ndarray:
        whole = len(rows) == len(self.rows)
        return self.pixels if whole else self.pixels[np.searchsorted(self.rows, rows)]

    def labels(self, rows: np.ndarray) -> np.ndarray:
        return self.y[np.searchsorted(self.rows, rows)]

    def part_of(self, other: Table, X_train: np.ndarray, y_train: np.ndarray) -> _Part:
        """Return the images of another file, in the size and colours of training."""
        pixels, labels, rows = self._loaded(other, X_train.shape[1:3])
        y, known = None, np.ones(len(rows), dtype=bool)
        if self.label.name in other.names:
            y, known = _known_labels(labels, y_train, other.path.name, self.notes)
        pixels = _in_colour_mode(pixels, grey=X_train.ndim == 3)
        if pixels.shape[1:] != X_train.shape[1:]:
            raise ExemplaError(
                f"Images of {other.path.name} have shape {pixels.shape[1:]}, the training images "
                f"{X_train.shape[1:]}; give images of one shape."
            )
        return rows[known], pixels[known], None if y is None else y[known], other


def _in_colour_mode(pixels: np.ndarray, grey: bool) -> np.ndarray:
    """Return the images in grey or in colour, as asked."""
    if grey == (pixels.ndim == 3):
        return pixels
    if grey:
        return np.stack([np.asarray(as_image(each).convert("L")) for each in pixels])
    return np.repeat(pixels[:, :, :, None], 3, axis=3)
