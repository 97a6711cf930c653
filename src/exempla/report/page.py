"""The HTML report: one self-contained file that needs no network, no server and no script.

A page is a dictionary of plain values, gathered here from an explanation and its views
(`write_report`), from suspicious labels (`write_label_report`) or from any other ranking of rows
(`write_listing`). The templates only lay them out, and leave out sections without content. A script
adds comfort: click a cell of the confusion matrix to see its errors, sort, search, enlarge.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import count, islice
from pathlib import Path
from typing import Any

import numpy as np

from exempla.errors import ExemplaError
from exempla.io import write_text
from exempla.report import plots, views, words
from exempla.report.plots import Gallery, Thumbnail
from exempla.report.views import MOST_CELLS, Content, View, confusions, strongest_picks
from exempla.report.words import About, Trust, chance, signed, trust_in_model
from exempla.results import Explanation, Selection

_WIDE_CAUSES = 2
"""Causes shown beside a text or a table row; the others are folded. All pictures are shown."""
_MAX_MATRIX_CLASSES = 12
_MAX_WARNINGS = 3
"""Kinds of warnings that are not folded."""
_TECHNICAL = (
    "Method", "Damping", "Kept of the Fisher information", "Selection", "Explained share",
    "Certificate",
)  # fmt: skip
"""Lines of trust that are shown under "How this was computed"."""
_UNKNOWN = (
    "The training examples behind this prediction are not available: the explanation no longer "
    "holds its query."
)
_FRAGMENT_ROWS = 50
"""Examples on a notebook's card, which scrolls."""
_FRAGMENTS = count(1)
"""Numbers the cards of a notebook, so that the buttons of one do not affect another."""
_MAX_PAIRS = 5
"""Pairs of equal rows with different labels that a warning names."""


@dataclass(frozen=True)
class _Card:
    """One example on the page.

    `bearing` is its influence on the prediction it is shown beside, and `bar` that (or its weight)
    as a length from −1 to 1. A `remark` replaces the true and the predicted label. `copies` counts
    the equal or nearly equal training examples that it stands for.
    """

    content: Content
    picture: Thumbnail | None
    index: int
    weight: str = ""
    side: str = ""
    bearing: str = ""
    bar: float = 0.0
    rank: int = 0
    remark: str = ""
    copies: int = 1


def _card(content: Content, index: int, gallery: Gallery, **more: Any) -> _Card:
    """Return the card of one example."""
    picture = None if content.image is None else gallery.add(content.image)
    return _Card(content, picture, index, **more)


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
    page = _explanation_page(
        explanation, train_view=train_view, test_view=test_view, about=about, evidence=evidence,
        limit=limit, others=others, verification=verification,
    )  # fmt: skip
    return _save(page, path)


def render_report(explanation: Selection, **options: Any) -> str:
    """Return the page as a string; the options are those of `write_report`."""
    return _render(_explanation_page(explanation, **options))


def explanation_fragment(explanation: Explanation) -> str:
    """Return a small card for notebooks that sorts and filters without a script."""
    page = _explanation_page(explanation, train_view=View(), limit=_FRAGMENT_ROWS)
    by_weight = np.argsort(-np.abs([card.bar for card in page["picked"]]), kind="stable")
    by_row = np.argsort([card.index for card in page["picked"]], kind="stable")
    ranks = [{"weight": w, "row": r} for w, r in zip(np.argsort(by_weight), np.argsort(by_row))]
    digest = hashlib.sha256(explanation.indices.tobytes()).hexdigest()[:6]
    return _template("fragment.html").render(
        page=page, rows=[*zip(page["picked"], ranks)], key=f"exempla-{next(_FRAGMENTS)}-{digest}"
    )


def _explanation_page(
    explanation: Selection,
    *,
    train_view: View | None = None,
    test_view: View | None = None,
    about: About | None = None,
    evidence: np.ndarray | None = None,
    limit: int = 200,
    others: int = 6,
    verification: Any = None,
) -> dict[str, Any]:
    """Gather what is shown: at most `limit` examples of each kind, `others` causes each."""
    gallery, about = Gallery(), about or About()
    if train_view is None and test_view is None:
        train_view, test_view = views.token_views(explanation) or (None, None)
    largest = float(np.max(np.abs(explanation.weights), initial=0.0))
    unit = 1.0  # a power of ten that makes tiny and huge weights readable
    if largest and not 0.5 <= largest < 1000:
        unit = float(10.0 ** np.floor(np.log10(largest)))
    pick = _card_maker(explanation, train_view or View(), gallery, unit, largest or 1.0)
    shown = {"made": f"seed {getattr(explanation, 'seed', 0)}"}
    if isinstance(explanation, Explanation):
        shown = {
            "made": f"{shown['made']} · {explanation.fisher} Fisher",
            "trusting": words.trust_sentences(explanation, about, train_view),
            "steps": words.next_steps(explanation, about),
            "effect": plots.effect_plot(explanation, verification),
        }
        if verification is not None:
            shown["verified"] = (
                f"Retrained without them, the mean log-likelihood changed by "
                f"{signed(verification.retrained)} (predicted: {signed(verification.predicted)})."
            )
        if test_view is not None:
            evidence = views.evidence_of(explanation) if evidence is None else evidence
            shown |= {
                "marks": test_view.marks,
                "no_cause": _UNKNOWN if evidence is None else "",
                "comparisons": _comparisons(
                    explanation, test_view, pick, gallery, evidence, limit, others
                ),
                "more_comparisons": max(explanation.n_test - limit, 0),
            }
            if not test_view.numeric:
                shown["matrix"] = _confusion_matrix(confusions(test_view, explanation.n_test))
    return shown | {
        "question": words.question(explanation, about),
        "answer": words.answer(explanation, about),
        "about": about,
        "trust": words.trust(explanation, about),
        "warnings": _warnings(explanation, about),
        "picked": [pick(place) for place in range(min(limit, len(explanation)))],
        "more_picked": max(len(explanation) - limit, 0),
        "weight_unit": "" if unit == 1.0 else f"{unit:g}",
        "pictures": gallery.encoded(),
        "explanation": explanation,
    }


def _warnings(found: Selection, about: About) -> tuple[str, ...]:
    """Return the reasons to doubt the answer, a poor model first."""
    poor = words.poor_model(found) if isinstance(found, Explanation) else ""
    first = (poor,) if poor and not about.accuracy else ()  # otherwise the accuracy itself is shown
    others = (said for said in found.warnings if said != poor)
    return tuple(dict.fromkeys((*first, *about.warnings, *others)))


def _card_maker(
    explanation: Selection, view: View, gallery: Gallery, unit: float, largest: float
) -> Callable[[int], _Card]:
    """Return a function that makes the card of the pick at a place."""
    copies = getattr(explanation, "copies", ())
    alignment = getattr(explanation, "alignment", None)

    @cache
    def pick(place: int) -> _Card:
        index, weight, side = int(explanation.indices[place]), explanation.weights[place], ""
        if alignment is not None:
            side = "opponent" if alignment[place] < 0 else "proponent"
        return _card(
            view.show(index),
            index,
            gallery,
            weight=_signed(weight / unit),
            side=side,
            bar=float(weight) / largest,
            rank=place + 1,
            copies=len(copies[place]) if copies else 1,
        )

    return pick


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _comparisons(
    explanation: Explanation,
    view: View,
    pick: Callable[[int], _Card],
    gallery: Gallery,
    evidence: np.ndarray | None,
    limit: int,
    others: int,
) -> list[tuple[_Card, list[_Card]]]:
    """Return the queried examples, each with the picked ones that have the largest influence."""
    if evidence is None:
        evidence = np.zeros((len(explanation), explanation.n_test))
    out = []
    best = strongest_picks(evidence, explanation.side, others, view)
    for j, picks in islice(best.items(), limit):
        influence = {i: float(evidence[i, j]) for i in picks.tolist()}
        causes = [replace(pick(i), bearing=_signed(z), bar=z) for i, z in influence.items()]
        out.append((_card(view.show(j), j, gallery), causes))
    return out


def _confusion_matrix(pairs: Sequence[tuple[str | None, str | None]]) -> dict[str, Any] | None:
    """Count (true, predicted) pairs; None if no prediction differs from its label.

    `rows` are (true class, cells), and cells are (predicted class, count, shade from 0 to 4).
    """
    known = [(true, said) for true, said in pairs if true is not None and said is not None]
    if all(true == said for true, said in known):
        return None
    often = Counter(name for pair in known for name in pair)
    classes = sorted(name for name, _ in often.most_common(_MAX_MATRIX_CLASSES))
    counts = Counter(pair for pair in known if set(pair) <= set(classes))
    largest = max(counts.values(), default=1)
    rows = [
        (true, [(p, n := counts[true, p], -(-4 * n // largest)) for p in classes])
        for true in classes
    ]
    return {"classes": classes, "rows": rows, "left_out": len(known) - sum(counts.values())}


@dataclass(frozen=True)
class Listed:
    """A row, a remark about it, and the rows shown beside it, each with a number.

    `content` replaces what the view shows of the row.
    """

    row: int
    remark: str = ""
    neighbours: tuple[tuple[int, str], ...] = ()
    content: Content | None = None


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
    word: str = "influence",
    others: View | None = None,
    side: str = "",
    more: int = 0,
) -> Path:
    """Write the page and return its path.

    `heading` and `help` are the title of the list and the sentence below it. `word` says what the
    numbers of neighbours mean; `others` shows them, if another view does, and `side` sets their
    colour. `trust` are further lines of the section on trust, and `more` rows are not listed.
    """
    gallery = Gallery()
    cards = [
        (
            _card(row.content or view.show(row.row), row.row, gallery, remark=row.remark),
            [
                _card((others or view).show(i), i, gallery, bearing=number, side=side)
                for i, number in row.neighbours
            ],
        )
        for row in rows
    ]
    page = {
        "question": about.question,
        "answer": about.answer,
        "about": about,
        "trust": [*trust_in_model(about), *trust],
        "warnings": about.warnings,
        "steps": about.steps,
        "made": f"seed {seed}",
        "pictures": gallery.encoded(),
        "comparisons_heading": heading,
        "comparisons_help": help,
        "bearing_word": word,
        "comparisons" if any(near for _, near in cards) else "listed": cards,
        "more_comparisons": more,
    }
    return _save(page, path)


def write_label_report(
    fixes: Any,
    path: str | Path,
    *,
    train_view: View,
    contradicting_view: View | None = None,
    content: Callable[[int], Content] | None = None,
    about: About,
    limit: int = 200,
) -> Path:
    """Write the result of `fix_labels` as one self-contained HTML file and return its path.

    `contradicting_view` shows the rows that `fixes.contradicting` names: curated rows, or training
    rows where there were none. `content` returns what to show of the suspect at a rank; by default
    `train_view` shows its row.

    >>> import pathlib, tempfile
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> import exempla
    >>> from exempla.report import About, TableView, write_label_report
    >>> X, y = load_iris(return_X_y=True, as_frame=True)
    >>> fixes = exempla.fix_labels(LogisticRegression(max_iter=500), (X, y), k=5, progress=False)
    >>> view = TableView(X, labels=y)
    >>> page = write_label_report(fixes, pathlib.Path(tempfile.mkdtemp()) / "report.html",
    ...     train_view=view, contradicting_view=view, about=About())
    >>> "Which labels are wrong?" in page.read_text()
    True
    """
    rows = []
    for rank, row in enumerate(fixes.indices[:limit].tolist()):
        near: tuple[tuple[int, str], ...] = ()
        if contradicting_view is not None:
            found = fixes.contradicting[rank]
            pairs = zip(found.indices, found.weights, strict=True)
            near = tuple((int(i), f"−{w:.2f}") for i, w in pairs)
        shown = None if content is None else content(rank)
        rows.append(Listed(row, _remark(fixes, rank), near, shown))
    heading = f"Suspicious {fixes.noun}"
    help = "Most suspicious first, judged by cross-validated predictions."
    if contradicting_view is not None:
        heading += ", and the examples that contradict them"
        others = "trusted examples" if fixes.trusted else "other training examples"
        help = f"Left: a training example whose label may be wrong. Right: {others} whose labels "
        help += "contradict it, and how strongly each one disagrees."
    elif fixes.noun == "numbers":
        help = "Most suspicious first: the number, the cross-validated prediction, and the usual "
        help += "distance between the two."
    return write_listing(
        path,
        rows,
        view=train_view,
        others=contradicting_view,
        side="opponent",
        more=max(len(fixes) - limit, 0),
        about=replace(
            about,
            question=about.question or f"Which {fixes.noun} are wrong?",
            answer=about.answer or fixes.finding,
            warnings=tuple(dict.fromkeys((*about.warnings, *fixes.warnings, *_conflicts(fixes)))),
        ),
        trust=_trust(fixes),
        heading=heading,
        help=help,
        seed=fixes.seed,
    )


def _conflicts(fixes: Any) -> list[str]:
    """Return one sentence about equal or nearly equal rows with different labels."""
    if not fixes.conflicts:
        return []
    named = [
        f"{pair.rows[0]} and {pair.rows[1]} ({pair.labels[0]} / {pair.labels[1]})"
        for pair in fixes.conflicts[:_MAX_PAIRS]
    ]
    n, more = len(fixes.conflicts), len(fixes.conflicts) - len(named)
    pairs, have = ("pair", "has") if n == 1 else ("pairs", "have")
    rest = f", and {more:,} more" if more else ""
    return [
        f"{n:,} {pairs} of equal or nearly equal rows {have} different labels: rows "
        f"{', '.join(named)}{rest}."
    ]


def _trust(fixes: Any) -> list[Trust]:
    """Return the facts behind a list of suspects."""
    low, high = fixes.interval
    expected = f"{fixes.expected_errors:,.0f} ({low:,.0f} to {high:,.0f})"
    lines = [
        ("Expected to be wrong", expected, f"of {fixes.n_labels:,} {fixes.noun}; 90 % interval")
    ]
    if fixes.task == "classes":
        lines.insert(0, ("Method", fixes.method, fixes.selector))
    if fixes.tail is not None:
        tails = "heavy tails" if fixes.tail < 5 else "moderate tails"
        kind = tails if fixes.tail < 15 else "almost normal"
        rule = f"{fixes.spread_rule}, ν = {fixes.tail:.1f}"
        lines.append(("Noise of correct numbers", kind, rule))
    if fixes.n_trusted:
        lines.append(("Trusted", f"{fixes.n_trusted:,}", "rows whose labels are known to be right"))
    if fixes.damping > 0:
        lines.append(("Damping", f"{fixes.damping:.3g}", fixes.damping_rule))
    return lines


def _remark(fixes: Any, rank: int) -> str:
    """Return one line about a suspect: its label, the suggested one, and how likely it is wrong."""
    p = chance(fixes.probabilities[rank])
    given, better = fixes.given[rank], fixes.suggested[rank]
    if fixes.spread is not None:
        arrow = f" → {better:.6g}" if better != given else ""
        around = f"expected {fixes.expected[rank]:.4g} ± {fixes.spread[rank]:.2g}"
        kind = f" · {fixes.kind[rank]}" if fixes.probabilities[rank] > 0.5 else ""
        return f"{given:.6g}{arrow} · {around}{kind} · {p} likely wrong"
    if fixes.parts == "labels":
        given, better = ("present" if label else "absent" for label in (given, better))
    given, better = str(given), str(better)
    if fixes.part is not None:
        arrow = f" → {better}" if better != given else ""
        return f"{fixes.name[rank]}: {given}{arrow} · {p} likely wrong"
    remark = f"labelled {given}" + (f", probably {better}" if better != given else "")
    remark += f" ({p} likely mislabelled)"
    if len(fixes.alternative):
        other, believed = str(fixes.alternative[rank]), fixes.alternative_chance[rank]
        remark += f" · cross-validated prediction: {other} {chance(believed)}"
    return remark


def _save(page: dict[str, Any], path: str | Path) -> Path:
    """Write a page and return its path."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, _render(page))
    except OSError as error:
        raise ExemplaError(f"The report cannot be written to {path} ({error.strerror}).") from error
    return path


def _render(page: dict[str, Any]) -> str:
    """Render the page with its style and script inline, and a policy that allows nothing else."""
    folder = files("exempla.report").joinpath("templates")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8").strip()
                     for name in ("report.css", "report.js"))  # fmt: skip
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    shown = [card.content for card, _ in page.get("comparisons", ())]
    strengths = [part[-1] for content in shown for part in (*content.pieces, *content.cells)]
    more = {
        "marks": View.marks,
        "versions": words.versions(),
        "facts": [line for line in page["trust"] if line[0] not in _TECHNICAL],
        "technical": [line for line in page["trust"] if line[0] in _TECHNICAL],
        "warning_lines": _warning_lines(page["warnings"]),
        "marked": any(_strength_class(strength) for strength in strengths),
    }
    template = _template("report.html")
    return template.render(page=more | page, style=style, script=script, policy=policy)


def _warning_lines(warnings: Sequence[str]) -> list[tuple[str, list[str]]]:
    """Return one line for each kind of warning, with those folded behind it.

    Warnings that differ only in their numbers are one kind.
    """
    kinds: dict[str, list[str]] = {}
    for warning in warnings:
        kinds.setdefault(re.sub(r"\d[\d,.]*", "#", warning), []).append(warning)
    lines = [(first, others) for first, *others in kinds.values()]
    rest = [warning for first, others in lines[_MAX_WARNINGS:] for warning in (first, *others)]
    return lines[:_MAX_WARNINGS] + ([("More warnings", rest)] if rest else [])


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


def _strength_class(strength: float) -> str:
    """Return the style of a decisive word or column: three steps each way."""
    if abs(strength) < 0.05:
        return ""
    step = 1 if abs(strength) < 1 / 3 else 2 if abs(strength) < 2 / 3 else 3
    return f"{'for' if strength > 0 else 'against'}{step}"


@cache
def _template(name: str) -> Any:
    import jinja2
    import markupsafe

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("exempla.report", "templates"),
        autoescape=True,  # every value, whatever the template is called
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["strength"] = _strength_class
    environment.filters["code"] = lambda words: markupsafe.Markup(  # escaped before it is marked
        re.sub(r"`([^`]*)`", r"<code>\1</code>", str(markupsafe.escape(words)))
    )
    environment.globals |= {"most_cells": MOST_CELLS, "wide_causes": _WIDE_CAUSES}
    return environment.get_template(name)
