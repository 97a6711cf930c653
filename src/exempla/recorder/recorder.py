"""`Recorder`: a training loop says `step()`, and evenly spread snapshots of it are on disk.

Nearly every step is a counter's increment. At a step that is kept the weights are copied; the copy
is written once that costs training little, so that the many early snapshots of a training of
unknown length, which are thinned out within seconds, never reach the disk.

Which steps of a training of unknown length stay: evenly spread ones, whenever it ends.

Snapshots are taken at every multiple of a stride. When `keep` of them are there, the next one
waits for a multiple of twice the stride, and when it comes, those in between go: from then on the
stride is twice as long. So there are always more than keep/2 of them, at equal distances, and a
training of T steps takes about keep + keep/2·log2(T/keep) snapshots in all.
"""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from exempla import io as atomic
from exempla.checks import check_flag, check_folder, whole_number
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.recorder.weights import (
    Run,
    Snapshot,
    digest,
    has_run,
    read_run,
    weights_of,
    write_run,
    write_snapshot,
)


@dataclass
class Thinning:
    """The stride, and what it says about the steps that were kept.

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
        """The next step to take a snapshot at; None if only the last weights are kept."""
        if self.keep == 1:
            return None
        stride = self._coming(kept)
        return stride * (max([reached, *kept]) // stride + 1)

    def with_step(self, kept: list[int], step: int) -> list[int]:
        """The steps to keep once there is a snapshot at this one, a step that was announced."""
        return [step] if self.keep == 1 else [*self._room(kept), step]

    def with_last(self, kept: list[int], step: int) -> list[int]:
        """The steps to keep once training has ended here: the last weights always stay.

        They take the place of the newest snapshot if they are nearer to it than half a stride.
        """
        earlier = [s for s in kept if s < step]
        if not earlier or self.keep == 1:
            return [step]
        if 2 * (step - earlier[-1]) < self._coming(earlier):
            return [*earlier[:-1], step]
        return [*self._room(earlier), step]

    def last_to_go(self, steps: Iterable[int]) -> int:
        """Of these steps the one that thinning will spare longest.

        >>> Thinning(keep=8, stride=2).last_to_go([2, 4, 6, 10])
        4
        """
        turns = {step: step // self.stride for step in steps}
        return max(turns, key=lambda step: (turns[step] & -turns[step], step))

    def fewer(self, kept: list[int], keep: int) -> list[int]:
        """The steps that stay when there is room for `keep` snapshots alone."""
        self.keep = keep
        while len(kept) > keep:
            self.stride *= 2
            kept = [s for s in kept if s % self.stride == 0]
        return kept

    def _coming(self, kept: list[int]) -> int:
        """The stride of the next snapshot."""
        on_grid = [s for s in kept if s % self.stride == 0]
        return self.stride * (2 if len(on_grid) >= self.keep else 1)

    def _room(self, kept: list[int]) -> list[int]:
        """The steps that stay when one more comes."""
        self.stride = self._coming(kept)
        # a training that went on after its end has its last weights among them, off the grid
        return [s for s in kept if s % self.stride == 0]


_KEEP = 8
_MOST_BYTES = 8 * 2**30
WRITING_SHARE = 0.005
"""Share of the training's time that writing may take before its end."""
WAITING_BYTES = 2**28
"""Copies that wait in memory to be written, at most; what is larger is written at once."""
_LOOKS = 8
"""How often, between two snapshots, it is seen whether a copy that waits may be written."""


class Recorder:
    """Keeps a few snapshots of a model while it is trained, for an Explainer to learn from.

    Parameters
    ----------
    model : torch.nn.Module or scikit-learn model with partial_fit
        The model that is trained. Buffers (of batch norm, say) belong to a snapshot.
    folder : path
        Where snapshots go: an empty folder or a new one, or with `resume` that of an earlier run.
    optimizer : torch optimizer
        Where the learning rate is read (of its first group), to be kept with each snapshot.
    keep : int
        How many snapshots to keep, at most; the last one are the weights at the end.
    max_bytes : int
        Bytes they may take together; fewer are kept if they do not fit.
    steps : int
        How many steps there will be, if that is known: then nothing has to be thinned out.
    resume : bool
        Go on with the run in this folder.

    A snapshot is written as a whole or not at all, and the folder can be used at every moment,
    whatever happens to the training. Of several processes that train one model together
    (torch.distributed), the first one records.

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
        max_bytes: int = _MOST_BYTES,
        steps: int | None = None,
        resume: bool = False,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self._weights = weights_of(model)
        self.steps = 0
        """Steps so far."""
        self.max_bytes = _at_least_one("max_bytes", max_bytes)
        self._thinning = Thinning(_at_least_one("keep", keep))
        self._waiting: dict[int, tuple[Any, float | None]] = {}
        self._written: dict[int, Snapshot] = {}
        self._stopped = not _is_first_process()
        self._named: set[str] = set()
        """Files that run.json names."""
        self._spent, self._writes, self._start = 0.0, 0, perf_counter()
        self._look = math.inf
        """The next step at which there is something to do."""
        self.folder = self._opened(check_folder("folder", folder), check_flag("resume", resume))
        if steps is not None:
            self.expect(steps)
        self._plan()

    # ---- what a training loop calls

    def step(self) -> None:
        """One optimizer step was made."""
        self.steps += 1
        if self.steps >= self._look:
            self._attend()

    def finish(self) -> None:
        """Training has ended: its last weights are kept, and everything is written."""
        if self._stopped or not self.steps:
            return
        weights = self._copied()
        written = self._written.get(self.steps)
        if written is None or digest(self._weights.encoded(weights)) != written.sha256:
            self._keep(self._thinning.with_last(self._kept, self.steps), weights)
        self._write(list(self._waiting), finished=True)
        self._plan()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.finish()
        else:  # the weights as they are now may be those of an accident
            self.flush()

    def flush(self) -> None:
        """Write what waits in memory, now."""
        if self._waiting and not self._stopped:
            self._write(list(self._waiting))

    def expect(self, steps: int) -> None:
        """Training will have so many steps in all; said before its first one."""
        if not self._kept:
            steps = _at_least_one("steps", steps)
            self._thinning.stride = math.ceil(steps / self._thinning.keep)
            self._plan()

    def restart_at(self, step: int) -> None:
        """A training that was interrupted goes on after this step: later snapshots are void."""
        self.steps = int(step)
        self._keep_only([s for s in self._kept if s <= step])
        self._plan()

    @property
    def snapshots(self) -> list[Snapshot]:
        """What is in the folder, the earliest first."""
        return [self._written[step] for step in sorted(self._written)]

    def trainer_callback(self) -> Any:
        """This recorder as a callback of Hugging Face's Trainer: `Trainer(callbacks=[...])`."""
        from exempla.recorder.callbacks import trainer_callback

        return trainer_callback(self)

    def lightning_callback(self) -> Any:
        """This recorder as a callback of Lightning: `Trainer(callbacks=[...])`."""
        from exempla.recorder.callbacks import lightning_callback

        return lightning_callback(self)

    # ---- the folder

    def _opened(self, folder: Path | None, resume: bool) -> Path:
        if folder is None:
            raise ExemplaError("a Recorder needs a folder for its snapshots.")
        if folder.is_dir() and any(not p.name.startswith(".") for p in folder.iterdir()):
            if not resume and not self._stopped:
                raise ExemplaError(
                    f"{folder} is not empty: give a folder of its own to each run, or resume=True "
                    "to go on with the run in it."
                )
            if has_run(folder):
                self._go_on(read_run(folder))
        return folder if self._stopped else atomic.make_folder(folder)

    def _go_on(self, run: Run) -> None:
        if run.kind != self._weights.kind:
            raise ExemplaError(f"the run in this folder is of a {run.kind} model: give another.")
        self._thinning.stride = run.stride
        self._written = {one.step: one for one in run.snapshots}
        self._named = {one.file for one in run.snapshots}
        self.steps = max(self._written, default=0)
        self._keep_only(self._thinning.fewer(self._kept, self._thinning.keep))

    def _write(self, steps: list[int], finished: bool = False) -> None:
        """Snapshots that wait, of these steps; what goes makes room first."""
        with self._spending():
            if self._named - {one.file for one in self.snapshots}:
                self._commit()
            for step in sorted(steps):
                weights, rate = self._waiting[step]
                data = self._weights.encoded(weights)
                made = write_snapshot(self.folder, step, rate, self._weights.suffix, data)
                self._written[step] = made
                del self._waiting[step]
                self._writes += 1
            self._commit(finished)

    @contextmanager
    def _spending(self) -> Iterator[None]:
        """Time is counted. A training outlives its recorder: what the disk refuses is said, once,
        and no longer tried."""
        begun = perf_counter()
        try:
            yield
        except OSError as error:
            self._stopped, self._look = True, math.inf
            self._waiting.clear()
            warnings.warn(
                f"{self.folder} cannot be written to ({error.strerror or error}): training goes "
                "on, and no further snapshot is recorded.",
                ExemplaWarning,
                stacklevel=2,
            )
        self._spent += perf_counter() - begun

    def _commit(self, finished: bool = False) -> None:
        snapshots = tuple(self.snapshots)
        run = Run(
            kind=self._weights.kind,
            model=type(self.model).__name__,
            steps=self.steps,
            stride=self._thinning.stride,
            finished=finished,
            snapshots=snapshots,
        )
        write_run(self.folder, run)
        self._named = {one.file for one in snapshots}

    # ---- snapshots

    @property
    def _kept(self) -> list[int]:
        return sorted({*self._written, *self._waiting})

    def _keep_only(self, steps: list[int]) -> None:
        for known in (self._written, self._waiting):
            for step in [s for s in known if s not in steps]:
                del known[step]

    def _keep(self, steps: list[int], weights: Any) -> None:
        """Keep snapshots of these steps, the last of them being this one."""
        self._keep_only(steps)
        self._written.pop(self.steps, None)
        self._waiting[self.steps] = (weights, self._learning_rate())

    def _attend(self) -> None:
        """A snapshot is due, or one that waits may be written by now."""
        if self.steps == self._thinning.next_after(self._kept, self.steps - 1):
            weights = self._copied()
            self._keep(self._thinning.with_step(self._kept, self.steps), weights)
        while self._waiting and not self._stopped and self._may_write():
            self._write([self._thinning.last_to_go(self._waiting)])
        self._plan()

    def _copied(self) -> Any:
        """The weights as they are now; fewer are kept if so large ones do not fit."""
        weights = self._weights.copied(self.model)
        fit = self.max_bytes // self._weights.nbytes(weights)
        if fit < self._thinning.keep:
            self._make_do_with(fit)
        return weights

    def _make_do_with(self, fit: int) -> None:
        """The budget has room for so many snapshots alone."""
        if fit < 1:
            raise ExemplaError(
                f"one snapshot of this {type(self.model).__name__} takes more than max_bytes="
                f"{self.max_bytes}: give a larger budget."
            )
        said = f"{fit} snapshots" if fit > 1 else "the last weights alone"
        warnings.warn(
            f"max_bytes={self.max_bytes} has room for {said} of this {type(self.model).__name__} "
            f"instead of {self._thinning.keep}.",
            ExemplaWarning,
            stacklevel=5,
        )
        self._keep_only(self._thinning.fewer(self._kept, fit))

    def _learning_rate(self) -> float | None:
        groups = getattr(self.optimizer, "param_groups", None)
        return float(groups[0]["lr"]) if groups else self._weights.learning_rate(self.model)

    # ---- when

    def _may_write(self) -> bool:
        """Whether writing has taken, and will have taken, little of the time so far."""
        waiting = sum(self._weights.nbytes(weights) for weights, _ in self._waiting.values())
        if waiting > WAITING_BYTES:
            return True
        one = self._spent / max(1, self._writes)
        return self._spent + one <= WRITING_SHARE * (perf_counter() - self._start)

    def _plan(self) -> None:
        """When to look up from counting."""
        if self._stopped:
            return
        due = self._thinning.next_after(self._kept, self.steps)
        self._look = math.inf if due is None else due
        if self._waiting:
            soon = self.steps + max(1, self._thinning.stride // _LOOKS)
            self._look = min(self._look, soon)


def _at_least_one(name: str, value: Any) -> int:
    if not whole_number(value) or value < 1:
        raise ExemplaError(f"{name} is {value!r}: give a whole number of at least 1.")
    return int(value)


def _is_first_process() -> bool:
    """Whether this process records, of those that train together."""
    torch = sys.modules.get("torch")
    there: Callable[[], bool] | None = getattr(
        getattr(torch, "distributed", None), "is_initialized", None
    )
    return not (there and there()) or torch.distributed.get_rank() == 0  # pyright: ignore
