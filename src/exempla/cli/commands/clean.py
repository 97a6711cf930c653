"""Name the training rows whose removal should help the model on the test rows it gets wrong.

Removal repairs the questioned predictions; it is no general trick for accuracy. The model is
trained again without the named rows, and what that does to the test rows is said.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from dataclasses import replace
from typing import Any

from exempla.cli.shared.arguments import add_file_arguments
from exempla.cli.shared.options import add_fail_above, add_output, command_line, fails

HELP = "which rows of your file harm a model, and what happens without them?"


def add_arguments(parser: ArgumentParser) -> None:
    """The file, how many rows, the output."""
    add_file_arguments(parser)
    parser.add_argument("-k", type=int, default=50, help="how many rows to remove (default: 50)")
    add_fail_above(parser, "removal mends more than this share of the errors")
    add_output(parser)


def run(options: Namespace) -> int:
    """Read, train, find the harmful rows, retrain without them, write."""
    from exempla.cli.shared.asking import choose_questions
    from exempla.cli.shared.userfile import reading
    from exempla.cli.shared.writing import say_files, write_results
    from exempla.errors import ExemplaError
    from exempla.report import About, evidence_of
    from exempla.tables import Decision, export, format_suffix
    from exempla.tasks.clean import clean

    with reading(options, test_size=0.2) as (given, console, folder):
        if given.regression:
            raise ExemplaError("clean asks about wrong predictions of classes, not of numbers.")
        asked = choose_questions(given, "errors", "opponents")
        if asked.noun != "errors":
            raise ExemplaError("The model makes no error on the test rows: nothing to clean.")
        k = given.at_most(options.k)
        found: Any = clean(
            given.inner, given.train(), asked.test, k, target="all", seed=options.seed,
            progress=console.progress,
        )  # fmt: skip
        evidence = evidence_of(found)
        removed = given.parts.train[found.indices]
        mended, before, after = _without(given, asked, found.indices)
    what = (
        f"Without {len(removed):,} of {len(given.parts.train):,} training rows the model mends "
        f"{mended:.0%} of its {len(asked.positions):,} errors; its accuracy on all test rows goes "
        f"from {before:.1%} to {after:.1%}."
    )
    paths = {}
    if given.table.format != "images":
        suffix = format_suffix(given.table.path)
        rows = [Decision(int(row), "remove") for row in removed]
        place = folder / f"cleaned{suffix}"
        paths["data"] = export(given.table, rows, place, label=given.label.name)
    found = replace(found, indices=removed, context=None)
    about = About(
        question="Which training rows should go, so that these errors are mended?",
        answer=what,
        **given.facts(),
        command=command_line(options),
        notes=("The errors were chosen to be mended: only new test rows tell whether the model "
               "became better.",),
        asked="errors",
    )  # fmt: skip
    extra = {"mended": mended, "accuracy_before": before, "accuracy_after": after}
    paths |= write_results(
        folder, found, train_view=asked.train_view(found), test_view=asked.test_view(),
        about=about, evidence=evidence, extra=extra,
    )  # fmt: skip
    console.say(what)
    say_files(console, paths)
    return int(fails(options, mended))


def _without(given: Any, asked: Any, positions: Any) -> tuple[float, float, float]:
    """Share of the errors mended by training without these rows; accuracy before and after."""
    import numpy as np
    from sklearn.base import clone

    from exempla.data import take_rows
    from exempla.errors import ExemplaError

    parts = given.parts
    kept = np.setdiff1d(np.arange(len(parts.train)), positions)
    if len(np.unique(parts.y_train[kept])) < 2:
        raise ExemplaError(
            f"Without these {len(positions):,} rows fewer than two classes are left to train on; "
            "remove fewer with -k."
        )
    again: Any = clone(given.model)
    again.fit(take_rows(parts.X_train, kept), parts.y_train[kept])
    right = again.predict(parts.X_test).astype(str) == parts.y_test.astype(str)
    before = asked.predicted.astype(str) == parts.y_test.astype(str)
    return float(right[asked.positions].mean()), float(before.mean()), float(right.mean())
