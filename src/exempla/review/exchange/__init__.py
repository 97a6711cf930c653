"""Suspects for the tools people have, and decisions back from two of them.

items           what every tool is told of a suspect
label_studio    tasks with predictions; annotations back
fiftyone        a CSVDataset; labels and tags back
others          cleanlab's columns, Spotlight's issues
decisions       what came back, written to the decision log
parts           decisions about labels of parts, put back into the file
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from exempla.checks import check_choice
from exempla.review.exchange.fiftyone import write_fiftyone
from exempla.review.exchange.items import Item, items_of, items_of_review
from exempla.review.exchange.label_studio import write_label_studio
from exempla.review.exchange.others import write_cleanlab, write_spotlight

__all__ = ["FORMATS", "NAMES", "export_review_items", "export_suspects"]

Writer = Callable[[Path, Sequence[Item], Sequence[str]], Path]
FORMATS: dict[str, Writer] = {
    "label-studio": write_label_studio,
    "fiftyone": write_fiftyone,
    "cleanlab": write_cleanlab,
    "spotlight": write_spotlight,
}
NAMES = {
    "label-studio": "label-studio.json",
    "fiftyone": "fiftyone.csv",
    "cleanlab": "cleanlab.csv",
    "spotlight": "spotlight.json",
}
"""What the files are called in a review folder."""


def export_suspects(
    fixes: Any, path: str | Path, format: str, *, texts: Any = None, images: Any = None
) -> Path:
    """Write the suspects of `fix_labels` for another tool and return the path.

    Parameters
    ----------
    format : {"label-studio", "fiftyone", "cleanlab", "spotlight"}
        Tasks with predictions, a CSVDataset, a table with cleanlab's columns, or a list of issues.
    texts, images : sequences
        What to show of each training row: texts (or lists of tokens), or paths of image files.

    >>> import json, pathlib, tempfile
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> import exempla
    >>> X, y = load_iris(return_X_y=True)
    >>> fixes = exempla.fix_labels(LogisticRegression(max_iter=500), (X, y), k=3, progress=False)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "tasks.json"
    >>> tasks = json.loads(fixes.export(path, "label-studio").read_text())
    >>> len(tasks), sorted(tasks[0])
    (3, ['data', 'predictions'])
    """
    writer = FORMATS[check_choice("format", format, tuple(FORMATS))]
    items = items_of(fixes, texts, images)
    return writer(Path(path), items, _classes(items))


def export_review_items(review: Any, folder: Path, formats: Iterable[str]) -> dict[str, Path]:
    """Write the suspects of a review folder for other tools, into `folder`."""
    items = items_of_review(review)
    classes = [*review.classes] or _classes(items)
    return {name: FORMATS[name](folder / NAMES[name], items, classes) for name in formats}


def _classes(items: Sequence[Item]) -> list[str]:
    if any(item.kind == "number" for item in items):
        return []
    return sorted({label for item in items for label in (item.given, item.suggested)})
