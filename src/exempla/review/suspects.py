"""What the page shows of a suspect: its content, its labels, and the rows for and against it."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError
from exempla.report.views import Content

__all__ = [
    "EvidenceRow", "ReviewedFile", "Suspect", "content_json",
    "is_number", "item_of", "row_of",
]  # fmt: skip

LONGEST_TEXT = 20_000
"""Characters of one text that reach the page; longer texts are cut, and the cut is shown."""
_LONGEST_CELL = 200_000
"""Characters of one cell of the row as the file has it."""
KINDS = ("class", "number", "part")
PARTS, FIRST_PART = 1 << 20, 1 << 40
"""Places for parts within a row, and where their numbers begin; exact in a browser (2⁵³)."""


def item_of(row: int, part: str = "", span: tuple[int, int] | None = None) -> int:
    """The number that decisions about an item are kept under: the row's own, or one of its parts'.

    A part's number follows from the row and its place (tokens) or name (labels), so that an
    analysis that is repeated keeps its decisions.

    >>> item_of(17), item_of(17, "flu", (4, 7)) != item_of(17, "flu", (9, 12))
    (17, True)
    """
    if not part:
        return row
    place = span[0] if span else zlib.crc32(part.encode("utf-8", "replace"))
    return FIRST_PART + row * PARTS + place % PARTS


def row_of(item: int) -> int:
    """The row of an item.

    >>> row_of(17), row_of(item_of(17, "flu"))
    (17, 17)
    """
    return item if item < FIRST_PART else (item - FIRST_PART) // PARTS


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

    @property
    def item(self) -> int:
        """The number that decisions about it are kept under."""
        return item_of(self.row, self.part, self.span)

    def __post_init__(self) -> None:
        if self.row < 0:
            raise ExemplaError(f"Row {self.row} is negative; rows are counted from 0.")
        self._check_kind()
        for name in ("probability", "model_probability"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:  # also refuses NaN
                raise ExemplaError(f"Row {self.row}: {name} is {value}; it must lie in [0, 1].")

    def _check_kind(self) -> None:
        if self.kind not in KINDS:
            raise ExemplaError(
                f"Row {self.row}: its kind is {self.kind!r}, not {', '.join(KINDS)}."
            )
        if (self.kind == "part") != bool(self.part):
            raise ExemplaError(f"Row {self.row}: a part has a name, and only a part has one.")
        if self.kind == "number":
            for name, value in (("given", self.given), ("expected", self.expected)):
                if not is_number(value):
                    raise ExemplaError(f"Row {self.row}: {name} is {value!r}, not a number.")
        if self.span is not None and not 0 <= self.span[0] < self.span[1]:
            raise ExemplaError(f"Row {self.row}: the span {self.span} is none.")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form: one line of suspects.jsonl."""
        more = {
            "kind": self.kind if self.kind != "class" else None,
            "model_label": self.model_label or None,
            "item": self.item if self.part else None,
            "part": self.part or None,
            "span": None if self.span is None else [int(self.span[0]), int(self.span[1])],
            "expected": None if self.expected is None else float(self.expected),
            "spread": None if self.spread is None else _finite(self.spread, "the spread"),
            "original": [[c, v and v[:_LONGEST_CELL]] for c, v in self.original] or None,
        }
        return self._stated() | {name: value for name, value in more.items() if value is not None}

    def _stated(self) -> dict[str, Any]:
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


@dataclass(frozen=True)
class ReviewedFile:
    """The file the rows come from, and how to read it again.

    `label` is the column whose values are decided about; `options` are the keyword arguments of
    `exempla.tables.read_table` beside the path. `fingerprint` is that of the bytes the suspects
    were found in (`exempla.tables.corrections`), worked out from the path if None.

    >>> ReviewedFile("mails.jsonl", "jsonl", label="label").format
    'jsonl'
    """

    path: str | Path
    format: str
    label: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    fingerprint: str | None = None


def is_number(value: Any) -> bool:
    """Whether it is, or reads as, a finite number.

    >>> is_number("1.5e3"), is_number("nan"), is_number("a")
    (True, False, False)
    """
    try:
        return math.isfinite(float(value))
    except (TypeError, ValueError):
        return False


def _finite(value: float, what: str) -> float:
    if not math.isfinite(value):
        raise ExemplaError(f"{what.capitalize()} is {value}; weights must be finite numbers.")
    return float(value)
