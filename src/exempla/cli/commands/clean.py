"""Name the training rows whose removal should help the model on the test rows it gets wrong.

Removal repairs the questioned predictions; it is no general trick for accuracy. The model is
trained again without the named rows, and what that does to the test rows is said.
"""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from exempla.cli.options import (
    add_fail_above,
    add_file_arguments,
    add_output,
    command_for,
    command_line,
    verdict,
)

HELP = "which rows of your file harm a model, and what happens without them?"


def add_arguments(parser: ArgumentParser) -> None:
    """The file, how many rows, the output."""
    add_file_arguments(parser)
    parser.add_argument("-k", type=int, default=50, help="how many rows to remove (default: 50)")
    add_fail_above(parser, "removal fixes more than this share of the errors")
    add_output(parser)


def run(options: Namespace) -> int:
    """Read, train, find the harmful rows, retrain without them, write."""
    from exempla.cli.output import named_after, published, say_files, write_results
    from exempla.cli.query import choose_questions
    from exempla.cli.userfile import reading
    from exempla.errors import ExemplaError
    from exempla.explainer import Explainer
    from exempla.progress import waiting
    from exempla.report import About, evidence_of
    from exempla.tables import Decision, export
    from exempla.tasks.clean import clean_from

    name = named_after("cleaned", options.file)
    with reading(options, 0.2, [] if Path(options.file).is_dir() else [name]) as (
        given,
        console,
        folder,
    ):
        asked = choose_questions(given, "errors", "opponents")
        if asked.noun == "predictions":
            raise ExemplaError("The model makes no error on the test rows: nothing to clean.")
        k = given.at_most(options.k)
        started = time.perf_counter()
        explainer = Explainer(given.inner, seed=options.seed, progress=console.progress)
        found: Any = clean_from(
            explainer.fit(given.train()), given.data(given.parts.X_test, given.parts.y_test), k,
            ask=asked.positions, errors=asked.noun == "errors", fit=given.fit, started=started,
        )  # fmt: skip
        asked = asked.limited_to(found.question.rows)
        evidence = evidence_of(found)
        removed = given.parts.train[found.removed]
        with waiting(f"training again without {len(removed):,} rows"):
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
        question=f"Which training rows should go, so that these {asked.noun} are fixed?",
        answer=what,
        **given.facts(),
        command=command_line(options),
        notes=(f"These {asked.noun} were chosen to be fixed: only new test rows show whether the "
               "model became better.",),
        noun=asked.noun,
        steps=() if Path(options.file).is_dir() else ((
            f"The file without these rows is {name}, beside this page. Try it on rows that nobody "
            "has looked at yet:",
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
        if given.table.format != "images":
            rows = [Decision(int(row), "remove") for row in removed]
            paths["data"] = export(given.table, rows, stage / name, label=given.label.name)
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
            f"Without these {len(positions):,} of {len(parts.train):,} training rows none of "
            f"{gone[0]!s} is left to learn from; name fewer with -k."
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
