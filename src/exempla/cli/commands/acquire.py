"""`exempla acquire`: the rows of a pool that would correct errors once they are labelled."""

from __future__ import annotations

import json
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from exempla.cli.fitted import Fitted, reading, spread
from exempla.cli.options import command_for
from exempla.cli.output import write_tables
from exempla.cli.query import choose_query
from exempla.data import take_rows
from exempla.errors import ExemplaError
from exempla.io import write_text
from exempla.report import Listed, write_listing
from exempla.review import ReviewedFile, Suspect, write_review
from exempla.tables import Split, Table, read_table, split
from exempla.tables.dataset import RowView
from exempla.tasks.acquire import acquire

STAGES = (("choosing rows of the pool", 4, 4),)
_FILES = ("acquired.csv", "tasks.json")
_REVIEW = ("review.json", "suspects.jsonl", "images")


def run(options: Namespace) -> int:
    """Choose the rows, write them, and with --labels retrain with them."""
    with reading(options, 0.2, _FILES, _REVIEW) as (given, job):
        pool = read_table(
            options.pool, expected=[given.dataset.label_name],
            encoding=options.encoding, delimiter=options.delimiter, labelled=False,
        )  # fmt: skip
        parts = split(given.dataset.table, given.dataset.columns, test=pool)
        parts = replace(parts, X_test=given.featured(parts.X_test))
        asked = choose_query(given, options.ask, None)
        if asked.noun == "predictions" and options.ask == "errors":
            raise ExemplaError("The model makes no error on the test rows: nothing to correct.")
        candidates = parts.X_test if parts.y_test is None else (parts.X_test, parts.y_test)
        found = acquire(
            given.model, given.train, candidates, (given.parts.X_test, given.parts.y_test),
            options.k, ask=asked.positions, costs=_costs(pool, options.costs, parts.test),
            seed=options.seed, progress=job.progress,
        )  # fmt: skip
        check = None
        if options.labels:
            check = found.verify(labels=_given_labels(options.labels, given, parts, found))
    what = found.finding if check is None else str(check)
    positions, answer = found.indices, found.renumbered(parts.test)
    inputs = take_rows(parts.X_test, positions)
    predicted = given.model.predict(inputs)
    view = given.dataset.view(pool, predicted=spread(predicted, answer.indices, len(pool)))
    about = given.about(
        question=f"Which rows would correct these {asked.noun}?",
        answer=what,
        noun=asked.noun,
        steps=() if check is not None else ((
            "Label the rows (exempla review, or the label column of acquired.csv), then see what "
            "the labels change:",
            command_for(options, "acquire", options.pool, "--labels", "corrected.csv"),
        ),),
    )  # fmt: skip
    test_rows = given.parts.test
    listed = [
        Listed(int(row), f"should help with test rows {', '.join(map(str, test_rows[helps]))}")
        for row, helps in zip(answer.indices, found.helps, strict=True)
    ]
    values = job.contract(answer.indices.tolist())
    if check is not None:
        arms = ("before", "with", "random")  # without labels of the whole pool, no random rows
        values["verified"] = {
            name: {arm: value for arm, value in zip(arms, numbers) if value == value}
            for name, numbers in check._asdict().items()
        }
    chosen = pool.frame(answer.indices)
    if given.dataset.label_name not in pool.names:
        chosen[given.dataset.label_name] = ""  # to be filled in
    with job.published() as stage:
        paths = write_tables(stage, answer, view, values | answer.to_dict())
        paths["data"], paths["tasks"] = (stage / name for name in _FILES)
        chosen.to_csv(paths["data"], index=False)
        # Label Studio imports these tasks.
        tasks = [{"data": {k: str(v) for k, v in r.items()}} for r in chosen.to_dict("records")]
        write_text(paths["tasks"], json.dumps(tasks, indent=1))
        paths["report"] = write_listing(
            stage / "report.html", listed, view=view, about=about, seed=options.seed,
            heading="Rows to add" if found.labelled else "Rows to label",
            help="The most useful first. The label shown is what the model predicts.",
        )  # fmt: skip
    job.say(what)
    to_label = not found.labelled and check is None
    if to_label:
        chances = given.model.predict_proba(inputs).max(axis=1)
        _write_review(job.folder, given, view, answer.indices, predicted, chances)
    job.say_files(paths)
    if to_label:
        job.say_review()
    return 0


def _write_review(
    folder: Path, given: Fitted, view: RowView, rows: Any, predicted: Any, chances: Any
) -> None:
    """Write what the review page needs to label the rows of acquired.csv."""
    items = [
        Suspect(
            place, "", str(label), 1.0, float(chance), content=replace(view.show(int(row)), name="")
        )
        for place, (row, label, chance) in enumerate(zip(rows, predicted, chances, strict=True))
    ]
    write_review(
        folder,
        items,
        source=ReviewedFile(folder / "acquired.csv", "csv", label=given.dataset.label_name),
        classes=[str(name) for name in given.model.classes_],
        question="Which label does each row have?",
    )


def _costs(pool: Table, name: str | None, rows: np.ndarray) -> np.ndarray | None:
    """Return the costs in a column of the pool, if one is named."""
    if name is None:
        return None
    try:
        return np.array([float(str(value)) for value in pool.strings(name, rows)])
    except ValueError:
        raise ExemplaError(f"The column {name!r} of {pool.path.name} must hold numbers.") from None


def _given_labels(path: str, given: Fitted, parts: Split, found: Any) -> np.ndarray:
    """Return the labels of the chosen rows from a filled-in acquired.csv."""
    name = given.dataset.label_name
    table = read_table(path, expected=["row", name])
    for column in ("row", name):
        if column not in table.names:
            raise ExemplaError(f"{table.path.name} has no column {column!r}: give acquired.csv.")
    by_row = dict(zip(table.strings("row"), table.strings(name), strict=True))
    rows = parts.test[found.indices].tolist()
    values = [by_row.get(str(row)) for row in rows]
    missing = [row for row, value in zip(rows, values) if not value]
    if missing:
        raise ExemplaError(
            f"{len(missing):,} of the {len(values):,} chosen rows have no label in "
            f"{table.path.name} (row {missing[0]} of the pool, for example)."
        )
    known = given.train[1]
    return np.asarray(values, dtype=known.dtype if known.dtype.kind in "fiu" else str)
