"""Decisions about rows: checked, applied to the file, written as a patch.

Imports: errors, atomic, tables.formats, tables.read.

What a person decided about a row.

Hand the data set back: only the cells that were decided on differ, byte for byte.

Which file it is: one digest for patches, for the keys of reviews, and for what was read.

The decisions as a small file: what was changed, where, when and why.

A patch can be read by a person, kept under version control, and applied to the original again.

A corrected image folder: made whole beside its place, and put where nobody's files are lost.

Every folder made here carries a marker with the size and digest of each file. One that stands in
the way is replaced only if it carries that marker and holds nothing else and nothing altered:
whatever a person put or changed there is theirs.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError
from exempla.io import file_mode, flush_folder, make_folder, parse_json, write_bytes, write_text
from exempla.tables.formats.columnar import fingerprint as file_fingerprint
from exempla.tables.formats.folder import FolderSource
from exempla.tables.read import read_table
from exempla.tables.table import Table, show

_ACTIONS = ("keep", "relabel", "remove")


@dataclass(frozen=True)
class Decision:
    """Keep a row, give it another label, or remove it.

    `row` is the 0-based data row of the original file; `time` is ISO 8601; `note` is the person's
    own remark.

    >>> Decision(4, "relabel", "spam").action
    'relabel'
    """

    row: int
    action: str
    new_label: str | None = None
    note: str = ""
    time: str = ""


def checked(table: Table, decisions: Iterable[Decision]) -> list[Decision]:
    """The decisions in row order, every mistake in them refused in one message."""
    found = sorted(decisions, key=lambda decision: decision.row)
    problems = []
    rows = set()
    for each in found:
        if each.action not in _ACTIONS:
            problems.append(f"row {each.row}: there is no action {each.action!r}")
        elif not 0 <= each.row < len(table):
            problems.append(f"row {each.row}: {table.path.name} has rows 0 to {len(table) - 1}")
        elif each.action == "relabel" and not each.new_label:
            problems.append(f"row {each.row}: a relabelled row needs its new label")
        elif each.action == "relabel" and each.row in table.ragged:
            problems.append(f"row {each.row}: it has the wrong number of cells")
        elif each.row in rows:
            problems.append(f"row {each.row}: it is decided twice")
        rows.add(each.row)
    if problems:
        raise ExemplaError("These decisions cannot be carried out: " + "; ".join(problems) + ".")
    return found


_MARKER = ".exempla-export.json"
_FORMAT = "exempla-export-1"


def replace_tree(
    target: str | Path, fill: Callable[[Path], None], *, replace_own: bool = True
) -> Path:
    """Let `fill` make a folder, and put it at `target` when it is complete.

    `replace_own=False` refuses also a folder that was made here.

    >>> place = Path(tempfile.mkdtemp())
    >>> def one(folder):
    ...     folder.mkdir()
    ...     _ = (folder / "a.png").write_bytes(b"a")
    >>> made = replace_tree(replace_tree(place / "corrected", one), one)  # its own: replaced
    >>> (made / "mine.txt").write_text("by hand")
    7
    >>> replace_tree(made, one)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: corrected is not empty and holds what no export wrote ('mine...
    """
    target = Path(target)
    _check_replaceable(target, replace_own)
    above = make_folder(target.parent)
    scratch = Path(tempfile.mkdtemp(dir=above, prefix=f".{target.name}.", suffix=".part"))
    try:
        _mark(scratch, {})  # should we be killed, this says whose scratch it is
        fill(scratch / "new")
        make_folder(scratch / "new")  # where every image was removed
        _seal(scratch / "new", file_mode(above))
        _check_replaceable(target, replace_own)  # again: making it may have taken minutes
        if target.exists():
            os.rename(target, scratch / "old")
        os.rename(scratch / "new", target)
        flush_folder(above)
    except BaseException:
        if not target.exists() and (scratch / "old").exists():
            os.rename(scratch / "old", target)
        raise
    finally:
        _discard(scratch)
    return target


def remove_leftovers(target: Path) -> None:
    """Remove what killed writers of this file or folder left beside it; for one who is alone."""
    for scratch in target.parent.glob(f".{target.name}.*.part"):
        if scratch.is_file() and not scratch.is_symlink():
            scratch.unlink()
        elif not scratch.is_symlink() and _is_scratch(scratch):
            _discard(scratch)


def _is_scratch(folder: Path) -> bool:
    """Ours by its marker, or killed before it had one."""
    return _marked(folder) is not None or not any(
        name for name in os.listdir(folder) if not name.startswith((_MARKER, f".{_MARKER}"))
    )


def _discard(scratch: Path) -> None:
    """Remove it, the marker last: killed in between, it is still known as ours."""
    for part in ("new", "old", ""):
        shutil.rmtree(scratch / part, ignore_errors=True)


def _check_replaceable(target: Path, replace_own: bool) -> None:
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise ExemplaError(
            f"{target.name} is a link or a file, and a folder of that name is to be written; "
            "move it away and export again."
        )
    if not target.exists():
        return
    if not replace_own and any(target.iterdir()):
        raise ExemplaError(f"{target} is not empty; export into a new folder.")
    written = _marked(target) or {}
    # Missing files are no loss; what is there must be what was written.
    foreign = [
        name
        for name, path in sorted(_files(target).items())
        if name != _MARKER and (path.is_symlink() or written.get(name) != _stamp(path))
    ]
    if foreign:
        raise ExemplaError(
            f"{target.name} is not empty and holds what no export wrote ({show(foreign, 3)}); "
            "move it away, or export into a new folder."
        )


def _seal(tree: Path, mode: int) -> None:
    """Private modes, the marker, and everything on the disk."""
    for folder, _, names in os.walk(tree):
        os.chmod(folder, mode | (mode >> 2 & 0o110))  # who may read may enter
        for name in names:
            os.chmod(Path(folder, name), mode)
    _mark(tree, {name: _stamp(path) for name, path in _files(tree).items()})
    os.chmod(tree / _MARKER, mode)
    if hasattr(os, "sync"):  # once, not per image: there may be a hundred thousand
        os.sync()


def _mark(tree: Path, files: dict[str, list[str | int]]) -> None:
    write_text(tree / _MARKER, json.dumps({"format": _FORMAT, "files": files}, indent=0) + "\n")


def _marked(tree: Path) -> dict[str, list[str | int]] | None:
    """The files that the marker names; None without a marker of ours."""
    try:
        marker = parse_json((tree / _MARKER).read_bytes())
        return dict(marker["files"]) if marker["format"] == _FORMAT else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _files(tree: Path) -> dict[str, Path]:
    """Every file and link below, by its name relative to the tree; links are not followed."""
    found = {}
    for folder, folders, names in os.walk(tree):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in [*names, *links]:
            path = Path(folder, name)
            found[path.relative_to(tree).as_posix()] = path
    return found


def _stamp(path: Path) -> list[str | int]:
    with open(path, "rb") as file:
        return [os.fstat(file.fileno()).st_size, hashlib.file_digest(file, "sha256").hexdigest()]


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


def fingerprint(data: Table | str | Path) -> str:
    """SHA-256 of a file; of the names of its images for a folder; "" if there is nothing there.

    Of a table it is that of the bytes that were read; a large file that has changed since then is
    refused.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = path.write_text("x,y\\n1,ham\\n2,spam\\n")
    >>> fingerprint(path)[:16], fingerprint(path) == fingerprint(read_table(path))
    ('a3c453dd653d430b', True)
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


@dataclass(frozen=True)
class PatchLine:
    """One decision as a patch tells it; `original` is the fingerprint of the file it is about.

    >>> PatchLine(4, "m4", "label", "ham", "spam", "relabel").new
    'spam'
    """

    row: int
    id: Any
    column: str
    old: str | None
    new: str | None
    action: str
    time: str = ""
    evidence: Any = ""
    note: str = ""
    original: str = ""


_FIELDS = tuple(field.name for field in fields(PatchLine))
_STAMP = 16
"""Characters of the fingerprint that a patch holds."""


def write_patch(
    path: str | Path,
    table: Table,
    decisions: Iterable[Decision],
    *,
    label: str,
    ids: Sequence[Any] | str | None = None,
    evidence: Mapping[int, Any] | None = None,
) -> Path:
    """Write the decisions as CSV or JSONL (by the path's ending) and return the path.

    Parameters
    ----------
    ids
        The user's names for the rows: an id column, or one entry per row of the table.
    evidence
        What spoke for each decision, by row: text, numbers, or anything JSON can hold.

    Each line has row, id, column, old, new, action, time, evidence, note, and the fingerprint of
    the original, so that a patch is never applied to another file.

    >>> import tempfile, pathlib
    >>> from exempla.tables import Decision, read_table
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("id,y\\na7,ham\\na8,spam\\n")
    >>> table = read_table(folder / "a.csv")
    >>> _ = write_patch(folder / "p.csv", table, [Decision(0, "relabel", "spam")], label="y",
    ...                 ids="id", evidence={0: "like row 1"})
    >>> (folder / "p.csv").read_text().splitlines()[1][:33]
    '0,a7,y,ham,spam,relabel,,like row'
    """
    refuse_input(path, table.path)
    found = checked(table, decisions)
    name = table.names[table.position(label)]
    rows = [decision.row for decision in found]
    names: dict[int, Any] = {}
    if isinstance(ids, str):
        names = dict(zip(rows, table.strings(ids, rows))) if rows else {}
    elif ids is not None:
        names = {row: ids[row] for row in rows}
    old = dict(zip(rows, table.strings(name, rows))) if rows else {}
    original = fingerprint(table)
    lines = (
        PatchLine(
            row=each.row,
            id=names.get(each.row, ""),
            column=name,
            old=old[each.row],
            new=_new(each, old[each.row]),
            action=each.action,
            time=each.time,
            evidence=(evidence or {}).get(each.row, ""),
            note=each.note,
            original=original,
        )
        for each in found
    )
    return write_patch_lines(path, lines)


def write_patch_lines(
    path: str | Path, lines: Iterable[PatchLine], more: Iterable[Mapping[str, str]] = ()
) -> Path:
    """Write a patch, CSV or JSONL by the path's ending: the one writer of the format.

    `more` are further columns of each line, for people to read; applying a patch ignores them.

    >>> import tempfile, pathlib
    >>> line = PatchLine(4, "m4", "label", "ham", "spam", "relabel", note="sure")
    >>> path = write_patch_lines(pathlib.Path(tempfile.mkdtemp()) / "p.csv", [line])
    >>> path.read_text().splitlines()[1]
    '4,m4,label,ham,spam,relabel,,,sure,'
    """
    path = Path(path)
    told = [asdict(line) | {"original": line.original[:_STAMP]} for line in lines]
    both = zip_longest(told, more, fillvalue={})
    text = _written(path, [dict(each) | line for line, each in both])
    make_folder(path.parent)
    return write_text(path, text)


def _new(decision: Decision, old: str | None) -> str | None:
    if decision.action == "relabel":
        return decision.new_label
    return old if decision.action == "keep" else None


def _written(path: Path, lines: list[dict[str, Any]]) -> str:
    if path.suffix == ".jsonl":
        return "".join(json.dumps(line, ensure_ascii=False, default=str) + "\n" for line in lines)
    if path.suffix != ".csv":
        raise ExemplaError(f"A patch is a .csv or a .jsonl file, not {path.name!r}.")
    out = io.StringIO()
    more = dict.fromkeys(name for line in lines for name in line if name not in _FIELDS)
    writer = csv.DictWriter(out, (*_FIELDS, *more), restval="", lineterminator="\n")
    writer.writeheader()
    for line in lines:
        proof = line["evidence"]
        text = proof if isinstance(proof, str) else json.dumps(proof, default=str)
        writer.writerow({**line, "evidence": text})
    return out.getvalue()


def read_patch(path: str | Path) -> list[dict[str, Any]]:
    """The lines of a patch file, rows as integers."""
    path = Path(path)
    if not path.is_file():
        raise ExemplaError(f"There is no patch file {str(path)!r}.")
    with path.open(encoding="utf-8", newline="") as file:
        try:
            if path.suffix == ".jsonl":
                lines = [parse_json(line) for line in file if line.strip()]
            else:
                lines = list(csv.DictReader(file))
            if missing := {name for line in lines for name in _FIELDS if name not in line}:
                raise ValueError(f"it has no {', '.join(sorted(missing))}")
            return [{**line, "row": int(line["row"])} for line in lines]
        except (KeyError, TypeError, ValueError) as error:
            raise ExemplaError(f"{path.name} is no patch file of exempla: {error}.") from None


def apply_patch(
    original: str | Path, patch: str | Path, *, out: str | Path | None = None, **reading: Any
) -> bytes:
    """The original file with a patch applied: the same bytes `export` wrote.

    Parameters
    ----------
    out
        Where to write the result; needed for an image folder (which has no bytes to return).
    **reading
        The options of `read_table`, if the original needed any.

    >>> import tempfile, pathlib
    >>> from exempla.tables import Decision, read_table
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("x,y\\n1,ham\\n2,spam\\n")
    >>> patch = write_patch(folder / "p.jsonl", read_table(folder / "a.csv"),
    ...                     [Decision(1, "remove")], label="y")
    >>> apply_patch(folder / "a.csv", patch)
    b'x,y\\n1,ham\\n'
    """
    table, lines = read_table(original, **reading), read_patch(patch)
    if not lines:
        return _finished(table, [], table.names[-1], out)
    label, stamp = str(lines[0]["column"]), fingerprint(table)[:_STAMP]
    for line in lines:
        if line["original"] != stamp:
            raise ExemplaError(
                f"{Path(patch).name} was made for another file than {table.path.name} "
                "(or an older state of it); apply it to the file it was made from."
            )
    decisions = [
        Decision(
            line["row"],
            line["action"],
            line["new"] if line["action"] == "relabel" else None,
            line["note"],
            line["time"],
        )
        for line in lines
    ]
    return _finished(table, decisions, label, out)


def _finished(table: Table, decisions: list[Decision], label: str, out: str | Path | None) -> bytes:
    if out is None:
        return corrected(table, decisions, label=label)
    path = export(table, decisions, out, label=label)
    return path.read_bytes() if path.is_file() else b""
