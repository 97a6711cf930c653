"""The folder of a recorded run: one file per snapshot, listed in run.json.

A snapshot's file is announced in run.json ("writing") before it is written and listed
("snapshots") once it is complete. Before a file is deleted it moves from the list back to
"writing". Every listed file is therefore readable at any time, and every file that may be deleted
is named in run.json: files that run.json does not name belong to the user and are never touched.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from exempla import __version__, io
from exempla.errors import ExemplaError

_RUN = "run.json"
_FORMAT = "exempla-run-1"
_SNAPSHOT = re.compile(r"step-\d+(-\d+)?\.(safetensors|npz)")


@dataclass(frozen=True)
class Snapshot:
    """The weights after one training step, in a file of the run's folder."""

    step: int
    learning_rate: float | None
    file: str
    size: int
    sha256: str

    def checked(self, folder: Path) -> Path:
        """Return the path of the file after verifying its checksum."""
        path = folder / self.file
        try:
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ExemplaError(f"{path} cannot be read ({error.strerror}).") from None
        if found != self.sha256:
            raise ExemplaError(
                f"{path} has changed since it was recorded: remove its entry from {_RUN}."
            )
        return path


@dataclass(frozen=True)
class Run:
    """The contents of run.json. `kind` is the kind of model, "torch" or "scikit-learn"."""

    kind: str
    model: str
    steps: int
    stride: int
    finished: bool
    snapshots: tuple[Snapshot, ...]
    writing: tuple[str, ...] = ()
    """Files about to be written or deleted; a killed run may have left them incomplete."""

    @property
    def files(self) -> set[str]:
        """The files that this run may delete."""
        return {one.file for one in self.snapshots} | set(self.writing)


def has_run(folder: Path) -> bool:
    """Return True if a run was recorded in this folder."""
    return (folder / _RUN).is_file()


def read_run(folder: Path) -> Run:
    """Read and validate the run recorded in a folder.

    >>> read_run(Path("nowhere"))
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: there is no recorded run in nowhere (no run.json).
    """
    try:
        content = json.loads((folder / _RUN).read_bytes())
    except FileNotFoundError:
        raise ExemplaError(f"there is no recorded run in {folder} (no {_RUN}).") from None
    except (OSError, ValueError, RecursionError) as error:
        raise ExemplaError(f"{folder / _RUN} cannot be read ({type(error).__name__}).") from None
    try:
        return _parsed(content)
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ExemplaError(f"{folder / _RUN} was not written by this exempla's Recorder.") from None


def _parsed(content: Any) -> Run:
    if content["format"] != _FORMAT:
        raise ValueError
    snapshots = [Snapshot(**one) for one in content["snapshots"]]
    names = [one.file for one in snapshots] + list(content.get("writing", ()))
    if not all(isinstance(name, str) and _SNAPSHOT.fullmatch(name) for name in names):
        raise ValueError  # a Recorder names its files in one way, and deletes no others
    if any(type(one.step) is not int or not isinstance(one.sha256, str) for one in snapshots):
        raise ValueError
    return Run(
        kind=str(content["kind"]),
        model=str(content["model"]),
        steps=int(content["steps"]),
        stride=max(1, int(content["stride"])),
        finished=bool(content["finished"]),
        snapshots=tuple(sorted(snapshots, key=lambda one: one.step)),
        writing=tuple(content.get("writing", ())),
    )


def write_run(folder: Path, run: Run, before: set[str]) -> None:
    """Replace run.json, and delete the files in `before` (listed so far) that it drops."""
    dropped = sorted(name for name in before - run.files if (folder / name).is_file())
    if dropped:  # named until they are gone: a killed process leaves no file that nobody knows
        _write(folder, replace(run, writing=(*run.writing, *dropped)))
    # io writes each file under a temporary name, which a killed process leaves behind
    parts = [p for name in (_RUN, *before) for p in folder.glob(f".{name}.*.part")]
    for path in [*(folder / name for name in dropped), *parts]:
        with suppress(OSError):
            path.unlink()
    _write(folder, run)


def _write(folder: Path, run: Run) -> None:
    content = {"format": _FORMAT, "version": __version__, **asdict(run)}
    io.write_text(folder / _RUN, json.dumps(content, indent=2) + "\n")


def snapshot_name(folder: Path, step: int, suffix: str, own: Iterable[str]) -> str:
    """Return a name for a snapshot's file that overwrites no file but one of our `own`."""
    name, k = f"step-{step:09d}{suffix}", 1
    while os.path.lexists(folder / name) and name not in own:
        k += 1
        name = f"step-{step:09d}-{k}{suffix}"
    return name


def write_snapshot(
    folder: Path, step: int, learning_rate: float | None, name: str, data: bytes
) -> Snapshot:
    """Write the file of one snapshot; it counts once run.json lists it."""
    io.write_bytes(folder / name, data)
    return Snapshot(step, learning_rate, name, len(data), sha256(data))


def sha256(data: bytes) -> str:
    """Return the checksum of a file's bytes."""
    return hashlib.sha256(data).hexdigest()
