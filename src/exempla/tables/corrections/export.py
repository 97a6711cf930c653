"""Hand the data set back: only the cells that were decided on differ, byte for byte."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from exempla.atomic import make_folder, write_bytes
from exempla.errors import ExemplaError
from exempla.tables.corrections.decisions import Decision, checked
from exempla.tables.corrections.tree import replace_tree
from exempla.tables.formats.folder import FolderSource
from exempla.tables.table import Table

__all__ = ["corrected", "export", "refuse_input"]


def export(
    table: Table,
    decisions: Iterable[Decision],
    path: str | Path,
    *,
    label: str,
    excel_safe: bool = False,
    replace_own: bool = False,
) -> Path:
    """Write the corrected data set in the input's own format and return the path.

    No decisions: the same bytes. A relabelled cell is written in its own quoting style; a removed
    row disappears with its line end; everything else is untouched. An image folder is copied,
    each relabelled image into its new class. What is written appears whole or not at all, and a
    link at `path` is replaced, not followed.

    `excel_safe` puts an apostrophe before cells that a spreadsheet would run as formulas (CSV and
    TSV only); without it such cells are exported unaltered. `replace_own` lets a folder of images
    take the place of one that an earlier export made and nobody altered since.

    >>> import tempfile, pathlib
    >>> from exempla.tables import Decision, read_table
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_bytes(b'id,y\\r\\n007,"ham"\\r\\n008,ham\\r\\n')
    >>> table = read_table(folder / "a.csv")
    >>> export(table, [Decision(0, "relabel", "spam")], folder / "b.csv", label="y").read_bytes()
    b'id,y\\r\\n007,"spam"\\r\\n008,ham\\r\\n'
    """
    path = Path(path)
    refuse_input(path, table.path)
    source = table.source
    if isinstance(source, FolderSource):
        edits = _edits(table, decisions, label)

        def fill(folder: Path) -> None:
            source.copy_to(folder, *edits)

        return replace_tree(path, fill, replace_own=replace_own)
    data = corrected(table, decisions, label=label, excel_safe=excel_safe)
    make_folder(path.parent)
    return write_bytes(path, data)


def refuse_input(path: str | Path, original: str | Path) -> None:
    """Refuse to write at `path` if that is, leads to, or lies in what it is made from.

    >>> refuse_input("out/patch.csv", "mails.csv")
    >>> refuse_input("mails.csv", "mails.csv")
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: mails.csv is the original; export to another name.
    """
    path, original = Path(path), Path(original)
    # A link at `path` would be replaced; in the folder above it, links are followed.
    place, source = path.parent.resolve() / path.name, original.resolve()
    if place == source or (path.exists() and original.exists() and path.samefile(original)):
        raise ExemplaError(f"{path.name} is the original; export to another name.")
    if place.is_relative_to(source):
        raise ExemplaError(f"{path} lies inside the folder it is made from; choose another place.")
    if source.is_relative_to(place):
        raise ExemplaError(f"{path} is a folder that holds the original; choose another place.")


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
