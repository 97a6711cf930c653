"""The report of wrong numbers, labels of parts, and labels of very many classes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from exempla.report.listing import Listed, write_listing
from exempla.report.views import Content, View
from exempla.report.words.about import About
from exempla.report.words.chance import chance
from exempla.report.words.sentences import Trust

__all__ = ["said_of", "write_job_report"]

HELP = {
    "numbers": "The most suspicious first: the number, what models that have not seen it expect, "
    "and how far right numbers usually lie from that.",
    "labels": "The most suspicious first, each judged by models that have not seen it.",
}


@dataclass(frozen=True)
class RankedView(View):
    """What to show of the suspect at each rank: its row, under the suspect's own name."""

    rows: Any
    view: Any

    def show(self, index: int) -> Content:
        """The row of the suspect at this rank."""
        shown = self.view(index)
        return replace(shown, label=None, predicted=None, name=shown.name or f"#{self.rows[index]}")


def said_of(fixes: Any, rank: int) -> str:
    """One line about a suspect: what it says, what it should, and how likely it is wrong.

    >>> from sklearn.datasets import load_diabetes
    >>> from sklearn.linear_model import Ridge
    >>> import exempla
    >>> X, y = load_diabetes(return_X_y=True)
    >>> y[7] *= 10
    >>> said_of(exempla.fix_labels(Ridge(0.1), (X, y), k=1, progress=False), 0).partition(" · ")[0]
    '630 → 63'
    """
    p = f"{chance(fixes.probabilities[rank])} wrong"
    given, better = fixes.given[rank], fixes.suggested[rank]
    if hasattr(fixes, "spread"):
        better_said = f" → {better:.6g}" if better != given else ""
        around = f"expected {fixes.expected[rank]:.4g} ± {fixes.spread[rank]:.2g}"
        kind = f" · {fixes.kind[rank]}" if fixes.probabilities[rank] > 0.5 else ""
        return f"{given:.6g}{better_said} · {around}{kind} · {p}"
    part = f"{fixes.name[rank]}: " if hasattr(fixes, "part") else ""
    if getattr(fixes, "parts", "") == "labels":
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
    noun = fixes.noun
    return write_listing(
        path,
        [Listed(rank, said_of(fixes, rank)) for rank in range(count)],
        view=RankedView(fixes.indices, view),
        about=replace(
            about,
            question=about.question or f"Which {noun} are wrong?",
            answer=about.answer or fixes.finding,
            warnings=tuple(dict.fromkeys((*about.warnings, *fixes.warnings))),
            notes=(*about.notes, *_notes(fixes, count)),
        ),
        trust=_trust(fixes),
        heading=f"Suspicious {noun}",
        help=HELP["numbers" if noun == "numbers" else "labels"],
        seed=fixes.seed,
    )


def _notes(fixes: Any, shown: int) -> tuple[str, ...]:
    more = len(fixes) - shown
    return (f"{more:,} more are in the table beside this page and are not shown.",) if more else ()


def _trust(fixes: Any) -> list[Trust]:
    low, high = fixes.interval
    lines = [(
        "Expected to be wrong",
        f"{fixes.expected_errors:,.0f} ({low:,.0f} to {high:,.0f})",
        f"of {fixes.n_labels:,} {fixes.noun}; the interval holds 90 %, by the same model",
    )]  # fmt: skip
    if hasattr(fixes, "tail"):
        kind = "heavy tails" if fixes.tail < 5 else "moderate tails" if fixes.tail < 15 else (
            "almost normal"
        )  # fmt: skip
        lines.append(("Noise of right numbers", kind, f"{fixes.spread_rule}, ν = {fixes.tail:.1f}"))
    if fixes.n_trusted:
        lines.append(("Trusted", f"{fixes.n_trusted:,}", "what right labels look like"))
    return lines
