"""The explained-share curve as an inline drawing: no script, no picture file."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from exempla.results import Selection

__all__ = ["Curve", "explained_shares"]

WIDTH, HEIGHT = 640.0, 220.0
LEFT, RIGHT, TOP, BOTTOM = 46.0, 10.0, 10.0, 34.0


def explained_shares(explanation: Selection) -> np.ndarray:
    """Share of ‖μ‖² explained after each pick: Σ_{i≤j} gain_i / ‖μ‖².

    >>> from exempla.report.drawings.curve import explained_shares
    >>> callable(explained_shares)
    True
    """
    gains = np.asarray(explanation.gains, dtype=np.float64)
    total = float(gains.sum())
    # ‖μ‖² = posterior variance + Σ gains.
    norm2 = explanation.variance + total
    return np.cumsum(gains) / norm2 if norm2 > 0 else np.zeros(len(gains))


@dataclass(frozen=True)
class Curve:
    """Points and ticks of the drawing, in its own coordinates."""

    points: str
    area: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    base: float = HEIGHT - BOTTOM

    @classmethod
    def of(cls, shares: np.ndarray) -> Curve | None:
        """The drawing of these shares; None if there is nothing to draw."""
        count = len(shares)
        if count == 0:
            return None
        top = _ceiling(float(shares.max()))
        xs = LEFT + np.arange(count + 1) / count * (WIDTH - LEFT - RIGHT)
        full = np.concatenate([[0.0], shares])
        base = HEIGHT - BOTTOM
        ys = base - np.clip(full / top, 0, 1) * (base - TOP)
        keep = np.unique(np.linspace(0, count, min(count + 1, 400)).astype(int))
        points = " ".join(f"{xs[i]:.1f},{ys[i]:.1f}" for i in keep)
        steps = sorted({0, *(round(count * f) for f in (0.25, 0.5, 0.75)), count})
        return cls(
            points=points,
            area=f"{xs[0]:.1f},{base:.1f} {points} {xs[-1]:.1f},{base:.1f}",
            x_ticks=tuple((float(xs[i]), f"{i:,}") for i in steps),
            y_ticks=tuple((base - f * (base - TOP), _percent(f * top)) for f in (0.0, 0.5, 1.0)),
        )


def _ceiling(share: float) -> float:
    """The end of the axis: a round number above the largest share."""
    for top in (1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8):
        if share <= top:
            return top
    return 1.0


def _percent(share: float) -> str:
    return f"{100 * share:.3g}%"
