"""From the log to files: the decisions, a patch, and the corrected data set.

Each file appears whole or not at all, none is written onto an input or through a link, and one
export at a time works in a folder. Whatever fails here, the decisions are safe in the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from exempla.atomic import alone_in, write_text
from exempla.errors import ExemplaError
from exempla.review.exchange.parts import layout_of, write_corrected_parts
from exempla.review.folder import Review, read_review
from exempla.review.key import elsewhere
from exempla.review.log import DecisionLog, RowDecision

# Tables are imported where they are used: the page starts without all that they need.
if TYPE_CHECKING:
    from exempla.tables.corrections.patch import PatchLine

__all__ = [
    "BusyError",
    "Exported",
    "FinalDecision",
    "StorageError",
    "corrected_path",
    "export_decisions",
    "export_review",
    "final_decisions",
    "write_corrected",
]


class BusyError(ExemplaError):
    """Another export is at work in the folder."""


class StorageError(ExemplaError):
    """The disk is full, or does not let us write."""


BUSY = "Another export is being written into this folder; wait for it, then export again."


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
    with alone_in(review.directory, BusyError(BUSY)):
        return _write_decisions(review)[0]


@dataclass(frozen=True)
class Exported:
    """What an export wrote; without `corrected`, `problem` says why."""

    decisions: list[FinalDecision]
    corrected: Path | None
    problem: str = ""
    elsewhere: str = ""
    """A sentence about decisions in the folder that are about something else, and were not used."""

    @property
    def changed(self) -> int:
        """How many decisions change the data."""
        return len(_changes(self.decisions))


def export_review(review: Review) -> Exported:
    """Write decisions.json, patch.csv and the corrected data, all as of one moment.

    Where the corrected data cannot be made (the source is gone, say), the other two are there and
    the answer says why.

    >>> import tempfile
    >>> from exempla.review import ReviewedFile, Suspect, read_review, write_review
    >>> folder = tempfile.TemporaryDirectory()
    >>> _ = write_review(folder.name, [Suspect(3, "ham", "spam", 0.9, 0.97)],
    ...                  source=ReviewedFile("mails.jsonl", "jsonl"), classes=["ham", "spam"])
    >>> export_review(read_review(folder.name)).problem
    'mails.jsonl is gone; put the source file back and export again.'
    >>> folder.cleanup()
    """
    with alone_in(review.directory, BusyError(BUSY)):
        decisions, others = _write_decisions(review)
        try:
            return Exported(decisions, write_corrected(review, decisions), elsewhere=others)
        except ExemplaError as error:
            return Exported(decisions, None, str(error), others)


def final_decisions(review: Review, log: DecisionLog) -> list[FinalDecision]:
    """The state of every row that anything was decided or noted about, by row."""
    log.refresh()
    states = sorted(log.states(), key=lambda state: state.row)
    return [_final(review, state) for state in states if state.action != "pending" or state.note]


def write_corrected(review: Review, decisions: list[FinalDecision]) -> Path:
    """Write the corrected data set into the folder, in the input's own format.

    The file is called corrected.*, after the input's ending; an image folder becomes the folder
    `corrected`. What an earlier export left there is replaced; a folder that anybody else made, or
    changed, is not.
    """
    from exempla.tables.corrections.decisions import Decision
    from exempla.tables.corrections.export import export, refuse_input
    from exempla.tables.corrections.fingerprint import fingerprint
    from exempla.tables.corrections.tree import remove_leftovers
    from exempla.tables.read import read_table

    path, target = review.source_path(), corrected_path(review)
    refuse_input(target, path)
    if not path.exists():
        raise ExemplaError(f"{path.name} is gone; put the source file back and export again.")
    changed = ExemplaError(
        f"{path.name} has changed since the suspects were found, so row numbers may no longer "
        "match; run the analysis again."
    )
    if fingerprint(path) != review.fingerprint:
        raise changed
    chosen = [
        Decision(d.row, d.action, d.new_label if d.action == "relabel" else None, d.note, d.time)
        for d in _changes(decisions)
    ]
    if layout_of(review) is not None:
        with _storing(target.name):
            return write_corrected_parts(review, path, target)
    with _storing(target.name):
        table = read_table(path, **dict(review.source.options))
        if fingerprint(table) != review.fingerprint:  # in this very moment
            raise changed
        remove_leftovers(target)
        return export(table, chosen, target, label=_label(review), replace_own=True)


def corrected_path(review: Review) -> Path:
    """DIR/corrected.csv for mails.csv, DIR/corrected.csv.gz for mails.2024.csv.gz, DIR/corrected
    for a folder of images."""
    if review.source.format == "images":
        return review.directory / "corrected"
    from exempla.tables.formats.suffix import PACKINGS, format_suffix

    suffix = format_suffix(PurePath(review.source.path).name)
    bare = suffix.lower() in ("", *PACKINGS)  # a name that does not speak of its format
    return review.directory / f"corrected{f'.{review.source.format}' if bare else ''}{suffix}"


@contextmanager
def _storing(name: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(
            f"{name} could not be written ({error.strerror or error}); make room or mend the "
            "folder and export again: every decision is kept."
        ) from error


def _write_decisions(review: Review) -> tuple[list[FinalDecision], str]:
    """Write the list and the patch; the decisions, and a sentence about those of other data."""
    from exempla.tables.corrections.export import refuse_input
    from exempla.tables.corrections.patch import write_patch_lines
    from exempla.tables.corrections.tree import remove_leftovers

    log = DecisionLog(review.directory / "decisions.sqlite", review.key)
    try:
        decisions, others = final_decisions(review, log), elsewhere(log.others())
    finally:
        log.close()
    listing, patch = review.directory / "decisions.json", review.directory / "patch.csv"
    for path in (listing, patch):
        refuse_input(path, review.source_path())
        remove_leftovers(path)
    text = json.dumps([asdict(d) for d in decisions], indent=1, ensure_ascii=False)
    with _storing(listing.name):
        write_text(listing, f"{text}\n")
    with _storing(patch.name):
        write_patch_lines(patch, [_patch_line(review, d) for d in _changes(decisions)])
    return decisions, others


def _changes(decisions: list[FinalDecision]) -> list[FinalDecision]:
    return [d for d in decisions if d.action in ("relabel", "remove")]


def _patch_line(review: Review, d: FinalDecision) -> PatchLine:
    from exempla.tables.corrections.patch import PatchLine

    return PatchLine(
        row=d.row,
        id=d.id,
        column=_label(review),
        old=d.old_label,
        new=d.new_label if d.action == "relabel" else None,
        action=d.action,
        time=d.time,
        evidence=d.evidence,
        note=d.note,
        original=review.fingerprint,
    )


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
