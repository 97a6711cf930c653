"""Arguments that several commands share, said in the same words everywhere."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

__all__ = ["add_fail_above", "add_output", "add_seed", "command_line", "share"]


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


def add_fail_above(parser: Any, finding: str) -> None:
    """--fail-above; `finding` ends the sentence "exit with 1 if …"."""
    parser.add_argument(
        "--fail-above", metavar="SHARE", type=share, help=f"exit with 1 if {finding}"
    )


def add_output(parser: ArgumentParser, default: str) -> None:
    """--out, --quiet, --json."""
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path(default),
        help=f"folder for the results (default: {default})",
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but warnings and errors")
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON; sentences go to stderr"
    )


def add_seed(parser: ArgumentParser) -> None:
    """--seed."""
    parser.add_argument(
        "--seed", type=int, default=0, help="seed of every random choice (default: 0)"
    )


def command_line(options: Namespace) -> str:
    """What the user typed, ready to be typed again.

    >>> command_line(Namespace(arguments=["explain", "my file.csv", "--label", "y"]))
    "exempla explain 'my file.csv' --label y"
    """
    return shlex.join(["exempla", *options.arguments])
