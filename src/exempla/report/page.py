"""What the page shows, gathered from an explanation and the views: plain values for a template.

One HTML file that needs nothing else: no network, no server, no script to be readable.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from exempla.checks import renamed_options
from exempla.errors import ExemplaError
from exempla.io import write_text
from exempla.report.evidence import about_texts, evidence_of, strongest, token_views, varied_order
from exempla.report.plots import Curve, EffectPlot, Gallery, Thumbnail, explained_shares
from exempla.report.views import MOST_CELLS, Content, View, confusions
from exempla.report.words import (
    About,
    answer,
    doubtful,
    next_steps,
    percent,
    poor_model,
    question,
    signed,
    trust,
    trust_sentences,
    versions,
)
from exempla.results import Explanation, Selection

WIDE_CAUSES = 2
"""Causes beside a text or a table row before the others fold away; pictures are all shown."""
FIRST, _FIRST_WIDE, PAGE = 8, 5, 12
"""Examples with others beside them that are shown at once, as pictures and as texts or rows; the
others fold away, so many at a time."""
FIRST_CARDS, _FIRST_WIDE_CARDS, PAGE_OF_CARDS = 12, 6, 24
"""The same for examples by themselves."""
_TECHNICAL = ("Method", "Damping", "Kept of the Fisher information", "Selection", "Certificate")
"""Lines of trust that belong under "how this was computed"."""
_UNKNOWN = (
    "Which of the picked examples bear on this one cannot be told: this answer no longer holds its "
    "question."
)


@dataclass(frozen=True)
class _Card:
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

    card: _Card
    causes: tuple[_Card, ...]
    folded: tuple[_Card, ...] = ()
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
    listed: tuple[_Card, ...] = ()
    """Examples by themselves, each with its remark."""
    listed_heading: str = ""
    listed_help: str = ""
    picked: tuple[_Card, ...] = ()
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
        return [line for line in self.trust if line[0] not in _TECHNICAL]

    @property
    def technical(self) -> list[tuple[str, str, str]]:
        """The choices behind the answer, for those who ask."""
        return [line for line in self.trust if line[0] in _TECHNICAL]

    @property
    def comparison_pages(self) -> list[_Folded]:
        """Examples with others beside them: the first few, then pages that unfold."""
        return _folded(self.comparisons, FIRST if self.pictures else _FIRST_WIDE, PAGE)

    @property
    def listed_pages(self) -> list[_Folded]:
        """Examples by themselves, likewise."""
        return _folded(self.listed, self._first_cards, PAGE_OF_CARDS)

    @property
    def picked_pages(self) -> list[_Folded]:
        """Picked examples, likewise."""
        return _folded(self.picked, self._first_cards, PAGE_OF_CARDS)

    @property
    def _first_cards(self) -> int:
        return FIRST_CARDS if self.pictures else _FIRST_WIDE_CARDS

    @property
    def marked(self) -> bool:
        """Whether any word or column of a questioned example is marked as decisive."""
        shown = [each.card.content for each in self.comparisons]
        strengths = [p[-1] for c in shown for p in (*c.pieces, *c.cells)]
        return any(_strength_class(strength) for strength in strengths)


class _Folded(NamedTuple):
    """Some of a long list, and where they stand in it."""

    start: int
    end: int
    items: tuple[Any, ...]


def _folded(items: tuple[Any, ...], first: int, page: int) -> list[_Folded]:
    """A long list in pages, of which the first is short.

    >>> [(p.start, p.end) for p in _folded(tuple(range(9)), first=2, page=4)]
    [(1, 2), (3, 6), (7, 9)]
    """
    starts = [0, *range(first, len(items), page)] if items else []
    ends = [*starts[1:], len(items)]
    return [_Folded(a + 1, b, items[a:b]) for a, b in zip(starts, ends)]


def made_of(found: Any) -> str:
    """Seed and metric in a few words."""
    fisher = f" · {found.fisher} Fisher" if isinstance(found, Explanation) else ""
    return f"seed {found.seed}{fisher}"


def _build_page(
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
                said["no_cause"] = _UNKNOWN
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
        weight_unit="" if (unit := _weight_unit(explanation)) == 1.0 else f"{unit:g}",
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


_Maker = Callable[..., _Card]


def _maker(explanation: Selection, view: View, gallery: Gallery) -> _Maker:
    """A function that makes the card of the pick at a place, each looked up once."""
    contents: dict[int, tuple[Content, Thumbnail | None]] = {}
    unit = _weight_unit(explanation)

    largest = float(np.max(np.abs(explanation.weights), initial=0.0)) or 1.0

    def make(place: int, bearing: str = "", bar: float | None = None) -> _Card:
        index = int(explanation.indices[place])
        if place not in contents:
            content = view.show(index)
            contents[place] = (content, _picture(content, gallery))
        return _Card(
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
    train: _Maker,
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


def card_of(view: View, index: int, gallery: Gallery, **said: Any) -> _Card:
    """The card of one example, with what is said of it."""
    content = view.show(index)
    return _Card(content, _picture(content, gallery), index, **said)


def _picture(content: Content, gallery: Gallery) -> Thumbnail | None:
    return None if content.image is None else gallery.add(content.image)


def _weight_unit(explanation: Selection) -> float:
    """The power of ten that makes the weights readable: 1 unless they are tiny or huge."""
    largest = float(np.max(np.abs(explanation.weights), initial=0.0))
    if largest == 0.0 or 0.5 <= largest < 1000:
        return 1.0
    return float(10.0 ** np.floor(np.log10(largest)))


def _strength_class(strength: float) -> str:
    """The style of a decisive word or column: three steps each way.

    >>> _strength_class(0.9), _strength_class(-0.2), _strength_class(0.0)
    ('for3', 'against1', '')
    """
    if abs(strength) < 0.05:
        return ""
    step = 1 if abs(strength) < 1 / 3 else 2 if abs(strength) < 2 / 3 else 3
    return f"{'for' if strength > 0 else 'against'}{step}"


_CARD_ROWS = 50
"""Examples a notebook's card holds; it scrolls."""
_CARDS = count(1)
"""Cards of one notebook are told apart by their number: the buttons of one leave others alone."""


@renamed_options(beside="others")
def write_report(
    explanation: Selection,
    path: str | Path,
    *,
    train_view: View | None = None,
    test_view: View | None = None,
    about: About | None = None,
    evidence: np.ndarray | None = None,
    limit: int = 200,
    others: int = 6,
    verification: Any = None,
) -> Path:
    """Write the explanation as one self-contained HTML file and return its path.

    Parameters
    ----------
    train_view, test_view : View
        How to show a training example (row numbers of the training set) and a questioned one
        (positions among the questioned examples): `ImageView`, `TextView`, `TableView`, or a plain
        `View` with labels only. Texts of `Completions` need none: their decisive tokens are marked.
    about : About
        Where the data came from, how good the model is, and the command to repeat it.
    evidence : (k, n_test) array
        How much each picked example bears on each questioned one; by default computed by the
        Explainer that made the explanation, if it is still at hand.
    limit, others : int
        At most this many questioned and picked examples are shown, with this many causes each;
        what is left out is counted on the page.
    verification : Verification
        What `explanation.verify()` gave: the page then shows the predicted effect beside what
        retraining did.

    >>> import tempfile, pathlib
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> import exempla
    >>> from exempla.report import TableView, write_report
    >>> X, y = load_iris(return_X_y=True, as_frame=True)
    >>> model = LogisticRegression(max_iter=500).fit(X, y)
    >>> answer = exempla.explain(model, (X, y), (X[70:80], y[70:80]), k=5, progress=False)
    >>> page = write_report(answer, pathlib.Path(tempfile.mkdtemp()) / "report.html",
    ...     train_view=TableView(X, labels=y), test_view=TableView(X[70:80], labels=y[70:80]))
    >>> "petal length" in page.read_text()
    True
    """
    views = _views(explanation, train_view, test_view)
    page = _build_page(explanation, *views, about or About(), evidence, limit, others, verification)
    return save_page(page, path)


def _views(
    explanation: Selection, train_view: View | None, test_view: View | None
) -> tuple[View | None, View | None]:
    """How to show the examples: as told, and texts of a language model with their tokens marked."""
    if train_view is None and test_view is None and about_texts(explanation):
        assert isinstance(explanation, Explanation)
        return token_views(explanation)
    return train_view, test_view


def save_page(page: Page, path: str | Path) -> Path:
    """Write a page and return its path."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, _render(page))
    except OSError as error:
        raise ExemplaError(f"The report cannot be written to {path} ({error.strerror}).") from error
    return path


@renamed_options(beside="others")
def render_report(
    explanation: Selection,
    *,
    train_view: View | None = None,
    test_view: View | None = None,
    about: About | None = None,
    evidence: np.ndarray | None = None,
    limit: int = 200,
    others: int = 6,
    verification: Any = None,
) -> str:
    """The page as a string; see `write_report`."""
    views = _views(explanation, train_view, test_view)
    page = _build_page(explanation, *views, about or About(), evidence, limit, others, verification)
    return _render(page)


def _render(page: Page) -> str:
    """The page with its style and script inside, and a policy that allows nothing else."""
    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return _template("report.html").render(page=page, style=style, script=script, policy=policy)


def explanation_fragment(explanation: Explanation) -> str:
    """The explanation for a notebook: a small card that sorts and filters without any script."""
    page = _build_page(explanation, None, None, About(), None, limit=_CARD_ROWS, others=0)
    by_weight = np.argsort(-np.abs([card.bar for card in page.picked]), kind="stable")
    by_row = np.argsort([card.index for card in page.picked], kind="stable")
    ranks = [{"weight": w, "row": r} for w, r in zip(np.argsort(by_weight), np.argsort(by_row))]
    key = f"exempla-{next(_CARDS)}-{_hash(explanation.indices.tobytes().hex())[7:13]}"
    key = "".join(letter if letter.isalnum() else "-" for letter in key)
    return _template("fragment.html").render(page=page, rows=[*zip(page.picked, ranks)], key=key)


def _asset(name: str) -> str:
    return files("exempla.report").joinpath("templates", name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


@cache
def _environment():
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("exempla.report", "templates"),
        autoescape=True,  # every value, whatever the template is called
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["strength"] = _strength_class
    return environment


def _template(name: str):
    return _environment().get_template(name)
