"""The table of docs/studies/facts.md as its CSV makes it: facts traced to lines."""

from __future__ import annotations

from typing import Any

from tests.docs.csv_lines import line, signed, table

FACTS = (
    "exempla, recorded run", "exempla, recorded run, relative", "exempla, influence",
    "exempla, relative", "exempla, SBQ", "exempla, exact, influence", "exempla, exact, relative",
    "BM25", "gradient cosine, recorded run", "gradient cosine", "hidden states",
    "kronfluence, its own damping", "kronfluence, its own damping, relative",
    "kronfluence, damping 1e-8", "kronfluence, damping 1e-8, relative", "TRAK, recorded run",
    "TRAK", "random lines", "lines that state it",
)  # fmt: skip
"""In the order of the page."""
CHOSEN_ON, REPORTED = 0, (1, 2)


def facts() -> list[str]:
    """Precision on all seeds, what training again showed on the reported ones."""
    found, out = table("facts").set_index(["method", "seed"]), []
    known = set(found.index.get_level_values("method"))
    assert known <= set(FACTS), "a method without a place on the page"
    for method in (m for m in FACTS if m in known):
        own = found.loc[method]
        right = [cell(own.precision.get(seed), 3) for seed in (*REPORTED, CHOSEN_ON)]
        out.append(line(method, *right, *(fallen(own, seed) for seed in REPORTED)))
    return out


def fallen(own: Any, seed: int) -> str:
    """By how much log-probabilities fell, and how many lines that took."""
    fall = cell(own.fall.get(seed), 2)
    return fall if fall == "–" else f"{fall} ({own.left_out[seed]:.0f})"


def cell(value: float | None, digits: int) -> str:
    """The number as it is, not larger than one with its zero left out; a dash for none."""
    if value is None or value != value:
        return "–"
    return signed(value, digits, plus=False).removeprefix("0")
