"""Export suspects to other tools, and import decisions from Label Studio and FiftyOne.

An import is all or nothing: an unknown row or label refuses the file and names each problem. A row
with a different earlier decision keeps it, and is named. Importing a file twice changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from exempla.checks import check_choice
from exempla.errors import ExemplaError
from exempla.review.formats import (
    Item,
    items_of,
    items_of_review,
    names,
    read_fiftyone,
    read_label_studio,
    write_cleanlab,
    write_fiftyone,
    write_label_studio,
    write_spotlight,
)
from exempla.review.log import DecisionLog, RowDecision
from exempla.review.suspects import is_number

_Writer = Callable[[Path, Sequence[Item], Sequence[str]], Path]
_FORMATS: dict[str, _Writer] = {
    "label-studio": write_label_studio,
    "fiftyone": write_fiftyone,
    "cleanlab": write_cleanlab,
    "spotlight": write_spotlight,
}
_NAMES = {
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
    writer = _FORMATS[check_choice("format", format, tuple(_FORMATS))]
    items = items_of(fixes, texts, images)
    return writer(Path(path), items, _classes(items))


def export_review_items(review: Any, folder: Path, formats: Iterable[str]) -> dict[str, Path]:
    """Write the suspects of a review folder for other tools, into `folder`."""
    items = items_of_review(review)
    classes = [*review.classes] or _classes(items)
    return {name: _FORMATS[name](folder / _NAMES[name], items, classes) for name in formats}


def _classes(items: Sequence[Item]) -> list[str]:
    if any(item.kind == "number" for item in items):
        return []
    return sorted({label for item in items for label in (item.given, item.suggested)})


class _Imported(NamedTuple):
    """The result of an import."""

    written: int
    """New decisions."""
    known: int
    """Decisions that were in the log already."""
    kept: tuple[str, ...]
    """Suspects that keep a different earlier decision."""


def import_decisions(review: Any, path: str | Path) -> _Imported:
    """Take over the decisions of a Label Studio export (.json) or a FiftyOne one (.csv).

    >>> import pathlib, tempfile
    >>> from exempla.review import ReviewedFile, Suspect, read_review, write_review
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = write_review(folder, [Suspect(3, "ham", "spam", 0.9, 0.97)],
    ...                  source=ReviewedFile("mails.jsonl", "jsonl"), classes=["ham", "spam"])
    >>> _ = (folder / "back.csv").write_text("exempla_item,label,tags\\n3,spam,\\n")
    >>> import_decisions(read_review(folder), folder / "back.csv").written
    1
    """
    path = Path(path)
    if not path.is_file():
        raise ExemplaError(f"The file {str(path)!r} does not exist.")
    readers = {".json": read_label_studio, ".csv": read_fiftyone}
    if path.suffix.lower() not in readers:
        raise ExemplaError(
            f"{path.name} is neither a Label Studio export (.json) nor a FiftyOne one (.csv)."
        )
    known = {item.item: item for item in items_of_review(review)}
    wanted = _checked(readers[path.suffix.lower()](path), known, review, path.name)
    log = DecisionLog(review.directory / "decisions.sqlite", review.key)
    try:
        return _written(log, wanted, known, path)
    finally:
        log.close()


def _checked(
    found: list[tuple[int, str, str]], known: dict[int, Item], review: Any, name: str
) -> dict[int, RowDecision]:
    """The decisions, if every one is about a suspect and names a label there is."""
    problems: list[str] = []
    out: dict[int, RowDecision] = {}
    for number, action, label in found:
        item = known.get(number)
        if item is None:
            problems.append(f"item {number} is none of the suspects")
            continue
        decision = _decision(item, action, label)
        if decision.label is not None and not _possible(item, decision.label, review.classes):
            problems.append(f"{label!r} of row {item.row} is none of the labels")
        elif number in out and out[number] != decision:
            problems.append(f"row {item.row} is decided twice, and differently")
        else:
            out[number] = decision
    if problems:
        more = f" and {len(problems) - 5:,} more" if len(problems) > 5 else ""
        raise ExemplaError(
            f"{name} was not taken over: {'; '.join(problems[:5])}{more}. Nothing was written."
        )
    return out


def _decision(item: Item, action: str, label: str) -> RowDecision:
    if action != "label":
        return RowDecision(item.item, action)
    same = label == item.given or (
        item.kind == "number" and is_number(label) and float(label) == float(item.given)
    )
    return RowDecision(item.item, "keep") if same else RowDecision(item.item, "relabel", label)


def _possible(item: Item, label: str, classes: tuple[str, ...]) -> bool:
    return is_number(label) if item.kind == "number" else label in classes


def _written(
    log: DecisionLog, wanted: dict[int, RowDecision], known: dict[int, Item], path: Path
) -> _Imported:
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:24]
    written, same, kept = 0, 0, []
    for item, decision in wanted.items():
        now = log.state(item)
        if now.action in ("pending", "skip") and now.action != decision.action:
            # a note that was written on the page stays with the row
            noted = replace(decision, note=now.note)
            log.decide(noted, seen=now.version, once=f"{digest}-{item}")
            written += 1
        elif (now.action, now.label) == (decision.action, decision.label):
            same += 1
        else:
            kept.append(known[item])
    return _Imported(written, same, tuple(names([item]) for item in kept))
