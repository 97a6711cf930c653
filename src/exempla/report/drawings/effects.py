"""The predicted effect of a removal beside chance, and beside retraining, as an inline drawing."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.report.words.sentences import signed, within
from exempla.results import Explanation

__all__ = ["EffectPlot", "Mark"]

WIDTH, LINE = 360.0, 40.0


@dataclass(frozen=True)
class Mark:
    """One line of the drawing: a bar from zero, or a band around a mean."""

    name: str
    said: str
    """The value, as written beside it."""
    kind: str
    """"ours", "chance" or "seen"."""
    y: float
    x: float
    width: float
    at: float
    """Where the value itself lies."""


@dataclass(frozen=True)
class EffectPlot:
    """Bars of the change in log-likelihood, in the drawing's own coordinates."""

    marks: tuple[Mark, ...]
    zero: float
    height: float
    words: str
    width: float = WIDTH

    @classmethod
    def of(cls, explanation: Explanation, verification: Any = None) -> EffectPlot | None:
        """The drawing; None where no effect was predicted. `verification`: what `verify` gave."""
        effect = explanation.removal
        if not effect or not math.isfinite(effect["log_likelihood"]):
            return None
        lines = [("removing these, predicted", "ours", effect["log_likelihood"], 0.0, "")]
        if verification is not None:
            found, half = _retrained(verification, "selected removed")
            lines.append(("removing these, retrained", "seen", found, half, within(found, half)))
        mean, spread = effect["by_chance"], effect["by_chance_sd"]
        lines.append(("random rows, predicted", "chance", mean, 2 * spread, within(mean, spread)))
        if verification is not None:
            found, half = _retrained(verification, "random removed")
            lines.append(("random rows, retrained", "chance", found, half, within(found, half)))
        return _drawn(lines)


def _retrained(verification: Any, arm: str) -> tuple[float, float]:
    """The change of the questioned predictions' mean log-likelihood, and half its 95 % interval."""
    runs = verification.runs
    asked = runs[runs.judged == "questioned"].pivot(
        index="seed", columns="arm", values="log_likelihood"
    )
    change = (asked[arm] - asked["nothing removed"]).to_numpy(dtype=np.float64)
    spread = change.std(ddof=1) / np.sqrt(len(change)) if len(change) > 1 else 0.0
    return float(change.mean()), float(1.96 * spread)


def _drawn(lines: list[tuple[str, str, float, float, str]]) -> EffectPlot:
    ends = [0.0, *(v + h for _, _, v, h, _ in lines), *(v - h for _, _, v, h, _ in lines)]
    low, high = min(ends), max(ends)
    span = (high - low) or 1.0

    def place(value: float) -> float:
        return 2.0 + (value - low) / span * (WIDTH - 4.0)

    marks = []
    for number, (name, kind, value, half, told) in enumerate(lines):
        first, last = (value - half, value + half) if half else sorted((0.0, value))
        x, end = place(first), place(last)
        said = told if half else signed(value)  # a model without chance has no spread
        marks.append(
            Mark(name, said.replace("-", "−"), kind, number * LINE + 18, round(x, 1),
                 round(max(end - x, 2.0), 1), round(place(value), 1))
        )  # fmt: skip
    words = "; ".join(f"{mark.name} {mark.said}" for mark in marks)
    return EffectPlot(tuple(marks), round(place(0.0), 1), len(lines) * LINE, words)
