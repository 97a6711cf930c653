"""What the page shows, gathered from an explanation and the views: plain values for a template."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from exempla.report.drawings.curve import Curve, explained_shares
from exempla.report.drawings.effects import EffectPlot
from exempla.report.drawings.thumbnails import Gallery, Thumbnail
from exempla.report.evidence import evidence_of, strongest, varied_order
from exempla.report.views import MOST_CELLS, Content, View, confusions
from exempla.report.words.about import About, versions
from exempla.report.words.sentences import answer, doubtful, percent, question, signed, trust
from exempla.report.words.trusting import next_steps, poor_model, trust_sentences
from exempla.results import Explanation, Selection

WIDE_CAUSES = 2
"""Causes beside a text or a table row before the others fold away; pictures are all shown."""
FIRST, FIRST_WIDE, PAGE = 8, 5, 12
"""Examples with others beside them that are shown at once, as pictures and as texts or rows; the
others fold away, so many at a time."""
FIRST_CARDS, FIRST_WIDE_CARDS, PAGE_OF_CARDS = 12, 6, 24
"""The same for examples by themselves."""
TECHNICAL = ("Method", "Damping", "Kept of the Fisher information", "Selection", "Certificate")
"""Lines of trust that belong under "how this was computed"."""
UNKNOWN = (
    "Which of the picked examples bear on this one cannot be told: this answer no longer holds its "
    "question."
)

__all__ = ["Comparison", "Card", "Page", "build_page", "card_of", "made_of"]


@dataclass(frozen=True)
class Card:
    """One example on the page."""

    content: Content
    picture: Thumbnail | None
    index: int
    weight: str = ""
    side: str = ""
    bearing: str = ""
    """How much it bears on the prediction it stands beside."""
    bar: float = 0.0
    """The same as a length, −1 to 1, where it is drawn."""
    rank: int = 0
    remark: str = ""
    """What is said about it in place of "true … → said …"."""

    @property
    def cells(self) -> tuple[tuple[str, str, float], ...]:
        """The columns that are shown at once."""
        return self.content.cells[:MOST_CELLS]

    @property
    def folded(self) -> tuple[tuple[str, str, float], ...]:
        """The columns behind a click."""
        return self.content.cells[MOST_CELLS:]


@dataclass(frozen=True)
class Comparison:
    """One example and the training examples shown next to it: a questioned prediction and those
    behind it, or a suspect and those that contradict it."""

    card: Card
    causes: tuple[Card, ...]
    folded: tuple[Card, ...] = ()
    """Further causes, where each takes much room."""


@dataclass(frozen=True)
class Page:
    """Everything the template needs; sections without content are left out."""

    question: str
    answer: str
    about: About
    trust: list[tuple[str, str, str]]
    versions: list[tuple[str, str]]
    made: str
    """Seed and metric, as "How to repeat this" names them."""
    pictures: list[tuple[Thumbnail, str]]
    warnings: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    more_comparisons: int = 0
    comparisons_heading: str = ""
    comparisons_help: str = ""
    bearing_word: str = "bears"
    """What the number of an example beside another says."""
    marks: tuple[str, str] = View.marks
    """What the two colours of decisive parts mean."""
    no_cause: str = "No example bears on this one."
    """What stands beside an example that has no others beside it."""
    listed: tuple[Card, ...] = ()
    """Examples by themselves, each with its remark."""
    listed_heading: str = ""
    listed_help: str = ""
    picked: tuple[Card, ...] = ()
    more_picked: int = 0
    curve: Curve | None = None
    explained: str = ""
    noise: str = ""
    weight_unit: str = ""
    explanation: Selection | None = None
    trusting: tuple[str, ...] = ()
    """How far to trust the answer, in sentences."""
    steps: tuple[tuple[str, str], ...] = ()
    """What to do next, and what to type for it."""
    effect: EffectPlot | None = None
    verified: str = ""
    """What became of the predicted effect, in one sentence."""

    @property
    def facts(self) -> list[tuple[str, str, str]]:
        """What is known of the model and the data, for everyone."""
        return [line for line in self.trust if line[0] not in TECHNICAL]

    @property
    def technical(self) -> list[tuple[str, str, str]]:
        """The choices behind the answer, for those who ask."""
        return [line for line in self.trust if line[0] in TECHNICAL]

    @property
    def comparison_pages(self) -> list[Folded]:
        """Examples with others beside them: the first few, then pages that unfold."""
        return folded(self.comparisons, FIRST if self.pictures else FIRST_WIDE, PAGE)

    @property
    def listed_pages(self) -> list[Folded]:
        """Examples by themselves, likewise."""
        return folded(self.listed, self._first_cards, PAGE_OF_CARDS)

    @property
    def picked_pages(self) -> list[Folded]:
        """Picked examples, likewise."""
        return folded(self.picked, self._first_cards, PAGE_OF_CARDS)

    @property
    def _first_cards(self) -> int:
        return FIRST_CARDS if self.pictures else FIRST_WIDE_CARDS

    @property
    def marked(self) -> bool:
        """Whether any word or column of a questioned example is marked as decisive."""
        shown = [each.card.content for each in self.comparisons]
        strengths = [p[-1] for c in shown for p in (*c.pieces, *c.cells)]
        return any(strength_class(strength) for strength in strengths)


class Folded(NamedTuple):
    """Some of a long list, and where they stand in it."""

    start: int
    end: int
    items: tuple[Any, ...]


def folded(items: tuple[Any, ...], first: int, page: int) -> list[Folded]:
    """A long list in pages, of which the first is short.

    >>> [(p.start, p.end) for p in folded(tuple(range(9)), first=2, page=4)]
    [(1, 2), (3, 6), (7, 9)]
    """
    starts = [0, *range(first, len(items), page)] if items else []
    ends = [*starts[1:], len(items)]
    return [Folded(a + 1, b, items[a:b]) for a, b in zip(starts, ends)]


def made_of(found: Any) -> str:
    """Seed and metric in a few words."""
    fisher = f" · {found.fisher} Fisher" if isinstance(found, Explanation) else ""
    return f"seed {found.seed}{fisher}"


def build_page(
    explanation: Selection,
    train_view: View | None,
    test_view: View | None,
    about: About,
    evidence: np.ndarray | None,
    limit: int,
    others: int,
    verification: Any = None,
) -> Page:
    """Gather what is shown: at most `limit` examples of each kind, `others` causes each."""
    gallery = Gallery()
    train = _maker(explanation, train_view or View(), gallery)
    comparisons: tuple[Comparison, ...] = ()
    more, said = 0, {}
    if isinstance(explanation, Explanation):
        said = _sayings(explanation, about, train_view, verification)
        if test_view is not None:
            said["marks"] = test_view.marks
            evidence = evidence_of(explanation) if evidence is None else evidence
            if evidence is None:
                said["no_cause"] = UNKNOWN
        comparisons = _comparisons(explanation, test_view, train, gallery, evidence, limit, others)
        more = explanation.n_test - len(comparisons) if comparisons else 0
    picked = tuple(train(place) for place in range(min(limit, len(explanation))))
    return Page(
        question=question(explanation, about),
        answer=answer(explanation, about),
        about=about,
        trust=trust(explanation, about),
        warnings=_warnings(explanation, about),
        comparisons=comparisons,
        more_comparisons=more,
        picked=picked,
        more_picked=len(explanation) - len(picked),
        curve=Curve.of(explained_shares(explanation)),
        explained=percent(explanation.explained),
        noise=f"{explanation.noise:g}" if explanation.noise else "",
        weight_unit="" if (unit := weight_unit(explanation)) == 1.0 else f"{unit:g}",
        pictures=gallery.encoded(),
        versions=versions(),
        made=made_of(explanation),
        explanation=explanation,
        **said,
    )


def _warnings(found: Selection, about: About) -> tuple[str, ...]:
    """What speaks against the answer, a poor model first."""
    poor = poor_model(found) if isinstance(found, Explanation) else ""
    first = (poor,) if poor and not about.accuracy else ()  # else the accuracy is given itself
    others = (said for said in found.warnings if said != poor)
    return tuple(dict.fromkeys((*first, *about.warnings, *others)))


def _sayings(
    explanation: Explanation, about: About, train_view: View | None, verification: Any
) -> dict[str, Any]:
    """What the page says in words and in a drawing before any example is shown."""
    doubted = doubtful(explanation, train_view)
    verified = ""
    if verification is not None:
        verified = (
            f"Trained again without them, the log-likelihood changed by "
            f"{signed(verification.retrained)}; predicted was {signed(verification.predicted)}."
        )
    return {
        "trusting": tuple(trust_sentences(explanation, about, doubted)),
        "steps": next_steps(explanation, about),
        "effect": EffectPlot.of(explanation, verification),
        "verified": verified,
    }


Maker = Callable[..., Card]


def _maker(explanation: Selection, view: View, gallery: Gallery) -> Maker:
    """A function that makes the card of the pick at a place, each looked up once."""
    contents: dict[int, tuple[Content, Thumbnail | None]] = {}
    unit = weight_unit(explanation)

    largest = float(np.max(np.abs(explanation.weights), initial=0.0)) or 1.0

    def make(place: int, bearing: str = "", bar: float | None = None) -> Card:
        index = int(explanation.indices[place])
        if place not in contents:
            content = view.show(index)
            contents[place] = (content, _picture(content, gallery))
        return Card(
            *contents[place],
            index=index,
            weight=f"{explanation.weights[place] / unit:+.2f}".replace("-", "−"),
            side=_side(explanation, place),
            bearing=bearing,
            bar=float(explanation.weights[place]) / largest if bar is None else bar,
            rank=place + 1,
        )

    return make


def _side(found: Selection, place: int) -> str:
    if not isinstance(found, Explanation):
        return ""
    return "opponent" if found.alignment[place] < 0 else "proponent"


def _comparisons(
    explanation: Explanation,
    view: View | None,
    train: Maker,
    gallery: Gallery,
    evidence: np.ndarray | None,
    limit: int,
    others: int,
) -> tuple[Comparison, ...]:
    if view is None:
        return ()
    count = min(limit, explanation.n_test)
    if evidence is None:
        order, best = list(range(count)), [np.arange(0)] * explanation.n_test
    else:
        best = strongest(evidence, explanation.side, others)
        order = varied_order(evidence, best, confusions(view, explanation.n_test))[:count]
    out = []
    for j in order:
        card = card_of(view, j, gallery)
        causes = tuple(
            train(int(i), f"{evidence[i, j]:+.2f}".replace("-", "−"), float(evidence[i, j]))
            for i in best[j]
            if evidence is not None
        )
        seen = len(causes) if card.picture else WIDE_CAUSES
        out.append(Comparison(card, causes[:seen], causes[seen:]))
    return tuple(out)


def card_of(view: View, index: int, gallery: Gallery, **said: Any) -> Card:
    """The card of one example, with what is said of it."""
    content = view.show(index)
    return Card(content, _picture(content, gallery), index, **said)


def _picture(content: Content, gallery: Gallery) -> Thumbnail | None:
    return None if content.image is None else gallery.add(content.image)


def weight_unit(explanation: Selection) -> float:
    """The power of ten that makes the weights readable: 1 unless they are tiny or huge."""
    largest = float(np.max(np.abs(explanation.weights), initial=0.0))
    if largest == 0.0 or 0.5 <= largest < 1000:
        return 1.0
    return float(10.0 ** np.floor(np.log10(largest)))


def strength_class(strength: float) -> str:
    """The style of a decisive word or column: three steps each way.

    >>> strength_class(0.9), strength_class(-0.2), strength_class(0.0)
    ('for3', 'against1', '')
    """
    if abs(strength) < 0.05:
        return ""
    step = 1 if abs(strength) < 1 / 3 else 2 if abs(strength) < 2 / 3 else 3
    return f"{'for' if strength > 0 else 'against'}{step}"
