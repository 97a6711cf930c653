"""Views: how to show an example as an image, a text or a table row.

A view holds the data of a report and returns one `Content` at a time, so only the shown examples
cost anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from exempla.errors import ExemplaError

LONGEST_TEXT = 600
"""Characters of a text that a report shows, around its decisive words."""
MOST_CELLS = 6
"""Cells of a table row that are always visible; the others are folded."""

_Decisive = Callable[[int], Mapping[str, float]]
"""Signed strengths of words or columns of example i."""


@dataclass(frozen=True)
class Content:
    """What is shown of one example; any part may be empty.

    In reports and on the review page, a positive strength supports the example's label and a
    negative one opposes it.
    """

    image: Any = None
    pieces: tuple[tuple[str, float], ...] = ()
    """A text in pieces, each with its strength in [−1, 1] (0 for ordinary words)."""
    cells: tuple[tuple[str, str, float], ...] = ()
    """(column, value, strength), the decisive ones first."""
    label: str | None = None
    predicted: str | None = None
    name: str = ""
    numeric: bool = False
    """Whether label and prediction are real numbers, which are never exactly equal."""

    @property
    def doubted(self) -> bool:
        """Whether the model disagrees with the label."""
        known = None not in (self.label, self.predicted)
        return known and not self.numeric and self.label != self.predicted


@dataclass(frozen=True, kw_only=True)
class View:
    """Labels, predictions and names of the examples, without their content.

    >>> View(labels=["cat", "dog"], predicted=["cat", "cat"]).show(1).doubted
    True
    """

    labels: Any = None
    predicted: Any = None
    names: Any = None
    marks: ClassVar[tuple[str, str]] = ("for its label", "against its label")
    """What the two colours of decisive parts mean."""

    @cached_property
    def numeric(self) -> bool:
        """Whether the model predicts numbers: some prediction has a fraction."""
        said = [] if self.predicted is None else [v for v in self.predicted if v is not None]
        return any(isinstance(v, float | np.floating) and v % 1 for v in said)

    def show(self, index: int) -> Content:
        """Return what to show of example `index`."""
        return Content(
            label=_entry(self.labels, index, "labels"),
            predicted=_entry(self.predicted, index, "predicted"),
            numeric=self.numeric,
            name=_entry(self.names, index, "names") or f"#{index}",
        )

    def columns_of(self, index: int) -> dict[str, str | None]:
        """Return all columns of example `index`, for tables; {} if unknown."""
        return {}

    def _with(self, index: int, **parts: Any) -> Content:
        return Content(**{**View.show(self, index).__dict__, **parts})


@dataclass(frozen=True)
class ImageView(View):
    """Examples that are images: arrays (h, w[, c]), Pillow images, or paths of image files.

    Arrays that are not uint8 are scaled by the range of the whole array, or by `low` and `high`.

    >>> import numpy as np
    >>> view = ImageView(np.zeros((3, 8, 8)), labels=[0, 1, 2])
    >>> view.show(2).label, view.show(2).image.shape
    ('2', (8, 8))
    """

    images: Any
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        images = self.images
        if not isinstance(images, np.ndarray):
            return
        if images.ndim not in (3, 4):
            raise ExemplaError(
                f"ImageView needs images of shape (n, height, width[, channels]), not "
                f"{images.shape}; reshape them first."
            )
        if images.dtype != np.uint8 and images.size:
            low = np.nanmin(images) if self.low is None else self.low
            high = np.nanmax(images) if self.high is None else self.high
            self.__dict__.update(low=float(low), high=float(high))  # the dataclass is frozen

    def show(self, index: int) -> Content:
        """Return the image, as bytes if it is an array."""
        image = _entry(self.images, index, "images", raw=True)
        if isinstance(image, np.ndarray) and self.low is not None and self.high is not None:
            span = (self.high - self.low) or 1.0
            image = np.nan_to_num((image - self.low) / span).clip(0.0, 1.0)
            image = np.round(image * 255).astype(np.uint8)
        return self._with(index, image=image)


@dataclass(frozen=True)
class TextView(View):
    """Examples that are texts; `decisive(i)` may return the strengths of words.

    >>> view = TextView(["free money now"], decisive=lambda i: {"money": 0.5})
    >>> view.show(0).pieces
    (('free ', 0.0), ('money', 1.0), (' now', 0.0))
    """

    texts: Any
    decisive: _Decisive | None = None

    def columns_of(self, index: int) -> dict[str, str | None]:
        """Return the whole text."""
        return {"text": str(_entry(self.texts, index, "texts", raw=True))}

    def show(self, index: int) -> Content:
        """Return the text, shortened around its decisive words."""
        text = str(_entry(self.texts, index, "texts", raw=True))
        return self._with(index, pieces=mark_words(text, _strengths(self.decisive, index)))


@dataclass(frozen=True)
class TableView(View):
    """Examples that are rows of a DataFrame, or of a mapping from column to values.

    >>> TableView({"age": [39, 50]}, labels=["no", "yes"]).show(1).cells
    (('age', '50', 0.0),)
    """

    table: Any
    decisive: _Decisive | None = None

    def columns_of(self, index: int) -> dict[str, str | None]:
        """Return the whole row."""
        names = self.table.keys()
        return {str(c): str(_entry(self.table[c], index, "table", raw=True)) for c in names}

    def show(self, index: int) -> Content:
        """Return the row's cells, the decisive ones first."""
        strengths = _strengths(self.decisive, index)
        cells = [
            (str(c), _cell(_entry(self.table[c], index, "table", raw=True)), strengths.get(c, 0.0))
            for c in self.table.keys()  # noqa: SIM118 - a DataFrame iterates its columns as well
        ]
        return self._with(index, cells=tuple(sorted(cells, key=lambda cell: -abs(cell[2]))))


def confusions(view: View, count: int) -> list[tuple[str | None, str | None]]:
    """Return (true, predicted) of the first `count` examples."""
    labels, said = view.labels, view.predicted
    return [(_entry(labels, i, "labels"), _entry(said, i, "predicted")) for i in range(count)]


def mark_words(
    text: str, strengths: Mapping[str, float], longest: int = LONGEST_TEXT
) -> tuple[tuple[str, float], ...]:
    """Split the text at the given words and shorten it around them."""
    known = {word.casefold(): strength for word, strength in strengths.items()}
    marked = sorted((word for word in strengths if word.strip()), key=len, reverse=True)
    words = "|".join(map(re.escape, marked)) or r"(?!)"  # which never matches
    pattern = re.compile(rf"(?<!\w)({words})(?!\w)", re.IGNORECASE)
    first = pattern.search(text)
    start = 0 if first is None or len(text) <= longest else max(first.start() - longest // 4, 0)
    parts = pattern.split(_shorten(text, start, longest))  # words at odd places
    pieces = (
        (part, known.get(part.casefold(), 0.0) if i % 2 else 0.0) for i, part in enumerate(parts)
    )
    return tuple(piece for piece in pieces if piece[0])


def _shorten(text: str, start: int, longest: int) -> str:
    cut = text[start : start + longest]
    return ("… " if start else "") + cut + (" …" if start + longest < len(text) else "")


def _strengths(decisive: _Decisive | None, index: int) -> dict[str, float]:
    """Return strengths scaled so that the largest is ±1."""
    raw = dict(decisive(index)) if decisive is not None else {}
    top = max((abs(v) for v in raw.values()), default=0.0)
    return {name: value / top for name, value in raw.items()} if top > 0 else {}


def rounded(value: float) -> str:
    """Round a number to four significant digits; keep all digits before the point."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def _cell(value: Any) -> str:
    return rounded(float(value)) if isinstance(value, float | np.floating) else str(value)


def _entry(values: Any, index: int, what: str, raw: bool = False) -> Any:
    if values is None:
        return None
    try:
        value = values.iloc[index] if hasattr(values, "iloc") else values[index]
    except (IndexError, KeyError) as error:
        raise ExemplaError(
            f"The view's {what} have no entry {index}; give the view the same rows, in the same "
            "order, as the explanation."
        ) from error
    return value if raw or value is None else _cell(value)
