"""Reports that list training rows: suspicious labels, numbers and parts, and other rankings.

Each row is shown by itself or beside others, such as a suspect beside the rows that contradict it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exempla.report.page import card_of, save_page
from exempla.report.plots import Gallery
from exempla.report.views import Content, View
from exempla.report.words import About, Trust, chance, trust_in_model


@dataclass(frozen=True)
class Listed:
    """A row, a remark about it, and the rows shown beside it, each with a number."""

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
    word: str = "influence",
    others: View | None = None,
    side: str = "",
    more: int = 0,
) -> Path:
    """Write the page and return its path.

    Parameters
    ----------
    path, rows, view, about
        Where to write, what to list, how to show it, and what the page is about.
    trust
        Further lines of the section on trust.
    heading, help
        Title of the list and the sentence below it.
    word
        What the numbers of neighbours mean.
    others, side
        The view of neighbours, if it is another one, and their side, which sets their colour.
    more
        Number of rows that are not listed.

    >>> import pathlib, tempfile
    >>> page = write_listing(pathlib.Path(tempfile.mkdtemp()) / "report.html",
    ...     [Listed(3, "weakest")], view=View(), about=About(question="Which rows?"),
    ...     heading="Rows", help="The weakest first.", seed=0)
    >>> "weakest" in page.read_text()
    True
    """
    gallery = Gallery()
    cards = [
        (
            card_of(view, row.row, gallery, remark=row.said),
            [
                card_of(others or view, neighbour, gallery, bearing=said, side=side)
                for neighbour, said in row.neighbours
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


def write_label_report(
    fixes: Any,
    path: str | Path,
    *,
    train_view: View,
    contradicting_view: View,
    about: About,
    limit: int = 200,
) -> Path:
    """Write the result of `fix_labels` as one self-contained HTML file and return its path.

    `contradicting_view` shows the rows that `fixes.contradicting` names: curated rows, or training
    rows where there were none.

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
    count = min(limit, len(fixes))
    rows = []
    for rank, row in enumerate(fixes.indices[:count].tolist()):
        found = fixes.contradicting[rank]
        near = ((int(i), f"−{w:.2f}") for i, w in zip(found.indices, found.weights, strict=True))
        rows.append(Listed(row, _remark(fixes, rank), tuple(near)))
    others = "trusted examples" if fixes.trusted else "other training examples"
    return write_listing(
        path,
        rows,
        view=train_view,
        others=contradicting_view,
        side="opponent",
        more=len(fixes) - count,
        about=_about(fixes, about, _pairs(fixes)),
        trust=_trust(fixes),
        heading="Suspicious labels, and the examples that contradict them",
        help="Left: a training example whose label may be wrong. Right: "
        f"{others} whose labels contradict it, and how strongly each one disagrees.",
        seed=fixes.seed,
    )


def _about(fixes: Any, about: About, warnings: Sequence[str] = ()) -> About:
    """Add the question, the finding and the warnings of a result."""
    return replace(
        about,
        question=about.question or f"Which {fixes.noun} are wrong?",
        answer=about.answer or fixes.finding,
        warnings=tuple(dict.fromkeys((*about.warnings, *fixes.warnings, *warnings))),
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
    what = "1 pair of equal or nearly equal rows has" if n == 1 else (
        f"{n:,} pairs of equal or nearly equal rows have"
    )  # fmt: skip
    rest = f", and {more:,} more" if more else ""
    return [f"{what} different labels: rows {', '.join(named)}{rest}."]


def _trust(fixes: Any) -> list[Trust]:
    low, high = fixes.interval
    lines = [(
        "Expected to be wrong",
        f"{fixes.expected_errors:,.0f} ({low:,.0f} to {high:,.0f})",
        f"of {fixes.n_labels:,} {fixes.noun}; 90 % interval",
    )]  # fmt: skip
    if fixes.task == "classes":
        lines.insert(0, ("Method", fixes.method, fixes.selector))
    if fixes.tail is not None:
        kind = "heavy tails" if fixes.tail < 5 else "moderate tails" if fixes.tail < 15 else (
            "almost normal"
        )  # fmt: skip
        lines.append(
            ("Noise of correct numbers", kind, f"{fixes.spread_rule}, ν = {fixes.tail:.1f}")
        )
    if fixes.n_trusted:
        lines.append(("Trusted", f"{fixes.n_trusted:,}", "rows whose labels are known to be right"))
    if fixes.damping > 0:
        lines.append(("Damping", f"{fixes.damping:.3g}", fixes.damping_rule))
    return lines


def _remark(fixes: Any, rank: int) -> str:
    """Return one line about a suspicious class label."""
    given, better = str(fixes.given[rank]), str(fixes.suggested[rank])
    remark = f"labelled {given}" + (f", probably {better}" if better != given else "")
    remark += f" ({chance(fixes.probabilities[rank])} likely mislabelled)"
    if len(fixes.alternative):
        other, believed = str(fixes.alternative[rank]), fixes.alternative_chance[rank]
        remark += f" · cross-validated prediction: {other} {chance(believed)}"
    return remark


_JOB_HELP = {
    "numbers": "Most suspicious first: the number, the cross-validated prediction, and the usual "
    "distance between the two.",
    "labels": "Most suspicious first, judged by cross-validated predictions.",
}


@dataclass(frozen=True)
class _RankedView(View):
    """Shows the suspect at each rank: its row, under the suspect's own name."""

    rows: Any
    view: Any

    def show(self, index: int) -> Content:
        """Return the row of the suspect at this rank."""
        shown = self.view(index)
        return replace(shown, label=None, predicted=None, name=shown.name or f"#{self.rows[index]}")


def said_of(fixes: Any, rank: int) -> str:
    """Return one line about a suspect: its label, the suggested one, and how likely it is wrong.

    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> import exempla
    >>> X, y = load_diabetes(return_X_y=True)
    >>> y[7] *= 10
    >>> said_of(exempla.fix_labels(Ridge(0.1), (X, y), k=1, progress=False), 0).partition(" · ")[0]
    '630 → 63'
    """
    p = f"{chance(fixes.probabilities[rank])} likely wrong"
    given, better = fixes.given[rank], fixes.suggested[rank]
    if fixes.spread is not None:
        better_said = f" → {better:.6g}" if better != given else ""
        around = f"expected {fixes.expected[rank]:.4g} ± {fixes.spread[rank]:.2g}"
        kind = f" · {fixes.kind[rank]}" if fixes.probabilities[rank] > 0.5 else ""
        return f"{given:.6g}{better_said} · {around}{kind} · {p}"
    part = f"{fixes.name[rank]}: " if fixes.part is not None else ""
    if fixes.parts == "labels":
        words = ("absent", "present")
        given, better = words[int(given)], words[int(better)]
    arrow = f" → {better}" if str(better) != str(given) else ""
    return f"{part}{given}{arrow} · {p}"


def write_job_report(
    fixes: Any, path: str | Path, *, view: Any, about: About, limit: int = 200
) -> Path:
    """Write the result of a label job as one self-contained HTML file and return its path.

    `view` gives the `Content` of the suspect at a rank.
    """
    count = min(limit, len(fixes))
    about = _about(fixes, about)
    if len(fixes) > count:
        more = f"{len(fixes) - count:,} more are listed in explanation.csv."
        about = replace(about, notes=(*about.notes, more))
    return write_listing(
        path,
        [Listed(rank, said_of(fixes, rank)) for rank in range(count)],
        view=_RankedView(fixes.indices, view),
        about=about,
        trust=_trust(fixes),
        heading=f"Suspicious {fixes.noun}",
        help=_JOB_HELP["numbers" if fixes.noun == "numbers" else "labels"],
        seed=fixes.seed,
    )
