"""`exempla`: the command line. Each command is a small file in `exempla.cli.commands`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from exempla import __version__
from exempla.cli.console import plain
from exempla.cli.options import exit_code, process_age

__all__ = ["COMMANDS", "build_parser", "main"]

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
_MODULES = {"bench": "checkout", "reproduce": "checkout", "fix-labels": "fix_labels"}
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


class _OneLinePerCommand(argparse.RawDescriptionHelpFormatter):
    """Help with the longest command and its description on one line."""

    def __init__(self, prog: str) -> None:
        widest = max(map(len, COMMANDS)) + 4
        super().__init__(prog, max_help_position=widest + 2)
        self._action_max_length = widest


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """Return the parser of the command line; this imports nothing heavy.

    With `only`, other commands than this one get no arguments, and their modules are not imported.

    >>> build_parser().parse_args(["demo", "--quiet"]).command
    'demo'
    """
    parser = _Parser(
        prog="exempla",
        description=_DESCRIPTION,
        epilog=_EPILOG,
        formatter_class=_OneLinePerCommand,
    )
    parser.add_argument("--version", action="version", version=f"exempla {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, line in COMMANDS.items():
        command = commands.add_parser(
            name, help=line, formatter_class=argparse.RawDescriptionHelpFormatter
        )
        if only in (None, name):
            module = import_module(f"exempla.cli.commands.{_MODULES.get(name, name)}")
            command.description = module.__doc__
            module.add_arguments(command)
            command.set_defaults(run=module.run, stages=getattr(module, "STAGES", ()))
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; a failure prints one sentence, no traceback.

    >>> main(["review", "no-such-folder"])
    2
    """
    # The start of Python counts, unless this is called from Python.
    started = time.perf_counter() - (process_age() if arguments is None else 0.0)
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    options = build_parser(arguments[0] if arguments else "").parse_args(arguments)
    options.arguments, options.started = arguments, started
    return exit_code(lambda: _run(options), arguments, getattr(options, "out", None))


def _run(options: argparse.Namespace) -> int:
    """Run the command, with one progress bar if it has stages."""
    if not options.stages:
        return options.run(options)
    from exempla.progress import Stage, overall, showing

    stages = [Stage(*each) for each in options.stages]
    with showing(not options.quiet), overall(options.command, stages):
        return options.run(options)


if __name__ == "__main__":
    sys.exit(main())
