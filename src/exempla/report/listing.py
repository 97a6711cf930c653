"""Reports that list training rows: suspicious labels, numbers and parts, and other rankings.

Each row is shown by itself or beside others, such as a suspect beside the rows that contradict it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exempla.report.page import card_of, save_page
from exempla.report.plots import Gallery
from exempla.report.views import Content, View
from exempla.report.words import About, Trust, chance, trust_in_model


@dataclass(frozen=True)
class Listed:
    """A row, a remark about it, and the rows shown beside it, each with a number.

    `content` replaces what the view shows of the row.
    """

    row: int
    said: str = ""
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
            card_of(row.content or view.show(row.row), row.row, gallery, remark=row.said),
            [
                card_of((others or view).show(i), i, gallery, bearing=said, side=side)
                for i, said in row.neighbours
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
    return save_page(page, path)


_MAX_PAIRS = 5
_HELP = {
    "classes": "Left: a training example whose label may be wrong. Right: {others} whose labels "
    "contradict it, and how strongly each one disagrees.",
    "numbers": "Most suspicious first: the number, the cross-validated prediction, and the usual "
    "distance between the two.",
    "parts": "Most suspicious first, judged by cross-validated predictions.",
}


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
    others = "trusted examples" if fixes.trusted else "other training examples"
    kind = "numbers" if fixes.noun == "numbers" else "parts"
    heading = f"Suspicious {fixes.noun}"
    if contradicting_view is not None:
        kind, heading = "classes", f"{heading}, and the examples that contradict them"
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
            warnings=tuple(dict.fromkeys((*about.warnings, *fixes.warnings, *_pairs(fixes)))),
        ),
        trust=_trust(fixes),
        heading=heading,
        help=_HELP[kind].format(others=others),
        seed=fixes.seed,
    )


def _pairs(fixes: Any) -> list[str]:
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
