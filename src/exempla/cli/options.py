"""What every command needs: options, the console, the folder for results, ways to end.

Imports: tables, tasks, report; never a command nor the user's file.

Arguments that several commands share, said in the same words everywhere.

What is installed here, found without loading any of it.

Code that lives beside the package in a checkout of the source: experiments, benchmarks.

When this process began: what a person waits for starts with their keystroke, not with ours.

Every way a command can end: its exit code, and one sentence where it failed.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
from argparse import Action, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Literal

import exempla
from exempla import __version__
from exempla.cli.console import Console, plain
from exempla.errors import ExemplaError
from exempla.io import write_text


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
    k = None if k == "auto" else k
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


_SAME_FILE = (
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
    for name in _SAME_FILE:
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


CORE = (
    "numpy", "scipy", "scikit-learn", "numba", "pandas", "pyarrow", "pillow", "tqdm",
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
    """exempla, Python and the system.

    >>> here()["exempla"] == __version__
    True
    """
    return {
        "exempla": __version__,
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def core() -> dict[str, str | None]:
    """The libraries exempla needs, with their versions; None for one that is missing."""
    return {name: _version(name) for name in CORE}


def extras() -> dict[str, dict[str, str | None]]:
    """The same for every extra."""
    return {extra: {name: _version(name) for name in names} for extra, names in _EXTRAS.items()}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def any_words(parser: ArgumentParser) -> None:
    """Let the command take every word, options included: they are understood elsewhere."""
    parser.add_argument("words", nargs="*", metavar="…", help="see above")
    parser.prefix_chars = ""  # nothing begins an option


def hand_over(folder: str, words: Sequence[str], about: str | None) -> int:
    """Run `python -m folder` of the checkout with these words, where the user stands."""
    try:
        root = find_checkout(folder)
    except ExemplaError:
        if not {"-h", "--help"} & set(words):
            raise
        print(about)
        return 0
    # A process of its own: measurements share their threads with nobody. -P: a folder of the same
    # name where the user stands is not taken for ours.
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", folder, *words]
    try:
        return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode
    except KeyboardInterrupt:
        return 130  # the other process has said so


def find_checkout(folder: str, candidates: Sequence[Path] = ()) -> Path:
    """The root of the checkout that holds `folder`.

    Looked for above the package itself (an editable install) and in the current folder.

    >>> find_checkout("experiments", [Path("no-such-place")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: The folder experiments is part of exempla's source repository, ...
    """
    for root in candidates or (Path(exempla.__file__).resolve().parents[2], Path.cwd()):
        # A folder of that name alone proves nothing: the project's own has our package beside it.
        if (root / folder).is_dir() and (root / "src" / "exempla").is_dir():
            return root
    raise ExemplaError(
        f"The folder {folder} is part of exempla's source repository, not of the installed "
        "package; run this command inside a checkout of the repository."
    )


_OLDEST = 600.0
"""Seconds; no start takes longer, so an older process was not started for this command."""


def process_age() -> float:
    """Seconds since this process was started, by the clock on the wall where the system tells it
    (Linux); elsewhere the processor time so far, which is never more.

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
    return age if busy - 0.1 <= age < _OLDEST else busy


_OK, _MISTAKE, _CRASH, _STOPPED, _TERMINATED = 0, 2, 3, 130, 143
"""All well; the command could not be done; we did not foresee this; the user stopped it, or the
system did (SIGTERM). 1 is more
found than --fail-above allows, which a command returns itself."""


def exit_code(run: Callable[[], int], words: Sequence[str] = (), folder: Path | None = None) -> int:
    """What the command returns; whatever it raises is one sentence, no traceback.

    `words` are what the user typed and `folder` is where a crash report belongs.

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
        # The reader of a pipe (head, less) has had enough: not our user's mistake.
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
    # torch has a MemoryError of its own, which is none
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        room = f" ({said})" if said else ""
        return f"There is not enough memory for this{room}: give fewer rows, columns or pixels"
    kind = type(error).__name__
    return (
        f"Something went wrong inside exempla ({kind}: {said})"
        if said
        else (f"Something went wrong inside exempla ({kind})")
    )


def _reported(error: Exception, words: Sequence[str], folder: Path | None) -> str:
    """Where the crash report is, in words; the traceback itself goes nowhere else."""
    text = _report(error, words)
    name = f"exempla-crash-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    places = [folder] if folder is not None and folder.is_dir() else []
    for place in (*places, Path(tempfile.gettempdir())):
        try:
            path = write_text(place / name, text)
        except OSError:
            continue
        return f"a crash report for the people who can mend it is in {path}"
    return "a crash report could not be written"


def _report(error: Exception, words: Sequence[str]) -> str:
    command = shlex.join(["exempla", *words])
    listed = {
        name: number for part in (core(), *extras().values()) for name, number in part.items()
    }
    found = [f"{name} {number}" for name, number in (here() | listed).items()]
    return plain("\n".join([command, "", *found, "", *traceback.format_exception(error)]))
