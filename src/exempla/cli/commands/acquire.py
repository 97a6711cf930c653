"""Find the rows of a pool that would correct the model's errors once they are labelled and added.

FILE holds the training rows, POOL the candidates, with the same columns. If the pool has no labels,
the rows most worth labelling are chosen; if it has, the rows most worth training on.

The results hold the chosen rows (acquired.csv, and tasks.json for Label Studio). Label them with
`exempla review DIR`, or fill in the label column of acquired.csv, and pass the labelled file back
with --labels to see what really changed.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from exempla.cli.options import (
    add_file_arguments,
    add_output,
    command_for,
    command_line,
    completed,
    stages,
)

HELP = "which rows should you label or add next?"
STAGES = stages(("choosing rows of the pool", 4, 4))
_FILES = ("acquired.csv", "tasks.json")
_REVIEW = ("review.json", "suspects.jsonl", "images")


def add_arguments(parser: ArgumentParser) -> None:
    """Add the files, the number of rows, the query and the output."""
    add_file_arguments(parser)
    pool = parser.add_argument("pool", metavar="POOL", help="the candidates, with the same columns")
    completed(pool, "FILE")
    parser.add_argument("-k", type=int, default=50, help="how many rows to choose (default: 50)")
    parser.add_argument(
        "--ask",
        default="errors",
        help="which test predictions should improve: errors (default), all, errors:TRUE->PREDICTED",
    )
    parser.add_argument("--costs", metavar="COLUMN", help="a column of POOL: the cost of each row")
    labels = parser.add_argument(
        "--labels",
        metavar="FILE",
        help="acquired.csv with its label column filled in (corrected.csv of `exempla review`)",
    )
    completed(labels, "FILE")
    add_output(parser)


def run(options: Namespace) -> int:
    """Choose the rows, write them, and with --labels retrain with them."""
    from exempla.cli.fitted import reading, spread
    from exempla.cli.output import contract, published, say_files, say_review, write_tables
    from exempla.cli.query import choose_query
    from exempla.data import take_rows
    from exempla.errors import ExemplaError
    from exempla.io import write_text
    from exempla.report import About, Listed, write_listing
    from exempla.tables import read_table
    from exempla.tables.common import in_common
    from exempla.tasks.acquire import acquire

    with reading(options, 0.2, _FILES, _REVIEW) as (given, console, folder):
        pool = read_table(
            options.pool, expected=[given.dataset.label.name],
            encoding=options.encoding, delimiter=options.delimiter, labelled=False,
        )  # fmt: skip
        parts = given.dataset.split(test=pool)
        asked = choose_query(given, options.ask, None)
        if asked.noun == "predictions" and options.ask == "errors":
            raise ExemplaError("The model makes no error on the test rows: nothing to correct.")
        costs = None if options.costs is None else _costs(pool, options.costs, parts.test)
        candidates = parts.X_test if parts.y_test is None else (parts.X_test, parts.y_test)
        found = acquire(
            given.model, given.train, candidates, (given.parts.X_test, given.parts.y_test),
            options.k, ask=asked.positions, costs=costs, seed=options.seed,
            progress=console.progress,
        )  # fmt: skip
        check = None
        if options.labels:
            check = found.verify(labels=_given_labels(options.labels, given, parts, found))
    what = found.finding if check is None else str(check)
    positions, answer = found.indices, found.renumbered(parts.test)
    predicted = given.model.predict(take_rows(parts.X_test, positions))
    view = given.dataset.view(pool, predicted=spread(predicted, answer.indices, len(pool)))
    shared = (
        [] if given.dataset.is_images else in_common(parts.X_test, given.dataset.columns, positions)
    )
    what_is_shared = f" What sets these rows apart: {'; '.join(shared)}." if shared else ""
    about = About(
        question=f"Which rows would correct these {asked.noun}?",
        answer=what + what_is_shared,
        **given.facts(),
        command=command_line(options),
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
    extra = contract(options, answer.indices.tolist(), in_common=shared)
    if check is not None:
        arms = ("before", "with", "random")  # without labels of the whole pool, no random rows
        extra["verified"] = {
            name: {arm: value for arm, value in zip(arms, values) if value == value}
            for name, values in check._asdict().items()
        }
    chosen = _rows(pool, answer.indices, given.dataset.label.name)
    with published(folder, options) as stage:
        chosen.to_csv(stage / "acquired.csv", index=False)
        write_text(stage / "tasks.json", _tasks(chosen))
        paths = write_tables(stage, answer, view, extra | answer.to_dict())
        paths |= {
            "data": stage / "acquired.csv",
            "tasks": stage / "tasks.json",
            "report": write_listing(
                stage / "report.html", listed, view=view, about=about, seed=options.seed,
                heading="Rows to add" if found.labelled else "Rows to label",
                help="The most useful first. The label shown is what the model predicts.",
            ),
        }  # fmt: skip
    console.say(what)
    for sentence in shared:
        console.say(f"  {sentence}")
    if not found.labelled and check is None:
        chances = given.model.predict_proba(take_rows(parts.X_test, positions)).max(axis=1)
        _write_review(folder, given, view, answer.indices, predicted, chances)
    say_files(console, folder, paths)
    if not found.labelled and check is None:
        say_review(console, folder)
    return 0


def _write_review(
    folder: Path, given: Any, view: Any, rows: Any, predicted: Any, chances: Any
) -> None:
    """Write what the review page needs to label the rows of acquired.csv."""
    from dataclasses import replace

    from exempla.review import ReviewedFile, Suspect, write_review

    items = [
        Suspect(
            place, "", str(label), 1.0, float(chance), content=replace(view.show(int(row)), name="")
        )
        for place, (row, label, chance) in enumerate(zip(rows, predicted, chances, strict=True))
    ]
    write_review(
        folder,
        items,
        source=ReviewedFile(folder / "acquired.csv", "csv", label=given.dataset.label.name),
        classes=[str(name) for name in given.model.classes_],
        question="Which label does each row have?",
    )


def _costs(pool: Any, name: str, rows: Any) -> Any:
    """Return the costs in a column of the pool."""
    import numpy as np

    from exempla.errors import ExemplaError

    values = pool.strings(pool.names[pool.position(name)])
    try:
        return np.array([float(values[row]) for row in rows])
    except (TypeError, ValueError):
        raise ExemplaError(f"The column {name!r} of {pool.path.name} must hold numbers.") from None


def _rows(pool: Any, rows: Any, label: str) -> Any:
    """Return the chosen rows as in the file, with an empty label column if they have none."""
    frame = pool.data.take(rows).to_pandas()
    if label not in frame.columns:
        frame[label] = ""
    frame.insert(0, "row", rows, allow_duplicates=True)
    return frame


def _tasks(table: Any) -> str:
    """Return the rows as tasks that Label Studio imports."""
    import json

    rows = table.to_dict("records")
    return json.dumps([{"data": {k: str(v) for k, v in row.items()}} for row in rows], indent=1)


def _given_labels(path: str | Path, given: Any, parts: Any, found: Any) -> Any:
    """Return the labels of the chosen rows from a filled-in acquired.csv."""
    import numpy as np

    from exempla.errors import ExemplaError
    from exempla.tables import read_table

    name = given.dataset.label.name
    table = read_table(path, expected=["row", name])
    for column in ("row", name):
        if column not in table.names:
            raise ExemplaError(f"{table.path.name} has no column {column!r}: give acquired.csv.")
    by_row = dict(zip(table.strings("row"), table.strings(name), strict=True))
    values = [by_row.get(str(row)) for row in parts.test[found.indices]]
    missing = [int(r) for r, v in zip(parts.test[found.indices], values) if not v]
    if missing:
        raise ExemplaError(
            f"{len(missing):,} of the {len(values):,} chosen rows have no label in "
            f"{table.path.name} (row {missing[0]} of the pool, for example)."
        )
    known = given.train[1]
    return np.asarray(values, dtype=known.dtype if known.dtype.kind in "fiu" else str)
