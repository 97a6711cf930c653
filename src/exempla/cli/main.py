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

__all__ = ["build_parser", "main"]

COMMANDS = (
    "demo", "explain", "fix_labels", "review", "clean", "summarize", "acquire", "attack", "embed",
    "reproduce", "bench", "doctor", "completion",
)  # fmt: skip
"""Modules of `exempla.cli.commands`, in the order of the help."""

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


def build_parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line; this imports nothing heavy.

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
    for name in COMMANDS:
        module = import_module(f"exempla.cli.commands.{name}")
        command = commands.add_parser(
            name.replace("_", "-"),
            help=module.HELP,
            description=module.__doc__,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
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
    options = build_parser().parse_args(arguments)
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
