"""Parquet and NPZ: columns keep their types, the file is read again when it is written back.

JSON lines: one object a line, values kept as the strings they were written as.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from exempla.errors import ExemplaError
from exempla.tables.formats.dialect import json_spans, json_token, lines
from exempla.tables.formats.encoding import (
    Encoding,
    check_limit,
    limit,
    pack,
    sniff_encoding,
    unpack,
)
from exempla.tables.table import Table, show


@dataclass(frozen=True)
class OnDisk:
    """A file too large to keep twice: read again when needed, refused if it changed."""

    path: Path
    sha256: str

    def original(self) -> bytes:
        raw = self.path.read_bytes() if self.path.is_file() else b""
        if hashlib.sha256(raw).hexdigest() != self.sha256:
            raise ExemplaError(
                f"{self.path.name} has changed since it was read, so its rows may be others; "
                "read it again, or restore it."
            )
        return raw


def fingerprint(path: Path) -> str:
    """SHA-256 of a file, read in pieces."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _ParquetSource(OnDisk):
    """Writes the same schema, metadata, compression and (about the same) row groups."""

    def rewrite(
        self,
        column: int,
        changes: Mapping[int, str],
        removed: Collection[int],
        *,
        excel_safe: bool = False,
    ) -> bytes:
        file = pq.ParquetFile(io.BytesIO(self.original()))
        table, meta = _without_views(file.read()), file.metadata
        field = table.schema.field(column)
        values = table.column(column).to_pylist()
        for row, label in changes.items():
            values[row] = _typed(label, field.type, field.name)
        changed = pa.chunked_array([pa.array(values, type=_plain(field.type))]).cast(field.type)
        table = table.set_column(column, field, changed)
        keep = np.setdiff1d(np.arange(len(table)), np.fromiter(removed, np.int64, len(removed)))
        if removed:
            table = table.take(pa.array(keep))
        group = meta.row_group(0)
        out = io.BytesIO()
        pq.write_table(
            table.cast(file.schema_arrow),
            out,
            compression=group.column(0).compression.lower().replace("uncompressed", "none"),
            row_group_size=max(1, group.num_rows),
        )
        return out.getvalue()


def _without_views(table: pa.Table) -> pa.Table:
    """The table with its views of strings as plain strings, which more of Arrow can handle."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    for place, field in enumerate(table.schema):
        if field.type in plain:
            column = table.column(place).cast(plain[field.type])
            table = table.set_column(place, field.with_type(plain[field.type]), column)
    return table


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


def _typed(label: str, kind: Any, name: str) -> Any:
    try:
        if pa.types.is_boolean(_plain(kind)):
            return {"true": True, "false": False, "1": True, "0": False}[label.casefold()]
        return pa.scalar(label).cast(_plain(kind)).as_py()
    except (pa.ArrowException, KeyError):
        raise ExemplaError(
            f"The label {label!r} does not fit column {name!r}, which holds {kind}."
        ) from None


def read_parquet(path: Path) -> Table:
    """Read a Parquet file; dictionary columns become plain strings."""
    try:
        file = pq.ParquetFile(path)
        meta = file.metadata
        sizes = [meta.row_group(i).total_byte_size for i in range(meta.num_row_groups)]
        check_limit("unpacked", sum(sizes), path.name)
        check_limit("columns", meta.num_columns, path.name)
        data = _without_views(file.read())
    except (pa.ArrowException, OSError) as error:
        raise ExemplaError(f"{path.name} is no readable Parquet file: {_first(error)}.") from None
    if data.num_rows == 0:
        raise ExemplaError(f"{path.name} has no rows; give a file with data.")
    if len(set(data.column_names)) < data.num_columns:
        raise ExemplaError(f"{path.name} has two columns of the same name; rename one.")
    for place, field in enumerate(data.schema):
        if pa.types.is_dictionary(field.type):
            data = data.set_column(
                place, field.name, data.column(place).cast(field.type.value_type)
            )
    return Table(
        path=path,
        format="parquet",
        data=data.replace_schema_metadata(None),
        source=_ParquetSource(path, fingerprint(path)),
        notes=(f"Read {path.name} as Parquet, {data.num_columns} columns with their own types.",),
        index=_index(data),
    )


def _index(data: pa.Table) -> tuple[str, ...]:
    """Columns that pandas wrote as the index of a frame: names of rows, no measurements."""
    try:
        told = json.loads((data.schema.metadata or {}).get(b"pandas", b"{}"))
        found = told.get("index_columns", [])
    except (ValueError, AttributeError):
        return ()
    # an index of consecutive numbers is described, not stored
    return tuple(name for name in found if isinstance(name, str) and name in data.column_names)


def _first(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")


class _NpzSource(OnDisk):
    """Changes `y`, and drops rows from every array that has one entry per row."""

    def rewrite(
        self,
        column: int,
        changes: Mapping[int, str],
        removed: Collection[int],
        *,
        excel_safe: bool = False,
    ) -> bytes:
        raw = self.original()
        with np.load(io.BytesIO(raw), allow_pickle=False) as file:
            arrays = {name: _plain_array(file, name, self.path) for name in file.files}
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            packed = any(item.compress_type for item in archive.infolist())
        y, n = arrays["y"].copy(), len(arrays["y"])
        if y.dtype.kind == "U" and changes:
            y = y.astype(np.result_type(y.dtype, *(np.asarray(c).dtype for c in changes.values())))
        for row, label in changes.items():
            y[row] = _npz_value(label, y.dtype)
        arrays["y"] = y
        if removed:
            keep = np.setdiff1d(np.arange(n), np.fromiter(removed, np.int64, len(removed)))
            arrays = {
                name: array[keep] if array.ndim and len(array) == n and name != "names" else array
                for name, array in arrays.items()
            }
        return _archived(arrays, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)


def _archived(arrays: Mapping[str, np.ndarray], how: int) -> bytes:
    # What np.savez does, which stumbles over arrays called `file` and `allow_pickle`.
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", how) as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)
    return out.getvalue()


def _plain_array(file: Any, name: str, path: Path) -> np.ndarray:
    try:
        return file[name]
    except ValueError:
        raise ExemplaError(
            f"The array {name!r} of {path.name} holds Python objects, which cannot be copied "
            "safely because they can run code; save the file without it."
        ) from None


def _npz_value(label: str, kind: np.dtype) -> Any:
    try:
        if kind.kind == "b":
            return {"true": True, "false": False, "1": True, "0": False}[label.casefold()]
        return np.asarray(label).astype(kind)
    except (ValueError, KeyError, OverflowError):
        raise ExemplaError(f"The label {label!r} does not fit y, which holds {kind}.") from None


def read_npz(path: Path, labelled: bool = True) -> Table:
    """Read an NPZ with arrays `X` (n, d) or (n, h, w[, c]) and `y` (n,); pickles are refused.

    If `labelled` is False, `y` may be missing.
    """
    arrays = _arrays(path, labelled)
    x, y = _usable(arrays["X"], "X", path), np.zeros(len(arrays["X"]))
    if "y" in arrays:
        y = _usable(arrays["y"], "y", path)
    if y.ndim != 1 or x.ndim not in (2, 3, 4) or len(x) != len(y) or len(y) == 0:
        raise ExemplaError(
            f"{path.name} needs X of shape (rows, columns) or (rows, height, width[, channels]) "
            f"and y of shape (rows,); they are {x.shape} and {y.shape}."
        )
    if 0 in x.shape:
        raise ExemplaError(
            f"X of {path.name} has shape {x.shape}: it holds no values. Save it with at least one "
            "column, or at least one pixel per image."
        )
    check_limit("columns", x.shape[1] if x.ndim == 2 else 1, path.name)
    if x.ndim > 2 and x.dtype.kind not in "biuf":
        raise ExemplaError(f"The images X of {path.name} hold {x.dtype}; give numbers.")
    if x.ndim == 4 and x.shape[3] not in (1, 3, 4):
        raise ExemplaError(
            f"{path.name} has images of shape {x.shape[1:]}: give (rows, height, width, channels) "
            "with 1, 3 or 4 channels; np.moveaxis(X, 1, -1) puts channels last."
        )
    columns: dict[str, Any] = {}
    if x.ndim == 2:
        given = [str(name) for name in arrays.get("names", np.array([])).ravel()]
        names = given[: x.shape[1]] if len(given) >= x.shape[1] else []
        if len(set(names)) < len(names) or "y" in names or not names:
            names = [f"x{place}" for place in range(x.shape[1])]
        columns = {name: pa.array(np.ascontiguousarray(x[:, i])) for i, name in enumerate(names)}
    if "y" in arrays:
        columns["y"] = pa.array(y)
    elif x.ndim > 2:
        columns["image"] = pa.array(np.arange(len(x)))
    about_y = f"y {y.shape} {y.dtype}" if "y" in arrays else "no labels"
    return Table(
        path=path,
        format="npz",
        data=pa.table(columns),
        source=_NpzSource(path, fingerprint(path)),
        notes=(f"Read {path.name}: X {x.shape} {x.dtype}, {about_y}.",),
        images=None if x.ndim == 2 else x,
    )


def _check_unpacked(path: Path) -> None:
    """Refuse a small archive that claims to hold very much."""
    try:
        with zipfile.ZipFile(path) as archive:
            held = [item for item in archive.infolist() if item.compress_type]
    except (OSError, ValueError, zipfile.BadZipFile):
        return  # no archive at all: whoever reads it will say so
    check_limit("unpacked", sum(item.file_size for item in held), path.name)


def _usable(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """The array in a type that tables and models know; others are refused."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "biufUSmM" or (name == "y" and kind in "mM"):
        remedy = "its real and imaginary parts" if kind == "c" else "plain numbers or words"
        raise ExemplaError(
            f"{name} of {path.name} holds {array.dtype}, which cannot be used; give {remedy}."
        )
    if kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError:
            raise ExemplaError(
                f"{name} of {path.name} holds bytes that are no UTF-8 text; give words."
            ) from None
    if kind == "f" and size not in (4, 8):  # half and long double: neither is known everywhere
        return array.astype(np.float32 if size < 4 else np.float64)
    if kind in "mM":
        return array.astype(f"{kind}8[{'ns' if array.dtype.name.endswith('s]') else 's'}]")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _arrays(path: Path, labelled: bool) -> dict[str, np.ndarray]:
    _check_unpacked(path)
    try:
        with np.load(path, allow_pickle=False) as file:
            needed = ("X", "y") if labelled else ("X",)
            absent = [name for name in needed if name not in file.files]
            if absent:
                raise ExemplaError(
                    f"{path.name} has no array {show(absent)}, only {show(file.files)}; "
                    "save it with np.savez(path, X=…, y=…)."
                )
            return {name: file[name] for name in ("X", "y", "names") if name in file.files}
    except ExemplaError:
        raise
    except Exception as error:
        raise ExemplaError(
            f"{path.name} is no readable NPZ file ({_first(error)}); save plain arrays with "
            "np.savez(path, X=…, y=…), objects are refused because they can run code."
        ) from None


_WAY = "."
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
        if key.startswith(f"{outer}{_WAY}") and line[start] == "{":
            inner = _replaced(line[start:end], key.removeprefix(f"{outer}{_WAY}"), value)
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
            for key, value in _flattened(found_row, number, path.name):
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


def _flattened(value: dict[str, Any], number: int, name: str) -> Iterator[tuple[str, Any]]:
    """Keys and values of an object, with those of objects inside it by their way: `user.age`.

    >>> list(_flattened({"y": "1", "user": {"age": "3", "tags": ["a"]}}, 1, "a.jsonl"))
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
            pieces.extendleft((f"{key}{_WAY}{k}", v) for k, v in reversed(inner.items()))
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
    if isinstance(value, list) and (chat := _chat(value)):
        return chat
    return json.dumps(value, ensure_ascii=False)  # true, false, and nested lists or objects


def _chat(messages: list[Any]) -> str:
    """Return a list of chat messages as text, one message per line; "" if it is no such list.

    >>> _chat([{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}])
    'user: Hi\\nassistant: Hello'
    """
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
