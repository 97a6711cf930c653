"""Excel workbooks (.xlsx): the first sheet is the table.

Needs openpyxl, from the extra [excel]. Cells have the values that Excel last computed. An export
keeps formulas, sheets and formats, but not every byte: the zip archive is written anew.
"""

from __future__ import annotations

import datetime as dt
import io
import zipfile
import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa

from exempla.errors import ExemplaError
from exempla.tables.formats.columnar import OnDisk, fingerprint
from exempla.tables.formats.encoding import check_limit
from exempla.tables.table import Edits, Table, column_names


def is_workbook(path: Path) -> bool:
    """Return True for an Excel workbook; a damaged archive counts if its name says so."""
    try:
        with zipfile.ZipFile(path) as archive:
            return "xl/workbook.xml" in archive.namelist()
    except (OSError, ValueError, zipfile.BadZipFile):
        return path.suffix.lower() in (".xlsx", ".xlsm")


class _XlsxSource(OnDisk):
    """Changes cells and removes rows of the first sheet."""

    def rewrite(self, edits: Edits) -> bytes:
        book = _opened(io.BytesIO(self.original()), self.path, values=False)
        sheet, first = book.worksheets[0], _first_row(book.worksheets[0])
        rows = [number for number, _ in _rows(sheet, first)]
        for row, cells in edits.cells.items():
            for column, label in cells.items():
                cell = sheet.cell(rows[row], column + 1)
                cell.value = _typed(label, cell.value)
        for row in sorted(edits.removed, reverse=True):
            sheet.delete_rows(rows[row])
        out = io.BytesIO()
        book.save(out)
        return out.getvalue()


def read_xlsx(path: Path) -> Table:
    """Read the first sheet of a workbook; its first non-empty row is the header."""
    filled = _check_size(path)
    book = _opened(path, path, values=True)
    sheet = book.worksheets[0]
    if sheet.max_row * sheet.max_column > max(_MAX_EMPTY_CELLS, _MAX_SPAN_PER_CELL * filled):
        raise ExemplaError(
            f"The sheet {sheet.title!r} of {path.name} spans {sheet.max_row:,} rows and "
            f"{sheet.max_column:,} columns, but only {filled:,} cells hold a value. Delete the "
            "stray cells far from the table, or save the table as CSV."
        )
    first = _first_row(sheet)
    titles = [_text(cell.value) or "" for cell in sheet[first]] if first else []
    rows = [cells for _, cells in _rows(sheet, first)] if first else []
    if not rows:
        raise ExemplaError(f"The first sheet of {path.name} has no rows below its header.")
    check_limit("columns", len(titles), path.name)
    names, said = column_names(titles, len(titles))
    columns = [pa.array([row[i] for row in rows], type=pa.string()) for i in range(len(titles))]
    others = len(book.sheetnames) - 1
    more = f", the first of {others + 1} sheets" if others else ""
    return Table(
        path=path,
        format="xlsx",
        data=pa.table(columns, names=names),
        source=_XlsxSource(path, fingerprint(path)),
        notes=(f"Read the sheet {sheet.title!r} of {path.name}{more}.", *said),
        index=(names[0],) if not titles[0] else (),
    )


def _opened(file: Any, path: Path, *, values: bool) -> Any:
    try:
        import openpyxl
    except ImportError:
        raise ExemplaError(
            f"{path.name} is an Excel workbook, and openpyxl, which reads it, is not installed: "
            "pip install 'exempla[excel]', or save the sheet as CSV."
        ) from None
    try:
        return openpyxl.load_workbook(file, data_only=values, keep_links=False)
    except Exception as error:
        said = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise ExemplaError(f"{path.name} cannot be read as an Excel workbook ({said}).") from None


_MAX_EMPTY_CELLS = 1_000_000
"""Cells that any sheet may span."""
_MAX_SPAN_PER_CELL = 20
"""Cells that a larger sheet may span per cell with a value."""


def _check_size(path: Path) -> int:
    """Refuse an archive that unpacks to too many bytes; return its number of stored cells."""
    try:
        with zipfile.ZipFile(path) as archive:
            check_limit("unpacked", sum(item.file_size for item in archive.infolist()), path.name)
            sheets = [name for name in archive.namelist() if name.startswith("xl/worksheets/")]
            return sum(archive.read(name).count(b"<c ") for name in sheets)
    except (OSError, ValueError, RuntimeError, zlib.error, zipfile.BadZipFile) as error:
        if isinstance(error, ExemplaError):
            raise
        return 0  # openpyxl reports what is wrong with the file


def _first_row(sheet: Any) -> int:
    """Return the number of the first non-empty row; 0 if there is none."""
    for cells in sheet.iter_rows():
        if any(cell.value is not None for cell in cells):
            return int(cells[0].row)
    return 0


def _rows(sheet: Any, first: int) -> list[tuple[int, list[str | None]]]:
    """Return the non-empty rows below the header, with their numbers in the sheet."""
    rows = (
        (int(cells[0].row), [_text(cell.value) for cell in cells])
        for cells in sheet.iter_rows(min_row=first + 1, max_col=sheet.max_column)
    )
    return [row for row in rows if any(value is not None for value in row[1])]


def _text(value: Any) -> str | None:
    """Return a cell as text: whole numbers without a fraction, dates in ISO format."""
    if value is None:
        return None
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return str(int(value))
    if isinstance(value, dt.datetime):
        return value.isoformat(sep=" ").removesuffix(" 00:00:00")
    return str(value)


def _typed(label: str, old: Any) -> Any:
    """Return the new value in the type of the old one, if it fits."""
    if isinstance(old, bool):
        return {"true": True, "false": False}.get(label.casefold(), label)
    if isinstance(old, int | float):
        try:
            return float(label) if "." in label else int(label)
        except ValueError:
            return label
    return label
