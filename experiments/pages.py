"""What every small experiment needs: a figure in two formats, a table in Markdown, a main."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd

matplotlib.use("Agg")
import matplotlib.pyplot as plt

__all__ = ["markdown", "run_as_script", "save"]


def save(figure: Any, stem: Path) -> None:
    """PNG and SVG side by side."""
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(stem.with_suffix(suffix), dpi=130)
    plt.close(figure)


def markdown(table: pd.DataFrame, digits: int = 3) -> str:
    """A table as Markdown, numbers rounded to so many significant digits."""

    def cell(value: Any) -> str:
        return f"{value:.{digits}g}" if isinstance(value, float) else str(value)

    head = "| " + " | ".join(map(str, table.columns)) + " |"
    lines = ["| " + " | ".join(cell(v) for v in row) + " |" for row in table.to_numpy(object)]
    return "\n".join([head, "|---" * len(table.columns) + "|", *lines]) + "\n"


def run_as_script(run: Callable[[Path, bool, Path], Path], name: str, what: str | None) -> None:
    """`python -m experiments.NAME [--out DIR] [--fast]`."""
    parser = argparse.ArgumentParser(description=(what or name).splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results") / name)
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args()
    print(run(options.out, options.fast, Path(os.environ.get("EXEMPLA_DATA", "."))))
