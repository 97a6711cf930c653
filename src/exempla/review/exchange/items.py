"""What every tool is told of a suspect."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from exempla.review.suspects import item_of

__all__ = ["PRESENCE", "Item", "items_of", "items_of_review"]

PRESENCE = ("absent", "present")
"""What a label of several can be."""


@dataclass(frozen=True)
class Item:
    """One suspect."""

    item: int
    """The number that decisions about it are kept under; the row, unless it is a part of one."""
    row: int
    given: str
    suggested: str
    probability: float
    kind: str = "class"
    part: str = ""
    span: tuple[int, int] | None = None
    text: str = ""
    image: str = ""
    expected: float | None = None
    spread: float | None = None
    id: str = ""
    column: str = "label"

    @property
    def shown(self) -> str:
        """A text for a person, whatever the row is."""
        where = f"{self.part}: {self.given}" if self.part else f"{self.column}: {self.given}"
        return self.text or f"row {self.row} · {where}"


def items_of(fixes: Any, texts: Any = None, images: Any = None) -> list[Item]:
    """The suspects of a result, most suspicious first."""
    tokens = getattr(fixes, "parts", "") == "tokens"
    several = getattr(fixes, "parts", "") == "labels"
    numbers = hasattr(fixes, "spread")
    out = []
    for rank, row in enumerate(fixes.indices.tolist()):
        words = texts[row] if texts is not None else ""
        part, span = (str(fixes.name[rank]) or " ") if tokens or several else "", None
        if tokens and not isinstance(words, str):
            place = int(fixes.part[rank])
            start = sum(len(word) + 1 for word in words[:place])
            span, words = (start, start + max(len(words[place]), 1)), " ".join(words)
        elif tokens:  # without the sentence, the place among its tokens tells them apart
            span = (int(fixes.part[rank]), int(fixes.part[rank]) + 1)
        labels = [fixes.given[rank], fixes.suggested[rank]]
        if several:
            labels = [PRESENCE[int(label)] for label in labels]
        given, suggested = (f"{v:.10g}" if numbers else str(v) for v in labels)
        out.append(
            Item(
                item_of(row, part, span),
                row,
                given,
                suggested,
                float(fixes.probabilities[rank]),
                kind="number" if numbers else "part" if part else "class",
                part=part,
                span=span,
                text=str(words),
                image=str(images[row]) if images is not None else "",
                expected=float(fixes.expected[rank]) if numbers else None,
                spread=float(fixes.spread[rank]) if numbers else None,
                id="" if fixes.ids is None else str(fixes.ids[rank]),
            )
        )
    return out


def items_of_review(review: Any) -> list[Item]:
    """The suspects of a review folder, in its order."""
    out = []
    for listed in review.suspects:
        card = review.card(listed.item)
        content = card["content"]
        cells = "\n".join(f"{column}: {value}" for column, value, _ in content.get("cells", []))
        span = card.get("span")
        out.append(
            Item(
                listed.item,
                listed.row,
                listed.given,
                listed.suggested,
                listed.probability,
                kind=listed.kind,
                part=listed.part,
                span=tuple(span) if span else None,
                text=content.get("text", "") or cells,
                image=_image(review, listed.row, content),
                expected=listed.expected,
                spread=listed.spread,
                id=listed.id,
                column=review.source.label or "label",
            )
        )
    return out


def _image(review: Any, row: int, content: dict[str, Any]) -> str:
    """The absolute path of an image; "" if the row is none."""
    if review.source.format == "images":
        from exempla.tables.read import read_table

        return str(review.source_path() / (read_table(review.source_path()).row(row)["file"] or ""))
    if content.get("image"):
        return str((review.directory / "images" / f"train-{row}.webp").resolve())
    return ""


def names(items: Sequence[Item]) -> str:
    """Some items for a sentence."""
    few = [f"row {i.row}" + (f" {i.part!r}" if i.part else "") for i in items[:5]]
    return ", ".join(few) + (f" and {len(items) - 5:,} more" if len(items) > 5 else "")
