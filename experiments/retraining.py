"""Many trainings of one network on one GPU: several processes take jobs from one queue.

A job is "train without these rows, with this seed"; its result is the list of test rows the model
then gets wrong. Results are written as they come, so a run that was cut short goes on from there.
"""

from __future__ import annotations

import csv
import multiprocessing
import os
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.paper_cnn import Digits, Recipe, State, as_images, predict, train_cnn

__all__ = ["Job", "Retraining"]

COLUMNS: tuple[str, ...] = ("method", "split", "removed", "seed", "accuracy", "seconds", "wrong")
SUSPECT = 0.9
"""Accuracy below which a replayed training is done again step by step: replay must not cheat."""


@dataclass(frozen=True)
class Job:
    """One training. `split` is −1 where the removed rows do not depend on a target."""

    method: str
    split: int
    seed: int
    rows: np.ndarray
    """Training rows to leave out."""
    save: str = ""

    @property
    def key(self) -> tuple[str, int, int, int]:
        return self.method, self.split, len(self.rows), self.seed


class Retraining:
    """The queue, its workers, and what they have found so far."""

    def __init__(
        self, digits: Digits, recipe: Recipe, device: str, workers: int, results: Path
    ) -> None:
        self.results, self.lock = results, threading.Lock()
        self.done: dict[tuple[str, int, int, int], dict[str, Any]] = read_results(results)
        self.futures: list[Future] = []
        self.setup = (digits, recipe, device)
        self.pool: ProcessPoolExecutor | None = None
        if workers:
            self.pool = ProcessPoolExecutor(
                workers, multiprocessing.get_context("spawn"), start_worker, self.setup
            )
        else:
            start_worker(*self.setup)

    def submit(self, job: Job) -> Future | None:
        """Queue a job, unless its result is known already."""
        if job.key in self.done and (not job.save or os.path.exists(job.save)):
            return None
        if self.pool is None:
            self.keep(train_job(job))
            return None
        future = self.pool.submit(train_job, job)
        future.add_done_callback(self._arrived)
        self.futures.append(future)
        return future

    def inline(self) -> None:
        """Give up the workers and train in this process."""
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
        self.pool, self.futures = None, []
        start_worker(*self.setup)

    def _arrived(self, future: Future) -> None:
        if future.cancelled():
            return
        if future.exception() is not None:
            print(f"a training failed: {future.exception()}", flush=True)
            return
        self.keep(future.result())

    def keep(self, row: dict[str, Any]) -> None:
        """Remember a result and append it to the file."""
        with self.lock:
            key = (row["method"], int(row["split"]), int(row["removed"]), int(row["seed"]))
            fresh = not self.results.exists()
            with self.results.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS)
                if fresh:
                    writer.writeheader()
                writer.writerow(row)
            self.done[key] = row

    def finish(self, until: float) -> int:
        """Wait for the queue, at most until this time; returns how many jobs were given up."""
        waiting = wait(self.futures, max(0.0, until - time.time())).not_done
        given_up = sum(future.cancel() for future in waiting)
        running = [future for future in waiting if not future.cancelled()]
        wait(running, 30.0)
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
        return given_up


def read_results(path: Path) -> dict[tuple[str, int, int, int], dict[str, Any]]:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return {(r["method"], int(r["split"]), int(r["removed"]), int(r["seed"])): r for r in rows}


# ---- inside a worker

STATE: dict[str, Any] = {}


def start_worker(digits: Digits, recipe: Recipe, device: str) -> None:
    """Put the data on the device, once."""
    if multiprocessing.parent_process() is not None:
        torch.set_num_threads(1)
    torch.backends.cudnn.benchmark = True
    STATE.update(
        recipe=recipe,
        x=as_images(digits.train_x, device),
        y=torch.from_numpy(digits.train_y.astype(np.int64)).to(device),
        test=as_images(digits.test_x, device),
        labels=digits.test_y,
    )


def train_job(job: Job) -> dict[str, Any]:
    """Train and list what the model gets wrong."""
    start = time.time()
    keep = np.setdiff1d(np.arange(len(STATE["y"])), job.rows)
    rows = torch.from_numpy(keep).to(STATE["x"].device)
    states: list[State] | None = [] if job.save else None
    wrong = attempt(rows, job.seed, states)
    accuracy = 1.0 - len(wrong) / len(STATE["labels"])
    if STATE["recipe"].graphs and rows.is_cuda and accuracy < SUSPECT:
        STATE["recipe"] = without_graphs(STATE["recipe"])
        wrong = attempt(rows, job.seed, states)
        accuracy = 1.0 - len(wrong) / len(STATE["labels"])
    if job.save:
        torch.save(states, job.save + ".part")
        os.replace(job.save + ".part", job.save)
    return {
        "method": job.method,
        "split": job.split,
        "removed": len(job.rows),
        "seed": job.seed,
        "accuracy": round(accuracy, 6),
        "seconds": round(time.time() - start, 2),
        "wrong": " ".join(map(str, wrong)),
    }


def attempt(rows: torch.Tensor, seed: int, states: list[State] | None) -> np.ndarray:
    """One training, and the test rows it gets wrong; `states` receives its checkpoints.

    If capturing a step fails here, steps are taken one by one from now on.
    """
    if states is not None:
        states.clear()  # of an attempt that failed
    try:
        model = train_cnn(STATE["x"], STATE["y"], rows, seed, STATE["recipe"], states)
    except RuntimeError as error:
        if not (rows.is_cuda and STATE["recipe"].graphs):
            raise
        print(f"no CUDA graphs here ({str(error)[:200]})", flush=True)
        STATE["recipe"] = without_graphs(STATE["recipe"])
        return attempt(rows, seed, states)
    return np.flatnonzero(predict(model, STATE["test"]) != STATE["labels"])


def without_graphs(recipe: Recipe) -> Recipe:
    return Recipe(**{**recipe.__dict__, "graphs": False})
