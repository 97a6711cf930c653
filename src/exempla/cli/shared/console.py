"""What a command tells the person in front of it, and what it tells a program."""

from __future__ import annotations

import json
import sys
import time
import warnings
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

__all__ = ["Console"]


class Console:
    """Plain sentences to standard output; with --json they go to standard error instead.

    >>> Console(quiet=False, as_json=False).say("done")
    done
    """

    def __init__(self, quiet: bool = False, as_json: bool = False) -> None:
        self.quiet, self.as_json = quiet, as_json
        self.started = time.perf_counter()

    @classmethod
    def of(cls, options: Namespace) -> Console:
        """The console the user asked for."""
        return cls(options.quiet, options.json)

    @property
    def progress(self) -> bool:
        """Whether progress bars may be shown."""
        return not self.quiet and sys.stderr.isatty()

    def say(self, text: str = "") -> None:
        """Something worth knowing; not said when quiet."""
        if not self.quiet:
            print(text, file=sys.stderr if self.as_json else sys.stdout, flush=True)

    def warn(self, text: str) -> None:
        """Something the user must know even when quiet."""
        print(f"warning: {text}", file=sys.stderr, flush=True)

    def result(self, values: dict[str, Any]) -> None:
        """The machine-readable result, where --json asked for it."""
        if self.as_json:
            print(json.dumps(values, indent=2, allow_nan=False), flush=True)

    def seconds(self) -> float:
        """Since the command started."""
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
