"""`read_table` reads a file of any supported format."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from exempla.errors import ExemplaError
from exempla.tables.formats.columnar import read_npz, read_parquet
from exempla.tables.formats.delimited import read_delimited
from exempla.tables.formats.encoding import TextFile, named_format
from exempla.tables.formats.folder import read_folder
from exempla.tables.formats.jsonl import read_jsonl
from exempla.tables.formats.xlsx import is_workbook, read_xlsx
from exempla.tables.table import Table

_FOREIGN = {
    b"\xd0\xcf\x11\xe0": "an old Excel workbook; save the sheet as CSV",
    b"%PDF": "a PDF; give a table",
    b"\x89PNG": "an image; give the folder that holds it",
    b"\xff\xd8\xff": "an image; give the folder that holds it",
    b"ARROW1": "an Arrow IPC file; save it as Parquet",
    b"SQLite format 3": "an SQLite database; export the table as CSV",
}


def read_table(
    path: str | Path,
    *,
    encoding: str | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
    names: Sequence[str] | None = None,
    expected: Collection[str] = (),
    labelled: bool = True,
) -> Table:
    """Read a CSV, TSV, JSONL, Parquet, Excel or NPZ file or a folder of images.

    Text formats may be compressed (.gz, .bz2, .xz, or a .zip with one file). The format is detected
    from the content first and the name second.

    Parameters
    ----------
    encoding, delimiter
        Detected if None; ``table.notes`` reports both.
    header
        Whether the first row is the header; inferred from the rows if None.
    names
        Names for the columns, instead of those in the file.
    expected
        Columns you expect to find. A first row that contains one of them is a header, even if the
        same word is also a value below it.
    labelled
        Whether images need labels. If not, an NPZ may lack `y`, and images may lie in the folder
        itself; the table then has no label column.

    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "a.tsv"
    >>> _ = path.write_text("text\\tlabel\\nfine film\\tpos\\ndull film\\tneg\\n")
    >>> table = read_table(path)
    >>> table.notes[0], table.row(1)
    ('Read a.tsv as utf-8, tab-separated.', {'text': 'dull film', 'label': 'neg'})
    """
    path = _checked(path)
    if path.is_dir():
        return read_folder(path, labelled)
    with path.open("rb") as file:
        magic = file.read(16)
    if not magic:
        raise ExemplaError(f"{path.name} is empty: it needs a header and at least one row.")
    named = named_format(path)
    if magic.startswith(b"PAR1"):
        return read_parquet(path)
    if named == ".npz":
        return read_npz(path, labelled)
    for start, what in _FOREIGN.items():
        if magic.startswith(start):
            raise ExemplaError(f"{path.name} is {what}.")
    if named == ".parquet":
        raise ExemplaError(f"{path.name} is not a Parquet file, although its name says so.")
    if magic.startswith(b"PK\x03\x04") and is_workbook(path):
        return read_xlsx(path)
    file, text = TextFile.read(path, encoding)
    named = named_format(file.name)
    if named in (".jsonl", ".ndjson", ".json"):
        table = read_jsonl(path, file, text)
    else:
        how = {"delimiter": delimiter, "header": header, "names": names, "expected": expected}
        table = read_delimited(path, file, text, **how)
    given = {"encoding": encoding, "delimiter": delimiter}
    return replace(table, given={name: value for name, value in given.items() if value is not None})


_ADDRESS = re.compile(r"(?:https?|ftp|s3|gs|gcs|abfss?|hdfs|file):/{1,2}", re.IGNORECASE)


def _checked(path: str | Path) -> Path:
    """Return the path of a file or folder that can be read."""
    if found := _ADDRESS.match(str(path)):
        how = f"`curl -LO {path}`" if found.group().lower().startswith("http") else "its own tool"
        raise ExemplaError(
            f"{path} is a URL, and exempla downloads nothing; download it with {how}, then give "
            "the file."
        )
    path = Path(path)
    try:
        str(path).encode()
    except UnicodeEncodeError:
        raise ExemplaError(f"The name {str(path)!a} is not valid UTF-8; rename the file.") from None
    if not path.exists():
        near = path.parent if path.parent != path else Path()
        raise ExemplaError(f"There is no file {str(path)!r}; check the name, in {str(near)!r}.")
    if not path.is_file() and not path.is_dir():
        raise ExemplaError(
            f"{str(path)!r} is a pipe or a device, not a file; save its content to a file first."
        )
    return path


def borrow_names(table: Table, other: Table) -> Table:
    """Return the table with the column names of another file, if it has no header itself.

    The table is unchanged if it has a header, or if the other file has none or another width.
    """
    if table.header or not other.header or len(table.names) != len(other.names):
        return table
    return replace(
        table,
        data=table.data.rename_columns(list(other.names)),
        notes=(*table.notes, f"Column names were taken from {other.path.name}."),
    )
