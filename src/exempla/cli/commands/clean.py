"""Find the training rows whose removal should correct the model's errors on the test rows.

Removing them corrects the errors you ask about; it does not raise accuracy in general. The model is
retrained without these rows, and the effect on the test rows is reported.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from exempla.cli.options import (
    add_budget,
    add_fail_above,
    add_file_arguments,
    add_output,
    command_for,
    command_line,
    stages,
    verdict,
)

STAGES = stages(("finding harmful rows", 4, 4), ("retraining", 1, 0))


def add_arguments(parser: ArgumentParser) -> None:
    """Add the file, the number of rows, and the output."""
    add_file_arguments(parser)
    parser.add_argument("-k", type=int, default=50, help="how many rows to remove (default: 50)")
    add_budget(parser)
    add_fail_above(parser, "removal fixes more than this share of the errors")
    add_output(parser)


def run(options: Namespace) -> int:
    """Find the harmful rows, retrain without them, and write the results."""
    from exempla.cli.fitted import reading
    from exempla.cli.output import named_after, published, say_files, write_results
    from exempla.cli.query import choose_query
    from exempla.errors import ExemplaError
    from exempla.explainer import Explainer
    from exempla.progress import stage, waiting
    from exempla.report import About, evidence_of
    from exempla.tables import Decision, export
    from exempla.tasks.clean import clean_from

    name = named_after("cleaned", options.file)
    with reading(options, 0.2, [] if Path(options.file).is_dir() else [name]) as (
        given,
        console,
        folder,
    ):
        asked = choose_query(given, "errors", "opponents")
        if asked.noun == "predictions":
            raise ExemplaError(
                "The model makes no error on the test rows: there is nothing to clean."
            )
        k = given.at_most(options.k)
        started = time.perf_counter()
        explainer = Explainer(
            given.model, budget=options.budget, seed=options.seed, progress=console.progress
        )
        found: Any = clean_from(
            explainer.fit(given.train), (given.parts.X_test, given.parts.y_test), k,
            ask=asked.positions, errors=asked.noun == "errors", started=started,
        )  # fmt: skip
        asked = asked.limited_to(found.question.rows)
        evidence = evidence_of(found)
        removed = given.parts.train[found.removed]
        stage("retraining")
        with waiting(f"retraining without {len(removed):,} rows"):
            fixed_share, before, after = _without(given, asked, found.removed, options.seed)
    fixed = round(fixed_share * len(asked.positions))
    measure, form = ("R²", ".3f") if given.regression else ("accuracy", ".1%")
    what = (
        f"Retrained without these {len(removed):,} of {len(given.parts.train):,} rows, the model "
        f"fixes {fixed:,} of its {len(asked.positions):,} {asked.noun}; its {measure} on all test "
        f"rows goes from {before:{form}} to {after:{form}}."
    )
    if found.test_labels.get("sentence"):
        what = f"{found.test_labels['sentence']} {what}"
    found = found.renumbered(given.parts.train)
    about = About(
        question=f"Which training rows cause these {asked.noun}?",
        answer=what,
        **given.facts(),
        command=command_line(options),
        notes=(f"These rows were chosen for these {asked.noun}: only new test rows tell whether "
               "the model is better.",),
        noun=asked.noun,
        steps=() if Path(options.file).is_dir() else ((
            f"The file without these rows is {name}, in the folder of this page. Try it on rows "
            "that were not used yet:",
            command_for(Namespace(**{**vars(options), "file": name, "test": "NEW.csv"}), "explain"),
        ),),
    )  # fmt: skip
    key = "r2" if given.regression else "accuracy"
    extra = {"fixed_share": fixed_share, f"{key}_before": before, f"{key}_after": after}
    with published(folder, options) as stage:
        paths = write_results(
            stage,
            found,
            train_view=given.view(found.indices, why=True),
            test_view=asked.test_view(),
            about=about,
            evidence=evidence,
            extra=extra,
        )
        if given.dataset.table.format != "images":
            rows = [Decision(int(row), "remove") for row in removed]
            paths["data"] = export(
                given.dataset.table, rows, stage / name, label=given.dataset.label.name
            )
    console.say(what)
    say_files(console, folder, paths)
    return verdict(console, options, fixed_share, "of the errors are fixed")


def _without(given: Any, asked: Any, positions: Any, seed: int) -> tuple[float, float, float]:
    """Return the share of errors fixed by training without these rows; accuracy before and after.

    In a regression the errors are the worst predictions, fixed if their error falls below the
    smallest among them, and R² replaces accuracy.
    """
    import numpy as np
    from sklearn.metrics import r2_score

    from exempla.data import absent_labels, take_rows
    from exempla.errors import ExemplaError
    from exempla.tasks.retrain import refit

    parts = given.parts
    kept = np.setdiff1d(np.arange(len(parts.train)), positions)
    gone = absent_labels(parts.y_train, parts.y_train[kept])
    if len(gone) and not given.regression:
        raise ExemplaError(
            f"Without these {len(positions):,} of {len(parts.train):,} training rows, no row of "
            f"class {gone[0]!s} is left to train on; choose a smaller -k."
        )
    X, y = take_rows(parts.X_train, kept), parts.y_train[kept]
    again = refit(given.model, X, y, None, None, seed, keep_random_state=True, quiet=False)
    if given.regression:
        truth, predicted = parts.y_test, again.predict(parts.X_test)
        worst, now = (np.abs(p - truth)[asked.positions] for p in (asked.predicted, predicted))
        before, after = (float(r2_score(truth, p)) for p in (asked.predicted, predicted))
        return float(np.mean(now < worst.min())), before, after
    right = again.predict(parts.X_test).astype(str) == parts.y_test.astype(str)
    before = asked.predicted.astype(str) == parts.y_test.astype(str)
    return float(right[asked.positions].mean()), float(before.mean()), float(right.mean())
