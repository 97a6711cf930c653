"""`exempla summarize`: k weighted rows from which the model learns nearly as much as from all."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

from exempla.cli.fitted import Fitted, reading
from exempla.cli.output import write_results
from exempla.tables import Table
from exempla.tables.formats.encoding import named_format
from exempla.tasks.summarize import summarize

STAGES = (("summarising", 6, 3),)


def run(options: Namespace) -> int:
    """Summarise the file, compare both models, and write the results."""
    parquet = named_format(options.file) == ".parquet"
    name = "summary.parquet" if parquet else "summary.csv"
    with reading(options, 0.2, [name], linear=True) as (given, job):
        picked: Any = summarize(
            given.model, given.train, options.k, total=options.total,
            store=options.store, seed=options.seed, progress=job.progress,
        )  # fmt: skip
        scores = _compared(given, picked)
    found = picked.renumbered(given.parts.train)
    measure = "R²" if given.regression else "accuracy"
    what = f"{len(picked):,} weighted rows summarise {len(given.parts.train):,} rows"
    if scores is not None:
        what += (
            f". Trained on them alone, the model reaches {measure} {scores[1]:.3f} on unseen rows; "
            f"trained on all rows, {scores[0]:.3f}"
        )
    about = given.about(
        question=f"Which {len(picked):,} rows summarise the whole file?",
        answer=f"{what}.",
        noun="rows",
    )
    whole, small = scores or (None, None)
    with job.published() as stage:
        paths = {"data": _write_rows(stage, given.dataset.table, found)}
        paths |= write_results(
            stage, found, train_view=given.view(found.indices), about=about,
            extra={"accuracy_all": whole, "accuracy_summary": small},
        )  # fmt: skip
    job.say(f"{what}.")
    job.say_files(paths)
    lost = 0.0 if scores is None else scores[0] - scores[1]
    return job.verdict(lost, f"of {measure} is lost")


def _compared(given: Fitted, picked: Any) -> tuple[float, float] | None:
    """Return the test scores of the model of all rows and of one trained on the summary alone."""
    parts = given.parts
    if parts.X_test is None or parts.y_test is None or not hasattr(given.model, "score"):
        return None
    models = given.model, given.refit(picked.indices, picked.weights)
    whole, small = (float(m.score(parts.X_test, parts.y_test)) for m in models)
    return whole, small


def _write_rows(stage: Path, table: Table, found: Any) -> Path:
    """Write the picked rows with their weights, as Parquet or CSV."""
    rows, name = table.frame(found.indices), "weight"
    while name in rows.columns:
        name = f"exempla_{name}"
    rows.insert(1, name, found.weights)
    if table.format != "parquet":
        rows.to_csv(stage / "summary.csv", index=False)
        return stage / "summary.csv"
    rows.to_parquet(stage / "summary.parquet", index=False)
    return stage / "summary.parquet"
