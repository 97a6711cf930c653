"""From the log to files: the decisions, a patch, and the corrected data set.

Each file appears whole or not at all, none is written onto an input or through a link, and one
export at a time works in a folder. Whatever fails here, the decisions are safe in the log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any

from exempla.errors import ExemplaError
from exempla.io import alone_in, write_text
from exempla.report.words import chance
from exempla.review.folder import Review, read_review
from exempla.review.formats import layout_of, write_corrected_parts
from exempla.review.gate import elsewhere
from exempla.review.log import DecisionLog, RowDecision
from exempla.review.suspects import FIRST_PART, row_of

# Tables are imported where they are used: the page starts without all that they need.
if TYPE_CHECKING:
    from exempla.tables.corrections import PatchLine

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


_BUSY = "Another export is being written into this folder; wait for it, then export again."


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
    part: str = ""
    """The label or token of the row that it is about; "" for the row itself."""
    span: tuple[int, int] | None = None
    content: dict[str, str] = field(default_factory=dict)
    """The row as the file has it, without its label."""


def export_decisions(directory: str | Path) -> list[FinalDecision]:
    """Write DIR/decisions.json and DIR/patch.csv and return the decisions, by row.

    decisions.json holds every decision; patch.csv only those that change the data (row, id,
    column, old, new, action, time, evidence, note, fingerprint of the original, and the row's own
    columns, as row.NAME; for a part of a row also its name and place). Cells are written as they
    are: a spreadsheet may take one that begins with "=" for a formula.

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
    with alone_in(review.directory, BusyError(_BUSY)):
        return _write_decisions(review)[0]


@dataclass(frozen=True)
class Exported:
    """What an export wrote; without `corrected`, `problem` says why."""

    decisions: list[FinalDecision]
    corrected: Path | None
    problem: str = ""
    elsewhere: str = ""
    """A sentence about decisions in the folder that are about something else, and were not used."""
    parts: bool = False
    """The decisions are about parts of rows: patch.csv is all there is."""

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
    with alone_in(review.directory, BusyError(_BUSY)):
        decisions, others = _write_decisions(review)
        if any(s.kind == "part" for s in review.suspects) and layout_of(review) is None:
            return Exported(decisions, None, elsewhere=others, parts=True)
        try:
            return Exported(decisions, write_corrected(review, decisions), elsewhere=others)
        except ExemplaError as error:
            return Exported(decisions, None, str(error), others)


def final_decisions(review: Review, log: DecisionLog) -> list[FinalDecision]:
    """The state of every row that anything was decided or noted about, by row."""
    log.refresh()
    states = [state for state in log.states() if state.action != "pending" or state.note]
    return sorted((_final(review, s) for s in states), key=lambda d: (d.row, d.span or (), d.part))


def write_corrected(review: Review, decisions: list[FinalDecision]) -> Path:
    """Write the corrected data set into the folder, in the input's own format.

    The file is called corrected.*, after the input's ending; an image folder becomes the folder
    `corrected`. What an earlier export left there is replaced; a folder that anybody else made, or
    changed, is not.
    """
    from exempla.tables.corrections import (
        Decision,
        export,
        fingerprint,
        refuse_input,
        remove_leftovers,
    )
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
    from exempla.tables.formats.encoding import PACKINGS, format_suffix

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
    from exempla.tables.corrections import refuse_input, remove_leftovers, write_patch_lines

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
        changes = _changes(decisions)
        lines = [_patch_line(review, d) for d in changes]
        write_patch_lines(patch, lines, [_more(d) for d in changes])
    return decisions, others


def _changes(decisions: list[FinalDecision]) -> list[FinalDecision]:
    return [d for d in decisions if d.action in ("relabel", "remove")]


def _patch_line(review: Review, d: FinalDecision) -> PatchLine:
    from exempla.tables.corrections import PatchLine

    return PatchLine(
        row=d.row,
        id=d.id,
        # No column has such a name, so that nobody applies a part's label to the row.
        column=_label(review) + (f"[{d.part}]" if d.part else ""),
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


def _more(d: FinalDecision) -> dict[str, str]:
    """What a line of the patch holds beside the change: the part, and the row's own columns."""
    part = {"part": d.part} if d.part else {}
    if d.span:
        part |= {"start": str(d.span[0]), "end": str(d.span[1])}
    return part | {f"row.{name}": value for name, value in d.content.items()}


def _final(review: Review, state: RowDecision) -> FinalDecision:
    try:
        card = review.card(state.row)
    except KeyError:  # decided in an earlier analysis of the same file; no longer a suspect
        new = state.label if state.action == "relabel" else None
        return FinalDecision(
            row_of(state.row), "", state.action, "", new, state.note, state.time,
            "no longer listed as a suspect", "" if state.row < FIRST_PART else "?",
        )  # fmt: skip
    new = {"keep": card["given"], "relabel": state.label}.get(state.action)
    return FinalDecision(
        row=card["row"],
        id=card["id"],
        action=state.action,
        old_label=card["given"],
        new_label=new,
        note=state.note,
        time=state.time,
        evidence=_evidence(card),
        part=card.get("part", ""),
        span=tuple(card["span"]) if card.get("span") else None,
        content=_content(card),
    )


def _content(card: dict[str, Any]) -> dict[str, str]:
    """The row's own columns; of a folder that does not hold them, what the page shows."""
    content = card["content"]
    if card.get("original"):
        text = content.get("text", "")
        return {name: text if value is None else value for name, value in card["original"]}
    shown = {column: value for column, value, _ in content.get("cells", [])}
    if content.get("text"):
        shown["text"] = content["text"]
    return shown | ({"file": content["name"]} if content.get("name") else {})


def _evidence(card: dict[str, Any]) -> str:
    """One line: how suspicious, what the model says, which rows contradict."""
    parts = [f"the chance that it is wrong is {chance(card['probability'])}"]
    if card.get("expected") is not None:
        spread = f" ± {card['spread']:.4g}" if card.get("spread") is not None else ""
        parts.append(f"expected {card['expected']:.6g}{spread}")
    else:
        parts.append(f"model says {card['suggested']} {chance(card['model_probability'])}")
    rows = [f"#{r['row']} {r['label']} {r['weight']:.3g}" for r in card["contradicting"][:5]]
    if rows:
        parts.append("contradicted by " + ", ".join(rows))
    return "; ".join(parts)
