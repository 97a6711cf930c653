"""What a command prints for people and for programs, and how it ends: its exit code.

Imports nothing heavy, so that `exempla --help` is fast.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
import tempfile
import time
import traceback
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TextIO

from exempla import __version__
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.io import write_text
from exempla.progress import clear_line

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # characters that change the direction of text
    "\u2028\u2029\ud800-\udfff]"  # line separators and surrogates
)


def plain(text: str, stream: TextIO | None = None) -> str:
    """Return the text with control characters escaped.

    File, column and class names come from untrusted files and must not control the terminal. If a
    stream is given, characters that its encoding lacks are escaped too.
    """
    shown = _HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


class Console:
    """Print messages to standard output, or to standard error with --json."""

    def __init__(
        self, quiet: bool = False, as_json: bool = False, started: float | None = None
    ) -> None:
        self.quiet, self.as_json = quiet, as_json
        self.started = time.perf_counter() if started is None else started

    @classmethod
    def of(cls, options: Namespace) -> Console:
        """Return the console for these options."""
        return cls(options.quiet, options.json, getattr(options, "started", None))

    @property
    def progress(self) -> bool:
        """Whether to show progress."""
        return not self.quiet

    def say(self, text: str = "") -> None:
        """Print a message unless --quiet is given."""
        if not self.quiet:
            clear_line()
            stream = sys.stderr if self.as_json else sys.stdout
            print(plain(text, stream), file=stream, flush=True)

    def warn(self, text: str) -> None:
        """Print a warning, even with --quiet."""
        clear_line()
        line = " ".join(text.split())
        print(plain(f"warning: {line}", sys.stderr), file=sys.stderr, flush=True)

    def result(self, values: dict[str, Any]) -> None:
        """Print the machine-readable result if --json is given."""
        if self.as_json:
            print(json.dumps(values, indent=2, allow_nan=False), flush=True)

    def seconds(self) -> float:
        """Return the seconds since the command started."""
        return time.perf_counter() - self.started

    @contextmanager
    def hearing_warnings(self) -> Iterator[None]:
        """Print warnings of exempla once each; hide those of other libraries."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield
        said: set[str] = set()
        for warning in caught:
            text = str(warning.message)
            ours = issubclass(warning.category, ExemplaWarning)
            if text not in said and (ours or warning.category.__name__ == "ConvergenceWarning"):
                said.add(text)
                self.warn(text.split("\n")[0])


_SAME_FILE = (
    "label", "merge_labels", "task", "test", "curated", "curated_column", "encoding", "delimiter",
    "header", "model",
)  # fmt: skip
"""Options that describe the file and so apply to every command on it."""


def command_for(options: Namespace, command: str, *words: str) -> str:
    """Return another command on the same file, ready to be pasted."""
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
    """Return the command as the user typed it, ready to be pasted."""
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
        "core": of(CORE),
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
