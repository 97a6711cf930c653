"""A run's folder: one file per snapshot, and run.json, which says what they are.

A snapshot's file is complete before run.json names it, and one that is to go is no longer named
when it is deleted. So whatever run.json names is there, at every moment; a file that it does not
name was caught in the middle, and is removed by the next one who writes.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from exempla import atomic
from exempla.errors import ExemplaError
from exempla.version import __version__

__all__ = ["RUN", "Run", "Snapshot", "digest", "has_run", "read_run", "write_run", "write_snapshot"]

RUN = "run.json"
FORMAT = "exempla-run-1"


@dataclass(frozen=True)
class Snapshot:
    """Weights at one step of a training, in a file of the run's folder."""

    step: int
    learning_rate: float | None
    file: str
    size: int
    sha256: str

    def checked(self, folder: Path) -> Path:
        """Its path, if the file is what was written."""
        path = folder / self.file
        try:
            with open(path, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ExemplaError(f"{path} cannot be read ({error.strerror}).") from None
        if found != self.sha256:
            raise ExemplaError(
                f"{path} is not the file that was recorded: remove its entry from {RUN}."
            )
        return path


@dataclass(frozen=True)
class Run:
    """What run.json says."""

    kind: str
    """Of the model: "torch" or "scikit-learn"."""
    model: str
    steps: int
    stride: int
    finished: bool
    snapshots: tuple[Snapshot, ...]


def has_run(folder: Path) -> bool:
    """Whether a run was recorded in this folder."""
    return (folder / RUN).is_file()


def read_run(folder: Path) -> Run:
    """The run recorded in a folder.

    >>> read_run(Path("nowhere"))
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: there is no recorded run in nowhere (no run.json).
    """
    try:
        said = json.loads((folder / RUN).read_bytes())
    except FileNotFoundError:
        raise ExemplaError(f"there is no recorded run in {folder} (no {RUN}).") from None
    except (OSError, ValueError) as error:
        raise ExemplaError(f"{folder / RUN} cannot be read ({type(error).__name__}).") from None
    try:
        return _understood(said)
    except (KeyError, TypeError, ValueError):
        raise ExemplaError(f"{folder / RUN} was not written by this exempla's Recorder.") from None


def _understood(said: Any) -> Run:
    if said["format"] != FORMAT:
        raise ValueError
    snapshots = tuple(sorted((Snapshot(**one) for one in said["snapshots"]), key=_step))
    if any(Path(one.file).name != one.file for one in snapshots):
        raise ValueError  # only files of this folder
    return Run(
        kind=str(said["kind"]),
        model=str(said["model"]),
        steps=int(said["steps"]),
        stride=max(1, int(said["stride"])),
        finished=bool(said["finished"]),
        snapshots=snapshots,
    )


def _step(snapshot: Snapshot) -> int:
    return snapshot.step


def write_run(folder: Path, run: Run) -> None:
    """Say what the folder holds from now on, and delete what it no longer names."""
    said = {"format": FORMAT, "version": __version__, **asdict(run)}
    atomic.write_text(folder / RUN, json.dumps(said, indent=2) + "\n")
    sweep(folder, {one.file for one in run.snapshots})


def write_snapshot(
    folder: Path, step: int, learning_rate: float | None, suffix: str, data: bytes
) -> Snapshot:
    """Write one snapshot's file; it counts once run.json names it."""
    path = atomic.write_bytes(folder / f"step-{step:09d}{suffix}", data)
    return Snapshot(step, learning_rate, path.name, len(data), digest(data))


def digest(data: bytes) -> str:
    """SHA-256 of a file's bytes."""
    return hashlib.sha256(data).hexdigest()


def sweep(folder: Path, named: set[str]) -> None:
    """Delete snapshots that are not named, and what killed runs left of files."""
    for path in [*folder.glob("step-*"), *folder.glob(".step-*.part"), *folder.glob(".run*.part")]:
        if path.name not in named:
            path.unlink(missing_ok=True)
