"""Decisions about rows: check them, write the corrected data set, write and apply patches.

`export` writes the data set in its own format; only cells with a decision differ. `write_patch`
writes the decisions as a small CSV or JSONL file that can be read, kept under version control, and
applied to the original with `apply_patch`. `fingerprint` identifies the file that decisions belong
to.

A corrected image folder is built beside its target and then renamed. It has a marker file with the
size and checksum of each image. An existing folder is replaced only if it has such a marker and
contains nothing else, unchanged.
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
from exempla.tables.table import Edits, Table, show

_ACTIONS = ("keep", "relabel", "remove")


@dataclass(frozen=True)
class Decision:
    """Keep a row, relabel it, or remove it.

    `row` is the 0-based data row of the original file, `time` is ISO 8601, and `note` is a remark.

    >>> Decision(4, "relabel", "spam").action
    'relabel'
    """

    row: int
    action: str
    new_label: str | None = None
    note: str = ""
    time: str = ""


def checked(table: Table, decisions: Iterable[Decision]) -> list[Decision]:
    """Return the decisions in row order; raise one error that names every invalid one."""
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
        raise ExemplaError("These decisions cannot be applied: " + "; ".join(problems) + ".")
    return found


_MARKER = ".exempla-export.json"
_FORMAT = "exempla-export-1"


def replace_tree(
    target: str | Path, fill: Callable[[Path], None], *, replace_own: bool = True
) -> Path:
    """Let `fill` create a folder, and move it to `target` when it is complete.

    With `replace_own=False`, a folder of an earlier export is refused as well.

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
    exempla.errors.ExemplaError: corrected has files that no export wrote ('mine.txt'); move it...
    """
    target = Path(target)
    _check_replaceable(target, replace_own)
    above = make_folder(target.parent)
    scratch = Path(tempfile.mkdtemp(dir=above, prefix=f".{target.name}.", suffix=".part"))
    try:
        _mark(scratch, {})  # marks the folder as ours if the process is killed
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
        _discard(scratch)
    return target


def remove_leftovers(target: Path) -> None:
    """Remove temporary files of killed writers; call it only while holding the folder's lock."""
    for scratch in target.parent.glob(f".{target.name}.*.part"):
        if scratch.is_file() and not scratch.is_symlink():
            scratch.unlink()
        elif not scratch.is_symlink() and _is_scratch(scratch):
            _discard(scratch)


def _is_scratch(folder: Path) -> bool:
    """Return True if the folder has our marker, or was abandoned before it got one."""
    return _marked(folder) is not None or not any(
        name for name in os.listdir(folder) if not name.startswith((_MARKER, f".{_MARKER}"))
    )


def _discard(scratch: Path) -> None:
    """Remove the folder, the marker last, so that a killed removal can be finished later."""
    for part in ("new", "old", ""):
        shutil.rmtree(scratch / part, ignore_errors=True)


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
    written = _marked(target) or {}
    # Files may be missing, but those that exist must be as they were written.
    foreign = [
        name
        for name, path in sorted(_files(target).items())
        if name != _MARKER and (path.is_symlink() or written.get(name) != _stamp(path))
    ]
    if foreign:
        raise ExemplaError(
            f"{target.name} has files that no export wrote ({show(foreign, 3)}); move it, or "
            "export into a new folder."
        )


def _seal(tree: Path, mode: int) -> None:
    """Set private modes, write the marker, and flush everything to disk."""
    for folder, _, names in os.walk(tree):
        os.chmod(folder, mode | (mode >> 2 & 0o110))  # readable folders are also enterable
        for name in names:
            os.chmod(Path(folder, name), mode)
    _mark(tree, {name: _stamp(path) for name, path in _files(tree).items()})
    os.chmod(tree / _MARKER, mode)
    if hasattr(os, "sync"):  # once instead of per image
        os.sync()


def _mark(tree: Path, files: dict[str, list[str | int]]) -> None:
    write_text(tree / _MARKER, json.dumps({"format": _FORMAT, "files": files}, indent=0) + "\n")


def _marked(tree: Path) -> dict[str, list[str | int]] | None:
    """Return the files that the marker lists; None without our marker."""
    try:
        marker = parse_json((tree / _MARKER).read_bytes())
        return dict(marker["files"]) if marker["format"] == _FORMAT else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _files(tree: Path) -> dict[str, Path]:
    """Return every file and link below, by its relative name; links are not followed."""
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

        def fill(folder: Path) -> None:
            source.copy_to(folder, *edits)

        return replace_tree(path, fill, replace_own=replace_own)
    data = corrected(table, decisions, label=label, excel_safe=excel_safe)
    make_folder(path.parent)
    return write_bytes(path, data)


def refuse_input(path: str | Path, original: str | Path) -> None:
    """Refuse to write at `path` if it is the original, contains it, or is inside it.

    >>> refuse_input("out/patch.csv", "mails.csv")
    >>> refuse_input("mails.csv", "mails.csv")
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: mails.csv is the original file; export to another name.
    """
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
    """One line of a patch; `original` is the fingerprint of the file it belongs to.

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
"""Characters of the fingerprint in a patch."""


def write_patch(
    path: str | Path,
    table: Table,
    decisions: Iterable[Decision],
    *,
    label: str,
    ids: Sequence[Any] | str | None = None,
    evidence: Mapping[int, Any] | None = None,
) -> Path:
    """Write the decisions as CSV or JSONL (by the path's extension) and return the path.

    Parameters
    ----------
    ids
        Ids of the rows: the name of a column, or one entry per row.
    evidence
        The evidence for each decision, by row; anything that JSON can represent.

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
            new={"relabel": each.new_label, "keep": old[each.row]}.get(each.action),
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
    """Write a patch as CSV or JSONL, by the extension of the path.

    `more` has further columns of each line, which `apply_patch` ignores.

    >>> import tempfile, pathlib
    >>> line = PatchLine(4, "m4", "label", "ham", "spam", "relabel", note="sure")
    >>> path = write_patch_lines(pathlib.Path(tempfile.mkdtemp()) / "p.csv", [line])
    >>> path.read_text().splitlines()[1]
    '4,m4,label,ham,spam,relabel,,,sure,'
    """
    path = Path(path)
    stated = [asdict(line) | {"original": line.original[:_STAMP]} for line in lines]
    both = zip_longest(stated, more, fillvalue={})
    text = _written(path, [dict(each) | line for line, each in both])
    make_folder(path.parent)
    return write_text(path, text)


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
    """Read the lines of a patch file, with row numbers as integers."""
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
            raise ExemplaError(f"{path.name} is not a patch file of exempla: {error}.") from None


def apply_patch(
    original: str | Path, patch: str | Path, *, out: str | Path | None = None, **reading: Any
) -> bytes:
    """Apply a patch to the original file; return the same bytes that `export` wrote.

    Parameters
    ----------
    out
        Where to write the result; required for an image folder.
    **reading
        Options of `read_table`, if the original needs them.

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
    label = str(lines[0]["column"]) if lines else table.names[-1]
    if {line["original"] for line in lines} - {fingerprint(table)[:_STAMP]}:
        raise ExemplaError(
            f"{Path(patch).name} was made for a file other than {table.path.name}, or for another "
            "version of it; apply it to the original."
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
    if out is None:
        return corrected(table, decisions, label=label)
    path = export(table, decisions, out, label=label)
    return path.read_bytes() if path.is_file() else b""
