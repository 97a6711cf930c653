"""How a report shows rows of the user's file: text, cells and images, with what decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from exempla.report.decisive import decisive_parts
from exempla.report.views import LONGEST_TEXT, Content, ImageView, View, mark_words, rounded
from exempla.tables import Column, Table
from exempla.tables.formats.folder import safe_path

__all__ = ["RowView", "decisive", "row_view"]

LONG_NUMBER = 7
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
    if column.kind != "number" or len(value) <= LONG_NUMBER:
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
