"""Summarise a file: k weighted rows from which the model learns nearly what it learns from all.

The summary is judged at once: a model trained on it alone, against the model trained on all rows,
both on test rows neither has seen.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from exempla.cli.options import (
    add_fail_above,
    add_file_arguments,
    add_output,
    command_line,
    verdict,
)

HELP = "your file in k weighted rows"


def add_arguments(parser: ArgumentParser) -> None:
    """The file, how many rows, the output."""
    add_file_arguments(parser)
    parser.add_argument("-k", type=int, default=100, help="how many rows to keep (default: 100)")
    parser.add_argument(
        "--total",
        choices=("auto", "k", "n"),
        default="auto",
        help="what the weights sum to: chosen on held-out rows (default), k, or all rows",
    )
    add_fail_above(parser, "the summary costs more accuracy than this")
    add_output(parser)


def run(options: Namespace) -> int:
    """Read, train, summarise, judge, write."""
    from exempla.cli.output import published, say_files, write_results
    from exempla.cli.userfile import FILES, judged, reading, write_rows
    from exempla.report import About
    from exempla.tasks.summarize import summarize

    with reading(options, 0.2, FILES, linear=True) as (given, console, folder):
        picked: Any = summarize(
            given.inner, given.train(), options.k, total=options.total, fit=given.fit,
            seed=options.seed, progress=console.progress,
        )  # fmt: skip
        whole, small = judged(given, picked)
    found = picked.renumbered(given.parts.train)
    measure = "R²" if given.regression else "accuracy"
    what = f"{len(picked):,} weighted rows stand for {len(given.parts.train):,}"
    if small is not None and whole is not None:
        what += (
            f": trained on them alone the model reaches {measure} {small:.3f} on rows it has not "
            f"seen, trained on all of them {whole:.3f}"
        )
    about = About(
        question=f"Which {len(picked):,} rows stand for the whole file?",
        answer=f"{what}.",
        **given.facts(),
        command=command_line(options),
        noun="rows",
    )
    with published(folder, options) as stage:
        paths = {"data": write_rows(stage, given, found)}
        paths |= write_results(
            stage, found, train_view=given.view(found.indices), about=about,
            extra={"accuracy_all": whole, "accuracy_summary": small},
        )  # fmt: skip
    console.say(f"{what}.")
    say_files(console, folder, paths)
    lost = (whole - small) if whole is not None and small is not None else 0.0
    return verdict(console, options, lost, f"of {measure} is lost")
