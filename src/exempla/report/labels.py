"""The report of suspicious labels: each suspect beside the rows that contradict it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from exempla.checks import renamed_options
from exempla.report.drawings.thumbnails import Gallery
from exempla.report.html import save_page
from exempla.report.page import WIDE_CAUSES, Comparison, Page, card_of, made_of
from exempla.report.views import View
from exempla.report.words.about import About, versions
from exempla.report.words.chance import chance

__all__ = ["write_label_report"]

HEADING = "Suspicious labels, and the examples that contradict them"
HELP = (
    "On the left a training example whose label may be wrong; on the right {others} whose labels "
    "it contradicts, with the share of its pull that each contradicts."
)


MOST_PAIRS = 20


@renamed_options(accuser_view="contradicting_view")
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
    gallery = Gallery()
    count = min(limit, len(fixes))
    page = Page(
        question=about.question or "Which labels are wrong?",
        answer=about.answer or fixes.finding,
        about=about,
        trust=_trust(fixes, about),
        warnings=tuple(dict.fromkeys((*about.warnings, *fixes.warnings, *_pairs(fixes)))),
        comparisons=tuple(
            _suspect(fixes, r, train_view, contradicting_view, gallery) for r in range(count)
        ),
        more_comparisons=len(fixes) - count,
        pictures=gallery.encoded(),
        versions=versions(),
        made=made_of(fixes),
        comparisons_heading=HEADING,
        comparisons_help=HELP.format(
            others="trusted examples" if fixes.trusted else "other training examples"
        ),
    )
    return save_page(page, path)


def _pairs(fixes: Any) -> list[str]:
    """Equal and nearly equal rows with different labels, a sentence each."""
    said = [
        f"Rows {pair.rows[0]} and {pair.rows[1]} are {'' if pair.cosine == 1.0 else 'nearly '}the "
        f"same, but labelled {pair.labels[0]} and {pair.labels[1]}."
        for pair in fixes.conflicts[:MOST_PAIRS]
    ]
    more = len(fixes.conflicts) - len(said)
    return [*said, f"{more:,} more such pairs."] if more > 0 else said


def _trust(fixes: Any, about: About) -> list[tuple[str, str, str]]:
    lines = [("Model", about.accuracy, about.model)] if about.accuracy else []
    lines.append(("Method", fixes.method, fixes.selector))
    if fixes.trusted:
        told = "what the evidence is weighed by"
        lines.append(("Trusted examples", f"{fixes.n_trusted:,}", told))
    if fixes.expected_errors_interval is not None:
        low, high = fixes.expected_errors_interval
        told = "expected to be wrong, as far as the evidence carries (90 %)"
        lines.append(("Wrong labels", f"{low:,.0f} to {high:,.0f}", told))
    if fixes.damping > 0:
        lines.append(("Damping", f"{fixes.damping:.3g}", fixes.damping_rule))
    return lines


def _suspect(fixes: Any, rank: int, train: View, others: View, gallery: Gallery) -> Comparison:
    given, better = str(fixes.given[rank]), str(fixes.suggested[rank])
    remark = f"labelled {given}" + (f" → {better}" if better != given else "")
    remark += f" · {chance(fixes.probabilities[rank])} wrong"
    if len(fixes.alternative):
        other, believed = str(fixes.alternative[rank]), fixes.alternative_chance[rank]
        remark += f" · models that have not seen it: {other} {chance(believed)}"
    card = card_of(train, int(fixes.indices[rank]), gallery, remark=remark)
    found = fixes.contradicting[rank]
    causes = tuple(
        card_of(others, int(place), gallery, side="opponent", bearing=f"−{weight:.2f}")
        for place, weight in zip(found.indices, found.weights, strict=True)
    )
    seen = len(causes) if card.picture else WIDE_CAUSES
    return Comparison(card, causes[:seen], causes[seen:])
