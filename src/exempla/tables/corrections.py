"""Decisions about rows: check them, write the corrected data set, and write a patch.

`export` writes the data set in its own format; only cells with a decision differ. A patch lists the
decisions that change data in a small CSV file. `fingerprint` identifies the file that decisions
belong to.

A corrected image folder is built beside its target and then renamed. It has a marker file with the
checksum of each image. An existing folder is replaced only if it has such a marker and contains
nothing else, unchanged.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError
from exempla.io import file_mode, flush_folder, make_folder, read_json, write_bytes, write_text
from exempla.tables.dataset import conll_text, conll_tokens, read_table
from exempla.tables.formats.columnar import fingerprint as file_fingerprint
from exempla.tables.formats.folder import FolderSource
from exempla.tables.formats.jsonl import JsonSource, replace_elements
from exempla.tables.table import Edits, Table, show

_ACTIONS = ("keep", "relabel", "remove")


@dataclass(frozen=True)
class Decision:
    """Keep a row, relabel it, or remove it.

    `row` is the 0-based data row of the original file, `time` is ISO 8601, and `note` is a remark.
    """

    row: int
    action: str
    new_label: str | None = None
    note: str = ""
    time: str = ""


def checked(table: Table, decisions: Iterable[Decision]) -> list[Decision]:
    """Return the decisions in row order; raise one error that names every invalid one."""
    found = sorted(decisions, key=lambda decision: decision.row)
    problems, rows = [], Counter(each.row for each in found)
    for each in found:
        relabel = each.action == "relabel"
        reasons = {
            f"there is no action {each.action!r}": each.action not in _ACTIONS,
            f"{table.path.name} has rows 0 to {len(table) - 1}": not 0 <= each.row < len(table),
            "a relabelled row needs its new label": relabel and not each.new_label,
            "it has the wrong number of cells": relabel and each.row in table.ragged,
            "it is decided twice": rows[each.row] > 1,
        }
        problems += [f"row {each.row}: {why}" for why, applies in reasons.items() if applies]
    if problems:
        raise ExemplaError("These decisions cannot be applied: " + "; ".join(problems) + ".")
    return found


_MARKER = ".exempla-export.json"
_FORMAT = "exempla-export-1"


def _replace_tree(target: Path, fill: Callable[[Path], None], *, replace_own: bool = True) -> Path:
    """Let `fill` create a folder, and move it to `target` when it is complete.

    With `replace_own=False`, a folder of an earlier export is refused as well.
    """
    _check_replaceable(target, replace_own)
    above = make_folder(target.parent)
    scratch = Path(tempfile.mkdtemp(dir=above, prefix=f".{target.name}.", suffix=".part"))
    try:
        fill(scratch / "new")
        make_folder(scratch / "new")  # if every image was removed
        _seal(scratch / "new", file_mode(above))
        _check_replaceable(target, replace_own)  # again, because filling may have taken minutes
        if target.exists():
            os.rename(target, scratch / "old")
        os.rename(scratch / "new", target)
        flush_folder(above)
    except BaseException:
        if not target.exists() and (scratch / "old").exists():
            os.rename(scratch / "old", target)
        raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def remove_leftovers(target: Path) -> None:
    """Remove temporary files of killed writers; call it only while holding the folder's lock."""
    for scratch in target.parent.glob(f".{target.name}.*.part"):
        if scratch.is_dir() and not scratch.is_symlink():
            shutil.rmtree(scratch, ignore_errors=True)
        elif scratch.is_file() and not scratch.is_symlink():
            scratch.unlink()


def _check_replaceable(target: Path, replace_own: bool) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ExemplaError(
            f"{target.name} is a link or a file, but a folder of that name would be written; move "
            "it and export again."
        )
    if not target.exists():
        return
    if not replace_own and any(target.iterdir()):
        raise ExemplaError(f"{target} is not empty; export into a new folder.")
    marker = read_json(target / _MARKER)
    ours = isinstance(marker, dict) and marker.get("format") == _FORMAT
    written = marker["files"] if ours else {}
    # Files may be missing, but those that exist must be as they were written.
    found = [path for path in sorted(target.rglob("*")) if path.is_symlink() or not path.is_dir()]
    names = [path.relative_to(target).as_posix() for path in found]
    foreign = [
        name
        for name, path in zip(names, found, strict=True)
        if name != _MARKER and (path.is_symlink() or written.get(name) != _stamp(path))
    ]
    if foreign:
        raise ExemplaError(
            f"{target.name} has files that no export wrote ({show(foreign, 3)}); move it, or "
            "export into a new folder."
        )


def _seal(tree: Path, mode: int) -> None:
    """Set private modes, write the marker, and flush everything to disk."""
    files = [path for path in tree.rglob("*") if not path.is_dir()]
    stamps = {path.relative_to(tree).as_posix(): _stamp(path) for path in files}
    write_text(tree / _MARKER, json.dumps({"format": _FORMAT, "files": stamps}, indent=0) + "\n")
    for path in (tree, *tree.rglob("*")):
        # Readable folders are also enterable.
        os.chmod(path, mode | (mode >> 2 & 0o110) if path.is_dir() else mode)
    if hasattr(os, "sync"):  # once instead of per image
        os.sync()


def _stamp(path: Path) -> list[str | int]:
    return [path.stat().st_size, file_fingerprint(path)]


def export(
    table: Table,
    decisions: Iterable[Decision],
    path: str | Path,
    *,
    label: str,
    excel_safe: bool = False,
    replace_own: bool = False,
) -> Path:
    """Write the corrected data set in the format of the input and return the path.

    Without decisions, the bytes are the same. A relabelled cell keeps its quoting style, a removed
    row disappears with its line end, and everything else is unchanged. An image folder is copied,
    with each relabelled image in its new class. The file is written atomically; a link at `path` is
    replaced, not followed.

    `excel_safe` puts an apostrophe before cells that a spreadsheet would evaluate as formulas (CSV
    and TSV only). `replace_own` allows a folder of images to replace that of an earlier export, if
    it was not changed since.

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
        return _replace_tree(path, lambda new: source.copy_to(new, *edits), replace_own=replace_own)
    data = corrected(table, decisions, label=label, excel_safe=excel_safe)
    make_folder(path.parent)
    return write_bytes(path, data)


def refuse_input(path: str | Path, original: str | Path) -> None:
    """Refuse to write at `path` if it is the original, contains it, or is inside it."""
    path, original = Path(path), Path(original)
    # A link at `path` would be replaced; links in its folder are followed.
    place, source = path.parent.resolve() / path.name, original.resolve()
    if place == source or (path.exists() and original.exists() and path.samefile(original)):
        raise ExemplaError(f"{path.name} is the original file; export to another name.")
    if place.is_relative_to(source):
        raise ExemplaError(f"{path} is inside the folder that is exported; choose another folder.")
    if source.is_relative_to(place):
        raise ExemplaError(f"{path} contains the original; choose another folder.")


def corrected(
    table: Table, decisions: Iterable[Decision], *, label: str, excel_safe: bool = False
) -> bytes:
    """Return the bytes that `export` writes."""
    changes, removed = _edits(table, decisions, label)
    if excel_safe and table.format not in ("csv", "tsv"):
        raise ExemplaError(f"excel_safe is for CSV and TSV files, not for {table.format}.")
    if not changes and not removed and not excel_safe:
        return table.source.original()
    place = table.position(label)
    cells = {row: {place: value} for row, value in changes.items()}
    return table.source.rewrite(Edits(cells, removed, excel_safe))


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
    # A cell that already has this label is not rewritten.
    changes = {
        decision.row: str(decision.new_label)
        for decision, before in zip(relabelled, old, strict=True)
        if before != str(decision.new_label)
    }
    return changes, frozenset(decision.row for decision in found if decision.action == "remove")


def fingerprint(data: Table | str | Path) -> str:
    """Return the SHA-256 of a file, or of the file names of an image folder; "" if it is missing.

    For a table, it is that of the bytes that were read; a file that has changed since is refused.
    """
    if not isinstance(data, Table):
        path = Path(data)
        if path.is_dir():
            return fingerprint(read_table(path))
        return file_fingerprint(path) if path.is_file() else ""
    if data.format == "images":
        names = "\n".join(name or "" for name in data.strings("file"))
        return hashlib.sha256(names.encode()).hexdigest()
    return hashlib.sha256(data.source.original()).hexdigest()


_PATCH_COLUMNS = (
    "row", "id", "column", "old", "new", "action", "time", "evidence", "note", "original",
)  # fmt: skip


def write_patch(path: Path, lines: Collection[Mapping[str, Any]], original: str) -> Path:
    """Write a patch as CSV; `original` is the fingerprint of the file it belongs to.

    Lines may have more columns than those of every patch.
    """
    names = dict.fromkeys([*_PATCH_COLUMNS, *(name for line in lines for name in line)])
    out = io.StringIO()
    writer = csv.DictWriter(out, list(names), restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows({**line, "original": original[:16]} for line in lines)
    make_folder(path.parent)
    return write_text(path, out.getvalue())


_Changes = Mapping[tuple[int, str | int], str]
"""(row, label name or token position) → "present" or "absent", or the new label of the token."""


def changed(
    path: Path, layout: dict[str, Any], changes: _Changes, removed: set[int], **reading: Any
) -> bytes:
    """Return the file with these labels changed and these rows removed."""
    if layout["kind"] in ("conll", "tokens"):
        edit = _changed_conll if layout["kind"] == "conll" else _changed_lists
        return edit(path, layout, changes, removed)
    table = read_table(path, **reading)
    cells = _new_cells(table, layout, changes)
    edits = Edits(cells, frozenset(removed))
    return table.source.rewrite(edits) if edits.rows else table.source.original()


def _new_cells(table: Table, layout: dict[str, Any], changes: _Changes) -> dict[int, Any]:
    """Return the new cells, by row and column."""
    out: dict[int, dict[int, str]] = {}
    for (row, name), value in changes.items():
        cells = out.setdefault(row, {})
        if layout["kind"] == "columns":
            cells[table.position(name)] = layout["spelt"][name][value == "present"]
            continue
        place, mark = table.position(layout["column"]), layout["separator"]
        before = table.strings(layout["column"], [row])[0] or ""
        cell = cells.get(place, before)
        pieces = [piece.strip() for piece in cell.split(mark) if piece.strip()]
        pieces = [piece for piece in pieces if piece != name]
        pieces += [str(name)] if value == "present" else []
        cells[place] = (f"{mark} " if f"{mark} " in before else mark).join(pieces)
    return out


def _changed_lists(
    path: Path, layout: dict[str, Any], changes: _Changes, removed: set[int]
) -> bytes:
    """Change single elements of the label lists of JSON lines."""
    source = read_table(path).source
    assert isinstance(source, JsonSource)
    edits: dict[int, dict[int, str]] = {}
    for (row, place), value in changes.items():
        edits.setdefault(row, {})[int(place)] = value

    def edit(row: int, line: str) -> str:
        return "" if row in removed else replace_elements(line, layout["labels"], edits[row])

    return source.edited({*edits, *removed}, edit)


def _changed_conll(
    path: Path, layout: dict[str, Any], changes: _Changes, removed: set[int]
) -> bytes:
    file, text = conll_text(path)
    out: list[str] = []
    for line, row, place, fields in conll_tokens(text):
        if row in removed:
            continue
        if fields and (row, place) in changes:
            _, start, end = fields[layout["label"]]
            line = line[:start] + changes[row, place] + line[end:]
        out.append(line)
    return file.written("".join(out))
