"""Arguments of every command that works on the user's own file."""

from __future__ import annotations

from argparse import ArgumentParser

from exempla.cli.shared.options import completed

__all__ = ["add_file_arguments"]


def add_file_arguments(parser: ArgumentParser) -> None:
    """Everything about the file and the model."""
    data = parser.add_argument_group("the data")
    file = data.add_argument(
        "file", metavar="FILE", help="CSV, TSV, JSONL, Parquet, NPZ (X, y), or a folder of images"
    )
    data.add_argument("--label", metavar="COLUMN", help="the column to predict")
    data.add_argument(
        "--text", metavar="COLUMN", action="append", default=[], help="read this column as text"
    )
    data.add_argument(
        "--kind",
        metavar="COLUMN=KIND",
        action="append",
        default=[],
        help="overrule what a column is: number, category, text, date, id, ignored",
    )
    data.add_argument(
        "--task",
        choices=("auto", "classes", "regression"),
        default="auto",
        help="whether the label is a class or a number (default: judged from its values)",
    )
    test = data.add_argument(
        "--test", metavar="FILE", help="questioned rows, in a file of their own"
    )
    data.add_argument(
        "--test-size",
        metavar="SHARE",
        type=float,
        help="else this share of the rows (default: 0.2; none for fix-labels)",
    )
    curated = data.add_argument(
        "--curated", metavar="FILE", help="rows whose labels can be trusted"
    )
    data.add_argument(
        "--curated-column", metavar="COLUMN", help="a column that marks trusted rows with 1 or yes"
    )
    data.add_argument("--encoding", help="of a text file (default: detected)")
    data.add_argument("--delimiter", help="of a text file (default: detected)")
    data.add_argument(
        "--header",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether the first row of a text file names the columns (default: judged from it)",
    )
    data.add_argument(
        "--model",
        metavar="MODULE:NAME",
        help="your own scikit-learn model, or a function that makes one, as package.module:name; "
        "THIS RUNS THE CODE of that module (default: a model that suits the columns)",
    )
    for path in (file, test, curated):
        completed(path, "FILE")
