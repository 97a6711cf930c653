"""When and from which code each CSV behind a README figure was measured: docs/experiments/runs.csv.

    python -m tests.docs.runs CSV      # after a new run: write today's commit, date and code

`status` is "current" if the code in `sources` is that of the run, and "older" if it has changed
since and the figure was not measured again. The code is compared by its syntax tree, without
comments and docstrings.
"""

from __future__ import annotations

import ast
import hashlib
import subprocess
import sys
from datetime import date
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "docs" / "experiments" / "runs.csv"


def code_hash(sources: str) -> str:
    """Return a hash of the syntax trees of some files, their paths separated by spaces."""
    digest = hashlib.sha256()
    for name in sources.split():
        tree = ast.parse((ROOT / name).read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            body = getattr(node, "body", None)
            if isinstance(body, list):
                node.body = [x for x in body if not _is_text(x)]  # pyright: ignore
        digest.update(ast.dump(tree).encode())
    return digest.hexdigest()[:16]


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is a docstring or another bare string."""
    value = getattr(node, "value", None)
    return isinstance(node, ast.Expr) and isinstance(value, ast.Constant)


def runs() -> pd.DataFrame:
    """Return the table of runs."""
    return pd.read_csv(TABLE, dtype=str, keep_default_na=False)


def main(name: str) -> None:
    """Mark a CSV as measured now."""
    table = runs()
    words = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    row = table.index[table["csv"] == name].item()
    now = {"commit": commit.stdout.strip(), "date": str(date.today()), "status": "current"}
    now["code"] = code_hash(str(table.loc[row, "sources"]))
    table.loc[row, list(now)] = list(now.values())
    table.to_csv(TABLE, index=False, lineterminator="\n")


if __name__ == "__main__":
    main(sys.argv[1])
