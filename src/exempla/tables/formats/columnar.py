"""Parquet and NPZ files: columns keep their types; an export reads the file again."""

from __future__ import annotations

import hashlib
import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from exempla.errors import ExemplaError
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
                    values[row] = _typed(cells[column], _plain(field.type), field.name)
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


def _without_views(table: pa.Table, dictionaries: bool = True) -> pa.Table:
    """Return the table with string views as plain strings, which all of Arrow supports.

    Unless `dictionaries` are kept, their columns have plain values, too.
    """
    views = {pa.string_view(): pa.string(), pa.binary_view(): pa.binary()}
    for place, field in enumerate(table.schema):
        kind = views.get(field.type, field.type if dictionaries else _plain(field.type))
        if kind != field.type:
            table = table.set_column(place, field.with_type(kind), table.column(place).cast(kind))
    return table


def _plain(kind: Any) -> Any:
    return kind.value_type if pa.types.is_dictionary(kind) else kind


_BOOLEANS = {"true": True, "false": False, "1": True, "0": False}


def _typed(label: str, kind: Any, name: str) -> Any:
    """Return a label in the type of its column, of Arrow or NumPy; raise if it does not fit."""
    try:
        if kind in (pa.bool_(), np.dtype(bool)):
            return _BOOLEANS[label.casefold()]
        if isinstance(kind, np.dtype):
            return np.asarray(label).astype(kind)
        return pa.scalar(label).cast(kind).as_py()
    except (pa.ArrowException, KeyError, ValueError, OverflowError):
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
        data = _without_views(file.read(), dictionaries=False)
    except (pa.ArrowException, OSError) as error:
        raise ExemplaError(
            f"{path.name} cannot be read as a Parquet file: {_first(error)}."
        ) from None
    try:
        index = [n for n in data.schema.pandas_metadata["index_columns"] if isinstance(n, str)]
    except (ValueError, TypeError, KeyError, AttributeError):
        index = []
    if data.num_rows == 0:
        raise ExemplaError(f"{path.name} has no rows; give a file with data.")
    if len(set(data.column_names)) < data.num_columns:
        raise ExemplaError(f"{path.name} has two columns of the same name; rename one.")
    return Table(
        path=path,
        format="parquet",
        data=data.replace_schema_metadata(None),
        source=_ParquetSource(path, fingerprint(path)),
        notes=(f"Read {path.name} as Parquet, {data.num_columns} columns with their types.",),
        # An index of consecutive numbers is described instead of stored.
        index=tuple(name for name in index if name in data.column_names),
    )


def _first(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".")


class _NpzSource(OnDisk):
    """Changes `y`, and removes rows from every array that has one entry per row."""

    def rewrite(self, edits: Edits) -> bytes:
        raw = self.original()
        with np.load(io.BytesIO(raw), allow_pickle=False) as file:
            try:
                arrays = {name: file[name] for name in file.files}
            except ValueError:
                raise ExemplaError(
                    f"An array of {self.path.name} has Python objects, which can run code when "
                    "they are read; save the file without it."
                ) from None
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            packed = any(item.compress_type for item in archive.infolist())
        y, n = arrays["y"].copy(), len(arrays["y"])
        labels = {row: next(iter(cells.values())) for row, cells in edits.cells.items()}
        if y.dtype.kind == "U" and labels:
            y = y.astype(np.result_type(y.dtype, *(np.asarray(c).dtype for c in labels.values())))
        for row, label in labels.items():
            y[row] = _typed(label, y.dtype, "y")
        arrays["y"] = y
        if edits.removed:
            keep = np.setdiff1d(np.arange(n), [*edits.removed])
            arrays = {
                name: array[keep] if array.ndim and len(array) == n else array
                for name, array in arrays.items()
            }
        out = io.BytesIO()
        how = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
        with zipfile.ZipFile(out, "w", how) as archive:
            # Like np.savez, which fails for arrays called `file` and `allow_pickle`.
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, array, allow_pickle=False)
        return out.getvalue()


def read_npz(path: Path, labelled: bool = True) -> Table:
    """Read an NPZ with arrays `X` (n, d) or (n, h, w[, c]) and `y` (n,); pickles are refused.

    If `labelled` is False, `y` may be missing.
    """
    arrays = _arrays(path, labelled)
    x = _usable(arrays["X"], "X", path)
    y = _usable(arrays["y"], "y", path) if "y" in arrays else np.zeros(len(x))
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
    columns: dict[str, Any] = {}
    if x.ndim == 2:
        check_limit("columns", x.shape[1], path.name)
        columns = {f"x{i}": pa.array(np.ascontiguousarray(x[:, i])) for i in range(x.shape[1])}
    else:
        _check_images(x, path)
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


def _check_images(x: np.ndarray, path: Path) -> None:
    if x.dtype.kind not in "biuf":
        raise ExemplaError(f"The images X of {path.name} have type {x.dtype}; give numbers.")
    if x.ndim == 4 and x.shape[3] not in (1, 3, 4):
        raise ExemplaError(
            f"{path.name} has images of shape {x.shape[1:]}: give (rows, height, width, channels) "
            "with 1, 3 or 4 channels; np.moveaxis(X, 1, -1) puts channels last."
        )


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
    try:
        with zipfile.ZipFile(path) as archive:  # a small archive may unpack to too many bytes
            packed = [item.file_size for item in archive.infolist() if item.compress_type]
        check_limit("unpacked", sum(packed), path.name)
        with np.load(path, allow_pickle=False) as file:
            needed = ("X", "y") if labelled else ("X",)
            absent = [name for name in needed if name not in file.files]
            if absent:
                raise ExemplaError(
                    f"{path.name} has no array {show(absent)}, only {show(file.files)}; "
                    "save it with np.savez(path, X=…, y=…)."
                )
            return {name: file[name] for name in ("X", "y") if name in file.files}
    except ExemplaError:
        raise
    except Exception as error:
        raise ExemplaError(
            f"{path.name} cannot be read as an NPZ file ({_first(error)}); save plain arrays with "
            "np.savez(path, X=…, y=…). Python objects are refused because they can run code."
        ) from None
