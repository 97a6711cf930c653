"""Decisions about parts of rows, one of several labels or a token's, put back into the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exempla.atomic import write_bytes
from exempla.errors import ExemplaError
from exempla.review.log import DecisionLog
from exempla.review.suspects import item_of, row_of

__all__ = ["layout_of", "write_corrected_parts"]


def layout_of(review: Any) -> dict[str, Any] | None:
    """How the reviewed file holds the labels of its parts; None if rows have one label each."""
    return review.source.options.get("parts")


def write_corrected_parts(review: Any, path: Path, target: Path) -> Path:
    """Write the reviewed file with the decisions of the log put into it."""
    from exempla.tables.label_parts import changed

    layout = dict(layout_of(review) or {})
    reading = {k: v for k, v in review.source.options.items() if k != "parts"}
    changes: dict[tuple[int, Any], str] = {}
    removed: set[int] = set()
    places = _Places(path, layout, reading)
    log = DecisionLog(review.directory / "decisions.sqlite", review.key)
    try:
        states = log.states()
    finally:
        log.close()
    for state in states:
        if state.action == "remove":
            removed.add(row_of(state.row))
        elif state.action == "relabel":
            changes[row_of(state.row), places.part(state.row)] = str(state.label)
    return write_bytes(target, changed(path, layout, changes, removed, **reading))


class _Places:
    """Which label or token of its row an item is."""

    def __init__(self, path: Path, layout: dict[str, Any], reading: dict[str, Any]) -> None:
        self.layout, self.sentences = layout, None
        if layout["kind"] in ("tokens", "conll"):
            from exempla.tables.label_parts import read_sentences

            label = layout.get("labels")
            if layout["kind"] == "conll":
                place = layout["label"]
                label = str(place + (place >= 0))
            self.sentences = read_sentences(path, label)

    def part(self, item: int) -> Any:
        """The label's name, or the token's place."""
        row = row_of(item)
        if self.sentences is None:
            known = {item_of(row, name): name for name in self.layout["names"]}
        else:
            from exempla.tables.label_parts import span_of

            tokens = self.sentences.tokens[row]
            known = {item_of(row, t or " ", span_of(tokens, i)): i for i, t in enumerate(tokens)}
        if item not in known:
            raise ExemplaError(
                f"A decision is about a part of row {row} that the file no longer has; run the "
                "analysis again."
            )
        return known[item]
