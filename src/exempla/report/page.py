"""The HTML report: one self-contained file that needs no network, no server and no script.

`Page` gathers plain values from an explanation and its views; the templates only lay them out. A
script adds comfort: click a cell of the error matrix to see its errors, sort, search, enlarge.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from exempla.errors import ExemplaError
from exempla.io import write_text
from exempla.report.evidence import (
    Layout,
    about_texts,
    evidence_of,
    layout_of,
    strongest,
    token_views,
    varied_order,
)
from exempla.report.plots import (
    Curve,
    EffectPlot,
    Gallery,
    KernelMap,
    Thumbnail,
    explained_shares,
)
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
"""Causes shown beside a text or a table row; the others are folded. All pictures are shown."""
_MAX_MATRIX_CLASSES = 12
_MAX_WARNINGS = 3
"""Kinds of warnings that are not folded."""
_TECHNICAL = ("Method", "Damping", "Kept of the Fisher information", "Selection", "Certificate")
"""Lines of trust that are shown under "How this was computed"."""
_UNKNOWN = (
    "The training examples behind this prediction are not available: the explanation no longer "
    "holds its query."
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
    """Its influence on the prediction it is shown beside."""
    bar: float = 0.0
    """The same as a length from −1 to 1."""
    rank: int = 0
    remark: str = ""
    """Text shown in place of the true and the predicted label."""
    copies: int = 1
    """Number of equal or nearly equal training examples that it stands for."""

    @property
    def cells(self) -> tuple[tuple[str, str, float], ...]:
        """The columns that are always visible."""
        return self.content.cells[:MOST_CELLS]

    @property
    def folded(self) -> tuple[tuple[str, str, float], ...]:
        """The columns that are folded."""
        return self.content.cells[MOST_CELLS:]


@dataclass(frozen=True)
class Comparison:
    """An example and the training examples beside it: a queried prediction and those behind it, or
    a suspect and those that contradict it."""

    card: _Card
    causes: tuple[_Card, ...]
    folded: tuple[_Card, ...] = ()
    """Further causes, where each takes much space."""


@dataclass(frozen=True)
class Page:
    """Everything the template needs; sections without content are left out."""

    question: str
    answer: str
    about: About
    trust: list[tuple[str, str, str]]
    versions: list[tuple[str, str]]
    made: str
    """Seed and metric, for "How to repeat this"."""
    pictures: list[tuple[Thumbnail, str]]
    warnings: tuple[str, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    more_comparisons: int = 0
    comparisons_heading: str = ""
    comparisons_help: str = ""
    bearing_word: str = "influence"
    """What the number of an example beside another means."""
    marks: tuple[str, str] = View.marks
    """What the two colours of decisive parts mean."""
    no_cause: str = "No picked example influenced this one."
    """Shown beside an example without causes."""
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
    """Reasons to trust or doubt the answer, in sentences."""
    steps: tuple[tuple[str, str], ...] = ()
    """What to do next, and the command for it."""
    effect: EffectPlot | None = None
    verified: str = ""
    """The effect of retraining, in one sentence."""
    matrix: Matrix | None = None
    map: KernelMap | None = None

    @property
    def facts(self) -> list[tuple[str, str, str]]:
        """Facts about the model and the data."""
        return [line for line in self.trust if line[0] not in _TECHNICAL]

    @property
    def technical(self) -> list[tuple[str, str, str]]:
        """The technical choices behind the answer."""
        return [line for line in self.trust if line[0] in _TECHNICAL]

    @property
    def warning_lines(self) -> list[tuple[str, tuple[str, ...]]]:
        """One line for each kind of warning, with those folded behind it.

        Warnings that differ only in their numbers are one kind.
        """
        kinds: dict[str, list[str]] = {}
        for warning in self.warnings:
            kinds.setdefault(re.sub(r"\d[\d,.]*", "#", warning), []).append(warning)
        lines = [(first, tuple(others)) for first, *others in kinds.values()]
        rest = tuple(w for first, others in lines[_MAX_WARNINGS:] for w in (first, *others))
        return lines[:_MAX_WARNINGS] + ([("More warnings", rest)] if rest else [])

    @property
    def labels(self) -> list[str]:
        """The labels of the picked examples, to filter by."""
        return sorted({c.content.label for c in self.picked if c.content.label is not None})

    @property
    def marked(self) -> bool:
        """Whether any word or column of a queried example is marked as decisive."""
        shown = [each.card.content for each in self.comparisons]
        strengths = [p[-1] for c in shown for p in (*c.pieces, *c.cells)]
        return any(_strength_class(strength) for strength in strengths)


class Matrix(NamedTuple):
    """The queried errors by true and predicted class; `rows` are (true class, cells)."""

    classes: tuple[str, ...]
    rows: tuple[tuple[str, tuple[tuple[str, int, int], ...]], ...]
    """Cells are (predicted class, count, shade from 0 to 4)."""
    left_out: int
    """Errors of classes that are not shown."""

    @classmethod
    def of(cls, pairs: list[tuple[str | None, str | None]]) -> Matrix | None:
        """Count the pairs; None if no prediction differs from its label.

        >>> Matrix.of([("3", "5"), ("3", "5"), ("5", "3")]).rows[0]
        ('3', (('3', 0, 0), ('5', 2, 4)))
        """
        known = [(true, said) for true, said in pairs if true is not None and said is not None]
        if all(true == said for true, said in known):
            return None
        often = Counter(name for pair in known for name in pair)
        classes = sorted(name for name, _ in often.most_common(_MAX_MATRIX_CLASSES))
        counts = Counter(pair for pair in known if set(pair) <= set(classes))
        largest = max(counts.values(), default=1)
        rows = tuple(
            (true, tuple((p, n := counts[true, p], -(-4 * n // largest)) for p in classes))
            for true in classes
        )
        return cls(tuple(classes), rows, len(known) - sum(counts.values()))


def _build_page(
    explanation: Selection,
    *,
    train_view: View | None = None,
    test_view: View | None = None,
    about: About | None = None,
    evidence: np.ndarray | None = None,
    limit: int = 200,
    others: int = 6,
    verification: Any = None,
    layout: Layout | None = None,
    tokens: bool = True,
) -> Page:
    """Gather what is shown: at most `limit` examples of each kind, `others` causes each.

    With `tokens`, texts of a language model are shown with marked tokens unless views are given.
    """
    gallery, about = Gallery(), about or About()
    if tokens and train_view is None and test_view is None and about_texts(explanation):
        assert isinstance(explanation, Explanation)
        train_view, test_view = token_views(explanation)
    train = _maker(explanation, train_view or View(), gallery)
    comparisons: tuple[Comparison, ...] = ()
    more, said, pairs = 0, {}, []
    if isinstance(explanation, Explanation):
        said = _sayings(explanation, about, train_view, verification)
        if test_view is not None:
            said["marks"] = test_view.marks
            if not test_view.numeric:
                pairs = confusions(test_view, explanation.n_test)
            layout = layout_of(explanation) if layout is None else layout
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
        made=f"seed {getattr(explanation, 'seed', 0)}"
        + (f" · {explanation.fisher} Fisher" if isinstance(explanation, Explanation) else ""),
        explanation=explanation,
        matrix=Matrix.of(pairs),
        map=KernelMap.of(layout, (train_view or View()).labels),
        **said,
    )


def _warnings(found: Selection, about: About) -> tuple[str, ...]:
    """Return the reasons to doubt the answer, a poor model first."""
    poor = poor_model(found) if isinstance(found, Explanation) else ""
    first = (poor,) if poor and not about.accuracy else ()  # otherwise the accuracy itself is shown
    others = (said for said in found.warnings if said != poor)
    return tuple(dict.fromkeys((*first, *about.warnings, *others)))


def _sayings(
    explanation: Explanation, about: About, train_view: View | None, verification: Any
) -> dict[str, Any]:
    """Return the sentences and the drawing of the summary."""
    doubted = doubtful(explanation, train_view)
    verified = ""
    if verification is not None:
        verified = (
            f"Retrained without them, the mean log-likelihood changed by "
            f"{signed(verification.retrained)} (predicted: {signed(verification.predicted)})."
        )
    return {
        "trusting": tuple(trust_sentences(explanation, about, doubted)),
        "steps": next_steps(explanation, about),
        "effect": EffectPlot.of(explanation, verification),
        "verified": verified,
    }


_Maker = Callable[..., _Card]


def _maker(explanation: Selection, view: View, gallery: Gallery) -> _Maker:
    """Return a function that makes the card of the pick at a place."""
    contents: dict[int, tuple[Content, Thumbnail | None]] = {}
    unit = _weight_unit(explanation)

    largest = float(np.max(np.abs(explanation.weights), initial=0.0)) or 1.0
    copies = getattr(explanation, "copies", ())

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
            copies=len(copies[place]) if copies else 1,
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
    """Return the card of one example."""
    content = view.show(index)
    return _Card(content, _picture(content, gallery), index, **said)


def _picture(content: Content, gallery: Gallery) -> Thumbnail | None:
    return None if content.image is None else gallery.add(content.image)


def _weight_unit(explanation: Selection) -> float:
    """Return the power of ten that makes the weights readable: 1 unless they are tiny or huge."""
    largest = float(np.max(np.abs(explanation.weights), initial=0.0))
    if largest == 0.0 or 0.5 <= largest < 1000:
        return 1.0
    return float(10.0 ** np.floor(np.log10(largest)))


def _strength_class(strength: float) -> str:
    """Return the style of a decisive word or column: three steps each way.

    >>> _strength_class(0.9), _strength_class(-0.2), _strength_class(0.0)
    ('for3', 'against1', '')
    """
    if abs(strength) < 0.05:
        return ""
    step = 1 if abs(strength) < 1 / 3 else 2 if abs(strength) < 2 / 3 else 3
    return f"{'for' if strength > 0 else 'against'}{step}"


_CARD_ROWS = 50
"""Examples on a notebook's card, which scrolls."""
_CARDS = count(1)
"""Numbers the cards of a notebook, so that the buttons of one leave others alone."""


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
    layout: Layout | None = None,
) -> Path:
    """Write the explanation as one self-contained HTML file and return its path.

    Parameters
    ----------
    train_view, test_view : View
        How to show a training example (by row number) and a queried one (by position among the
        queried examples): `ImageView`, `TextView`, `TableView`, or a plain `View` with labels only.
        Texts of `Completions` need no view: their decisive tokens are marked.
    about : About
        Where the data came from, how good the model is, and the command to repeat the analysis.
    evidence : (k, n_test) array
        The influence of each picked example on each queried one; by default computed by the
        Explainer that made the explanation, if it is still available.
    limit, others : int
        At most this many queried and picked examples are shown, with this many causes each; the
        page states how many are left out.
    verification : Verification
        The result of `explanation.verify()`: the page then compares the predicted effect with
        retraining.
    layout : Layout
        Positions of the examples on the map, from `exempla.report.evidence.layout_of`; by default
        computed like `evidence`.

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
    page = _build_page(
        explanation, train_view=train_view, test_view=test_view, about=about, evidence=evidence,
        limit=limit, others=others, verification=verification, layout=layout,
    )  # fmt: skip
    return save_page(page, path)


def save_page(page: Page, path: str | Path) -> Path:
    """Write a page and return its path."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, _render(page))
    except OSError as error:
        raise ExemplaError(f"The report cannot be written to {path} ({error.strerror}).") from error
    return path


def render_report(explanation: Selection, **options: Any) -> str:
    """Return the page as a string; the options are those of `write_report`."""
    return _render(_build_page(explanation, **options))


def _render(page: Page) -> str:
    """Render the page with its style and script inline, and a policy that allows nothing else."""
    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return _template("report.html").render(page=page, style=style, script=script, policy=policy)


def explanation_fragment(explanation: Explanation) -> str:
    """Return a small card for notebooks that sorts and filters without a script."""
    page = _build_page(explanation, limit=_CARD_ROWS, others=0, tokens=False)
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
