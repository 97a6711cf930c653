"""`exempla`: the command line. Each command is a module of `exempla.cli.commands`."""

from __future__ import annotations

import argparse
import inspect
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from exempla import __version__
from exempla.cli.console import exit_code, plain
from exempla.cli.options import ARGUMENTS
from exempla.progress import Stage, overall, showing

COMMANDS = {
    "demo": "a real model, its real mistakes, and the training images behind them (under 30 s)",
    "explain": "which rows in your file are responsible for a model's errors?",
    "fix-labels": "which labels in your file are wrong?",
    "review": "decide about suspicious labels in your browser, and export the corrected file",
    "clean": "which rows in your file harm the model, and what happens without them?",
    "summarize": "reduce your file to k weighted rows",
    "acquire": "which rows should you label or add next?",
    "attack": "which rows could be changed slightly to flip predictions?",
    "embed": "write the rows of your file as vectors in Fisher space",
    "reproduce": "run the paper's experiments again (needs a checkout of the source)",
    "bench": "measure speed, beside other libraries too (needs a checkout of the source)",
    "doctor": "print versions, devices and what is installed, or what exempla makes of a file",
    "completion": "print a completion script for bash, zsh, fish, tcsh or PowerShell",
}
"""Each command with its line in the help, in order."""
_MODULES = {
    "fix-labels": "fix_labels", "bench": "installation", "reproduce": "installation",
    "doctor": "installation", "completion": "installation",
}  # fmt: skip
"""Modules of `exempla.cli.commands` that are not called like their command."""

_DESCRIPTION = "Which training examples are most responsible for this set of predictions?"
_EPILOG = """\
Start with `exempla demo`, then `exempla explain YOURFILE --label COLUMN`.
Exit codes: 0 success, 1 finding above --fail-above, 2 mistake in the command or its input,
3 internal error, with a crash report.
"""


class _Parser(argparse.ArgumentParser):
    """A parser that escapes control characters in its messages."""

    def error(self, message: str) -> NoReturn:
        super().error(plain(message, sys.stderr))


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the command line; this imports no command."""
    parser = _Parser(
        prog="exempla",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"exempla {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, line in COMMANDS.items():
        add_arguments = ARGUMENTS[name]
        command = commands.add_parser(
            name,
            help=line,
            description=inspect.getdoc(add_arguments),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        add_arguments(command)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a failure prints one sentence, no traceback."""
    started = time.perf_counter()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = build_parser().parse_args(arguments)
    options.arguments, options.started = arguments, started
    return exit_code(lambda: _run(options), arguments, getattr(options, "out", None))


def _run(options: argparse.Namespace) -> int:
    """Run the command, with one progress bar if it has stages."""
    name = _MODULES.get(options.command, options.command)
    command = import_module(f"exempla.cli.commands.{name}")
    if not hasattr(command, "STAGES"):
        return command.run(options)
    # Each stage has a name, its typical share of the time, and the number of counters it runs.
    stages: Any = (
        ("reading the file", 3, 0), ("choosing a model", 4, 3), ("training the model", 1, 0),
        *command.STAGES, ("writing the results", 1, 0),
    )  # fmt: skip
    with showing(not options.quiet), overall(options.command, [Stage(*each) for each in stages]):
        return command.run(options)


if __name__ == "__main__":
    sys.exit(main())
