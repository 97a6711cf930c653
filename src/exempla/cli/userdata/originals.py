"""The labels that trusted rows had before they were put right, from a column of the file.

Where a label was corrected, the column holds the label it once had; an empty cell means that it was
right from the start. From both it shows what kind of mistakes the file has.
"""

from __future__ import annotations

from argparse import Namespace

import numpy as np

from exempla.cli.shared.console import Console
from exempla.cli.userdata.userfile import UserFile
from exempla.errors import ExemplaError
from exempla.tables.columns.label import label_values, same_labels
from exempla.tables.table import show

__all__ = ["original_labels"]


def original_labels(given: UserFile, options: Namespace, console: Console) -> np.ndarray | None:
    """The labels the trusted rows once had, as the model knows them; None if none are named."""
    name, parts = options.original_column, given.parts
    if name is None:
        return None
    if given.regression:
        raise ExemplaError("--original-column is for labels that are classes; leave it out.")
    if options.method != "calibrated":
        raise ExemplaError(
            f"--original-column has no use with --method {options.method}; leave one of them out."
        )
    if parts.y_curated is None:
        raise ExemplaError(
            "--original-column tells what trusted rows were once called, but no row is trusted: "
            "name such rows with --curated-column or --curated."
        )
    table = given.table if parts.curated_table is None else parts.curated_table
    column = table.names[table.position(name)]  # raises if there is none of that name
    known = ~table.missing(column)[parts.curated]
    once = parts.y_curated.copy()
    if known.any():
        rows = parts.curated[known]
        own = np.unique(parts.y_train)
        told = label_values(table, column, "classes", rows).astype(str)
        both, seen, _ = same_labels(np.concatenate([told, own.astype(str)]), own)
        told, seen = both[: len(rows)], seen[: len(rows)]
        if not seen.all():
            strange = np.unique(table.strings(column, rows[~seen])).tolist()  # pyright: ignore
            raise ExemplaError(
                f"Column {column!r} holds {show(strange, 3)}, which no training row is labelled; "
                "write labels there as in the label column."
            )
        once[known] = told
    changed = int((once != parts.y_curated).sum())
    console.say(f"{changed:,} of the {len(once):,} trusted rows once had another label.")
    return once
