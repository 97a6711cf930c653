"""`exempla`: the command line. Each command is a module of `exempla.cli.commands`.

`exit_code` turns whatever a command raises into one sentence and an exit code.
"""

from __future__ import annotations

import argparse
import inspect
import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from exempla import __version__
from exempla.cli.options import COMMANDS, plain
from exempla.errors import ExemplaError
from exempla.io import write_text
from exempla.progress import Stage, overall, showing

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
    for name, (add_arguments, line) in COMMANDS.items():
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
    about_itself = options.command in ("bench", "reproduce", "doctor", "completion")
    module = "installation" if about_itself else options.command.replace("-", "_")
    command = import_module(f"exempla.cli.commands.{module}")
    if not hasattr(command, "STAGES"):
        return command.run(options)
    # Each stage has a name, its typical share of the time, and the number of counters it runs.
    stages: Any = (
        ("reading the file", 3, 0), ("choosing a model", 4, 3), ("training the model", 1, 0),
        *command.STAGES, ("writing the results", 1, 0),
    )  # fmt: skip
    with showing(not options.quiet), overall(options.command, [Stage(*each) for each in stages]):
        return command.run(options)


_CORE = (
    "numpy", "scipy", "scikit-learn", "pandas", "pyarrow", "pillow",
    "shtab", "jinja2", "matplotlib", "array-api-compat", "charset-normalizer",
)  # fmt: skip
_EXTRAS = {
    "torch": ("torch",),
    "hf": ("transformers", "datasets"),
    "ray": ("ray",),
    "review": ("fastapi", "uvicorn"),
    "excel": ("openpyxl",),
    "trees": ("lightgbm", "xgboost", "catboost"),
}


def versions() -> dict[str, Any]:
    """Return the versions of exempla, Python, the system, and the libraries (None if missing)."""
    from importlib.metadata import PackageNotFoundError, version

    def of(names: Sequence[str]) -> dict[str, str | None]:
        found: dict[str, str | None] = dict.fromkeys(names)
        for name in names:
            with suppress(PackageNotFoundError):
                found[name] = version(name)
        return found

    return {
        "exempla": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "core": of(_CORE),
        "extras": {extra: of(names) for extra, names in _EXTRAS.items()},
    }


_OK, _MISTAKE, _CRASH, _STOPPED = 0, 2, 3, 130
"""Success; a mistake in the command or its input; internal error; interrupted by the user.
Code 1, for more findings than --fail-above allows, is returned by the command itself."""


def exit_code(run: Callable[[], int], words: Sequence[str] = (), folder: Path | None = None) -> int:
    """Run a command and return its exit code; print any exception as one sentence.

    `words` are what the user typed; a crash report is written to `folder`.

    >>> def mistake() -> int:
    ...     raise ExemplaError("This cannot be done; do that instead.")
    >>> exit_code(mistake)
    2
    """
    try:
        return int(run())
    except ExemplaError as error:
        return _refuse(str(error), _MISTAKE)
    except BrokenPipeError:
        # The reader of a pipe (head, less) has closed it: not a mistake.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _OK
    except OSError as error:
        return _refuse(f"{error.filename or 'a file'}: {error.strerror or error}.", _MISTAKE)
    except KeyboardInterrupt as stopped:
        how = "".join(
            f" {note[:1].upper()}{note[1:]}." for note in getattr(stopped, "__notes__", ())
        )
        print(plain(f"\nexempla: stopped.{how}", sys.stderr), file=sys.stderr)
        return _STOPPED
    except Exception as error:
        return _refuse(f"{_what(error)}; {_reported(error, words, folder)}.", _CRASH)


def _refuse(sentence: str, code: int) -> int:
    print(plain(f"exempla: error: {' '.join(sentence.split())}", sys.stderr), file=sys.stderr)
    return code


def _what(error: Exception) -> str:
    kind, said = type(error).__name__, str(error).strip().split("\n")[0].rstrip(".")
    # torch's OutOfMemoryError is not a MemoryError
    if isinstance(error, MemoryError) or kind == "OutOfMemoryError":
        room = f" ({said})" if said else ""
        return f"Not enough memory{room}: use fewer rows, columns or pixels"
    return f"Internal error ({kind}: {said})" if said else f"Internal error ({kind})"


def _reported(error: Exception, words: Sequence[str], folder: Path | None) -> str:
    """Write a crash report and return a phrase that says where it is."""
    found = versions()
    listed = [found.pop("core"), *found.pop("extras").values()]
    known = [f"{name} {number}" for part in (found, *listed) for name, number in part.items()]
    lines = [shlex.join(["exempla", *words]), "", *known, "", *traceback.format_exception(error)]
    name = f"exempla-crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    places = [folder] if folder is not None and folder.is_dir() else []
    for place in (*places, Path(tempfile.gettempdir())):
        try:
            path = write_text(place / name, plain("\n".join(lines)))
        except OSError:
            continue
        return f"please report it with the crash report in {path}"
    return "a crash report could not be written"


if __name__ == "__main__":
    sys.exit(main())
