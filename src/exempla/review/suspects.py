"""What the page shows of a suspect: its content, its labels, and the rows for and against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError

__all__ = ["Accuser", "Cell", "Content", "Source", "Suspect", "Word"]

LONGEST_TEXT = 20_000
"""Characters of one text that reach the page; longer texts are cut, and the cut is shown."""


@dataclass(frozen=True)
class Word:
    """A word of the text that moved the decision; a positive weight speaks for `suggested`.

    >>> Word("viagra", 0.4).text
    'viagra'
    """

    text: str
    weight: float = 0.0


@dataclass(frozen=True)
class Cell:
    """One cell of a table row, and how much its column moved the decision.

    >>> Cell("age", "39", 0.2).column
    'age'
    """

    column: str
    value: str
    weight: float = 0.0


@dataclass(frozen=True)
class Content:
    """What a person sees of a row: any of a text, table cells, an image.

    `image` is a path, a Pillow image or an array (height, width[, channels]); it is re-encoded
    when the folder is written, so nothing but pixels reaches the page. `name` is only shown.

    >>> Content(text="meeting moved", words=(Word("meeting", -0.1),)).to_dict()["words"]
    [['meeting', -0.1]]
    """

    text: str = ""
    words: tuple[Word, ...] = ()
    cells: tuple[Cell, ...] = ()
    image: Any = field(default=None, compare=False)
    name: str = ""

    def to_dict(self) -> dict[str, Any]:
        """The JSON form, without the pixels; empty parts are left out."""
        out: dict[str, Any] = {}
        if self.text:
            out["text"] = self.text[:LONGEST_TEXT]
            if len(self.text) > LONGEST_TEXT:
                out["cut"] = len(self.text) - LONGEST_TEXT
        if self.words:
            out["words"] = [[w.text, _finite(w.weight, "a word's weight")] for w in self.words]
        if self.cells:
            out["cells"] = [
                [c.column, c.value, _finite(c.weight, "a column's weight")] for c in self.cells
            ]
        if self.name:
            out["name"] = self.name
        return out


@dataclass(frozen=True)
class Accuser:
    """A trusted row that speaks against (or, as a supporter, for) the given label.

    `source` says which file `row` counts in: "train" or "curated".

    >>> Accuser(17, "spam", 0.31, Content(text="cheap pills")).to_dict()["label"]
    'spam'
    """

    row: int
    label: str
    weight: float
    content: Content = Content()
    id: str = ""
    source: str = "train"

    def __post_init__(self) -> None:
        if self.source not in ("train", "curated"):
            raise ExemplaError(f"An accuser's source is {self.source!r}; use 'train' or 'curated'.")

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {
            "row": int(self.row),
            "id": self.id,
            "label": self.label,
            "weight": _finite(self.weight, f"the weight of row {self.row}"),
            "source": self.source,
            "content": self.content.to_dict(),
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
    content: Content = Content()
    accusers: tuple[Accuser, ...] = ()
    supporters: tuple[Accuser, ...] = ()

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
            "content": self.content.to_dict(),
            "accusers": [a.to_dict() for a in self.accusers],
            "supporters": [a.to_dict() for a in self.supporters],
        }


@dataclass(frozen=True)
class Source:
    """The file the rows come from, and how to read it again.

    `options` are the keyword arguments of `exempla.tables.read` beside the path.

    >>> Source("mails.jsonl", "jsonl", label="label").format
    'jsonl'
    """

    path: str | Path
    format: str
    label: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def _finite(value: float, what: str) -> float:
    if not math.isfinite(value):
        raise ExemplaError(f"{what.capitalize()} is {value}; weights must be finite numbers.")
    return float(value)
