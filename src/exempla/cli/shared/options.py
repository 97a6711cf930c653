"""Arguments that several commands share, said in the same words everywhere."""

from __future__ import annotations

import shlex
import sys
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any, Literal

from exempla.cli.shared.console import Console, plain

__all__ = [
    "add_fail_above", "add_file_arguments", "add_output", "add_store", "check_numbers",
    "command_for", "command_line", "completed", "shard", "share", "verdict",
]  # fmt: skip


def completed(action: Action, by: Literal["FILE", "DIRECTORY"]) -> None:
    """Let shells complete this argument by paths.

    Only the completion command loads shtab: its 60 ms would delay every other one.
    """
    if shtab := sys.modules.get("shtab"):
        action.complete = getattr(shtab, by)  # pyright: ignore[reportAttributeAccessIssue]


def add_file_arguments(parser: ArgumentParser) -> None:
    """Everything about the user's file and the model."""
    data = parser.add_argument_group("the data")
    file = data.add_argument(
        "file",
        metavar="FILE",
        help="CSV, TSV, JSONL, Parquet, Excel, NPZ (X, y), or a folder of images",
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


def share(text: str) -> float:
    """A number from 0 to 1.

    >>> share("0.2")
    0.2
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ArgumentTypeError(f"{text!r} is not a share; give a number from 0 to 1")
    return value


def shard(text: str) -> tuple[int, int]:
    """Which part of how many.

    >>> shard("2/8")
    (2, 8)
    """
    first, _, second = text.partition("/")
    if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
        raise ArgumentTypeError(f"{text!r} is no part; give i/n with i from 1 to n, such as 2/8")
    return int(first), int(second)


def add_store(parser: ArgumentParser | Any) -> None:
    """--store, for rows that should not be in memory."""
    store = parser.add_argument(
        "--store",
        metavar="DIR",
        type=Path,
        help="keep the rows' vectors in this folder instead of in memory; a run that was stopped "
        "or killed goes on from there when the same command is given again",
    )
    completed(store, "DIRECTORY")


def check_numbers(options: Namespace) -> None:
    """Refuse a seed or a k that makes no sense, before any work is done."""
    from exempla.checks import check_seed
    from exempla.errors import ExemplaError

    check_seed(options.seed)
    k = getattr(options, "k", None)
    if k is not None and k < 1:
        raise ExemplaError(f"k is {k}; ask for at least one row with -k.")


def add_fail_above(parser: Any, finding: str) -> None:
    """--fail-above; `finding` ends the sentence "exit with 1 if …"."""
    parser.add_argument(
        "--fail-above", metavar="SHARE", type=share, help=f"exit with 1 if {finding}"
    )


def verdict(console: Console, options: Namespace, found: float, what: str) -> int:
    """Exit code 1, and why, if this share is more than --fail-above allows; `what` says of what."""
    if options.fail_above is None or found <= options.fail_above:
        return 0
    console.warn(f"{found:.1%} {what}, more than --fail-above {options.fail_above:g} allows.")
    return 1


def add_output(parser: ArgumentParser, default: str = "exempla-out") -> None:
    """--out, --quiet, --json, --seed."""
    out = parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path(default),
        help=f"folder for the results (default: {default})",
    )
    completed(out, "DIRECTORY")
    parser.add_argument("--quiet", action="store_true", help="say nothing but warnings and errors")
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON; sentences go to stderr"
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of every random choice (default: 0)"
    )


SAME_FILE = (
    "label", "task", "test", "curated", "curated_column", "encoding", "delimiter", "header",
    "model",
)  # fmt: skip
"""Options that say what the file is, and so belong to every command on it."""


def command_for(options: Namespace, command: str, *words: str) -> str:
    """Another command on the same file, ready to be typed.

    >>> given = Namespace(file="a.csv", label="the label", text=[], kind=["x=id"], header="auto")
    >>> command_for(given, "clean", "-k", "9")
    "exempla clean a.csv --label 'the label' --kind x=id -k 9"
    """
    out = ["exempla", command, str(options.file)]
    for name in SAME_FILE:
        value = getattr(options, name, None)
        if value is not None and value != "auto":
            out += [f"--{name.replace('_', '-')}", str(value)]
    for name in ("text", "kind"):
        for value in getattr(options, name, []):
            out += [f"--{name}", value]
    return plain(shlex.join([*out, *words]))


def command_line(options: Namespace) -> str:
    """What the user typed, ready to be typed again, but for names that are no text.

    >>> command_line(Namespace(arguments=["explain", "my file.csv", "--label", "y"]))
    "exempla explain 'my file.csv' --label y"
    """
    return plain(shlex.join(["exempla", *options.arguments]))
