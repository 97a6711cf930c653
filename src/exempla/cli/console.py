"""What a command tells the person in front of it, and what it tells a program."""

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
    "[\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters, but for tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # which turn the direction of text
    "\u2028\u2029\ud800-\udfff]"  # line ends, and halves of characters
)


def plain(text: str, stream: TextIO | None = None) -> str:
    """The text with everything a terminal would obey, not show, made visible: file, column and
    class names come from strangers.

    With a stream, what its encoding lacks is made visible too.

    >>> print(plain("a\\x1b[2Jb"))
    a\\x1b[2Jb
    """
    shown = _HIDDEN.sub(lambda found: found.group().encode("unicode_escape").decode(), text)
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return shown.encode(encoding, "backslashreplace").decode(encoding)


class Console:
    """Plain sentences to standard output; with --json they go to standard error instead.

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
        """The console the user asked for."""
        return cls(options.quiet, options.json, getattr(options, "started", None))

    @property
    def progress(self) -> bool:
        """Whether progress may be shown: bars in a terminal, else a line now and then."""
        return not self.quiet

    def say(self, text: str = "") -> None:
        """Something worth knowing; not said when quiet."""
        if not self.quiet:
            stream = sys.stderr if self.as_json else sys.stdout
            print(plain(text, stream), file=stream, flush=True)

    def warn(self, text: str) -> None:
        """Something the user must know even when quiet."""
        line = " ".join(text.split())
        print(plain(f"warning: {line}", sys.stderr), file=sys.stderr, flush=True)

    def result(self, values: dict[str, Any]) -> None:
        """The machine-readable result, where --json asked for it."""
        if self.as_json:
            print(json.dumps(values, indent=2, allow_nan=False), flush=True)

    def seconds(self) -> float:
        """Since the command started, Python's own start included."""
        return time.perf_counter() - self.started

    @contextmanager
    def hearing_warnings(self) -> Iterator[None]:
        """Library warnings become sentences of ours, each once; others' stay out of sight."""
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
