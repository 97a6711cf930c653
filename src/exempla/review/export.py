"""From the log to files: the decisions, a patch, and the corrected data set."""

from __future__ import annotations

import csv
import io
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError
from exempla.review.folder import Review, fingerprint, read_review
from exempla.review.log import DecisionLog, State

__all__ = ["FinalDecision", "export_decisions", "final_decisions", "write_corrected"]


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

    decisions.json holds every decision; patch.csv only those that change the data
    (row, id, old, new, action, time, evidence). Cells are written as they are: a spreadsheet may
    take one that begins with "=" for a formula.

    >>> import tempfile
    >>> from exempla.review import Source, Suspect, export_decisions, write_review
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = write_review(folder.name, [Suspect(3, "ham", "spam", 0.9, 0.97)],
    ...                  source=Source("mails.jsonl", "jsonl"), classes=["ham", "spam"])
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
    _write(review.directory / "decisions.json", text + "\n")
    _write(review.directory / "patch.csv", _patch(decisions))
    return decisions


def final_decisions(review: Review, log: DecisionLog) -> list[FinalDecision]:
    """The state of every row that anything was decided or noted about, by row."""
    log.refresh()
    states = sorted(log.states(), key=lambda state: state.row)
    return [_final(review, state) for state in states if state.action != "pending" or state.note]


def write_corrected(review: Review, decisions: list[FinalDecision]) -> Path:
    """Write the corrected data set into the folder, in the input's own format."""
    from exempla import files

    path = (review.directory / review.source.path).resolve()
    if not path.exists():
        raise ExemplaError(
            f"{review.source.path} is gone; put the source file back and export again."
        )
    if review.fingerprint and fingerprint(path) != review.fingerprint:
        raise ExemplaError(
            f"{path.name} has changed since the suspects were found, so row numbers may no longer "
            "match; run the analysis again."
        )
    table = files.read(path, **_read_options(review))
    chosen = [
        files.Decision(row=d.row, action=d.action, new_label=d.new_label, note=d.note, time=d.time)
        for d in decisions
        if d.action in ("keep", "relabel", "remove")
    ]
    target = review.directory / f"corrected{''.join(path.suffixes[-1:])}"
    files.export(table, chosen, target)
    return target


def _read_options(review: Review) -> dict[str, Any]:
    label = {} if review.source.label is None else {"label": review.source.label}
    return label | dict(review.source.options)


def _final(review: Review, state: State) -> FinalDecision:
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
    """One line: how suspicious, what the model says, who accuses."""
    parts = [
        f"wrong with probability {card['probability']:.3f}",
        f"model says {card['suggested']} {card['model_probability']:.3f}",
    ]
    accusers = [f"#{a['row']} {a['label']} {a['weight']:.3g}" for a in card["accusers"][:5]]
    if accusers:
        parts.append("accused by " + ", ".join(accusers))
    return "; ".join(parts)


def _patch(decisions: list[FinalDecision]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["row", "id", "old", "new", "action", "time", "evidence"])
    for d in decisions:
        if d.action in ("relabel", "remove"):
            new = d.new_label or ""
            writer.writerow([d.row, d.id, d.old_label, new, d.action, d.time, d.evidence])
    return out.getvalue()


def _write(path: Path, text: str) -> None:
    scratch = path.with_name(path.name + ".part")
    scratch.write_text(text, encoding="utf-8", newline="")
    os.replace(scratch, path)
