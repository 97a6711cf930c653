"""`Recorder`: call `step()` in a training loop to keep evenly spread snapshots on disk.

Nearly every step only increments a counter. At a step that is kept the weights are copied. The copy
is written as soon as writing costs little of the training time, so the many early snapshots of a
training of unknown length, which are thinned out within seconds, are never written.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any
from weakref import WeakValueDictionary

from exempla import io
from exempla.checks import check_flag, check_folder, whole_number
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.recorder.run import (
    Run,
    Snapshot,
    has_run,
    read_run,
    sha256,
    snapshot_name,
    write_run,
    write_snapshot,
)
from exempla.recorder.weights import weights_of

_KEEP = 8
_MAX_BYTES = 8 * 2**30
WRITING_SHARE = 0.005
"""Largest share of the training time spent on writing before the end of the training."""
WAITING_BYTES = 2**28
"""Largest size of the copies that wait in memory; beyond it they are written at once."""
_CHECKS_PER_STRIDE = 8
"""How often, between two snapshots, a waiting copy is reconsidered for writing."""


@dataclass
class Thinning:
    """Choose which steps of a training of unknown length are kept: evenly spread at any end.

    Snapshots are taken at multiples of a stride. Once `keep` of them exist, the next one is taken
    at a multiple of twice the stride, the ones in between are dropped, and the stride doubles. At
    any time there are more than keep/2 snapshots at equal distances, and a training of T steps
    takes about keep + keep/2·log2(T/keep) snapshots in total.

    >>> thinning, kept = Thinning(keep=4), []
    >>> for step in range(1, 12):
    ...     if step == thinning.next_after(kept):
    ...         kept = thinning.with_step(kept, step)
    >>> kept, thinning.with_last(kept, 9), thinning.with_last(kept, 11)
    ([2, 4, 6, 8], [2, 4, 6, 9], [4, 8, 11])
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

    def last_dropped(self, steps: Iterable[int]) -> int:
        """Return the step among these that thinning will drop last.

        >>> Thinning(keep=8, stride=2).last_dropped([2, 4, 6, 10])
        4
        """
        turns = {step: step // self.stride for step in steps}
        return max(turns, key=lambda step: (turns[step] & -turns[step], step))

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
        self._weights = weights_of(model)
        self.steps = 0
        """Steps so far."""
        self.max_bytes = _at_least_one("max_bytes", max_bytes)
        self._thinning = Thinning(_at_least_one("keep", keep))
        expected = None if steps is None else _at_least_one("steps", steps)
        self._waiting: dict[int, tuple[Any, float | None]] = {}
        self._written: dict[int, Snapshot] = {}
        self._stopped = not _is_first_process()
        self._listed: set[str] = set()
        """Snapshot files that run.json lists: the only ones that may be deleted."""
        self._manifest: bytes | None = None
        """run.json as this Recorder last read or wrote it."""
        self._spent, self._writes, self._start = 0.0, 0, perf_counter()
        self._next_check = math.inf
        """The next step at which there is something to do."""
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
        if self._stopped or not self.steps:
            self._close()
            return
        weights = self._copy_weights()
        written = self._written.get(self.steps)
        if written is None or sha256(self._weights.encoded(weights)) != written.sha256:
            self._keep(self._thinning.with_last(self._kept, self.steps), weights)
        self._write(list(self._waiting), finished=True)
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
            self._write(list(self._waiting))

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

    def trainer_callback(self) -> Any:
        """Return a callback for Hugging Face's Trainer: `Trainer(callbacks=[...])`."""
        from exempla.recorder.callbacks import trainer_callback

        return trainer_callback(self)

    def lightning_callback(self) -> Any:
        """Return a callback for Lightning: `Trainer(callbacks=[...])`."""
        from exempla.recorder.callbacks import lightning_callback

        return lightning_callback(self)

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
        run = read_run(folder) if has_run(folder) else None
        if run is not None and run.kind != self._weights.kind:
            raise ExemplaError(f"the run in this folder is of a {run.kind} model: give another.")
        folder = io.make_folder(folder)
        key = folder.resolve()
        older = _OPEN.get(key)
        if older is not None and resume:  # the cell of a notebook was run again
            older._close()
        if not self._acquire(folder):
            raise ExemplaError(
                f"another Recorder is writing to {folder}: wait until it has finished, or give "
                "each run a folder of its own."
            )
        _OPEN[key] = self
        if run is not None:
            self._continue(read_run(folder))
            self._manifest = (folder / "run.json").read_bytes()
        return folder

    def _acquire(self, folder: Path) -> bool:
        """Lock the folder, where the system has locks; return False if it is locked elsewhere."""
        if self._lock is None:
            lock = ExitStack()
            try:
                lock.enter_context(io.alone_in(folder, BlockingIOError()))
            except BlockingIOError:
                return False
            self._lock = lock
        return True

    def _close(self) -> None:
        """Let another Recorder use the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _continue(self, run: Run) -> None:
        self._thinning.stride = run.stride
        self._written = {one.step: one for one in run.snapshots}
        self._listed = run.files
        self.steps = max(self._written, default=0)
        self._keep_only(self._thinning.reduce(self._kept, self._thinning.keep))

    def _write(self, steps: list[int], finished: bool = False) -> None:
        """Write the waiting snapshots of these steps, after deleting the ones that go."""
        with self._timed():
            self._refuse_other_writers()
            names = {
                step: snapshot_name(self.folder, step, self._weights.suffix, self._listed)
                for step in sorted(steps)
            }
            if names:
                self._write_run(writing=tuple(names.values()))
            for step, name in names.items():
                weights, rate = self._waiting[step]
                data = self._weights.encoded(weights)
                self._written[step] = write_snapshot(self.folder, step, rate, name, data)
                del self._waiting[step]
                self._writes += 1
            self._write_run(finished)

    def _refuse_other_writers(self) -> None:
        """Raise OSError if another Recorder has continued this run since this one last wrote."""
        path = self.folder / "run.json"
        mine = self._acquire(self.folder)
        if not mine or (path.read_bytes() if path.is_file() else None) != self._manifest:
            raise OSError(0, "another Recorder has continued this run")

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Count the time, and stop recording, with a warning, if the folder cannot be written to.

        Training goes on without its recorder.
        """
        begun = perf_counter()
        try:
            yield
        except OSError as error:
            self._close()
            self._stopped, self._next_check = True, math.inf
            self._waiting.clear()
            warnings.warn(
                f"{self.folder} cannot be written to ({error.strerror or error}): training goes "
                "on, but no further snapshot is recorded.",
                ExemplaWarning,
                stacklevel=2,
            )
        self._spent += perf_counter() - begun

    def _write_run(self, finished: bool = False, writing: tuple[str, ...] = ()) -> None:
        run = Run(
            kind=self._weights.kind,
            model=type(self.model).__name__,
            steps=self.steps,
            stride=self._thinning.stride,
            finished=finished,
            snapshots=tuple(self.snapshots),
            writing=writing,
        )
        write_run(self.folder, run, self._listed)
        self._listed = run.files
        self._manifest = (self.folder / "run.json").read_bytes()

    # ---- snapshots

    @property
    def _kept(self) -> list[int]:
        return sorted({*self._written, *self._waiting})

    def _keep_only(self, steps: list[int]) -> None:
        for known in (self._written, self._waiting):
            for step in [s for s in known if s not in steps]:
                del known[step]

    def _keep(self, steps: list[int], weights: Any) -> None:
        """Keep the snapshots of these steps, the last of which is the present one."""
        self._keep_only(steps)
        self._written.pop(self.steps, None)
        groups = getattr(self.optimizer, "param_groups", None)
        rate = float(groups[0]["lr"]) if groups else self._weights.learning_rate(self.model)
        self._waiting[self.steps] = (weights, rate)

    def _check(self) -> None:
        """Take the snapshot that is due, and write waiting copies if that is cheap by now."""
        if self.steps == self._thinning.next_after(self._kept, self.steps - 1):
            weights = self._copy_weights()
            self._keep(self._thinning.with_step(self._kept, self.steps), weights)
        while self._waiting and not self._stopped and self._may_write():
            self._write([self._thinning.last_dropped(self._waiting)])
        self._plan()

    def _copy_weights(self) -> Any:
        """Copy the present weights; reduce the number of snapshots if they do not all fit."""
        weights = self._weights.copied(self.model)
        fit, kind = self.max_bytes // self._weights.nbytes(weights), type(self.model).__name__
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
        return weights

    # ---- when

    def _may_write(self) -> bool:
        """Return True if one more write keeps the time spent within `WRITING_SHARE`."""
        waiting = sum(self._weights.nbytes(weights) for weights, _ in self._waiting.values())
        if waiting > WAITING_BYTES:
            return True
        one = self._spent / max(1, self._writes)
        return self._spent + one <= WRITING_SHARE * (perf_counter() - self._start)

    def _plan(self) -> None:
        """Compute the next step at which `step` has more to do than counting."""
        if self._stopped:
            return
        due = self._thinning.next_after(self._kept, self.steps)
        self._next_check = math.inf if due is None else due
        if self._waiting:
            soon = self.steps + max(1, self._thinning.stride // _CHECKS_PER_STRIDE)
            self._next_check = min(self._next_check, soon)


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
