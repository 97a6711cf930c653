"""Rows with several labels: a column for each, or one column that lists them."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

import numpy as np
import pandas as pd

from exempla.cli.label_jobs.job import JobFile, finish, job_folder, reading_options
from exempla.cli.shared.console import Console, plain
from exempla.cli.userdata.models import load_model
from exempla.cli.userdata.rows import row_view
from exempla.errors import ExemplaError
from exempla.tables import feature_frame, infer_columns, read_table, show_columns
from exempla.tables.columns.infer import FEATURES
from exempla.tables.corrections.fingerprint import fingerprint
from exempla.tables.label_parts import indicator
from exempla.tables.models.tabular import preparation
from exempla.tables.table import Table

__all__ = ["asked_for", "several_labels"]


def asked_for(options: Namespace) -> bool:
    """Whether the options name several labels."""
    if options.label_separator is not None:
        return True
    if options.label is None or "," not in options.label:
        return False
    try:
        return options.label not in _table(options).names
    except ExemplaError:  # told where the file is read
        return False


def several_labels(options: Namespace, others: list[str]) -> int:
    """Judge every label of every row."""
    with job_folder(options, others) as (console, folder):
        file, fixes = _judged(options, console)
    return finish(console, options, folder, file, fixes)


def _table(options: Namespace) -> Table:
    return read_table(options.file, **reading_options(options))


def _judged(options: Namespace, console: Console) -> tuple[JobFile, Any]:
    from exempla.tasks.fix_labels import fix_labels

    table = _table(options)
    for note in table.notes:
        console.say(note)
    layout = _layout(table, options)
    Y, known = indicator(table, layout)
    kinds = dict.fromkeys(_label_columns(layout), "ignored")
    kinds |= dict(_told(given) for given in options.kind)
    if options.curated_column:
        kinds[options.curated_column] = "ignored"
    columns = infer_columns(table, None, options.text, kinds)
    console.say(show_columns(columns))
    if not any(column.kind in FEATURES for column in columns):
        raise ExemplaError("No column is left to judge the labels by; look at the table above.")
    trusted = _trusted(table, options)
    rows = np.setdiff1d(np.flatnonzero(known), trusted)
    X = feature_frame(table, columns, rows)
    prepare: Any = preparation(columns, X)
    ready, names = prepare.fit_transform(X), layout["names"]
    curated = None
    if options.curated:
        other = read_table(options.curated, **reading_options(options))
        layout_there = dict(layout)
        Yc, known_there = indicator(other, layout_there)
        Yc = _aligned(Yc, layout_there["names"], names)
        there = np.flatnonzero(known_there)
        curated = (prepare.transform(feature_frame(other, columns, there)),
                   pd.DataFrame(Yc[there], columns=names))  # fmt: skip
    elif len(trusted):
        curated = (prepare.transform(feature_frame(table, columns, trusted)),
                   pd.DataFrame(Y[trusted], columns=names))  # fmt: skip
    if curated is not None:
        console.say(f"{len(curated[1]):,} rows are trusted.")
    few = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    console.say(
        f"Judging {len(rows) * len(names):,} labels ({few}), each by models that have not seen it."
    )
    model, described = _model(options)
    fixes = fix_labels(
        model, (ready, pd.DataFrame(Y[rows], columns=names)), curated, seed=options.seed,
        progress=console.progress, task="multi-label",
    )  # fmt: skip
    view = row_view(table, columns)
    facts = {"data": plain(table.path.name), "model": described}
    file = JobFile(
        table.path, table.format, ", ".join(_label_columns(layout)), fingerprint(table), rows,
        view.show, facts, ("absent", "present"),
        options=reading_options(options) | {"parts": layout},
    )  # fmt: skip
    return file, fixes


def _layout(table: Table, options: Namespace) -> dict[str, Any]:
    if options.label is None:
        raise ExemplaError("Say which column lists the labels with --label COLUMN.")
    if options.label_separator is not None:
        name = table.names[table.position(options.label)]
        return {"kind": "delimited", "column": name, "separator": options.label_separator}
    asked = [name.strip() for name in options.label.split(",") if name.strip()]
    names = [table.names[table.position(name)] for name in asked]
    if len(set(names)) < 2:
        raise ExemplaError(f"--label {options.label} names one column; several labels need two.")
    return {"kind": "columns", "names": names}


def _label_columns(layout: dict[str, Any]) -> list[str]:
    return layout["names"] if layout["kind"] == "columns" else [layout["column"]]


def _told(given: str) -> tuple[str, str]:
    column, mark, kind = given.rpartition("=")
    if not mark:
        raise ExemplaError(f"--kind {given} is not understood; write --kind COLUMN=KIND.")
    return column, kind


def _trusted(table: Table, options: Namespace) -> np.ndarray:
    """Rows that the curated column marks."""
    if not options.curated_column:
        return np.arange(0)
    from exempla.tables.split import YES

    marks = table.strings(table.names[table.position(options.curated_column)])
    found = [i for i, mark in enumerate(marks) if mark and mark.strip().casefold() in YES]
    if not found:
        raise ExemplaError(
            f"No row is marked in the curated column {options.curated_column!r}; mark trusted rows "
            "with 1."
        )
    return np.array(found)


def _aligned(Y: np.ndarray, there: list[str], names: list[str]) -> np.ndarray:
    """The other file's labels in this one's order."""
    unknown = [name for name in there if name not in names]
    if unknown:
        raise ExemplaError(f"The curated file has labels that the other never has: {unknown[0]!r}.")
    out = np.zeros((len(Y), len(names)), dtype=np.int64)
    out[:, [names.index(name) for name in there]] = Y
    return out


def _model(options: Namespace) -> tuple[Any, str]:
    if options.model:
        return load_model(options.model), options.model
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(max_iter=1000), "logistic regression, one for each label"
