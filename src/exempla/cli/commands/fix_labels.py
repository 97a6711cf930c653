"""Find labels that are probably wrong, suggest better ones, and prepare the review page.

Rows whose labels you trust (--curated, --curated-column) make the result much better. Afterwards
`exempla review DIR` lets you decide row by row and writes the corrected file.
"""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError, Namespace
from dataclasses import replace
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
from exempla.errors import ExemplaError

HELP = "which labels in your file are wrong?"
STAGES = stages(("judging the labels", 8, 3))

TOOLS = ("label-studio", "fiftyone", "cleanlab", "spotlight")
_REVIEW_FILES = (
    "review.json", "suspects.jsonl", "images", "decisions.sqlite", "decisions.json", "patch.csv",
)  # fmt: skip
"""Files of the review page."""


def tools(text: str) -> tuple[str, ...]:
    """Parse names of tools, separated by commas.

    >>> tools("label-studio, cleanlab")
    ('label-studio', 'cleanlab')
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in names if name not in TOOLS]
    if unknown or not names:
        what = repr(unknown[0]) if unknown else "an empty list"
        raise ArgumentTypeError(f"{what} is not a known tool; choose from {', '.join(TOOLS)}")
    return names


def add_arguments(parser: ArgumentParser) -> None:
    """Add the file, the number of suspects, and the output."""
    add_file_arguments(parser)
    parser.add_argument(
        "-k",
        type=int,
        help="how many suspects to list (default: twice the expected number of errors, but at "
        "least a tenth of the rows or 200)",
    )
    parser.add_argument(
        "--method",
        choices=("calibrated", "sbq"),
        default="calibrated",
        help="calibrated probabilities from all evidence (default), or the paper's SBQ ranking",
    )
    parser.add_argument(
        "--original-column",
        metavar="COLUMN",
        help="a column with the earlier labels of trusted rows that were corrected (empty: the "
        "label was right); it shows what kind of errors the file has",
    )
    parser.add_argument(
        "--label-separator",
        metavar="MARK",
        help="the label column lists several labels separated by MARK; if there is one column per "
        "label, use --label a,b,c instead",
    )
    parser.add_argument(
        "--export",
        metavar="TOOLS",
        type=tools,
        default=(),
        help="also write the suspects for other tools: label-studio, fiftyone, cleanlab, "
        "spotlight, separated by commas (import decisions with exempla review --import)",
    )
    add_fail_above(parser, "a larger share of the labels is expected to be wrong")
    add_output(parser)


def run(options: Namespace) -> int:
    """Judge every label and write the report and the review folder."""
    from exempla.cli.fitted import fit_file, opened, read_files
    from exempla.cli.labels import judge_several_labels, judge_tokens
    from exempla.cli.output import named_after
    from exempla.progress import stage
    from exempla.review.integrations import TOOL_FILES
    from exempla.tables.dataset import label_layout, read_sentence_table
    from exempla.tables.label_parts import is_conll

    others = [*_REVIEW_FILES, named_after("corrected", options.file)]
    exported = [name for tool in options.export for name in TOOL_FILES[tool]]
    with opened(options, exported, others) as (console, folder):
        conll = is_conll(options.file) and options.task == "auto"
        files = None if conll else read_files(options, console)
        layout, sentences = None, None
        if files is not None:
            layout = label_layout(files.table, options.label, options.label_separator)
        if options.task == "auto" and layout is None:
            table = None if files is None else files.table
            sentences = read_sentence_table(options.file, table, options.label)
        if (layout or sentences) and options.original_column is not None:
            raise ExemplaError(
                "--original-column is for files with one label per row; leave it out for this one."
            )
        if sentences is not None or layout is not None:
            stage("judging the labels")
        if sentences is not None:
            job, fixes = judge_tokens(sentences, options, console)
        elif layout is not None:
            assert files is not None
            job, fixes = judge_several_labels(files, layout, options, console)
        else:
            assert files is not None
            given = fit_file(options, console, files, 0.0)
            job, fixes = _judge_rows(given, options, console)
    if job is not None:
        return job.finish(console, options, folder, fixes)
    return _finish(given, fixes, options, console, folder)  # pyright: ignore[reportPossiblyUnboundVariable]


def _judge_rows(given: Any, options: Namespace, console: Any) -> tuple[Any, Any]:
    """Judge rows with one label each; return the job if it is not about a few classes."""
    from exempla.cli.labels import job_on_rows, original_labels
    from exempla.tasks.labels.fix_labels import fix_labels

    parts, (model, prepare) = given.parts, given.head(options.model is None)
    curated = None
    if parts.X_curated is not None:
        curated = (prepare(parts.X_curated), parts.y_curated)
        console.say(f"{len(parts.curated):,} rows are trusted.")
    once = original_labels(given, options, console)
    console.say(f"Judging {len(parts.train):,} labels, each by models that have not seen it.")
    fixes = fix_labels(
        model,
        (prepare(parts.X_train), parts.y_train),
        curated,
        # Otherwise spot checks are drawn from all rows, so all of them are judged.
        k=_asked(given, options) if options.method == "sbq" else None,
        method=options.method,
        seed=options.seed,
        progress=console.progress,
        task="regression" if given.regression else "classes",
        original_labels=once,
    )
    return (job_on_rows(given) if fixes.task == "regression" else None), fixes


def _asked(given: Any, options: Namespace) -> int | None:
    return None if options.k is None or given.regression else given.at_most(options.k)


def _finish(given: Any, fixes: Any, options: Namespace, console: Any, folder: Path) -> int:
    """Write the results for rows with one class each."""
    import numpy as np

    from exempla.cli.labels import Suspects, announce_review, worth_listing
    from exempla.cli.output import published, say_files, write_tables
    from exempla.report import About, write_label_report

    suspects = Suspects(given, worth_listing(fixes, _asked(given, options)), fixes)
    about = About(
        **given.facts(),
        command=command_line(options),
        warnings=given.warnings,
        steps=(("Review them and export the corrected file:", f"exempla review {folder}"),),
    )
    found = suspects.fixes.renumbered(given.parts.train)
    # A listed row may be right; a reader who disagrees needs the best other label.
    listed = replace(
        found,
        suggested=np.where(found.suggested == found.given, found.alternative, found.suggested),
    )
    with published(folder, options) as stage:
        extra = {"file": given.dataset.name, "label": given.dataset.label.name}
        paths = write_tables(stage, listed, suspects.train_view, extra)
        paths["report"] = write_label_report(
            found,
            stage / "report.html",
            train_view=suspects.train_view,
            contradicting_view=suspects.contradicting_view,
            about=about,
        )
        # Written in place, because decisions lie beside it; its header says that it is complete.
        suspects.write_review(folder, options)
    console.say(found.finding)
    say_files(console, folder, paths)
    announce_review(console, options, folder)
    if not found.has_signal:  # then the upper end of the interval counts
        most = found.interval[1] / max(found.n_train, 1)
        return verdict(console, options, most, "of the labels may be wrong, as far as is known")
    wrong = found.expected_errors / max(found.n_train, 1)
    return verdict(console, options, wrong, "of the labels are expected to be wrong")
