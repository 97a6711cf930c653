"""The decisions as a small file: what was changed, where, when and why.

A patch can be read by a person, kept under version control, and applied to the original again.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import zip_longest
from pathlib import Path
from typing import Any

from exempla.atomic import make_folder, write_text
from exempla.errors import ExemplaError
from exempla.tables.corrections.decisions import Decision, checked
from exempla.tables.corrections.export import corrected, export, refuse_input
from exempla.tables.corrections.fingerprint import fingerprint
from exempla.tables.read import read_table
from exempla.tables.table import Table

__all__ = ["PatchLine", "apply_patch", "read_patch", "write_patch", "write_patch_lines"]


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


FIELDS = tuple(field.name for field in fields(PatchLine))
STAMP = 16
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
    told = [asdict(line) | {"original": line.original[:STAMP]} for line in lines]
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
    more = dict.fromkeys(name for line in lines for name in line if name not in FIELDS)
    writer = csv.DictWriter(out, (*FIELDS, *more), restval="", lineterminator="\n")
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
                lines = [json.loads(line) for line in file if line.strip()]
            else:
                lines = list(csv.DictReader(file))
            if missing := {name for line in lines for name in FIELDS if name not in line}:
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
    label, stamp = str(lines[0]["column"]), fingerprint(table)[:STAMP]
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
