"""Every way a command can end: its exit code, and one sentence where it failed."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path

from exempla.atomic import write_text
from exempla.cli.shared.console import plain
from exempla.cli.shared.installed import core, extras, here
from exempla.errors import ExemplaError

__all__ = ["exit_code"]

OK, MISTAKE, CRASH, STOPPED, TERMINATED = 0, 2, 3, 130, 143
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
        return _refuse(str(error), MISTAKE)
    except BrokenPipeError:
        # The reader of a pipe (head, less) has had enough: not our user's mistake.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        return _refuse(f"{error.filename or 'a file'}: {error.strerror or error}.", MISTAKE)
    except KeyboardInterrupt as stopped:
        how = "".join(
            f" {note[:1].upper()}{note[1:]}." for note in getattr(stopped, "__notes__", ())
        )
        print(plain(f"\nexempla: stopped.{how}", sys.stderr), file=sys.stderr)
        return TERMINATED if type(stopped).__name__ == "Terminated" else STOPPED
    except Exception as error:
        return _refuse(f"{_what(error)}; {_reported(error, words, folder)}.", CRASH)


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
