"""Parquet and NPZ files: columns keep their types; an export reads the file again."""

from __future__ import annotations

import hashlib
import io
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from exempla.errors import ExemplaError
from exempla.io import parse_json
from exempla.tables.formats.encoding import check_limit
from exempla.tables.table import Edits, Table, show


@dataclass(frozen=True)
class OnDisk:
    """A file that is read again when needed, and refused if it has changed."""

    path: Path
    sha256: str

    def original(self) -> bytes:
        raw = self.path.read_bytes() if self.path.is_file() else b""
        if hashlib.sha256(raw).hexdigest() != self.sha256:
            raise ExemplaError(
                f"{self.path.name} has changed since it was read; run the analysis again, or "
                "restore the file."
            )
        return raw


def fingerprint(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


class _ParquetSource(OnDisk):
    """Keeps the schema, the metadata, the compression and the size of row groups."""

    def rewrite(self, edits: Edits) -> bytes:
        file = pq.ParquetFile(io.BytesIO(self.original()))
        table, meta = _without_views(file.read()), file.metadata
        for column in {column for cells in edits.cells.values() for column in cells}:
            field = table.schema.field(column)
            values = table.column(column).to_pylist()
            for row, cells in edits.cells.items():
                if column in cells:
                    values[row] = _typed(cells[column], field.type, field.name)
            changed = pa.chunked_array([pa.array(values, type=_plain(field.type))]).cast(field.type)
            table = table.set_column(column, field, changed)
        if edits.removed:
            table = table.take(pa.array(np.setdiff1d(np.arange(len(table)), [*edits.removed])))
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
    """Return the table with string views as plain strings, which all of Arrow supports."""
    plain = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    for place, field in enumerate(table.schema):
        if field.type in plain:
            column = table.column(place).cast(plain[field.type])
            table = table.set_column(place, field.with_type(plain[field.type]), column)
    return table


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def _typed(label: str, kind: Any, name: str) -> Any:
    try:
        if pa.types.is_boolean(_plain(kind)):
            return _BOOLEANS[label.casefold()]
        return pa.scalar(label).cast(_plain(kind)).as_py()
    except (pa.ArrowException, KeyError):
        raise ExemplaError(
            f"The label {label!r} does not fit the column {name!r} of type {kind}."
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
        raise ExemplaError(
            f"{path.name} cannot be read as a Parquet file: {_first(error)}."
        ) from None
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
        notes=(f"Read {path.name} as Parquet, {data.num_columns} columns with their types.",),
        index=_index(data),
    )


def _index(data: pa.Table) -> tuple[str, ...]:
    """Return the columns that pandas wrote as the index of a frame."""
    try:
        stated = parse_json((data.schema.metadata or {}).get(b"pandas", b"{}"))
        found = stated.get("index_columns", [])
    except (ValueError, AttributeError):
        return ()
    # an index of consecutive numbers is described instead of stored
    return tuple(name for name in found if isinstance(name, str) and name in data.column_names)


def _first(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")


class _NpzSource(OnDisk):
    """Changes `y`, and removes rows from every array that has one entry per row."""

    def rewrite(self, edits: Edits) -> bytes:
        raw = self.original()
        with np.load(io.BytesIO(raw), allow_pickle=False) as file:
            arrays = {name: _plain_array(file, name, self.path) for name in file.files}
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            packed = any(item.compress_type for item in archive.infolist())
        y, n = arrays["y"].copy(), len(arrays["y"])
        labels = {row: next(iter(cells.values())) for row, cells in edits.cells.items()}
        if y.dtype.kind == "U" and labels:
            y = y.astype(np.result_type(y.dtype, *(np.asarray(c).dtype for c in labels.values())))
        for row, label in labels.items():
            y[row] = _npz_value(label, y.dtype)
        arrays["y"] = y
        if edits.removed:
            keep = np.setdiff1d(np.arange(n), [*edits.removed])
            arrays = {
                name: array[keep] if array.ndim and len(array) == n and name != "names" else array
                for name, array in arrays.items()
            }
        return _archived(arrays, zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED)


def _archived(arrays: Mapping[str, np.ndarray], how: int) -> bytes:
    # Like np.savez, which fails for arrays called `file` and `allow_pickle`.
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
            f"The array {name!r} of {path.name} has Python objects, which can run code when they "
            "are read; save the file without it."
        ) from None


def _npz_value(label: str, kind: np.dtype) -> Any:
    try:
        if kind.kind == "b":
            return _BOOLEANS[label.casefold()]
        return np.asarray(label).astype(kind)
    except (ValueError, KeyError, OverflowError):
        raise ExemplaError(f"The label {label!r} does not fit y, which has type {kind}.") from None


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
            f"X of {path.name} has shape {x.shape}, so it has no values. Save it with at least one "
            "column, or at least one pixel per image."
        )
    check_limit("columns", x.shape[1] if x.ndim == 2 else 1, path.name)
    if x.ndim > 2 and x.dtype.kind not in "biuf":
        raise ExemplaError(f"The images X of {path.name} have type {x.dtype}; give numbers.")
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
    """Refuse a small archive that unpacks to too many bytes."""
    try:
        with zipfile.ZipFile(path) as archive:
            held = [item for item in archive.infolist() if item.compress_type]
    except (OSError, ValueError, zipfile.BadZipFile):
        return  # not an archive: reading it reports that
    check_limit("unpacked", sum(item.file_size for item in held), path.name)


def _usable(array: np.ndarray, name: str, path: Path) -> np.ndarray:
    """Return the array in a type that tables and models support; refuse other types."""
    kind, size = array.dtype.kind, array.dtype.itemsize
    if kind not in "biufUSmM" or (name == "y" and kind in "mM"):
        remedy = "its real and imaginary parts" if kind == "c" else "plain numbers or words"
        raise ExemplaError(
            f"{name} of {path.name} has type {array.dtype}, which cannot be used; give {remedy}."
        )
    if kind == "S":
        try:
            return np.char.decode(array, "utf-8")
        except UnicodeDecodeError:
            raise ExemplaError(
                f"{name} of {path.name} has bytes that are not UTF-8 text; give strings."
            ) from None
    if kind == "f" and size not in (4, 8):  # half and long double are not supported everywhere
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
            f"{path.name} cannot be read as an NPZ file ({_first(error)}); save plain arrays with "
            "np.savez(path, X=…, y=…). Python objects are refused because they can run code."
        ) from None
