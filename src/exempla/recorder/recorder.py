"""`Recorder`: call `step()` in a training loop to keep evenly spread snapshots on disk.

Nearly every step only increments a counter. At a step that is kept the weights are copied. Copies
are written every few seconds at most, so the many early snapshots of a training of unknown length,
which are thinned out within seconds, are never written.

The folder has one file per snapshot, and run.json. A file is named under "writing" in run.json
before it is written and before it is deleted, and under "snapshots" only while it is complete.
Every listed file is therefore readable at any time, and every file that may be deleted is named:
other files belong to the user and are never touched.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import sys
import warnings
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any
from weakref import WeakValueDictionary

from exempla import __version__, io
from exempla.checks import check_flag, check_folder, whole_number
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.recorder.snapshots import (
    RUN_FILE,
    RUN_FORMAT,
    SUFFIXES,
    RecordedRun,
    Snapshot,
    encoded,
    kind_of,
    learning_rate,
    read_run,
    write_snapshot,
)

_KEEP = 8
_MAX_BYTES = 8 * 2**30
_WRITE_EVERY = 10.0
"""Smallest number of seconds between two writes before the end of the training."""
_WAITING_BYTES = 2**28
"""Largest size of the copies that wait in memory; beyond it they are written at once."""
_LIGHTNINGS = ("lightning.pytorch", "pytorch_lightning")
"""The names of Lightning's package."""


@dataclass
class Thinning:
    """Choose which steps of a training of unknown length are kept: evenly spread at any end.

    Snapshots are taken at multiples of a stride. Once `keep` of them exist, the next one is taken
    at a multiple of twice the stride, the ones in between are dropped, and the stride doubles. At
    any time there are more than keep/2 snapshots at equal distances, and a training of T steps
    takes about keep + keep/2·log2(T/keep) snapshots in total.
    """

    keep: int
    stride: int = 1

    def next_after(self, kept: list[int], reached: int = 0) -> int | None:
        """Return the next step to take a snapshot at; None if only the last weights are kept."""
        if self.keep == 1:
            return None
        stride = self._next_stride(kept)
        return stride * (max([reached, *kept]) // stride + 1)

    def with_step(self, kept: list[int], step: int) -> list[int]:
        """Return the steps to keep after a snapshot at `step`, which `next_after` returned."""
        return [step] if self.keep == 1 else [*self._thinned(kept), step]

    def with_last(self, kept: list[int], step: int) -> list[int]:
        """Return the steps to keep when training ends at `step`, which is always kept.

        It replaces the newest snapshot if that is less than half a stride away.
        """
        earlier = [s for s in kept if s < step]
        if not earlier or self.keep == 1:
            return [step]
        if 2 * (step - earlier[-1]) < self._next_stride(earlier):
            return [*earlier[:-1], step]
        return [*self._thinned(earlier), step]

    def reduce(self, kept: list[int], keep: int) -> list[int]:
        """Lower the number of snapshots to `keep` and return the steps that stay."""
        self.keep = keep
        while len(kept) > keep:
            self.stride *= 2
            kept = [s for s in kept if s % self.stride == 0]
        return kept

    def _next_stride(self, kept: list[int]) -> int:
        on_grid = [s for s in kept if s % self.stride == 0]
        return self.stride * (2 if len(on_grid) >= self.keep else 1)

    def _thinned(self, kept: list[int]) -> list[int]:
        """Return the steps that stay when one more snapshot is added."""
        self.stride = self._next_stride(kept)
        # a training that continued after its end has its last weights among them, off the grid
        return [s for s in kept if s % self.stride == 0]


_OPEN: WeakValueDictionary[Path, Recorder] = WeakValueDictionary()
"""Recorders of this process by folder."""


class Recorder:
    """Keep a few snapshots of a model while it is trained, for an Explainer to use.

    A snapshot is written completely or not at all, and the folder is usable at any time, even if
    the training is killed. Only files that this run wrote are ever deleted. If several processes
    train one model together (torch.distributed), only the first one records.

    Parameters
    ----------
    model : torch.nn.Module or scikit-learn model with partial_fit
        The model that is trained. Buffers (batch norm statistics, say) are part of a snapshot.
    folder : path
        Where snapshots are written: a new or empty folder, or with `resume` that of an earlier
        run. Only one Recorder at a time can write to a folder.
    optimizer : torch optimizer
        Source of the learning rate (of its first group) that is stored with each snapshot.
    keep : int
        Maximum number of snapshots. The last one holds the weights at the end of training.
    max_bytes : int
        Maximum size of all snapshots together; fewer are kept if they do not fit.
    steps : int
        Total number of steps, if it is known: then no snapshot has to be thinned out.
    resume : bool
        Continue the run in this folder.

    Raises
    ------
    ExemplaError
        If the folder is not empty and `resume` is False, or if another Recorder is writing to it.

    Examples
    --------
    >>> import tempfile
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.neural_network import MLPClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> model = MLPClassifier((5,), random_state=0)
    >>> folder = tempfile.TemporaryDirectory()
    >>> with Recorder(model, folder.name) as record:
    ...     for _ in range(100):
    ...         _ = model.partial_fit(X, y, classes=[0, 1, 2])
    ...         record.step()
    >>> [snapshot.step for snapshot in record.snapshots]
    [16, 32, 48, 64, 80, 100]
    >>> import exempla
    >>> len(exempla.Explainer([model, folder.name], progress=False).oracles)
    6
    >>> folder.cleanup()
    """

    def __init__(
        self,
        model: Any,
        folder: str | Path,
        optimizer: Any = None,
        *,
        keep: int = _KEEP,
        max_bytes: int = _MAX_BYTES,
        steps: int | None = None,
        resume: bool = False,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._kind = kind_of(model)
        self.steps = 0
        """Steps so far."""
        self.max_bytes = _at_least_one("max_bytes", max_bytes)
        self._thinning = Thinning(_at_least_one("keep", keep))
        expected = None if steps is None else _at_least_one("steps", steps)
        self._waiting: dict[int, tuple[bytes, float | None]] = {}
        self._written: dict[int, Snapshot] = {}
        self._stopped = not _is_first_process()
        self._listed: set[str] = set()
        """Snapshot files that run.json lists: the only ones that may be deleted."""
        self._manifest: bytes | None = None
        """run.json as this Recorder last read or wrote it."""
        self._next_write = perf_counter() + _WRITE_EVERY
        self._next_check = math.inf
        """The next step at which a snapshot is due."""
        self._lock: ExitStack | None = None
        self.folder = self._open(check_folder("folder", folder), check_flag("resume", resume))
        if expected is not None:
            self.expect(expected)
        self._plan()

    # ---- called by a training loop

    def step(self) -> None:
        """Count one optimizer step, and take a snapshot if one is due."""
        self.steps += 1
        if self.steps >= self._next_check:
            self._check()

    def finish(self) -> None:
        """End the training: keep its last weights and write everything."""
        if self.steps and not self._stopped:
            data, written = self._encoded(), self._written.get(self.steps)
            if written is None or hashlib.sha256(data).hexdigest() != written.sha256:
                self._keep(self._thinning.with_last(self._kept, self.steps), data)
            self._write(finished=True)
            self._plan()
        self._close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:  # after an error, the present weights may be broken
            self.flush()
            self._close()

    def flush(self) -> None:
        """Write the copies that wait in memory."""
        if self._waiting and not self._stopped:
            self._write()

    def expect(self, steps: int) -> None:
        """Announce the total number of steps, before the first one."""
        steps = _at_least_one("steps", steps)
        if not self._kept:
            self._thinning.stride = math.ceil(steps / self._thinning.keep)
            self._plan()

    def restart_at(self, step: int) -> None:
        """Continue an interrupted training after this step; drop later snapshots."""
        self.steps = int(step)
        self._keep_only([s for s in self._kept if s <= step])
        self._plan()

    @property
    def snapshots(self) -> list[Snapshot]:
        """The snapshots in the folder, earliest first."""
        return [self._written[step] for step in sorted(self._written)]

    # ---- callbacks: their frameworks are imported on demand

    def trainer_callback(self) -> Any:
        """Return a callback for Hugging Face's Trainer: `Trainer(callbacks=[...])`."""
        from transformers import TrainerCallback

        recorder = self

        class TrainerRecorder(TrainerCallback):
            """Record on the first process only."""

            def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                if state.is_world_process_zero:
                    trained, optimizer = given.get("model", recorder.model), given.get("optimizer")
                    recorder._begin(trained, optimizer, state.global_step, state.max_steps)

            def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                if state.is_world_process_zero:
                    recorder.step()

            def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
                if state.is_world_process_zero:
                    recorder.finish()

        return TrainerRecorder()

    def lightning_callback(self) -> Any:
        """Return a callback for Lightning, under either name of its package."""
        recorder, bases = self, []
        for name in [name for name in _LIGHTNINGS if name in sys.modules] or _LIGHTNINGS:
            with suppress(ModuleNotFoundError):
                bases.append(import_module(name).Callback)
        if not bases:
            raise ExemplaError("lightning is not installed: pip install lightning.")

        class LightningRecorder(*bases):
            """Count optimizer steps, not batches: gradients may be accumulated."""

            seen = 0

            def on_train_start(self, trainer: Any, pl_module: Any) -> None:
                if trainer.is_global_zero:
                    self.seen = trainer.global_step
                    optimizer = trainer.optimizers[0] if trainer.optimizers else None
                    total = trainer.estimated_stepping_batches
                    recorder._begin(pl_module, optimizer, self.seen, total)

            def on_train_batch_end(self, trainer: Any, *args: Any) -> None:
                if trainer.is_global_zero and trainer.global_step > self.seen:
                    self.seen = trainer.global_step
                    recorder.step()

            def on_train_end(self, trainer: Any, pl_module: Any) -> None:
                if trainer.is_global_zero:
                    recorder.finish()

            def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
                if trainer.is_global_zero:
                    recorder.flush()

        return LightningRecorder()

    def _begin(self, trained: Any, optimizer: Any, done: int, total: float) -> None:
        """Prepare for a training of this module that has made `done` of `total` steps.

        Frameworks know the number of steps in advance, so no snapshot has to be thinned out.
        """
        own = {id(p) for p in self.model.parameters()} if self._kind == "torch" else set()
        if not own or not own <= {id(p) for p in trained.parameters()}:
            raise ExemplaError(
                f"the Recorder holds another {type(self.model).__name__} than the one that is "
                "trained: give both the same object."
            )
        if self.optimizer is None:
            self.optimizer = optimizer
        if done:
            self.restart_at(done)
        if math.isfinite(total) and total > done:
            self.expect(int(total))

    # ---- the folder

    def _open(self, folder: Path | None, resume: bool) -> Path:
        if folder is None:
            raise ExemplaError("a Recorder needs a folder for its snapshots.")
        if self._stopped:
            return folder
        in_use = folder.is_dir() and any(not p.name.startswith(".") for p in folder.iterdir())
        if in_use and not resume:
            raise ExemplaError(
                f"{folder} is not empty: give each run a folder of its own, or use resume=True "
                "to continue the run in it."
            )
        run = read_run(folder) if (folder / RUN_FILE).is_file() else None
        if run is not None and run.kind != self._kind:
            raise ExemplaError(f"the run in this folder is of a {run.kind} model: give another.")
        folder = io.make_folder(folder)
        key = folder.resolve()
        older = _OPEN.get(key)
        if older is not None and resume:  # the cell of a notebook was run again
            older._close()
        busy = ExemplaError(
            f"another Recorder is writing to {folder}: wait until it has finished, or give each "
            "run a folder of its own."
        )
        self._acquire(folder, busy)
        _OPEN[key] = self
        if run is not None:
            run = read_run(folder)  # as it is now that no other Recorder writes to it
            self._thinning.stride = run.stride
            self._written = {one.step: one for one in run.snapshots}
            self._listed = run.files
            self.steps = max(self._written, default=0)
            self._keep_only(self._thinning.reduce(self._kept, self._thinning.keep))
            self._manifest = (folder / RUN_FILE).read_bytes()
        return folder

    def _acquire(self, folder: Path, busy: Exception) -> None:
        """Lock the folder, where the system has locks; raise `busy` if it is locked elsewhere."""
        if self._lock is None:
            lock = ExitStack()
            lock.enter_context(io.alone_in(folder, busy))
            self._lock = lock

    def _close(self) -> None:
        """Let another Recorder use the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _write(self, finished: bool = False) -> None:
        """Write the waiting snapshots, after deleting those that are no longer kept.

        If the folder cannot be written to, recording stops with a warning and training goes on.
        """
        try:
            self._refuse_other_writers()
            names = {step: self._free_name(step) for step in sorted(self._waiting)}
            kept = {*names.values(), *(one.file for one in self._written.values())}
            dropped = self._listed - kept
            if names or dropped:
                self._write_run(writing=(*names.values(), *sorted(dropped)))
                self._delete(dropped)
            for step, name in names.items():
                data, rate = self._waiting[step]
                self._written[step] = write_snapshot(self.folder, step, rate, name, data)
                del self._waiting[step]
            self._write_run(finished)
        except OSError as error:
            self._close()
            self._stopped, self._next_check = True, math.inf
            self._waiting.clear()
            warnings.warn(
                f"{self.folder} cannot be written to ({error.strerror or error}): training goes "
                "on, but no further snapshot is recorded.",
                ExemplaWarning,
                stacklevel=3,
            )
        self._next_write = perf_counter() + _WRITE_EVERY

    def _free_name(self, step: int) -> str:
        """Return a name for a snapshot's file that overwrites no file but one of our own."""
        suffix, k = SUFFIXES[self._kind], 1
        name = f"step-{step:09d}{suffix}"
        while os.path.lexists(self.folder / name) and name not in self._listed:
            k += 1
            name = f"step-{step:09d}-{k}{suffix}"
        return name

    def _refuse_other_writers(self) -> None:
        """Raise OSError if another Recorder has continued this run since this one last wrote."""
        path, busy = self.folder / RUN_FILE, OSError(0, "another Recorder has continued this run")
        self._acquire(self.folder, busy)
        if (path.read_bytes() if path.is_file() else None) != self._manifest:
            raise busy

    def _write_run(self, finished: bool = False, writing: tuple[str, ...] = ()) -> None:
        name, stride = type(self.model).__name__, self._thinning.stride
        snapshots = tuple(self.snapshots)
        run = RecordedRun(self._kind, name, self.steps, stride, finished, snapshots, writing)
        content = {"format": RUN_FORMAT, "version": __version__, **asdict(run)}
        self._manifest = (json.dumps(content, indent=2) + "\n").encode()
        io.write_bytes(self.folder / RUN_FILE, self._manifest)
        self._listed = run.files

    def _delete(self, names: set[str]) -> None:
        """Delete these files, and the temporary files that a killed process left of any."""
        parts = [
            p for name in (RUN_FILE, *self._listed) for p in self.folder.glob(f".{name}.*.part")
        ]
        for path in [*(self.folder / name for name in names), *parts]:
            with suppress(OSError):
                path.unlink()

    # ---- snapshots

    @property
    def _kept(self) -> list[int]:
        return sorted({*self._written, *self._waiting})

    def _keep_only(self, steps: list[int]) -> None:
        for known in (self._written, self._waiting):
            for step in [s for s in known if s not in steps]:
                del known[step]

    def _keep(self, steps: list[int], data: bytes) -> None:
        """Keep the snapshots of these steps, the last of which is the present one."""
        self._keep_only(steps)
        self._written.pop(self.steps, None)
        groups = getattr(self.optimizer, "param_groups", None)
        rate = float(groups[0]["lr"]) if groups else learning_rate(self.model)
        self._waiting[self.steps] = (data, rate)

    def _check(self) -> None:
        """Take the snapshot that is due, and write the waiting ones every few seconds."""
        data = self._encoded()
        self._keep(self._thinning.with_step(self._kept, self.steps), data)
        waiting = sum(len(data) for data, _ in self._waiting.values())
        if waiting > _WAITING_BYTES or perf_counter() >= self._next_write:
            self._write()
        self._plan()

    def _encoded(self) -> bytes:
        """Copy the present weights; reduce the number of snapshots if they do not all fit."""
        data = encoded(self.model)
        fit, kind = self.max_bytes // len(data), type(self.model).__name__
        if fit < 1:
            raise ExemplaError(
                f"one snapshot of this {kind} takes more than max_bytes={self.max_bytes}: give a "
                "larger budget."
            )
        if fit < self._thinning.keep:
            what = f"{fit} snapshots" if fit > 1 else "the last weights alone"
            warnings.warn(
                f"max_bytes={self.max_bytes} has room for {what} of this {kind} instead of "
                f"{self._thinning.keep}.",
                ExemplaWarning,
                stacklevel=4,
            )
            self._keep_only(self._thinning.reduce(self._kept, fit))
        return data

    def _plan(self) -> None:
        """Compute the step of the next snapshot."""
        if not self._stopped:
            self._next_check = self._thinning.next_after(self._kept, self.steps) or math.inf


def _at_least_one(name: str, value: Any) -> int:
    if not whole_number(value) or value < 1:
        raise ExemplaError(f"{name} is {value!r}: give a whole number of at least 1.")
    return int(value)


def _is_first_process() -> bool:
    """Return True if this process records, of those that train together."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    started = distributed is not None and getattr(distributed, "is_initialized", bool)()
    return not started or distributed.get_rank() == 0  # pyright: ignore[reportOptionalMemberAccess]
