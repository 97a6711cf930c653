"""How a CSV is read and a line of a table written, for all that makes tables of pages."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).parents[2]
DATA = ROOT / "docs" / "experiments"


@cache
def table(name: str) -> Any:
    """The CSV of that name; what its columns hold, types cannot know."""
    return pd.read_csv(DATA / f"{name}.csv")


def line(*cells: object) -> str:
    return "| " + " | ".join(str(cell) for cell in cells) + " |"


def signed(value: float, digits: int = 3, plus: bool = True) -> str:
    """As the pages write it: a real minus, and a plus before a difference."""
    text = f"{value:+.{digits}f}" if plus else f"{value:.{digits}f}"
    return text.replace("-", "−")
