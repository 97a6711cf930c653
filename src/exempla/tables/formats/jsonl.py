"""JSON lines: one object per line; values are kept as the strings they are written as."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from exempla.errors import ExemplaError
from exempla.io import parse_json
from exempla.tables.formats.encoding import TextFile, TextSource, check_limit, limit, lines
from exempla.tables.table import Edits, Table

_WAY = "."
"""Separates the keys of nested objects in the name of a column."""


@dataclass(frozen=True)
class JsonSource(TextSource):
    """Changes single values of JSON objects in their own style."""

    keys: tuple[str, ...]

    def rewrite(self, edits: Edits) -> bytes:
        def edit(row: int, line: str) -> str:
            if row in edits.removed:
                return ""
            for column, value in edits.cells[row].items():
                line = _replaced(line, self.keys[column], value)
            return line

        return self.edited(edits.rows, edit)


def _replaced(line: str, key: str, value: str) -> str:
    spans = _spans(line)
    if key in spans:
        start, end = spans[key]
        return line[:start] + _token(value, line[start:end]) + line[end:]
    for outer, (start, end) in spans.items():  # the value may be in a nested object
        if key.startswith(f"{outer}{_WAY}") and line[start] == "{":
            inner = _replaced(line[start:end], key.removeprefix(f"{outer}{_WAY}"), value)
            return line[:start] + inner + line[end:]
    # The row has no such key: it is added as the last one.
    at = line.rindex("}")
    entry = f"{json.dumps(key, ensure_ascii=False)}: {_token(value, '')}"
    return f"{line[:at].rstrip()}{', ' if spans else ''}{entry}{line[at:]}"


def replace_elements(line: str, key: str, values: Mapping[int, str]) -> str:
    """Return the line with some elements of the list `key` changed in their own style."""
    start, end = _spans(line)[key]
    listed = line[start:end]
    for place, value in values.items():
        listed = _replaced(listed, str(place), value)
    return line[:start] + listed + line[end:]


def read_jsonl(path: Path, file: TextFile, text: str) -> Table:
    """Read a JSONL file; nested objects become columns, lists stay JSON text."""
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
            for key, value in _flattened(_object(decoder, line, number, path.name)):
                values = columns.setdefault(key, [])
                if len(values) > len(starts):
                    raise ExemplaError(
                        f"Line {number} of {path.name} has {key!r} both as a key and as the path "
                        "of a nested one; rename one of them."
                    )
                values.extend([None] * (len(starts) - len(values)))  # rows without this key
                values.append(_string(value))
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
        raise ExemplaError(f"{path.name} has only empty objects; each needs keys and values.")
    return Table(
        path=path,
        format="jsonl",
        data=pa.table({key: _array(values) for key, values in columns.items()}),
        source=JsonSource(file, np.array(starts), np.array(ends), tuple(columns)),
        notes=(f"Read {path.name} as JSON lines, {file.encoding}.", *file.encoding.notes),
    )


def _flattened(value: dict[str, Any], way: str = "") -> Iterator[tuple[str, Any]]:
    """Yield keys and values of an object; nested keys are joined, as in `user.age`."""
    for key, inner in value.items():
        if isinstance(inner, dict) and inner:
            yield from _flattened(inner, f"{way}{key}{_WAY}")
        else:
            yield way + key, inner


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
        raise ExemplaError(f'Line {number} of {name} is not a JSON object such as {{"text": …}}.')
    check_limit("depth", _depth(value) - 1, name)
    return value


def _string(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, list) and (chat := _chat(value)):
        return chat
    return json.dumps(value, ensure_ascii=False)  # true, false, and nested lists or objects


def _chat(messages: list[Any]) -> str:
    """Return a list of chat messages as text, one message per line; "" if it is no such list."""
    lines = []
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            return ""
        content = message.get("content")
        if isinstance(content, list):  # parts of a message, of which some are text
            parts = [part.get("text") for part in content if isinstance(part, dict)]
            content = " ".join(part for part in parts if isinstance(part, str))
        lines.append(f"{message['role']}: {content if isinstance(content, str) else ''}")
    return "\n".join(lines)


def _depth(value: Any) -> int:
    """Return how deeply lists and objects are nested."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, list | dict)]:
        depth += 1
        level = [e for each in level for e in (each.values() if isinstance(each, dict) else each)]
    return depth


def _array(values: list[str | None]) -> pa.ChunkedArray:
    try:
        return pa.chunked_array([pa.array(values, type=pa.string())])
    except UnicodeEncodeError:  # half a surrogate pair: legal in JSON, not in UTF-8
        valid = [v if v is None else v.encode("utf-8", "replace").decode() for v in values]
        return pa.chunked_array([pa.array(valid, type=pa.string())])


def _spans(text: str) -> dict[str, tuple[int, int]]:
    """Return the position of each value of a JSON object or list on one line, by key or place."""
    decoder, spans, is_list = json.JSONDecoder(), {}, text.lstrip().startswith("[")
    mark = re.compile(r"[^ \t\r\n,:]")

    def past(at: int) -> int:
        found = mark.search(text, at)
        return found.start() if found else len(text)

    at = past(text.index("[" if is_list else "{") + 1)
    while text[at] not in "}]":
        key = str(len(spans))
        if not is_list:
            key, at = decoder.raw_decode(text, at)
            at = past(at)
        _, end = decoder.raw_decode(text, at)
        spans[key] = (at, end)
        at = past(end)
    return spans


def _token(value: str, old: str) -> str:
    """Write a new value in the style of the old one: a string stays a string, a number a number."""
    if not old.startswith('"'):
        try:
            if isinstance(parse_json(value), (int, float, bool)):
                return value
        except ValueError:
            pass
    # Non-ASCII characters are escaped only if the old value escaped them.
    return json.dumps(value, ensure_ascii="\\u" in old)
