"""Summarise a file: k weighted rows from which the model learns nearly as much as from all rows.

A model trained on the summary alone is compared with one trained on all rows, on test rows that
neither has seen.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from exempla.cli.options import (
    add_fail_above,
    add_file_arguments,
    add_output,
    command_line,
    stages,
    verdict,
)

HELP = "reduce your file to k weighted rows"
STAGES = stages(("summarising", 6, 3))


def add_arguments(parser: ArgumentParser) -> None:
    """Add the file, the number of rows, and the output."""
    add_file_arguments(parser)
    parser.add_argument("-k", type=int, default=100, help="how many rows to keep (default: 100)")
    parser.add_argument(
        "--total",
        choices=("auto", "k", "n"),
        default="auto",
        help="what the weights sum to: chosen on held-out rows (default), k, or the number of rows",
    )
    add_fail_above(parser, "the summary loses more accuracy than this")
    add_output(parser)


def run(options: Namespace) -> int:
    """Summarise the file, compare both models, and write the results."""
    from exempla.cli.fitted import reading
    from exempla.cli.output import published, say_files, write_results
    from exempla.report import About
    from exempla.tables.formats.encoding import named_format
    from exempla.tasks.summarize import summarize

    parquet = named_format(options.file) == ".parquet"
    name = "summary.parquet" if parquet else "summary.csv"
    with reading(options, 0.2, [name], linear=True) as (given, console, folder):
        picked: Any = summarize(
            given.model, given.train, options.k, total=options.total,
            seed=options.seed, progress=console.progress,
        )  # fmt: skip
        whole, small = _compared(given, picked)
    found = picked.renumbered(given.parts.train)
    measure = "R²" if given.regression else "accuracy"
    what = f"{len(picked):,} weighted rows summarise {len(given.parts.train):,} rows"
    if small is not None and whole is not None:
        what += (
            f". Trained on them alone, the model reaches {measure} {small:.3f} on unseen rows; "
            f"trained on all rows, {whole:.3f}"
        )
    about = About(
        question=f"Which {len(picked):,} rows summarise the whole file?",
        answer=f"{what}.",
        **given.facts(),
        command=command_line(options),
        noun="rows",
    )
    with published(folder, options) as stage:
        paths = {"data": _write_rows(stage, given.dataset.table, found)}
        paths |= write_results(
            stage, found, train_view=given.view(found.indices), about=about,
            extra={"accuracy_all": whole, "accuracy_summary": small},
        )  # fmt: skip
    console.say(f"{what}.")
    say_files(console, folder, paths)
    lost = (whole - small) if whole is not None and small is not None else 0.0
    return verdict(console, options, lost, f"of {measure} is lost")


def _compared(given: Any, picked: Any) -> tuple[float | None, float | None]:
    """Return the test scores of the model of all rows and of one trained on the summary alone."""
    from exempla.data import take_rows
    from exempla.tasks.retrain import refit

    parts = given.parts
    if parts.X_test is None or parts.y_test is None or not hasattr(given.model, "score"):
        return None, None
    X, y = take_rows(parts.X_train, picked.indices), parts.y_train[picked.indices]
    small = refit(
        given.model, X, y, picked.weights, None, picked.seed, keep_random_state=True, quiet=False
    )
    return (
        float(given.model.score(parts.X_test, parts.y_test)),
        float(small.score(parts.X_test, parts.y_test)),
    )


def _write_rows(stage: Path, table: Any, found: Any) -> Path:
    """Write the picked rows with their weights, as Parquet or CSV."""
    rows = table.data.take(found.indices).to_pandas()
    name = "weight"
    while name in rows.columns:
        name = f"exempla_{name}"
    rows.insert(0, "row", found.indices, allow_duplicates=True)
    rows.insert(1, name, found.weights)
    if table.format == "parquet":
        rows.columns = [str(column) for column in rows.columns]
        rows.to_parquet(stage / "summary.parquet", index=False)
        return stage / "summary.parquet"
    rows.to_csv(stage / "summary.csv", index=False)
    return stage / "summary.csv"
