"""What the page shows of a suspect: its content, its labels, and the rows for and against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError
from exempla.report.views import Content

__all__ = ["EvidenceRow", "ReviewedFile", "Suspect", "content_json", "upgraded_card"]

LONGEST_TEXT = 20_000
"""Characters of one text that reach the page; longer texts are cut, and the cut is shown."""


def content_json(content: Content) -> dict[str, Any]:
    """What the page shows of a row, without the pixels; empty parts are left out.

    "words" are the decisive pieces of the text, the strongest first. A positive weight of a word or
    a column speaks for the label that the row carries, as everywhere (see `Content`).

    >>> content_json(Content(pieces=(("the ", 0.0), ("meeting", 0.8))))
    {'text': 'the meeting', 'words': [['meeting', 0.8]]}
    """
    out: dict[str, Any] = {}
    text = "".join(piece for piece, _ in content.pieces)
    if text:
        out["text"] = text[:LONGEST_TEXT]
        if len(text) > LONGEST_TEXT:
            out["cut"] = len(text) - LONGEST_TEXT
    words = {
        piece: _finite(weight, "a word's weight") for piece, weight in content.pieces if weight
    }
    if words:
        out["words"] = [[w, words[w]] for w in sorted(words, key=lambda word: -abs(words[word]))]
    if content.cells:
        out["cells"] = [[c, v, _finite(w, "a column's weight")] for c, v, w in content.cells]
    if content.name:
        out["name"] = content.name
    return out


@dataclass(frozen=True)
class EvidenceRow:
    """A trusted row that contradicts a suspect's label (or, as a supporter, agrees with it).

    `source` says which file `row` counts in: "train" or "curated".

    >>> EvidenceRow(17, "spam", 0.31, Content(pieces=(("cheap pills", 0.0),))).to_dict()["label"]
    'spam'
    """

    row: int
    label: str
    weight: float
    content: Content = field(default_factory=Content)
    id: str = ""
    source: str = "train"

    def __post_init__(self) -> None:
        if self.source not in ("train", "curated"):
            raise ExemplaError(
                f"Row {self.row}: its source is {self.source!r}, not train, curated."
            )

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "row": int(self.row),
            "id": self.id,
            "label": self.label,
            "weight": _finite(self.weight, f"the weight of row {self.row}"),
            "source": self.source,
            "content": content_json(self.content),
        }


@dataclass(frozen=True)
class Suspect:
    """A row whose label may be wrong, with the evidence.

    Attributes
    ----------
    probability : float
        Probability that the given label is wrong.
    model_probability : float
        The model's probability of `suggested`.
    side : str
        A short word to filter by, such as "opponent" or "proponent".
    contradicting, supporters : tuple of EvidenceRow
        The trusted rows that contradict the given label, and those that agree with it.

    >>> Suspect(4312, "ham", "spam", 0.91, 0.97).to_dict()["suggested"]
    'spam'
    """

    row: int
    given: str
    suggested: str
    probability: float
    model_probability: float
    side: str = "opponent"
    id: str = ""
    content: Content = field(default_factory=Content)
    contradicting: tuple[EvidenceRow, ...] = ()
    supporters: tuple[EvidenceRow, ...] = ()

    def __post_init__(self) -> None:
        if self.row < 0:
            raise ExemplaError(f"Row {self.row} is negative; rows are counted from 0.")
        for name in ("probability", "model_probability"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:  # also refuses NaN
                raise ExemplaError(f"Row {self.row}: {name} is {value}; it must lie in [0, 1].")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: one line of suspects.jsonl."""
        return {
            "row": int(self.row),
            "id": self.id,
            "given": self.given,
            "suggested": self.suggested,
            "probability": float(self.probability),
            "model_probability": float(self.model_probability),
            "side": self.side,
            "content": content_json(self.content),
            "contradicting": [row.to_dict() for row in self.contradicting],
            "supporters": [row.to_dict() for row in self.supporters],
        }


def upgraded_card(card: dict[str, Any]) -> dict[str, Any]:
    """A card as written before format 2, in today's words and signs.

    Then "accusers" were the contradicting rows, and a positive weight of the suspect's own words
    and columns spoke for the suggested label.

    >>> upgraded_card({"content": {"words": [["pills", 0.4]]}, "accusers": []})
    {'content': {'words': [['pills', -0.4]]}, 'contradicting': []}
    """
    content = dict(card["content"])
    for part in ("words", "cells"):
        if part in content:
            content[part] = [[*named, -weight] for *named, weight in content[part]]
    rest = {name: value for name, value in card.items() if name not in ("content", "accusers")}
    return rest | {"content": content, "contradicting": card["accusers"]}


@dataclass(frozen=True)
class ReviewedFile:
    """The file the rows come from, and how to read it again.

    `label` is the column whose values are decided about; `options` are the keyword arguments of
    `exempla.tables.read_table` beside the path. `fingerprint` is that of the bytes the suspects
    were found in (`exempla.tables.corrections.fingerprint`), worked out from the path if None.

    >>> ReviewedFile("mails.jsonl", "jsonl", label="label").format
    'jsonl'
    """

    path: str | Path
    format: str
    label: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None


def _finite(value: float, what: str) -> float:
    if not math.isfinite(value):
        raise ExemplaError(f"{what.capitalize()} is {value}; weights must be finite numbers.")
    return float(value)
