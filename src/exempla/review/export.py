"""From the log to files: the decisions, a patch, and the corrected data set."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

from exempla.atomic import replacing
from exempla.errors import ExemplaError
from exempla.review.folder import Review, fingerprint, read_review
from exempla.review.log import DecisionLog, RowDecision

__all__ = [
    "FinalDecision",
    "corrected_path",
    "export_decisions",
    "final_decisions",
    "write_corrected",
]

PATCH_FIELDS = (
    "row", "id", "column", "old", "new", "action", "time", "evidence", "note", "original",
)  # fmt: skip


@dataclass(frozen=True)
class FinalDecision:
    """What was decided about one row, on what evidence.

    `action` is keep, relabel, remove, skip, or pending (a row with a note and nothing else).
    """

    row: int
    id: str
    action: str
    old_label: str
    new_label: str | None
    note: str
    time: str
    evidence: str


def export_decisions(directory: str | Path) -> list[FinalDecision]:
    """Write DIR/decisions.json and DIR/patch.csv and return the decisions, by row.

    decisions.json holds every decision; patch.csv only those that change the data (row, id,
    column, old, new, action, time, evidence, note, fingerprint of the original). Cells are written
    as they are: a spreadsheet may take one that begins with "=" for a formula.

    >>> import tempfile
    >>> from exempla.review import ReviewedFile, Suspect, export_decisions, write_review
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = write_review(folder.name, [Suspect(3, "ham", "spam", 0.9, 0.97)],
    ...                  source=ReviewedFile("mails.jsonl", "jsonl"), classes=["ham", "spam"])
    >>> export_decisions(folder.name)
    []
    >>> folder.cleanup()
    """
    review = read_review(directory)
    log = DecisionLog(review.directory / "decisions.sqlite", review.key)
    try:
        decisions = final_decisions(review, log)
    finally:
        log.close()
    text = json.dumps([asdict(d) for d in decisions], indent=1, ensure_ascii=False)
    with replacing(review.directory / "decisions.json") as file:
        file.write(f"{text}\n".encode())
    with replacing(review.directory / "patch.csv") as file:
        file.write(_patch(review, decisions).encode())
    return decisions


def final_decisions(review: Review, log: DecisionLog) -> list[FinalDecision]:
    """The state of every row that anything was decided or noted about, by row."""
    log.refresh()
    states = sorted(log.states(), key=lambda state: state.row)
    return [_final(review, state) for state in states if state.action != "pending" or state.note]


def write_corrected(review: Review, decisions: list[FinalDecision]) -> Path:
    """Write the corrected data set into the folder, in the input's own format.

    The file is called corrected.*, after the input's ending; an image folder becomes the folder
    `corrected`. What an earlier export left there is replaced.
    """
    from exempla.tables.corrections.decisions import Decision
    from exempla.tables.corrections.export import export
    from exempla.tables.read import read_table

    path = Path(os.path.normpath(review.directory.resolve() / review.source.path))
    if not path.exists():
        raise ExemplaError(f"{path.name} is gone; put the source file back and export again.")
    if fingerprint(path) != review.fingerprint:
        raise ExemplaError(
            f"{path.name} has changed since the suspects were found, so row numbers may no longer "
            "match; run the analysis again."
        )
    chosen = [
        Decision(d.row, d.action, d.new_label if d.action == "relabel" else None, d.note, d.time)
        for d in decisions
        if d.action in ("relabel", "remove")
    ]
    target = corrected_path(review)
    if path.is_relative_to(target.resolve()):
        raise ExemplaError(f"{target.name} is the source itself; review it from another folder.")
    if target.is_dir() and not target.is_symlink():
        shutil.rmtree(target)
    table = read_table(path, **dict(review.source.options))
    return export(table, chosen, target, label=_label(review))


def corrected_path(review: Review) -> Path:
    """DIR/corrected.csv for mails.csv, DIR/corrected.csv.gz for mails.csv.gz, DIR/corrected for a
    folder of images."""
    if review.source.format == "images":
        return review.directory / "corrected"
    suffixes = PurePath(review.source.path).suffixes
    packed = suffixes[-1:] in ([".gz"], [".bz2"], [".xz"])
    return review.directory / f"corrected{''.join(suffixes[-2:] if packed else suffixes[-1:])}"


def _label(review: Review) -> str:
    return review.source.label or {"npz": "y"}.get(review.source.format, "label")


def _final(review: Review, state: RowDecision) -> FinalDecision:
    try:
        card = review.card(state.row)
    except KeyError:  # decided in an earlier analysis of the same file; no longer a suspect
        card = None
    new = {"keep": card["given"] if card else None, "relabel": state.label}.get(state.action)
    return FinalDecision(
        row=state.row,
        id=card["id"] if card else "",
        action=state.action,
        old_label=card["given"] if card else "",
        new_label=new,
        note=state.note,
        time=state.time,
        evidence=_evidence(card) if card else "no longer listed as a suspect",
    )


def _evidence(card: dict[str, Any]) -> str:
    """One line: how suspicious, what the model says, which rows contradict."""
    parts = [
        f"wrong with probability {card['probability']:.3f}",
        f"model says {card['suggested']} {card['model_probability']:.3f}",
    ]
    rows = [f"#{r['row']} {r['label']} {r['weight']:.3g}" for r in card["contradicting"][:5]]
    if rows:
        parts.append("contradicted by " + ", ".join(rows))
    return "; ".join(parts)


def _patch(review: Review, decisions: list[FinalDecision]) -> str:
    """The changes as CSV, in the form that `exempla.tables.apply_patch` applies to the original."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(PATCH_FIELDS)
    column, original = _label(review), review.fingerprint[:16]
    for d in decisions:
        if d.action in ("relabel", "remove"):
            new = d.new_label if d.action == "relabel" else ""
            cells = [d.row, d.id, column, d.old_label, new, d.action, d.time, d.evidence, d.note]
            writer.writerow([*cells, original])
    return out.getvalue()
