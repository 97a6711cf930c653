"""The list of suspects: what each line of suspects.jsonl says in short, and where it lies."""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exempla.review.design.frame import LISTED_STRATA, strata_of

__all__ = ["ListedSuspect", "read_suspects", "searched", "stamp_of", "stratified"]

SNIPPET = 90
"""Characters of a row that the list shows."""


@dataclass(frozen=True)
class ListedSuspect:
    """What the list needs of a suspect; the rest is read when its card is shown."""

    row: int
    id: str
    given: str
    suggested: str
    probability: float
    model_probability: float
    side: str
    item: int = -1
    """What decisions are kept under; the row, unless it is a part of one."""
    kind: str = "class"
    part: str = ""
    expected: float | None = None
    spread: float | None = None
    snippet: str = ""
    stratum: int = 0
    """Of the frame; those of the listed suspects come first."""


def read_suspects(
    path: Path, sha256: str | None
) -> tuple[tuple[ListedSuspect, ...], dict[int, tuple[int, int]], tuple[int, ...]]:
    """The list, the place of each item's line, and the stamp of the file as it was read."""
    suspects: list[ListedSuspect] = []
    places: dict[int, tuple[int, int]] = {}
    offset, digest = 0, hashlib.sha256()
    with open(path, "rb") as file:
        stamp = stamp_of(os.fstat(file.fileno()))
        for line in file:
            digest.update(line)
            suspects.append(_listed(json.loads(line)))
            places[suspects[-1].item] = (offset, len(line))
            offset += len(line)
    if sha256 not in (None, digest.hexdigest()):  # earlier versions wrote none
        raise ValueError("review.json and suspects.jsonl do not belong together")
    return tuple(suspects), places, stamp


def _listed(card: dict[str, Any]) -> ListedSuspect:
    return ListedSuspect(
        row=int(card["row"]),
        id=str(card["id"]),
        given=str(card["given"]),
        suggested=str(card["suggested"]),
        probability=float(card["probability"]),
        model_probability=float(card["model_probability"]),
        side=str(card["side"]),
        item=int(card.get("item", card["row"])),
        kind=str(card.get("kind", "class")),
        part=str(card.get("part", "")),
        expected=card.get("expected"),
        spread=card.get("spread"),
        snippet=_snippet(card),
        stratum=int(card.get("stratum", 0)),
    )


def _snippet(card: dict[str, Any]) -> str:
    """The beginning of what the row says; around the part, where one is marked."""
    content = card["content"]
    text = str(content.get("text", ""))
    if card.get("span"):
        text = text[max(0, card["span"][0] - SNIPPET // 3) :]
    words = " ".join(text[: 4 * SNIPPET].split())
    if not words:
        words = str(content.get("name", "")) or ", ".join(
            f"{column} {value}" for column, value, _ in content.get("cells", [])[:6]
        )
    return words if len(words) <= SNIPPET else words[: SNIPPET - 1] + "…"


def searched(card: dict[str, Any]) -> str:
    """All that a person may look for in a row."""
    content = card["content"]
    parts = [str(content.get("text", "")), str(content.get("name", "")), str(card.get("part", ""))]
    parts += [str(value) for _, value, _ in content.get("cells", [])]
    parts += [str(value) for _, value in card.get("original", []) if value]
    return "\n".join(parts)


def stratified(suspects: tuple[ListedSuspect, ...]) -> tuple[ListedSuspect, ...]:
    """The listed ones with their strata, which follow from their order."""
    strata = strata_of(len(suspects), LISTED_STRATA).tolist()
    return tuple(replace(s, stratum=h) for s, h in zip(suspects, strata, strict=True))


def stamp_of(status: os.stat_result) -> tuple[int, ...]:
    """What changes when the file is written anew."""
    return status.st_ino, status.st_size, status.st_mtime_ns
