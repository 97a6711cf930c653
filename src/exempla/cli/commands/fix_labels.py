"""Find labels that are probably wrong, suggest better ones, and prepare the review page.

Rows whose labels you trust (--curated, --curated-column) make the result much better. Afterwards
`exempla review DIR` lets you decide row by row and writes the corrected file.
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
    verdict,
)
from exempla.cli.query import export_for_tools, tools
from exempla.errors import ExemplaError

HELP = "which labels of your file are wrong?"

FEWEST, MOST = 200, 2000
"""How many suspects are listed at least (in a small file a tenth of its rows, but twenty) and at
most, unless -k says so. Without trusted rows the expected number of errors can be far too low,
while the order is good: a list cut short would hide errors from the person who reviews it."""
_REVIEW = (
    "review.json", "suspects.jsonl", "images", "decisions.sqlite", "decisions.json", "patch.csv",
    "label-studio.json", "label-studio.xml", "fiftyone.csv", "cleanlab.csv", "spotlight.json",
)  # fmt: skip
"""What the review page keeps in the folder."""


def add_arguments(parser: ArgumentParser) -> None:
    """The file, how many suspects, the output."""
    add_file_arguments(parser)
    parser.add_argument(
        "-k",
        type=int,
        help="how many suspects to list (default: twice the expected errors, and not fewer than a "
        "tenth of the rows or 200)",
    )
    parser.add_argument(
        "--method",
        choices=("calibrated", "sbq"),
        default="calibrated",
        help="all evidence weighed (default), or the paper's SBQ ranking",
    )
    parser.add_argument(
        "--original-column",
        metavar="COLUMN",
        help="a column that holds, for trusted rows whose label was corrected, the label they once "
        "had (empty: it was right); it shows what kind of mistakes there are",
    )
    parser.add_argument(
        "--label-separator",
        metavar="MARK",
        help="the label column lists several labels, separated by this; a column for each label is "
        "--label a,b,c",
    )
    parser.add_argument(
        "--export",
        metavar="TOOLS",
        type=tools,
        default=(),
        help="also write the suspects for other tools: some of label-studio,fiftyone,cleanlab,"
        "spotlight (decisions come back with exempla review --import)",
    )
    add_fail_above(parser, "a larger share of the labels is expected to be wrong")
    add_output(parser)


def run(options: Namespace) -> int:
    """Read, train, judge every label, write the report and the review folder."""
    from exempla.cli.output import named_after, published, say_files, say_review, write_tables
    from exempla.cli.suspects import Suspects
    from exempla.cli.userfile import original_labels, reading
    from exempla.report import About, write_label_report
    from exempla.tasks.labels.fix_labels import fix_labels
    from exempla.tasks.labels.result import JobFixes

    later = named_after("corrected", options.file)
    if (found := _parts_job(options, [*_REVIEW, later])) is not None:
        return found
    with reading(options, 0.0, others=[*_REVIEW, later]) as (given, console, folder):
        parts = given.parts
        model, prepare = given.head(options.model is None)
        curated = None
        if parts.X_curated is not None:
            curated = given.data(prepare(parts.X_curated), parts.y_curated)
            console.say(f"{len(parts.curated):,} rows are trusted.")
        once = original_labels(given, options, console)
        asked = None if options.k is None or given.regression else given.at_most(options.k)
        console.say(f"Judging {len(parts.train):,} labels, each by models that have not seen it.")
        fixes = fix_labels(
            given.untrained(model),
            given.data(prepare(parts.X_train), parts.y_train),
            curated,
            k=asked if options.method == "sbq" else None,  # spot checks are drawn from all rows
            method=options.method,
            fit=given.fit,
            seed=options.seed,
            progress=console.progress,
            task="regression" if given.regression else "classes",
            original_labels=once,
        )
    if isinstance(fixes, JobFixes):
        from exempla.cli.label_jobs import finish

        return finish(console, options, folder, _job_file(given, options), fixes)
    everything = given.in_words(fixes)
    suspects = Suspects(given, _listed(everything, asked), everything)
    about = About(
        **given.facts(),
        command=command_line(options),
        warnings=(given.accuracy.warning,) if given.accuracy.warning else (),
        steps=(("Decide about them, and export the corrected file:", f"exempla review {folder}"),),
    )
    found = suspects.in_file_rows()
    with published(folder, options) as stage:
        paths = write_tables(
            stage,
            found,
            suspects.train_view(),
            {"file": given.table.path.name, "label": given.label.name},
        )
        paths["report"] = write_label_report(
            found,
            stage / "report.html",
            train_view=suspects.train_view(),
            contradicting_view=suspects.contradicting_view(),
            about=about,
        )
        # in its place already, for decisions lie beside it: a manifest says that it is complete
        suspects.write_review(folder, options)
    console.say(found.finding)
    say_files(console, folder, paths)
    export_for_tools(console, options, folder)
    say_review(console, folder)
    if kept := decided_elsewhere(folder):
        console.warn(kept)
    if not found.informed:  # then as many as may be wrong count
        most = found.expected_errors_interval[1] / max(found.n_train, 1)
        return verdict(console, options, most, "of the labels may be wrong, for all that is known")
    wrong = found.expected_errors / max(found.n_train, 1)
    return verdict(console, options, wrong, "of the labels are expected to be wrong")


def decided_elsewhere(folder: Path) -> str:
    """What is to be said of decisions in the folder that are about another column or file."""
    from exempla.review import read_review
    from exempla.review.folder import other_decisions
    from exempla.review.log import DecisionLog

    path = folder / "decisions.sqlite"
    if not path.exists():
        return ""
    try:
        log = DecisionLog(path, read_review(folder).key)
    except ExemplaError as error:  # the suspects are written all the same
        return str(error)
    try:
        return other_decisions(log.others())
    finally:
        log.close()


def _parts_job(options: Namespace, others: list[str]) -> int | None:
    """The exit code of a job on several labels or tokens; None if rows have one label each."""
    from exempla.cli.label_jobs import asked_for, sentences_of, several_labels, token_labels

    several = asked_for(options)
    sentences = None if several else sentences_of(options)
    if not several and sentences is None:
        return None
    if options.original_column is not None:
        raise ExemplaError(
            "--original-column is for files with one label a row; leave it out for this one."
        )
    if sentences is None:
        return several_labels(options, others)
    return token_labels(options, sentences, others)


def _job_file(given: Any, options: Namespace) -> Any:
    """What the jobs on numbers and on very many classes need to write their answer."""
    import numpy as np

    from exempla.cli.label_jobs import JobFile, reading_options
    from exempla.tables.corrections import fingerprint

    table, label, parts = given.table, given.label.name, given.parts
    text = table.format in ("csv", "tsv", "jsonl")
    how = reading_options(options) if text else {}
    if not table.header and table.format in ("csv", "tsv"):
        how["names"] = list(table.names)
    numbers = given.regression
    return JobFile(
        table.path,
        table.format,
        label,
        fingerprint(table),
        parts.train,
        given.view(parts.train).show,
        given.facts(),
        () if numbers else tuple(str(c) for c in np.unique(parts.y_train)),
        options=how,
        cells=(lambda row: table.strings(label, [row])[0] or "") if numbers else None,
        warnings=(given.accuracy.warning,) if given.accuracy.warning else (),
    )


def listed(fixes: Any, k: int | None) -> Any:
    """The suspects worth listing; see `_listed`."""
    return _listed(fixes, k)


def _listed(fixes: Any, k: int | None) -> Any:
    """Only the rows worth a person's time, unless the user said how many."""
    if k is not None:
        return fixes.first(min(k, len(fixes)))
    fewest = max(20, min(FEWEST, fixes.n_train // 10))
    count = min(max(fewest, round(2 * fixes.expected_errors)), MOST, len(fixes))
    return fixes.first(count)
