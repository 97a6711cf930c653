"""What a command prints, for people and for programs."""

from __future__ import annotations

import json
import re
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_HIDDEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters except tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # characters that change the direction of text
    "\u2028\u2029\ud800-\udfff]"  # line separators and surrogates
)


def plain(text: str, stream: TextIO | None = None) -> str:
    """Return the text with control characters escaped.

    File, column and class names come from untrusted files and must not control the terminal. If a
    stream is given, characters that its encoding lacks are escaped too.

    >>> print(plain("a\\x1b[2Jb"))
    a\\x1b[2Jb
    """
    shown = _HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _clear_progress() -> None:
    from exempla.progress import clear_line

    clear_line()


class Console:
    """Print messages to standard output, or to standard error with --json.

    >>> Console(quiet=False, as_json=False).say("done")
    done
    """

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
        """Whether to show progress: a bar in a terminal, otherwise occasional lines."""
        return not self.quiet

    def say(self, text: str = "") -> None:
        """Print a message unless --quiet is given."""
        if not self.quiet:
            _clear_progress()
            stream = sys.stderr if self.as_json else sys.stdout
            print(plain(text, stream), file=stream, flush=True)

    def warn(self, text: str) -> None:
        """Print a warning, even with --quiet."""
        _clear_progress()
        line = " ".join(text.split())
        print(plain(f"warning: {line}", sys.stderr), file=sys.stderr, flush=True)

    def result(self, values: dict[str, Any]) -> None:
        """Print the machine-readable result if --json is given."""
        if self.as_json:
            print(json.dumps(values, indent=2, allow_nan=False), flush=True)

    def seconds(self) -> float:
        """Return the seconds since the command started, including the start of Python."""
        return time.perf_counter() - self.started

    @contextmanager
    def hearing_warnings(self) -> Iterator[None]:
        """Print warnings of exempla once each; hide those of other libraries."""
        from exempla.errors import ExemplaWarning

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
