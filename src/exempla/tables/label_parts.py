"""Files whose rows have several labels, or a label for every token: read, and written back.

How a file holds them is its layout, a dictionary that also goes into review.json:

    {"kind": "columns", "names": […], "spelt": {name: [absent, present]}}   a column for each label
    {"kind": "delimited", "column": …, "separator": ";", "names": […]}      one column, a list in it
    {"kind": "tokens", "tokens": …, "labels": …}                            JSON lines with lists
    {"kind": "conll", "token": 0, "label": -1}                              a token a line

Only what was decided on changes, byte for byte, as everywhere.
"""

from __future__ import annotations

import hashlib
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from exempla.errors import ExemplaError
from exempla.io import parse_json
from exempla.tables.formats.columnar import OnDisk
from exempla.tables.formats.encoding import pack, sniff_encoding, unpack
from exempla.tables.formats.jsonl import JsonSource, json_spans, json_token
from exempla.tables.read import read_table
from exempla.tables.table import Table, show, to_strings

__all__ = ["Sentences", "changed", "indicator", "read_sentences", "span_of"]

_YES, _NO = ("1", "1.0", "true", "yes", "y", "x"), ("0", "0.0", "false", "no", "n", "")
_CONLL = (".conll", ".conllu", ".conll03", ".iob", ".iob2", ".bio")
_Changes = Mapping[tuple[int, str | int], str]
"""(row, label's name or token's place) → "present" or "absent", or the token's new label."""


def indicator(table: Table, layout: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """(rows, labels) of zeros and ones, and which rows have labels at all; completes the layout.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("text,tags\\nfine day,sun; warm\\nrain,wet\\n")
    >>> layout = {"kind": "delimited", "column": "tags", "separator": ";"}
    >>> indicator(read_table(path), layout)[0].tolist(), layout["names"]
    ([[1, 1, 0], [0, 0, 1]], ['sun', 'warm', 'wet'])
    """
    return _columns(table, layout) if layout["kind"] == "columns" else _delimited(table, layout)


def _columns(table: Table, layout: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    out = np.zeros((len(table), len(layout["names"])), dtype=np.int64)
    known = np.ones(len(table), dtype=bool)
    layout["spelt"] = {}
    for place, name in enumerate(layout["names"]):
        values = to_strings(table.column(name))
        missing = table.missing(name)
        plain = [("" if v is None else v).strip().casefold() for v in values]
        odd = sorted({v for v in plain if v not in _YES and v not in _NO})
        if odd:
            raise ExemplaError(
                f"The label column {name!r} holds {show(odd, 3)}; a column for each label says 0 "
                "or 1, yes or no. One column with several labels needs --label-separator."
            )
        out[:, place] = [v in _YES for v in plain]
        known &= ~missing
        spelt = [
            next((v or "" for v, p in zip(values, plain, strict=True) if p and p in words), word)
            for words, word in ((_NO, "0"), (_YES, "1"))
        ]
        layout["spelt"][name] = spelt
    return out, known


def _delimited(table: Table, layout: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    column, mark = layout["column"], layout["separator"]
    values = to_strings(table.column(column))
    if not any(mark in (value or "") for value in values):
        raise ExemplaError(
            f"No value in column {column!r} contains the separator {mark!r}, so every row has a "
            "single label. Check --label-separator, or leave it out."
        )
    cells = [_pieces(cell, mark) for cell in values]
    names = sorted({name for cell in cells for name in cell})
    if len(names) < 2:
        raise ExemplaError(
            f"The column {column!r} holds {'one label' if names else 'no label'} in all when split "
            f"at {mark!r}; is that the separator?"
        )
    layout["names"] = names
    place = {name: i for i, name in enumerate(names)}
    out = np.zeros((len(table), len(names)), dtype=np.int64)
    for row, cell in enumerate(cells):
        out[row, [place[name] for name in cell]] = 1
    return out, np.ones(len(table), dtype=bool)


def _pieces(cell: str | None, mark: str) -> list[str]:
    return [piece.strip() for piece in (cell or "").split(mark) if piece.strip()]


class Sentences(NamedTuple):
    """Token lists of a file, and how it holds them."""

    tokens: list[list[str]]
    labels: list[list[str]]
    layout: dict[str, Any]
    source: Table
    """The file as it was read."""


def is_conll(path: str | Path) -> bool:
    """Whether the name is that of a file with a token a line."""
    return Path(path).suffix.lower() in _CONLL


def read_sentences(
    path: str | Path, label: str | None = None, table: Table | None = None
) -> Sentences | None:
    """Return the token lists of a CoNLL file, or of JSON lines with lists; None if it has none.

    `table` is the file if it has been read already.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.conll"
    >>> _ = path.write_text("Ada NNP PER\\ncame VBD O\\n\\nYes UH O\\n")
    >>> read_sentences(path).labels
    [['PER', 'O'], ['O']]
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
    rows = [[_listed(cell) for cell in to_strings(table.column(n))] for n in ("tokens", name)]
    if rows[0][0] is None or rows[1][0] is None:
        return None
    for row, (tokens, labels) in enumerate(zip(*rows, strict=True)):
        if tokens is None or labels is None or len(tokens) != len(labels):
            raise ExemplaError(
                f"Row {row} of {path.name} does not hold as many {name} as tokens; mend that line."
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
                f"--label {label} is no column of {path.name}: give its number, counted from 1."
            )
        layout["label"] = int(label) - (int(label) > 0)
    sentences: list[list[tuple[str, str]]] = [[]]
    for line in _conll_lines(path)[0]:
        fields = _fields(line)
        if not fields:
            if sentences[-1]:
                sentences.append([])
            continue
        if _outside(line, fields):
            continue
        if len(fields) < 2 or not -len(fields) <= layout["label"] < len(fields):
            raise ExemplaError(
                f"A line of {path.name} has too few columns ({line.strip()[:40]!r}); each token "
                "needs a line with its label."
            )
        sentences[-1].append((fields[layout["token"]][0], fields[layout["label"]][0]))
    full = [one for one in sentences if one]
    if not full:
        raise ExemplaError(f"{path.name} holds no tokens.")
    tokens, labels = ([[pair[i] for pair in one] for one in full] for i in (0, 1))
    source: Any = OnDisk(path, hashlib.sha256(path.read_bytes()).hexdigest())
    read = Table(path, "conll", pa.table({"tokens": [" ".join(one) for one in tokens]}), source)
    return Sentences(tokens, labels, layout, read)


def _conll_lines(path: Path) -> tuple[list[str], Any, str]:
    if not path.is_file():
        raise ExemplaError(f"There is no file {str(path)!r}; look for its name.")
    content, packing = unpack(path.read_bytes(), path.name)
    encoding, text = sniff_encoding(content, None, path.name)
    return text.splitlines(keepends=True), encoding, packing


def _fields(line: str) -> list[tuple[str, int, int]]:
    """(text, start, end) of each column."""
    pattern = r"[^\t\r\n]+" if "\t" in line else r"\S+"
    return [
        (m.group(), m.start(), m.end()) for m in re.finditer(pattern, line) if m.group().strip()
    ]


def _outside(line: str, fields: list[tuple[str, int, int]]) -> bool:
    """Comments, marks of documents, and CoNLL-U's words of several tokens."""
    first = fields[0][0]
    return line.startswith(("# ", "-DOCSTART-")) or bool(re.fullmatch(r"\d+[-.]\d+", first))


def span_of(tokens: Sequence[str], place: int) -> tuple[int, int]:
    """Where a token stands in the tokens joined by spaces.

    >>> span_of(["Ada", "came"], 1)
    (4, 8)
    """
    start = sum(len(token) + 1 for token in tokens[:place])
    return start, start + max(len(tokens[place]), 1)


def changed(
    path: Path, layout: dict[str, Any], changes: _Changes, removed: set[int], **reading: Any
) -> bytes:
    """The file with these labels changed and these rows gone."""
    if layout["kind"] == "conll":
        return _changed_conll(path, layout, changes, removed)
    if layout["kind"] == "tokens":
        return _changed_lists(path, layout, changes, removed)
    cells = _new_cells(read_table(path, **reading), layout, changes)
    with tempfile.TemporaryDirectory() as folder:
        here = Path(folder) / path.name
        here.write_bytes(path.read_bytes())
        for name, values in cells.items():
            table = read_table(here, **reading)
            here.write_bytes(table.source.rewrite(table.position(name), values, ()))
        if removed:
            table = read_table(here, **reading)
            here.write_bytes(table.source.rewrite(0, {}, frozenset(removed)))
        return here.read_bytes()


def _new_cells(
    table: Table, layout: dict[str, Any], changes: _Changes
) -> dict[str, dict[int, str]]:
    """Column → row → its new cell."""
    out: dict[str, dict[int, str]] = {}
    if layout["kind"] == "columns":
        for (row, name), value in changes.items():
            spelt = layout["spelt"][name][value == "present"]
            out.setdefault(str(name), {})[row] = spelt
        return out
    column = layout["column"]
    by_row: dict[int, list[tuple[Any, str]]] = {}
    for (row, part), value in changes.items():
        by_row.setdefault(row, []).append((part, value))
    rows = sorted(by_row)
    for row, cell in zip(rows, table.strings(column, rows), strict=True):
        new = _new_delimited(cell or "", by_row[row], layout["separator"])
        out.setdefault(column, {})[row] = new
    return out


def _new_delimited(cell: str, edits: list[tuple[Any, str]], mark: str) -> str:
    pieces = [piece for piece in cell.split(mark) if piece.strip()]
    gap = mark + " " if f"{mark} " in cell else mark
    for name, value in edits:
        pieces = [piece for piece in pieces if piece.strip() != name]
        if value == "present":
            pieces.append(name)
    return gap.join(piece.strip() for piece in pieces)


def _changed_lists(
    path: Path, layout: dict[str, Any], changes: _Changes, removed: set[int]
) -> bytes:
    """JSON lines with single elements of their lists of labels changed."""
    source = read_table(path).source
    assert isinstance(source, JsonSource)
    edits: dict[int, dict[int, str]] = {}
    for (row, place), value in changes.items():
        edits.setdefault(row, {})[int(place)] = value

    def edit(row: int, line: str) -> str:
        return "" if row in removed else _new_line(line, layout["labels"], edits[row])

    return source.edited({*edits, *removed}, edit)


def _new_line(line: str, key: str, edits: dict[int, str]) -> str:
    at = json_spans(line)[key][0] + 1
    decoder, spans = json.JSONDecoder(), []
    while True:
        at += len(line[at:]) - len(line[at:].lstrip(" \t\r\n,"))
        if line[at] == "]":
            break
        end = decoder.raw_decode(line, at)[1]
        spans.append((at, end))
        at = end
    for place in sorted(edits, reverse=True):
        start, end = spans[place]
        line = line[:start] + json_token(edits[place], line[start:end]) + line[end:]
    return line


def _changed_conll(
    path: Path, layout: dict[str, Any], changes: _Changes, removed: set[int]
) -> bytes:
    lines, encoding, packing = _conll_lines(path)
    out: list[str] = []
    row, place, inside = 0, 0, False
    for line in lines:
        fields = _fields(line)
        if not fields:
            gone = inside and row in removed
            row, place, inside = row + inside, 0, False
            if not gone:
                out.append(line)
            continue
        if _outside(line, fields):
            out.append(line)
            continue
        inside = True
        if (row, place) in changes:
            _, start, end = fields[layout["label"]]
            line = line[:start] + changes[row, place] + line[end:]
        if row not in removed:
            out.append(line)
        place += 1
    return pack(encoding.encode("".join(out)), packing)
