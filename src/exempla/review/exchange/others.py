"""Tools that only look: cleanlab's table of label issues, Spotlight's list of data issues.

cleanlab's names are those of `Datalab.get_issues("label")`: is_label_issue, label_score (low is
bad), given_label, predicted_label. Spotlight's are the fields of `renumics.spotlight.analysis.
DataIssue`: title, rows, severity, columns, description; load them with

    spotlight.show(df, issues=[DataIssue(**issue) for issue in json.load(open("spotlight.json"))])
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

from exempla.atomic import write_text
from exempla.review.exchange.items import Item

__all__ = ["write_cleanlab", "write_spotlight"]

LEVELS = (("high", 0.5), ("medium", 0.1), ("low", 0.0))
"""Severities, and from which probability on."""


def write_cleanlab(path: Path, items: Sequence[Item], classes: Sequence[str]) -> Path:
    """A row for each suspect; `row` is its index in the data."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = ["part"] if any(item.part for item in items) else []
    names = ["row", *parts, "is_label_issue", "label_score", "given_label", "predicted_label"]
    writer.writerow(names)
    for i in items:
        score, part = f"{1.0 - i.probability:.6g}", [i.part] if parts else []
        writer.writerow([i.row, *part, i.probability > 0.5, score, i.given, i.suggested])
    return write_text(path, out.getvalue())


def write_spotlight(path: Path, items: Sequence[Item], classes: Sequence[str]) -> Path:
    """An issue for each degree of suspicion that occurs."""
    issues, left = [], list(items)
    for severity, least in LEVELS:
        rows = [item for item in left if item.probability > least or least == 0.0]
        left = [item for item in left if item not in rows]
        if rows:
            issues.append(
                {
                    "title": f"Labels wrong with a probability above {least:.0%}",
                    "rows": sorted({item.row for item in rows}),
                    "severity": severity,
                    "columns": sorted({item.part or item.column for item in rows})
                    if all(item.span is None for item in rows)
                    else [rows[0].column],
                    "description": f"{len(rows):,} suspects of exempla fix-labels.",
                }
            )
    return write_text(path, json.dumps(issues, indent=1, ensure_ascii=False) + "\n")
