"""What a person decided about a row."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from exempla.errors import ExemplaError
from exempla.tables.table import Table

__all__ = ["Decision", "checked"]

ACTIONS = ("keep", "relabel", "remove")


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
        if each.action not in ACTIONS:
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
