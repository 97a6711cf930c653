"""`Dataset`: a user's file or folder as examples that can be split, modelled and shown.

Tables, texts, images and token lists differ in how they are read. After that, every command of the
command line works on the same object: rows have numbers, labels and a `RowView`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa

from exempla.errors import ExemplaError
from exempla.report.views import (
    LONGEST_TEXT,
    Content,
    ImageView,
    View,
    mark_words,
    rounded,
    scaled,
)
from exempla.tables.formats.folder import safe_path
from exempla.tables.infer import Column, infer_columns, label_of
from exempla.tables.label_parts import Sentences, read_sentences
from exempla.tables.table import Table, show, to_strings

_OWN_LABELS = {"npz": "y", "images": "label"}
"""Formats whose label column has a fixed name."""
_MAX_NUMBER_LENGTH = 7
"""Characters up to which a number is shown as it is written in the file."""


@dataclass(frozen=True)
class RowView(View):
    """Show rows of a dataset, by row number of the file or by position among `rows`."""

    table: Table
    columns: tuple[Column, ...]
    rows: Any = None
    """Row numbers in the file if rows are shown by position; None if by row number."""
    words: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    strengths: Mapping[int, Mapping[str, float]] = field(default_factory=dict)
    longest: int = LONGEST_TEXT
    """Maximum number of characters shown of one text."""

    def _row(self, index: int) -> int:
        return int(index if self.rows is None else self.rows[index])

    def columns_of(self, index: int) -> dict[str, str | None]:
        """Return all cells of the row as in the file."""
        return self.table.row(self._row(index))

    def show(self, index: int) -> Content:
        """Return the row's text with decisive words marked, its cells, and its image."""
        row, values = self._row(index), self.columns_of(index)
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
        image: Any = None
        if self.table.format == "images":
            ids, image = [values["file"]], safe_path(self.table.path, values["file"] or "")
        elif self.table.images is not None:
            image = self._pixels.show(row).image
        return self._with(
            index,
            name=f"#{row}" + (f" · {ids[0]}" if ids and ids[0] else ""),
            pieces=tuple(pieces),
            cells=tuple(sorted(cells, key=lambda cell: -abs(cell[2]))),
            image=image,
        )

    @cached_property
    def _pixels(self) -> ImageView:
        return ImageView(self.table.images)  # finds the range of all values, once


def _shown(column: Column, value: str) -> str:
    """Return a cell for people: long numbers rounded, everything else as it is."""
    if column.kind != "number" or len(value) <= _MAX_NUMBER_LENGTH:
        return value
    try:
        return rounded(float(value.replace(",", ".") if column.detail == "," else value))
    except ValueError:
        return value


@dataclass(frozen=True)
class Dataset:
    """A user's file or folder with the meaning of its columns.

    One column is the label, unless rows have several labels or token labels: then `layout` says how
    the file holds them (see `exempla.tables.label_parts`). `sentences` has the token lists.

    >>> import tempfile, pathlib
    >>> from exempla.tables import read_table
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("size,y\\n" + "1,a\\n2,b\\n1,b\\n2,a\\n" * 5)
    >>> data = Dataset.of(read_table(path), "y")
    >>> len(data), data.label.name, data.view().show(1).cells
    (20, 'y', (('size', '2', 0.0),))
    """

    table: Table
    columns: list[Column]
    layout: dict[str, Any] | None = None
    sentences: Sentences | None = None

    @classmethod
    def of(
        cls,
        table: Table,
        label: str | None = None,
        text: Collection[str] = (),
        kinds: Mapping[str, str] | None = None,
        task: str = "auto",
    ) -> Dataset:
        """Infer the columns of a table that has one label per row."""
        name = label if label is not None else _OWN_LABELS.get(table.format)
        if name is None:
            raise ExemplaError(
                f"Say which column of {table.path.name} is the label with --label COLUMN; its "
                f"columns are {show(table.names, 12)}."
            )
        return cls(table, infer_columns(table, name, text, kinds, task))

    def __len__(self) -> int:
        return len(self.table)

    @property
    def name(self) -> str:
        """The file's name."""
        return self.table.path.name

    @property
    def is_images(self) -> bool:
        """Whether the examples are images."""
        return self.table.is_images

    @property
    def label(self) -> Column:
        """The column to predict."""
        return label_of(self.columns)

    @property
    def label_names(self) -> list[str]:
        """The columns that hold the labels."""
        if self.layout is None:
            return [self.label.name]
        if self.layout["kind"] == "columns":
            return list(self.layout["names"])
        return [str(self.layout.get("column") or self.layout.get("labels", "label"))]

    @property
    def regression(self) -> bool:
        """Whether the label is a number."""
        return self.layout is None and self.label.detail == "regression"

    def view(self, table: Table | None = None, **options: Any) -> RowView:
        """Return the view of this dataset, or of another file with the same columns.

        `options` are the remaining fields of `RowView`. Image folders show no columns.
        """
        table = self.table if table is None else table
        shown = [] if table.format == "images" else self.columns
        return RowView(table=table, columns=tuple(shown), **options)


def label_layout(table: Table, label: str | None, separator: str | None) -> dict[str, Any] | None:
    """Return how the rows of a table hold several labels; None if they have one label each.

    `label` names several columns, separated by commas, or one column whose labels `separator`
    separates.
    """
    if separator is not None:
        if label is None:
            raise ExemplaError("Say which column lists the labels with --label COLUMN.")
        name = table.names[table.position(label)]
        return {"kind": "delimited", "column": name, "separator": separator}
    if label is None or "," not in label or label in table.names:
        return None
    asked = [name.strip() for name in label.split(",") if name.strip()]
    names = [table.names[table.position(name)] for name in asked]
    if len(set(names)) < 2:
        raise ExemplaError(f"--label {label} names one column; several labels need two or more.")
    return {"kind": "columns", "names": names}


def read_sentence_table(path: str | Path, table: Table | None, label: str | None) -> Dataset | None:
    """Return the sentences of a CoNLL file, or of JSON lines already read; None if it has none."""
    found = read_sentences(path, label, table)
    if found is None:
        return None
    text = pa.table({"text": [" ".join(tokens) for tokens in found.tokens]})
    shown = replace(found.source, data=text)
    return Dataset(shown, [Column("text", "text", "tokens")], dict(found.layout), found)


_MIN_TYPO_LENGTH = 4
"""Shorter labels that differ by one letter are more likely different labels."""
_MAX_TYPO_SHARE = 0.05
"""A misspelt label has at most this share of the rows of the label it resembles."""
_MAX_SPELLINGS = 1_000
"""Distinct labels up to which spellings are compared."""


def spellings(table: Table, label: Column) -> dict[str, str]:
    """Return labels that look like another spelling of a label, with the label they resemble.

    Labels that differ only in case or surrounding spaces are one label. A rare label that differs
    from a frequent one by a single edit or by two swapped letters is a typing error.
    """
    if label.detail != "classes":
        return {}
    counts = Counter(v for v in to_strings(table.column(label.name)) if v and v.strip())
    if len(counts) > _MAX_SPELLINGS:
        return {}
    found: dict[str, str] = {}
    by_form: dict[str, str] = {}
    for value, _ in counts.most_common():
        form = " ".join(value.split()).casefold()
        if form in by_form:
            found[value] = by_form[form]
        else:
            by_form[form] = value
    totals = Counter(counts)
    for value, target in found.items():
        totals[target] += counts[value]
    for form, value in by_form.items():
        near = [
            other
            for other_form, other in by_form.items()
            if totals[value] <= _MAX_TYPO_SHARE * totals[other] and _is_typo(form, other_form)
        ]
        if len(near) == 1:
            found = {old: near[0] if new == value else new for old, new in found.items()}
            found[value] = near[0]
    return found


def _is_typo(word: str, other: str) -> bool:
    """Return True if two words differ by one edit or by two swapped neighbouring letters."""
    if len(word) < _MIN_TYPO_LENGTH or not word.isalpha() or word == other:
        return False
    length = min(len(word), len(other))
    start = next((i for i in range(length) if word[i] != other[i]), length)
    a, b = word[start:], other[start:]
    return a[1:] == b[1:] or a[1:] == b or a == b[1:] or (a[:2] == b[:2][::-1] and a[2:] == b[2:])


def merge_labels(table: Table, name: str, mapping: Mapping[str, str]) -> Table:
    """Return the table with labels respelt; the file itself is unchanged."""
    if name not in table.names:
        return table
    values = pa.array([v and mapping.get(v, v) for v in table.strings(name)], type=pa.string())
    place = table.names.index(name)
    return replace(table, data=table.data.set_column(place, name, values))
