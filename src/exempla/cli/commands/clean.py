"""`exempla clean`: the rows whose removal should correct errors, and what their removal does."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import numpy as np
from sklearn.metrics import r2_score

from exempla.cli.fitted import Fitted, reading
from exempla.cli.options import command_for
from exempla.cli.query import QueryRows, choose_query
from exempla.data import absent_labels
from exempla.errors import ExemplaError
from exempla.progress import stage as start_stage
from exempla.progress import waiting
from exempla.report import evidence_of
from exempla.tables import Decision, export, format_suffix
from exempla.tasks.clean import clean_from

STAGES = (("finding harmful rows", 4, 4), ("retraining", 1, 0))


def run(options: Namespace) -> int:
    """Find the harmful rows, retrain without them, and write the results."""
    name = None if Path(options.file).is_dir() else f"cleaned{format_suffix(options.file)}"
    with reading(options, 0.2, [] if name is None else [name]) as (given, job):
        asked = choose_query(given, "errors", "opponents")
        if asked.noun == "predictions":
            raise ExemplaError(
                "The model makes no error on the test rows: there is nothing to clean."
            )
        found, asked = asked.answered(clean_from, job.explainer(given.model), options.k)
        evidence = evidence_of(found)
        removed = given.parts.train[found.removed]
        start_stage("retraining")
        with waiting(f"retraining without {len(removed):,} rows"):
            fixed_share, before, after = _without(given, asked, found.removed)
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
    new = Namespace(**{**vars(options), "file": name, "test": "NEW.csv"})
    about = given.about(
        question=f"Which training rows cause these {asked.noun}?",
        answer=what,
        notes=(f"These rows were chosen for these {asked.noun}: only new test rows tell whether "
               "the model is better.",),
        noun=asked.noun,
        steps=() if name is None else ((
            f"The file without these rows is {name}, in the folder of this page. Try it on rows "
            "that were not used yet:",
            command_for(new, "explain"),
        ),),
    )  # fmt: skip
    key = "r2" if given.regression else "accuracy"
    extra = {"fixed_share": fixed_share, f"{key}_before": before, f"{key}_after": after}
    with job.published() as stage:
        paths = asked.write(stage, found, about, evidence=evidence, extra=extra)
        if name is not None:
            rows = [Decision(int(row), "remove") for row in removed]
            label = given.dataset.label_name
            paths["data"] = export(given.dataset.table, rows, stage / name, label=label)
    job.say(what)
    job.say_files(paths)
    return job.verdict(fixed_share, "of the errors are fixed")


def _without(given: Fitted, asked: QueryRows, positions: np.ndarray) -> tuple[float, float, float]:
    """Return the share of errors fixed by training without these rows; accuracy before and after.

    In a regression the errors are the worst predictions, fixed if their error falls below the
    smallest among them, and R² replaces accuracy.
    """
    parts, truth = given.parts, given.parts.y_test
    assert truth is not None, "without labels there are no errors to ask about"
    kept = np.setdiff1d(np.arange(len(parts.train)), positions)
    gone = absent_labels(parts.y_train, parts.y_train[kept])
    if len(gone) and not given.regression:
        raise ExemplaError(
            f"Without these {len(positions):,} of {len(parts.train):,} training rows, no row of "
            f"class {gone[0]!s} is left to train on; choose a smaller -k."
        )
    both = asked.predicted, given.refit(kept).predict(parts.X_test)
    if given.regression:
        worst, now = (np.abs(p - truth)[asked.positions] for p in both)
        before, after = (float(r2_score(truth, p)) for p in both)
        return float(np.mean(now < worst.min())), before, after
    before, right = (p.astype(str) == truth.astype(str) for p in both)
    return float(right[asked.positions].mean()), float(before.mean()), float(right.mean())
