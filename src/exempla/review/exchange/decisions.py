"""Decisions made in another tool, written to the decision log as if made on the page.

All or nothing: an unknown row or label refuses the file, naming each. A row that was decided on
otherwise before keeps that decision, and is named; taking a file over twice changes nothing.
"""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from exempla.errors import ExemplaError
from exempla.review.exchange.fiftyone import read_fiftyone
from exempla.review.exchange.items import Item, items_of_review, names
from exempla.review.exchange.label_studio import read_label_studio
from exempla.review.log import DecisionLog, RowDecision
from exempla.review.suspects import is_number

__all__ = ["Imported", "import_decisions"]


class Imported(NamedTuple):
    """What was taken over from a file."""

    written: int
    """Decisions that are new."""
    known: int
    """Decisions that were in the log already."""
    kept: tuple[str, ...]
    """Suspects decided on otherwise before: that decision stays."""


def import_decisions(review: Any, path: str | Path) -> Imported:
    """Take over the decisions of a Label Studio export (.json) or a FiftyOne one (.csv).

    >>> import pathlib, tempfile
    >>> from exempla.review import ReviewedFile, Suspect, read_review, write_review
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = write_review(folder, [Suspect(3, "ham", "spam", 0.9, 0.97)],
    ...                  source=ReviewedFile("mails.jsonl", "jsonl"), classes=["ham", "spam"])
    >>> _ = (folder / "back.csv").write_text("exempla_item,label,tags\\n3,spam,\\n")
    >>> import_decisions(read_review(folder), folder / "back.csv").written
    1
    """
    path = Path(path)
    if not path.is_file():
        raise ExemplaError(f"There is no file {str(path)!r} to take decisions from.")
    readers = {".json": read_label_studio, ".csv": read_fiftyone}
    if path.suffix.lower() not in readers:
        raise ExemplaError(
            f"{path.name} is neither a Label Studio export (.json) nor a FiftyOne one (.csv)."
        )
    known = {item.item: item for item in items_of_review(review)}
    wanted = _checked(readers[path.suffix.lower()](path), known, review, path.name)
    log = DecisionLog(review.directory / "decisions.sqlite", review.key)
    try:
        return _written(log, wanted, known, path)
    finally:
        log.close()


def _checked(
    found: list[tuple[int, str, str]], known: dict[int, Item], review: Any, name: str
) -> dict[int, RowDecision]:
    """The decisions, if every one is about a suspect and names a label there is."""
    problems: list[str] = []
    out: dict[int, RowDecision] = {}
    for number, action, label in found:
        item = known.get(number)
        if item is None:
            problems.append(f"item {number} is none of the suspects")
            continue
        decision = _decision(item, action, label)
        if decision.label is not None and not _possible(item, decision.label, review.classes):
            problems.append(f"{label!r} of row {item.row} is none of the labels")
        elif number in out and out[number] != decision:
            problems.append(f"row {item.row} is decided twice, and differently")
        else:
            out[number] = decision
    if problems:
        more = f" and {len(problems) - 5:,} more" if len(problems) > 5 else ""
        raise ExemplaError(
            f"{name} was not taken over: {'; '.join(problems[:5])}{more}. Nothing was written."
        )
    return out


def _decision(item: Item, action: str, label: str) -> RowDecision:
    if action != "label":
        return RowDecision(item.item, action)
    same = label == item.given or (
        item.kind == "number" and is_number(label) and float(label) == float(item.given)
    )
    return RowDecision(item.item, "keep") if same else RowDecision(item.item, "relabel", label)


def _possible(item: Item, label: str, classes: tuple[str, ...]) -> bool:
    return is_number(label) if item.kind == "number" else label in classes


def _written(
    log: DecisionLog, wanted: dict[int, RowDecision], known: dict[int, Item], path: Path
) -> Imported:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:24]
    written, same, kept = 0, 0, []
    for item, decision in wanted.items():
        now = log.state(item)
        if now.action in ("pending", "skip") and now.action != decision.action:
            # a note that was written on the page stays with the row
            noted = replace(decision, note=now.note)
            log.decide(noted, seen=now.version, once=f"{digest}-{item}")
            written += 1
        elif (now.action, now.label) == (decision.action, decision.label):
            same += 1
        else:
            kept.append(known[item])
    return Imported(written, same, tuple(names([item]) for item in kept))
