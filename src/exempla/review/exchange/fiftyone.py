"""FiftyOne: a CSV as its CSVDataset reads and writes it (`fiftyone.utils.csv`).

Every sample needs a path of its own: that of the image, or, where rows are no images, that of the
data file with the item's number behind it. The column `label` is empty; a person's decision goes
there, or into the sample's tags (keep, remove, skip). Export it again with

    dataset.export(labels_path="back.csv", dataset_type=fo.types.CSVDataset, export_media=False,
                   fields=["exempla_item", "label", "tags"])

Strings are what a CSVDataset has; `fields={"probability": float}` reads a column as numbers.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from exempla.atomic import write_text
from exempla.errors import ExemplaError
from exempla.review.exchange.items import Item

__all__ = ["read_fiftyone", "write_fiftyone"]

ITEM = "exempla_item"
COLUMNS = ("filepath", ITEM, "row", "part", "given", "suggested", "probability", "expected",
           "spread", "text", "label")  # fmt: skip
ACTIONS = ("keep", "remove", "skip")


def write_fiftyone(path: Path, items: Sequence[Item], classes: Sequence[str]) -> Path:
    """Write the samples."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for i in items:
        place = i.image or f"{path.parent.resolve() / 'rows'}#{i.item}"
        number = ["" if v is None else f"{v:.10g}" for v in (i.expected, i.spread)]
        writer.writerow(
            [place, i.item, i.row, i.part, i.given, i.suggested, f"{i.probability:.6g}", *number,
             "" if i.image else i.shown, ""]
        )  # fmt: skip
    return write_text(path, out.getvalue())


def read_fiftyone(path: Path) -> list[tuple[int, str, str]]:
    """(item, "label", "keep", "remove" or "skip", label) of every sample that was decided about."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
            names = rows[0].keys() if rows else ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ExemplaError(f"{path.name} cannot be read as CSV ({error}).") from error
    if rows and (ITEM not in names or not {"label", "tags"} & set(names)):
        raise ExemplaError(
            f"{path.name} lacks the column {ITEM}, or both label and tags; export these fields "
            "from FiftyOne."
        )
    found, problems = [], []
    for number, row in enumerate(rows, start=2):
        item = (row.get(ITEM) or "").strip()
        if not item.isdigit():
            problems.append(f"line {number} has no {ITEM}")
            continue
        tags = {tag.strip() for tag in (row.get("tags") or "").split(",")} & set(ACTIONS)
        label = (row.get("label") or "").strip()
        if len(tags) > 1:
            problems.append(f"line {number} is tagged {' and '.join(sorted(tags))}")
        elif tags:
            found.append((int(item), tags.pop(), ""))
        elif label:
            found.append((int(item), "label", label))
    if problems:
        raise ExemplaError(
            f"{path.name} was not taken over: {'; '.join(problems[:5])}"
            + (f" and {len(problems) - 5:,} more" if len(problems) > 5 else "")
            + ". Nothing was written."
        )
    return found
