"""Every way a command can end: its exit code, and one sentence where it failed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from exempla.errors import ExemplaError

__all__ = ["exit_code"]

OK, MISTAKE, STOPPED = 0, 2, 130
"""All well; the command could not be done; the user stopped it. 1 is more found than --fail-above
allows, which a command returns itself."""


def exit_code(run: Callable[[], int]) -> int:
    """What the command returns; a user's mistake is one sentence, no traceback."""
    try:
        return int(run())
    except ExemplaError as error:
        return _refuse(str(error))
    except BrokenPipeError:
        # The reader of a pipe (head, less) has had enough: not our user's mistake.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except OSError as error:
        return _refuse(f"{error.filename or 'a file'}: {error.strerror or error}.")
    except KeyboardInterrupt:
        print("\nexempla: stopped.", file=sys.stderr)
        return STOPPED


def _refuse(sentence: str) -> int:
    print(f"exempla: error: {sentence}", file=sys.stderr)
    return MISTAKE
