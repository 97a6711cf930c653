"""What every command needs: shared arguments, installed versions, and exit codes.

Imports nothing heavy, so that `exempla --help` is fast.
"""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import time
import traceback
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

from exempla import __version__
from exempla.cli.console import Console, plain
from exempla.errors import ExemplaError
from exempla.io import write_text

_Stage = tuple[str, float, int]


def stages(*job: _Stage) -> tuple[_Stage, ...]:
    """Return the stages of a command that fits a model, for its progress bar.

    Each stage has a name, its typical share of the time, and the number of counters it runs.
    """
    first = (("reading the file", 3, 0), ("choosing a model", 4, 3), ("training the model", 1, 0))
    return (*first, *job, ("writing the results", 1, 0))


def completed(action: Action, by: Literal["FILE", "DIRECTORY"]) -> None:
    """Let shells complete this argument with paths.

    Only the completion command loads shtab, which takes 60 ms.
    """
    if shtab := sys.modules.get("shtab"):
        action.complete = getattr(shtab, by)  # pyright: ignore[reportAttributeAccessIssue]


def add_file_arguments(parser: ArgumentParser) -> None:
    """Add the arguments about the user's file and the model."""
    data = parser.add_argument_group("data")
    file = data.add_argument(
        "file",
        metavar="FILE",
        help="CSV, TSV, JSONL, Parquet, Excel, NPZ (X, y), or a folder of images",
    )
    data.add_argument("--label", metavar="COLUMN", help="the column to predict")
    data.add_argument(
        "--merge-labels",
        metavar="MAP",
        help="merge spellings of a label: auto (case, spaces and typing errors), or "
        "OLD=NEW,OLD=NEW",
    )
    data.add_argument(
        "--text", metavar="COLUMN", action="append", default=[], help="treat this column as text"
    )
    data.add_argument(
        "--kind",
        metavar="COLUMN=KIND",
        action="append",
        default=[],
        help="set the kind of a column: number, category, text, date, id or ignored",
    )
    data.add_argument(
        "--task",
        choices=("auto", "classes", "regression"),
        default="auto",
        help="whether the label is a class or a number (default: inferred from its values)",
    )
    test = data.add_argument(
        "--test", metavar="FILE", help="test rows in a separate file with the same columns"
    )
    data.add_argument(
        "--test-size",
        metavar="SHARE",
        type=float,
        help="without --test, hold out this fraction of the rows (default: 0.2; 0 for fix-labels)",
    )
    curated = data.add_argument(
        "--curated", metavar="FILE", help="rows with trusted labels, in a separate file"
    )
    data.add_argument(
        "--curated-column", metavar="COLUMN", help="a column that marks trusted rows with 1 or yes"
    )
    data.add_argument("--encoding", help="encoding of a text file (default: detected)")
    data.add_argument("--delimiter", help="delimiter of a text file (default: detected)")
    data.add_argument(
        "--header",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether the first row of a text file names the columns (default: detected)",
    )
    data.add_argument(
        "--model",
        metavar="MODULE:NAME",
        help="your own scikit-learn model, or a function that returns one, as package.module:name; "
        "THIS RUNS THE CODE of that module (default: a model that suits the columns)",
    )
    for path in (file, test, curated):
        completed(path, "FILE")


def share(text: str) -> float:
    """Parse a number from 0 to 1.

    >>> share("0.2")
    0.2
    """
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 <= value <= 1.0:
        raise ArgumentTypeError(f"{text!r} is not a fraction; give a number from 0 to 1")
    return value


def shard(text: str) -> tuple[int, int]:
    """Parse I/N: which part of how many.

    >>> shard("2/8")
    (2, 8)
    """
    first, _, second = text.partition("/")
    if not (first.isdecimal() and second.isdecimal() and 1 <= int(first) <= int(second)):
        raise ArgumentTypeError(f"{text!r} is not a part; give i/n with i from 1 to n, such as 2/8")
    return int(first), int(second)


def budget(text: str) -> str | float:
    """Parse a number of epochs, or "exact".

    >>> budget("3"), budget("exact")
    (3.0, 'exact')
    """
    if text == "exact":
        return text
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value > 0:
        raise ArgumentTypeError(f"{text!r} is not a budget; give a number of epochs or exact")
    return value


def add_budget(parser: ArgumentParser | Any) -> None:
    """Add --budget, which limits the cost of embedding the training rows of a network."""
    parser.add_argument(
        "--budget",
        metavar="EPOCHS",
        type=budget,
        default="exact",
        help="largest cost of embedding the training rows of a network, in epochs of its training "
        "(default: no limit)",
    )


def add_store(parser: ArgumentParser | Any) -> None:
    """Add --store, for vectors that do not fit in memory."""
    store = parser.add_argument(
        "--store",
        metavar="DIR",
        type=Path,
        help="keep the vectors of the rows in this folder instead of in memory; if the command is "
        "interrupted, run it again to continue",
    )
    completed(store, "DIRECTORY")


def check_numbers(options: Namespace) -> None:
    """Refuse an invalid seed or k before any work is done."""
    from exempla.checks import check_seed
    from exempla.errors import ExemplaError

    check_seed(options.seed)
    k = getattr(options, "k", None)
    k = None if k == "auto" else k
    if k is not None and k < 1:
        raise ExemplaError(f"k is {k}; ask for at least one row with -k.")


def add_fail_above(parser: Any, finding: str) -> None:
    """Add --fail-above; `finding` completes the sentence "exit with code 1 if …"."""
    parser.add_argument(
        "--fail-above", metavar="SHARE", type=share, help=f"exit with code 1 if {finding}"
    )


def verdict(console: Console, options: Namespace, found: float, what: str) -> int:
    """Return exit code 1 and say why if the share `found` is above --fail-above."""
    if options.fail_above is None or found <= options.fail_above:
        return 0
    console.warn(f"{found:.1%} {what}, which is above --fail-above {options.fail_above:g}.")
    return 1


def add_output(parser: ArgumentParser, default: str = "exempla-out") -> None:
    """Add --out, --force, --quiet, --json and --seed."""
    out = parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        default=Path(default),
        help=f"folder for the results (default: {default})",
    )
    completed(out, "DIRECTORY")
    parser.add_argument(
        "--force",
        action="store_true",
        help="overwrite files in the results folder that exempla did not write",
    )
    parser.add_argument("--quiet", action="store_true", help="print only warnings and errors")
    parser.add_argument(
        "--json", action="store_true", help="print the result as JSON; messages go to stderr"
    )
    parser.add_argument("--seed", type=int, default=0, help="random seed (default: 0)")


_SAME_FILE = (
    "label", "merge_labels", "task", "test", "curated", "curated_column", "encoding", "delimiter",
    "header", "model",
)  # fmt: skip
"""Options that describe the file and so apply to every command on it."""


def command_for(options: Namespace, command: str, *words: str) -> str:
    """Return another command on the same file, ready to be pasted.

    >>> given = Namespace(file="a.csv", label="the label", text=[], kind=["x=id"], header="auto")
    >>> command_for(given, "clean", "-k", "9")
    "exempla clean a.csv --label 'the label' --kind x=id -k 9"
    """
    out = ["exempla", command, str(options.file)]
    for name in _SAME_FILE:
        value = getattr(options, name, None)
        if value is not None and value != "auto":
            out += [f"--{name.replace('_', '-')}", str(value)]
    for name in ("text", "kind"):
        for value in getattr(options, name, []):
            out += [f"--{name}", value]
    return plain(shlex.join([*out, *words]))


def command_line(options: Namespace) -> str:
    """Return the command as the user typed it, ready to be pasted.

    >>> command_line(Namespace(arguments=["explain", "my file.csv", "--label", "y"]))
    "exempla explain 'my file.csv' --label y"
    """
    return plain(shlex.join(["exempla", *options.arguments]))


CORE = (
    "numpy", "scipy", "scikit-learn", "numba", "pandas", "pyarrow", "pillow",
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


def here() -> dict[str, str]:
    """Return the versions of exempla, Python and the system.

    >>> here()["exempla"] == __version__
    True
    """
    return {
        "exempla": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def core() -> dict[str, str | None]:
    """Return the versions of required libraries; None for a missing one."""
    return {name: _version(name) for name in CORE}


def extras() -> dict[str, dict[str, str | None]]:
    """Return the versions of the libraries of every extra."""
    return {extra: {name: _version(name) for name in names} for extra, names in _EXTRAS.items()}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


_MAX_START_SECONDS = 600.0
"""No start takes longer, so an older process was not started for this command."""


def process_age() -> float:
    """Return the seconds since this process was started.

    On Linux this is wall-clock time; elsewhere it is the processor time, which is never more.

    >>> 0 < process_age()
    True
    """
    busy = time.process_time()
    try:
        # the 22nd field, in clock ticks since boot; the name of the command may hold spaces
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, ValueError, IndexError, AttributeError):
        return busy
    return age if busy - 0.1 <= age < _MAX_START_SECONDS else busy


_OK, _MISTAKE, _CRASH, _STOPPED, _TERMINATED = 0, 2, 3, 130, 143
"""Success; a mistake in the command or its input; internal error; interrupted by the user; by
SIGTERM. Code 1, for more findings than --fail-above allows, is returned by the command itself."""


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
        return _TERMINATED if type(stopped).__name__ == "Terminated" else _STOPPED
    except Exception as error:
        return _refuse(f"{_what(error)}; {_reported(error, words, folder)}.", _CRASH)


def _refuse(sentence: str, code: int) -> int:
    print(plain(f"exempla: error: {' '.join(sentence.split())}", sys.stderr), file=sys.stderr)
    return code


def _what(error: Exception) -> str:
    said = str(error).strip().split("\n")[0].rstrip(".")
    # torch's OutOfMemoryError is not a MemoryError
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        room = f" ({said})" if said else ""
        return f"Not enough memory{room}: use fewer rows, columns or pixels"
    kind = type(error).__name__
    return f"Internal error ({kind}: {said})" if said else f"Internal error ({kind})"


def _reported(error: Exception, words: Sequence[str], folder: Path | None) -> str:
    """Write a crash report and return a phrase that says where it is."""
    text = _report(error, words)
    name = f"exempla-crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    places = [folder] if folder is not None and folder.is_dir() else []
    for place in (*places, Path(tempfile.gettempdir())):
        try:
            path = write_text(place / name, text)
        except OSError:
            continue
        return f"please report it with the crash report in {path}"
    return "a crash report could not be written"


def _report(error: Exception, words: Sequence[str]) -> str:
    command = shlex.join(["exempla", *words])
    listed = {
        name: number for part in (core(), *extras().values()) for name, number in part.items()
    }
    found = [f"{name} {number}" for name, number in (here() | listed).items()]
    return plain("\n".join([command, "", *found, "", *traceback.format_exception(error)]))
