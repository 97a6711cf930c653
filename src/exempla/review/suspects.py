"""Suspects as the page shows them: content, labels, and the rows that contradict or support."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError
from exempla.report.views import Content

LONGEST_TEXT = 20_000
"""Characters of a text on the page; longer texts are cut, and the page says so."""
_LONGEST_CELL = 200_000
"""Characters of a cell of the original row."""
KINDS = ("class", "number", "part")
_STATED = {
    "row", "id", "given", "suggested", "probability", "model_probability", "side", "content",
    "contradicting", "supporters", "expected", "spread",
}  # fmt: skip
"""Fields of every line of suspects.jsonl."""
PARTS, FIRST_PART = 1 << 20, 1 << 40
"""Numbers per row for parts, and the first such number; exact in a browser (2⁵³)."""


def item_of(row: int, part: str = "", span: tuple[int, int] | None = None) -> int:
    """Return the number that decisions about an item are stored under: the row, or a part's number.

    The number of a part is computed from the row and its position (tokens) or name (labels), so
    that a repeated analysis keeps its decisions.
    """
    if not part:
        return row
    place = span[0] if span else zlib.crc32(part.encode("utf-8", "replace"))
    return FIRST_PART + row * PARTS + place % PARTS


def row_of(item: int) -> int:
    """Return the row of an item."""
    return item if item < FIRST_PART else (item - FIRST_PART) // PARTS


def content_json(content: Content) -> dict[str, Any]:
    """Return what the page shows of a row, without the pixels; empty parts are left out.

    "words" are the decisive words of the text, strongest first (for their sign, see `Content`).
    """
    out: dict[str, Any] = {}
    text = "".join(piece for piece, _ in content.pieces)
    if text:
        out["text"] = text[:LONGEST_TEXT]
        if len(text) > LONGEST_TEXT:
            out["cut"] = len(text) - LONGEST_TEXT
    words = {piece: _finite(weight) for piece, weight in content.pieces if weight}
    if words:
        out["words"] = [[w, words[w]] for w in sorted(words, key=lambda word: -abs(words[word]))]
    if content.cells:
        out["cells"] = [[c, v, _finite(w)] for c, v, w in content.cells]
    if content.name:
        out["name"] = content.name
    return out


@dataclass(frozen=True)
class EvidenceRow:
    """A trusted row that contradicts a suspect's label (or, as a supporter, agrees with it).

    `source` is the file that `row` refers to: "train" or "curated".
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
                f"Row {self.row}: its source is {self.source!r}; it must be train or curated."
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        content = content_json(self.content)
        return {**self.__dict__, "weight": _finite(self.weight), "content": content}


@dataclass(frozen=True)
class Suspect:
    """A row whose label may be wrong, with the evidence.

    Attributes
    ----------
    given : str
        The label in the file; empty if the row has none yet.
    probability : float
        Probability that the given label is wrong.
    model_probability : float
        The model's probability of `suggested`.
    model_label : str
        The model's prediction, where it is known; it may be the given label.
    side : str
        A short word to filter by, such as "opponent" or "proponent".
    contradicting, supporters : tuple of EvidenceRow
        The trusted rows that contradict the given label, and those that agree with it.
    kind : str
        "class"; "number", where the label is a number (`expected` is the one the model would
        expect, `spread` its standard deviation); or "part", where it is the label of a part.
    part, span : str, (int, int) or None
        The part's name: one of several labels, or a token, which lies at `span` of the text.
    original : tuple of (column, value)
        The row as the file has it, every column; None as a value: it is the text shown.
    stratum : int
        The stratum that spot checks draw it from; those of listed suspects come first.
    snippet : str
        The beginning of its content. The list of a review that was read from disk shows it; content
        and evidence are then read with the card.

    >>> Suspect(4312, "ham", "spam", 0.91, 0.97).to_dict()["suggested"]
    'spam'
    >>> Suspect(7, "1200", "120", 0.8, 0.0, kind="number", expected=119.6, spread=8.0).item
    7
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
    kind: str = "class"
    part: str = ""
    span: tuple[int, int] | None = None
    expected: float | None = None
    spread: float | None = None
    original: tuple[tuple[str, str | None], ...] = ()
    model_label: str = ""
    stratum: int = 0
    snippet: str = ""

    @property
    def item(self) -> int:
        """The number that decisions about it are stored under."""
        return item_of(self.row, self.part, self.span)

    def __post_init__(self) -> None:
        problem = ""
        if self.row < 0:
            problem = "rows are counted from 0"
        elif self.kind not in KINDS:
            problem = f"its kind is {self.kind!r}; it must be one of {', '.join(KINDS)}"
        elif (self.kind == "part") != bool(self.part):
            problem = "a part needs a name, and only a part has one"
        elif self.kind == "number" and not (is_number(self.given) and is_number(self.expected)):
            problem = f"given is {self.given!r} and expected {self.expected!r}: not a number"
        elif self.span is not None and not 0 <= self.span[0] < self.span[1]:
            problem = f"the span {self.span} is invalid"
        for name in ("probability", "model_probability"):
            if not 0.0 <= getattr(self, name) <= 1.0:  # also refuses NaN
                problem = f"{name} is {getattr(self, name)}; it must lie in [0, 1]"
        if problem:
            raise ExemplaError(f"Row {self.row}: {problem}.")

    def to_dict(self) -> dict[str, Any]:
        """Return one line of suspects.jsonl; what most suspects do not have is left out."""
        _finite(self.spread or 0.0)
        out = {each.name: getattr(self, each.name) for each in fields(self)}
        out |= {
            "content": content_json(self.content),
            "contradicting": [row.to_dict() for row in self.contradicting],
            "supporters": [row.to_dict() for row in self.supporters],
            "original": [(c, v and v[:_LONGEST_CELL]) for c, v in self.original],
            "item": self.item if self.part else None,
            "kind": self.kind if self.kind != "class" else None,
        }
        return {name: value for name, value in out.items() if name in _STATED or value}


@dataclass(frozen=True)
class ReviewedFile:
    """The file that the rows come from, and how to read it again.

    `label` is the label column; `options` are the keyword arguments of `exempla.tables.read_table`.
    `fingerprint` is that of the analysed bytes (see `exempla.tables.corrections`), computed from
    the path if None.
    """

    path: str | Path
    format: str
    label: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None


def is_number(value: Any) -> bool:
    """Return True for a finite number, or a string that represents one."""
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ExemplaError(f"A weight or spread is {value}; it must be a finite number.")
    return float(value)
