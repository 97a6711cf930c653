"""Make the notebooks from the tutorials: text becomes text cells, Python becomes code cells.

    python docs/make_notebooks.py

A last cell shows the answer. The tests check that the notebooks in the repository are up to date,
and execute each of them in a kernel (`tests/docs/test_notebooks.py`).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
ANSWERS = {
    "explain-errors": "answer",
    "fix-labels": "fixes",
    "clean": "harmful",
    "summarize": "summary",
    "attack": "found",
}
"""The variable that holds the answer, by tutorial."""
LAST = "## The answer\n\nOn the last line of a cell, an answer shows itself."


def notebook(page: str) -> dict[str, Any]:
    """Return a page as a notebook without outputs.

    >>> [c["cell_type"] for c in notebook("# A\\n\\n```python\\nx = 1\\n```\\n")["cells"]]
    ['markdown', 'code']
    """
    parts = re.split(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE)
    cells = [cell(part.strip(), number) for number, part in enumerate(parts) if part.strip()]
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    return {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def cell(text: str, number: int) -> dict[str, Any]:
    """Return a cell; every second part of a split page is code."""
    common = {"id": f"cell-{number}", "metadata": {}}
    if number % 2:
        return {
            "cell_type": "code",
            **common,
            "execution_count": None,
            "outputs": [],
            **lines(text),
        }
    return {"cell_type": "markdown", **common, **lines(at_home(text))}


def at_home(text: str) -> str:
    """Pictures are where the code saved them; other tutorials are pages."""
    text = text.replace("../images/generated/", "")
    return re.sub(r"\]\((?!\.\.|http)([\w-]+\.md)", r"](../tutorials/\1", text)


def lines(text: str) -> dict[str, Any]:
    return {"source": text.splitlines(keepends=True)}


def write(name: str) -> str:
    """Return the notebook of a tutorial as the text of its file."""
    page = (DOCS / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    page += f"\n{LAST}\n\n```python\n{ANSWERS[name]}\n```\n"
    return json.dumps(notebook(page), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    for name in ANSWERS:
        (DOCS / "notebooks" / f"{name}.ipynb").write_text(write(name), encoding="utf-8")
