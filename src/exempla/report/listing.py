"""A page of training rows that are no explanation, but worth a look: by themselves, or with others
beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from exempla.report.drawings.thumbnails import Gallery
from exempla.report.html import save_page
from exempla.report.page import WIDE_CAUSES, Comparison, Page, card_of
from exempla.report.views import View
from exempla.report.words.about import About, versions
from exempla.report.words.sentences import Trust, trust_in_model

__all__ = ["Listed", "write_listing"]


@dataclass(frozen=True)
class Listed:
    """A row, what is said of it, and rows beside it, each with a number."""

    row: int
    said: str = ""
    neighbours: tuple[tuple[int, str], ...] = ()


def write_listing(
    path: str | Path,
    rows: Sequence[Listed],
    *,
    view: View,
    about: About,
    trust: Sequence[Trust] = (),
    heading: str,
    help: str,
    seed: int,
    word: str = "bears",
) -> Path:
    """Write the page and return its path.

    `trust` follows what `about` says of the model; `word` names the numbers of rows beside others.

    >>> import pathlib, tempfile
    >>> page = write_listing(pathlib.Path(tempfile.mkdtemp()) / "report.html",
    ...     [Listed(3, "weakest")], view=View(), about=About(question="Which rows?"),
    ...     heading="Rows", help="The weakest first.", seed=0)
    >>> "weakest" in page.read_text()
    True
    """
    gallery = Gallery()
    alone = [card_of(view, r.row, gallery, remark=r.said) for r in rows if not r.neighbours]
    comparisons = [_with_others(r, view, gallery) for r in rows if r.neighbours]
    page = Page(
        question=about.question,
        answer=about.answer,
        about=about,
        trust=[*trust_in_model(about), *trust],
        warnings=about.warnings,
        versions=versions(),
        made=f"seed {seed}",
        pictures=gallery.encoded(),
        comparisons=tuple(comparisons),
        comparisons_heading=heading,
        comparisons_help=help,
        bearing_word=word,
        listed=tuple(alone),
        listed_heading=heading,
        listed_help=help,
    )
    return save_page(page, path)


def _with_others(listed: Listed, view: View, gallery: Gallery) -> Comparison:
    card = card_of(view, listed.row, gallery, remark=listed.said)
    others = tuple(card_of(view, row, gallery, bearing=said) for row, said in listed.neighbours)
    seen = len(others) if card.picture else WIDE_CAUSES
    return Comparison(card, others[:seen], others[seen:])
