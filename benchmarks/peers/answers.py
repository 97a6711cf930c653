"""What each library answers, kept as ranks: all that LDS asks of a prediction.

A script's train × test matrix becomes, for each subset and test point, the rank of what it
predicts. That is a hundredth of the size, so answers are kept, and one that is there is not asked
for again.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from pathlib import Path

import numpy as np
from scipy.stats import rankdata

from benchmarks.peers.environments import PEERS, ROOT, make_environment
from benchmarks.peers.scripts import Answer, run_script

__all__ = ["OURS", "Asked", "Kept", "Question", "add_options", "answer_all", "keep", "ranks"]

OURS = "exempla"


@dataclass(frozen=True)
class Asked:
    """One run of a script: a method, the dampings it is tried at, and the models it is given."""

    library: str
    method: str
    models: str = "one"
    """"one", a number of separately trained models, or "run": all moments of one training."""
    dampings: tuple[str, ...] = ("default",)

    @property
    def name(self) -> str:
        words = (self.library, self.method, self.models, *self.dampings)
        return "-".join(words).replace(" ", "_").replace(",", "")

    @property
    def options(self) -> list[str]:
        given = {"one": [], "run": ["--checkpoints"]}.get(self.models, ["--models", self.models])
        return ["--method", self.method, "--dampings", *self.dampings, *given]


@dataclass(frozen=True)
class Question:
    """What is asked of every library: the job its script reads, and subsets left in or out."""

    name: str
    job: Callable[[], dict[str, np.ndarray]]
    subsets: dict[str, np.ndarray]
    """By kind of outcome (subsets, n_train): 1 for what counts, −1 for what counts against."""


@dataclass(frozen=True)
class Kept:
    """One script's answer; seconds are those of the processor."""

    dampings: np.ndarray
    ranks: dict[str, np.ndarray]
    cpu_seconds: float
    job_seconds: float
    first_seconds: float
    peak_mb: float
    machine: str

    @classmethod
    def load(cls, file: Path) -> Kept:
        with np.load(file, allow_pickle=False) as stored:
            measured = {f.name: stored[f.name].item() for f in fields(cls)[2:]}
            kinds = [name for name in stored.files if name.startswith("ranks/")]
            found = {name.removeprefix("ranks/"): stored[name].astype(np.float64) for name in kinds}
            return cls(stored["dampings"], found, **measured)


def ranks(effects: np.ndarray) -> np.ndarray:
    """(subsets, test points) of 0, 1, …; all 0 where a method gave no numbers."""
    if not np.isfinite(effects).all():
        return np.zeros(effects.shape, np.uint8)
    return (rankdata(effects, axis=0, method="min") - 1).astype(np.uint8)


def answer(question: Question, asked: Asked, python: Path, out: Path) -> None:
    """Run the script; keep the ranks of what it predicts."""
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job.npz"
        np.savez(job, **question.job())  # pyright: ignore[reportArgumentType]
        found = run_script(python, asked.library, job, Path(folder) / "a.npz", asked.options)
    keep(question, found, out)


def keep(question: Question, found: Answer, out: Path) -> None:
    """Write an answer as ranks."""
    kept: dict[str, np.ndarray] = {"dampings": found.dampings}
    for kind, mask in question.subsets.items():
        kept[f"ranks/{kind}"] = np.stack([ranks(mask @ matrix) for matrix in found.matrices])
    kept |= {f.name: np.array(getattr(found, f.name)) for f in fields(Kept)[2:]}
    unfinished = out.with_suffix(".unfinished.npz")
    np.savez_compressed(unfinished, **kept)  # pyright: ignore[reportArgumentType]
    unfinished.replace(out)


def answer_all(jobs: list[tuple[Question, Asked]], options: argparse.Namespace) -> None:
    """Whatever is not there yet; a script that fails is named and left out."""
    started = time.monotonic()

    def one(question: Question, asked: Asked) -> None:
        out = options.answers / f"{question.name}-{asked.name}.npz"
        if out.exists() or (options.limit and time.monotonic() - started > options.limit):
            return
        inside = asked.library in PEERS and options.python is None
        python = options.python or Path(sys.executable)
        try:
            chosen = make_environment(asked.library, options.envs) if inside else python
            answer(question, asked, chosen, out)
            print(f"{time.monotonic() - started:6.0f} s  {out.stem}", flush=True)
        except RuntimeError as problem:
            print(f"{out.stem} does not run: {problem}", flush=True)

    options.answers.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(options.workers) as pool:
        waiting = [pool.submit(one, *job) for job in jobs]
    for done in waiting:
        done.result()


def add_options(parser: argparse.ArgumentParser) -> None:
    """What both tables of peers are told on the command line."""
    parser.add_argument("--envs", type=Path, default=ROOT / ".peers", help="environments go here")
    parser.add_argument("--answers", type=Path, default=ROOT / ".peers" / "answers")
    parser.add_argument("--python", type=Path, help="that has the libraries; makes no environment")
    parser.add_argument("--workers", type=int, default=1, help="scripts at a time")
    parser.add_argument("--limit", type=float, default=0.0, help="seconds to start scripts in")
    parser.add_argument("--answers-only", action="store_true", help="score them another time")
