"""Do one thing again and again, each time killed a step later, until it comes to its end.

Copy n of the folder `template` in `work` is what was left when a forked process was killed with
SIGKILL at its n-th step: a call that changes files, or a statement of SQLite that is no query. n
goes up by `stride`, and the last copy is of the run that reached its end. said.txt holds what a run
was told was done before it died.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from exempla.review import log as log_module
from exempla.review import read_review
from exempla.review.export import export_review
from exempla.review.log import DecisionLog, RowDecision, recover_log

CHANGING = {
    "os.rename", "os.link", "os.remove", "os.rmdir", "os.mkdir", "os.chmod", "os.truncate",
    "shutil.copyfile", "shutil.rmtree", "tempfile.mkstemp", "tempfile.mkdtemp", "sqlite3.connect",
}  # fmt: skip

READING = ("SELECT", "PRAGMA integrity", "PRAGMA page", "PRAGMA table", "PRAGMA busy", "--")


def export(folder: Path) -> None:
    """Write all there is to write."""
    export_review(read_review(folder))


def decide(folder: Path) -> None:
    """Three decisions, an undo and a redo, each told when it is acknowledged."""
    log = DecisionLog(folder / "decisions.sqlite", "k")
    for number in range(3):
        row = 100 + number
        log.decide(RowDecision(row, "remove", None, "x" * 3000), seen=0, once=f"row-{row}")
        print(log.version, flush=True)
    log.undo(seen=log.undoable().version, once="undo")  # type: ignore[union-attr]
    print(log.version, flush=True)
    log.redo(seen=log.redoable().version, once="redo")  # type: ignore[union-attr]
    print(log.version, flush=True)
    log.close()


def recover(folder: Path) -> None:
    """Go on with what is whole of a damaged log."""
    recover_log(folder / "decisions.sqlite")


def die_at(step: int) -> None:
    """Kill this process at its `step`-th change."""
    left = step

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def audit(event: str, arguments: tuple[Any, ...]) -> None:
        writing = event == "open" and isinstance(arguments[2], int) and arguments[2] & os.O_ACCMODE
        if event in CHANGING or writing:
            count()

    connect = sqlite3.connect

    def traced(*arguments: Any, **more: Any) -> sqlite3.Connection:
        db = connect(*arguments, **more)
        db.set_trace_callback(lambda said: None if said.startswith(READING) else count())
        return db

    sys.addaudithook(audit)
    log_module.sqlite3.connect = traced  # type: ignore[assignment]


def kill_at_every_step(
    deed: Callable[[Path], None], template: Path, work: Path, stride: int
) -> None:
    """Fork, kill and keep what is left, until a run reaches its end."""
    import exempla.tables.corrections  # once here, not in every child
    import exempla.tables.formats.encoding  # noqa: F401

    for step in range(1, 2000, stride):
        copy = work / f"{step:04d}"
        shutil.copytree(template, copy, symlinks=True)
        said = os.open(copy / "said.txt", os.O_WRONLY | os.O_CREAT, 0o600)
        child = os.fork()
        if child == 0:
            try:
                os.dup2(said, 1)
                sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 (not pytest's)
                die_at(step)
                deed(copy / "review")
                os._exit(0)
            finally:
                os._exit(1)
        os.close(said)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        assert os.WIFSIGNALED(status), f"step {step} ended with {status}"
        assert os.WTERMSIG(status) == signal.SIGKILL
