"""JSON lines: one object a line, values kept as the strings they were written as."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from exempla.errors import ExemplaError
from exempla.tables.formats.cells import json_spans, json_token
from exempla.tables.formats.dialect import lines
from exempla.tables.formats.encoding import Encoding, pack, sniff_encoding, unpack
from exempla.tables.formats.limits import check_limit, limit
from exempla.tables.table import Table

__all__ = ["JsonSource", "read_jsonl"]

WAY = "."
"""Between the keys of objects inside each other, in the name of a column."""


@dataclass(frozen=True)
class JsonSource:
    """The bytes of a JSONL file, its keys, and where each row stands in its text."""

    raw: bytes
    encoding: Encoding
    packing: str
    keys: tuple[str, ...]
    starts: np.ndarray
    ends: np.ndarray

    def original(self) -> bytes:
        return self.raw

    def rewrite(
        self,
        column: int,
        changes: Mapping[int, str],
        removed: Collection[int],
        *,
        excel_safe: bool = False,
    ) -> bytes:
        text = self.encoding.decode(unpack(self.raw, "the file")[0])
        pieces, done = [], 0
        for row in sorted({*changes, *removed}):
            start, end = int(self.starts[row]), int(self.ends[row])
            pieces.append(text[done:start])
            done = end
            if row not in removed:
                pieces.append(_replaced(text[start:end], self.keys[column], changes[row]))
        pieces.append(text[done:])
        return pack(self.encoding.encode("".join(pieces)), self.packing)


def _replaced(line: str, key: str, value: str) -> str:
    spans = json_spans(line)
    if key in spans:
        start, end = spans[key]
        return line[:start] + json_token(value, line[start:end]) + line[end:]
    for outer, (start, end) in spans.items():  # the value may stand in an object inside this one
        if key.startswith(f"{outer}{WAY}") and line[start] == "{":
            inner = _replaced(line[start:end], key.removeprefix(f"{outer}{WAY}"), value)
            return line[:start] + inner + line[end:]
    # The row has no such key yet: it becomes the last one.
    at = line.rindex("}")
    entry = f"{json.dumps(key, ensure_ascii=False)}: {json_token(value, '')}"
    return f"{line[:at].rstrip()}{', ' if spans else ''}{entry}{line[at:]}"


def read_jsonl(path: Path, raw: bytes, *, encoding: str | None) -> Table:
    """Read one JSONL file; objects inside others become columns, lists stay as their JSON text."""
    content, packing = unpack(raw, path.name)
    found, text = sniff_encoding(content, encoding, path.name)
    if not text.strip():
        raise ExemplaError(f"{path.name} is empty: it needs at least one JSON object.")
    if text.lstrip().startswith("["):
        raise ExemplaError(
            f"{path.name} is one JSON list, not JSON lines; write one object per line "
            "(`jq -c '.[]' in.json > out.jsonl`)."
        )
    starts: list[int] = []
    ends: list[int] = []
    columns: dict[str, list[str | None]] = {}
    filled, most = 0, limit("gaps")
    mark, before = [0], 0
    decoder = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=str)
    for number, line in enumerate(lines(text, mark), start=1):
        if line.strip():
            row = len(starts)
            found_row = _object(decoder, line, number, path.name)
            for key, value in flattened(found_row, number, path.name):
                values = columns.setdefault(key, [])
                values.extend([None] * (row - len(values)))  # the rows that lacked it
                values.append(_string(value, path.name))
                filled += 1
            starts.append(before)
            ends.append(mark[0])
            if len(starts) * len(columns) - filled > most:
                check_limit("gaps", None, path.name)
        before = mark[0]
    for values in columns.values():
        values.extend([None] * (len(starts) - len(values)))
    check_limit("columns", len(columns), path.name)
    if not columns:
        raise ExemplaError(f"{path.name} holds only empty objects; each needs keys and values.")
    return Table(
        path=path,
        format="jsonl",
        data=pa.table({key: _array(values) for key, values in columns.items()}),
        source=JsonSource(raw, found, packing, tuple(columns), np.array(starts), np.array(ends)),
        notes=(f"Read {path.name} as JSON lines, {found}.", *found.notes),
    )


def flattened(value: dict[str, Any], number: int, name: str) -> Iterator[tuple[str, Any]]:
    """Keys and values of an object, with those of objects inside it by their way: `user.age`.

    >>> list(flattened({"y": "1", "user": {"age": "3", "tags": ["a"]}}, 1, "a.jsonl"))
    [('y', '1'), ('user.age', '3'), ('user.tags', ['a'])]
    """
    seen: set[str] = set()
    pieces = deque(value.items())
    for inner in value.values():
        if isinstance(inner, dict):
            check_limit("depth", _depth(inner), name)
    while pieces:
        key, inner = pieces.popleft()
        if isinstance(inner, dict) and inner:
            pieces.extendleft((f"{key}{WAY}{k}", v) for k, v in reversed(inner.items()))
            continue
        if key in seen:
            raise ExemplaError(
                f"Line {number} of {name} has {key!r} both as a key and as the way to one inside "
                "another object; rename one of them."
            )
        seen.add(key)
        yield key, inner


def _object(decoder: json.JSONDecoder, line: str, number: int, name: str) -> dict[str, Any]:
    try:
        value = decoder.decode(line.strip())
    except RecursionError:
        value = check_limit("depth", None, name)
    except ValueError as error:
        raise ExemplaError(
            f"Line {number} of {name} is not JSON ({error}); every line must be one object."
        ) from None
    if not isinstance(value, dict):
        raise ExemplaError(f'Line {number} of {name} is no JSON object such as {{"text": …}}.')
    return value


def _string(value: Any, name: str) -> str | None:
    if value is None or isinstance(value, str):
        return value
    check_limit("depth", _depth(value), name)
    return json.dumps(value, ensure_ascii=False)  # true, false, and nested lists or objects


def _depth(value: Any) -> int:
    """How many lists and objects are inside each other, level by level."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, list | dict)]:
        depth += 1
        level = [e for each in level for e in (each.values() if isinstance(each, dict) else each)]
    return depth


def _array(values: list[str | None]) -> pa.ChunkedArray:
    try:
        return pa.chunked_array([pa.array(values, type=pa.string())])
    except UnicodeEncodeError:  # half a surrogate pair: legal in JSON, not in UTF-8
        mended = [v if v is None else v.encode("utf-8", "replace").decode() for v in values]
        return pa.chunked_array([pa.array(mended, type=pa.string())])
