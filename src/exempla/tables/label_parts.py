"""Files whose rows have several labels, or a label for every token.

A layout, which review.json contains as well, says how a file stores them:

    {"kind": "columns", "names": […], "spelt": {name: [absent, present]}}   a column for each label
    {"kind": "delimited", "column": …, "separator": ";", "names": […]}      a list in one column
    {"kind": "tokens", "tokens": …, "labels": …}                            JSON lines with lists
    {"kind": "conll", "token": 0, "label": -1}                              a token per line

Only the labels with a decision change; all other bytes stay.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from sklearn.preprocessing import MultiLabelBinarizer

from exempla.errors import ExemplaError
from exempla.io import parse_json
from exempla.tables.formats.columnar import OnDisk
from exempla.tables.formats.encoding import TextFile
from exempla.tables.formats.jsonl import JsonSource, replace_elements
from exempla.tables.read import read_table
from exempla.tables.table import Edits, Table, show

_YES, _NO = ("1", "1.0", "true", "yes", "y", "x"), ("0", "0.0", "false", "no", "n", "")
_CONLL = (".conll", ".conllu", ".conll03", ".iob", ".iob2", ".bio")
_Changes = Mapping[tuple[int, str | int], str]
"""(row, label name or token position) → "present" or "absent", or the new label of the token."""


def indicator(table: Table, layout: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the (rows, labels) indicator matrix and which rows have labels; complete `layout`."""
    if layout["kind"] == "delimited":
        return _delimited(table, layout), np.ones(len(table), dtype=bool)
    out = np.zeros((len(table), len(layout["names"])), dtype=np.int64)
    known = np.ones(len(table), dtype=bool)
    layout["spelt"] = {}
    for place, name in enumerate(layout["names"]):
        values = table.strings(name)
        plain = [(v or "").strip().casefold() for v in values]
        odd = sorted({v for v in plain if v not in _YES and v not in _NO})
        if odd:
            raise ExemplaError(
                f"The label column {name!r} has {show(odd, 3)}; with one column per label, values "
                "must be 0 or 1, yes or no. For several labels in one column, use "
                "--label-separator."
            )
        out[:, place] = [v in _YES for v in plain]
        known &= ~table.missing(name)
        layout["spelt"][name] = [
            next((v or "" for v, p in zip(values, plain, strict=True) if p and p in words), word)
            for words, word in ((_NO, "0"), (_YES, "1"))
        ]
    return out, known


def _delimited(table: Table, layout: dict[str, Any]) -> np.ndarray:
    """Return the indicator matrix of a column that lists labels."""
    column, mark = layout["column"], layout["separator"]
    values = table.strings(column)
    if not any(mark in (value or "") for value in values):
        raise ExemplaError(
            f"No value in column {column!r} contains the separator {mark!r}, so every row has a "
            "single label. Check --label-separator, or leave it out."
        )
    cells = [[p.strip() for p in (cell or "").split(mark) if p.strip()] for cell in values]
    names = sorted({name for cell in cells for name in cell})
    if len(names) < 2:
        raise ExemplaError(
            f"The column {column!r} has {'only one label' if names else 'no label'} when split at "
            f"{mark!r}; is that the separator?"
        )
    layout["names"] = names
    return np.asarray(MultiLabelBinarizer(classes=names).fit_transform(cells), dtype=np.int64)


class Sentences(NamedTuple):
    """The token lists of a file, their labels, the layout, and the file as it was read."""

    tokens: list[list[str]]
    labels: list[list[str]]
    layout: dict[str, Any]
    source: Table


def is_conll(path: str | Path) -> bool:
    """Return True if the file name has a CoNLL extension."""
    return Path(path).suffix.lower() in _CONLL


def read_sentences(
    path: str | Path, label: str | None = None, table: Table | None = None
) -> Sentences | None:
    """Return the token lists of a CoNLL file, or of JSON lines with lists; None if it has none.

    `table` is the file if it has been read already.
    """
    path = Path(path)
    if is_conll(path):
        return _read_conll(path, label)
    if not path.is_file() or ".json" not in "".join(path.suffixes).lower():
        return None
    table = read_table(path) if table is None else table
    name = label or next((n for n in ("labels", "ner_tags", "tags") if n in table.names), None)
    if "tokens" not in table.names or name is None or name not in table.names:
        return None
    rows = [[_listed(cell) for cell in table.strings(n)] for n in ("tokens", name)]
    if rows[0][0] is None or rows[1][0] is None:
        return None
    for row, (tokens, labels) in enumerate(zip(*rows, strict=True)):
        if tokens is None or labels is None or len(tokens) != len(labels):
            raise ExemplaError(
                f"Row {row} of {path.name} needs one of {name} per token; correct that line."
            )
    texts, labels = ([[str(v) for v in one or []] for one in part] for part in rows)
    layout = {"kind": "tokens", "tokens": "tokens", "labels": name}
    return Sentences(texts, labels, layout, table)


def _listed(cell: str | None) -> list[Any] | None:
    if not cell or not cell.startswith("["):
        return None
    try:
        return parse_json(cell)
    except ValueError:
        return None


def _read_conll(path: Path, label: str | None) -> Sentences:
    universal = path.suffix.lower() == ".conllu"
    layout = {"kind": "conll", "token": int(universal), "label": 3 if universal else -1}
    if label is not None:
        if not re.fullmatch(r"-?[1-9]\d*", label):
            raise ExemplaError(
                f"--label {label} is not a column of {path.name}; give its number, counted from 1."
            )
        layout["label"] = int(label) - (int(label) > 0)
    tokens: list[list[str]] = []
    labels: list[list[str]] = []
    for line, row, _, fields in _conll_tokens(_conll_text(path)[1]):
        if not fields:
            continue
        if len(fields) < 2 or not -len(fields) <= layout["label"] < len(fields):
            raise ExemplaError(
                f"A line of {path.name} has too few columns ({line.strip()[:40]!r}); each token "
                "needs a line with its label."
            )
        if row == len(tokens):
            tokens.append([])
            labels.append([])
        tokens[row].append(fields[layout["token"]][0])
        labels[row].append(fields[layout["label"]][0])
    if not tokens:
        raise ExemplaError(f"{path.name} has no tokens.")
    source: Any = OnDisk(path, hashlib.sha256(path.read_bytes()).hexdigest())
    read = Table(path, "conll", pa.table({"tokens": [" ".join(one) for one in tokens]}), source)
    return Sentences(tokens, labels, layout, read)


def _conll_tokens(text: str) -> Iterator[tuple[str, int, int, list[tuple[str, int, int]]]]:
    """Yield each line with its sentence, its place there, and (text, start, end) of its columns.

    Blank lines, which end a sentence and count to it, have no columns; nor have comments, document
    marks, and multi-token words of CoNLL-U.
    """
    row = place = 0
    for line in text.splitlines(keepends=True):
        pattern = r"[^\t\r\n]+" if "\t" in line else r"\S+"
        fields = [
            (m.group(), m.start(), m.end()) for m in re.finditer(pattern, line) if m.group().strip()
        ]
        if not fields:
            yield line, row if place else -1, place, []
            row, place = row + (place > 0), 0
        elif line.startswith(("# ", "-DOCSTART-")) or re.fullmatch(r"\d+[-.]\d+", fields[0][0]):
            yield line, -1, place, []
        else:
            yield line, row, place, fields
            place += 1


def _conll_text(path: Path) -> tuple[TextFile, str]:
    if not path.is_file():
        raise ExemplaError(f"There is no file {str(path)!r}; check the name.")
    return TextFile.read(path)


def span_of(tokens: Sequence[str], place: int) -> tuple[int, int]:
    """Return the position of a token in the tokens joined by spaces."""
    start = sum(len(token) + 1 for token in tokens[:place])
    return start, start + max(len(tokens[place]), 1)


def changed(
    path: Path, layout: dict[str, Any], changes: _Changes, removed: set[int], **reading: Any
) -> bytes:
    """Return the file with these labels changed and these rows removed."""
    if layout["kind"] in ("conll", "tokens"):
        edit = _changed_conll if layout["kind"] == "conll" else _changed_lists
        return edit(path, layout, changes, removed)
    table = read_table(path, **reading)
    cells = _new_cells(table, layout, changes)
    edits = Edits(cells, frozenset(removed))
    return table.source.rewrite(edits) if edits.rows else table.source.original()


def _new_cells(table: Table, layout: dict[str, Any], changes: _Changes) -> dict[int, Any]:
    """Return the new cells, by row and column."""
    out: dict[int, dict[int, str]] = {}
    for (row, name), value in changes.items():
        cells = out.setdefault(row, {})
        if layout["kind"] == "columns":
            cells[table.position(name)] = layout["spelt"][name][value == "present"]
            continue
        place, mark = table.position(layout["column"]), layout["separator"]
        before = table.strings(layout["column"], [row])[0] or ""
        cell = cells.get(place, before)
        pieces = [piece.strip() for piece in cell.split(mark) if piece.strip()]
        pieces = [piece for piece in pieces if piece != name]
        pieces += [str(name)] if value == "present" else []
        cells[place] = (f"{mark} " if f"{mark} " in before else mark).join(pieces)
    return out


def _changed_lists(
    path: Path, layout: dict[str, Any], changes: _Changes, removed: set[int]
) -> bytes:
    """Change single elements of the label lists of JSON lines."""
    source = read_table(path).source
    assert isinstance(source, JsonSource)
    edits: dict[int, dict[int, str]] = {}
    for (row, place), value in changes.items():
        edits.setdefault(row, {})[int(place)] = value

    def edit(row: int, line: str) -> str:
        return "" if row in removed else replace_elements(line, layout["labels"], edits[row])

    return source.edited({*edits, *removed}, edit)


def _changed_conll(
    path: Path, layout: dict[str, Any], changes: _Changes, removed: set[int]
) -> bytes:
    file, text = _conll_text(path)
    out: list[str] = []
    for line, row, place, fields in _conll_tokens(text):
        if row in removed:
            continue
        if fields and (row, place) in changes:
            _, start, end = fields[layout["label"]]
            line = line[:start] + changes[row, place] + line[end:]
        out.append(line)
    return file.written("".join(out))
