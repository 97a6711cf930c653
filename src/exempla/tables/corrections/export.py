"""Hand the data set back: only the cells that were decided on differ, byte for byte."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from exempla.errors import ExemplaError
from exempla.tables.corrections.decisions import Decision, checked
from exempla.tables.formats.folder import FolderSource
from exempla.tables.table import Table

__all__ = ["corrected", "export"]


def export(
    table: Table,
    decisions: Iterable[Decision],
    path: str | Path,
    *,
    label: str,
    excel_safe: bool = False,
) -> Path:
    """Write the corrected data set in the input's own format and return the path.

    No decisions: the same bytes. A relabelled cell is written in its own quoting style; a removed
    row disappears with its line end; everything else is untouched. An image folder is copied,
    each relabelled image into its new class.

    `excel_safe` puts an apostrophe before cells that a spreadsheet would run as formulas (CSV and
    TSV only); without it such cells are exported unaltered.

    >>> import tempfile, pathlib
    >>> from exempla.tables import Decision, read_table
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_bytes(b'id,y\\r\\n007,"ham"\\r\\n008,ham\\r\\n')
    >>> table = read_table(folder / "a.csv")
    >>> export(table, [Decision(0, "relabel", "spam")], folder / "b.csv", label="y").read_bytes()
    b'id,y\\r\\n007,"spam"\\r\\n008,ham\\r\\n'
    """
    path = Path(path)
    if path.exists() and table.path.exists() and path.samefile(table.path):
        raise ExemplaError(f"{path.name} is the original; export to another name.")
    if isinstance(table.source, FolderSource):
        table.source.copy_to(path, *_edits(table, decisions, label))
        return path
    _write(path, corrected(table, decisions, label=label, excel_safe=excel_safe))
    return path


def corrected(
    table: Table, decisions: Iterable[Decision], *, label: str, excel_safe: bool = False
) -> bytes:
    """The bytes that `export` writes."""
    changes, removed = _edits(table, decisions, label)
    if excel_safe and table.format not in ("csv", "tsv"):
        raise ExemplaError(f"excel_safe is for CSV and TSV files, not for {table.format}.")
    if not changes and not removed and not excel_safe:
        return table.source.original()
    place = table.position(label)
    return table.source.rewrite(place, changes, removed, excel_safe=excel_safe)


def _edits(
    table: Table, decisions: Iterable[Decision], label: str
) -> tuple[dict[int, str], frozenset[int]]:
    found = checked(table, decisions)
    name = table.names[table.position(label)]
    fixed = {"npz": "y", "images": "label"}.get(table.format, name)
    if name != fixed:
        raise ExemplaError(f"In this format only the column {fixed!r} can be corrected.")
    relabelled = [decision for decision in found if decision.action == "relabel"]
    old = table.strings(name, [decision.row for decision in relabelled]) if relabelled else []
    # A cell that already says so is not touched, whatever its quoting.
    changes = {
        decision.row: str(decision.new_label)
        for decision, before in zip(relabelled, old, strict=True)
        if before != str(decision.new_label)
    }
    return changes, frozenset(decision.row for decision in found if decision.action == "remove")


def _write(path: Path, data: bytes) -> None:
    # All or nothing: a crash while writing leaves no half file under the final name.
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
