"""A Recorder as a callback of Hugging Face's Trainer and of Lightning.

Both tell how long training will be, so that nothing has to be thinned out, and where it goes on
after an interruption. Their base classes are imported when a callback is asked for.
"""

from __future__ import annotations

import math
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from exempla.errors import ExemplaError

if TYPE_CHECKING:
    from exempla.recorder.recorder import Recorder

__all__ = ["lightning_callback", "trainer_callback"]

LIGHTNINGS = ("lightning.pytorch", "pytorch_lightning")


def _begin(recorder: Recorder, trained: Any, optimizer: Any, done: int, total: float) -> None:
    """Training of this module begins, or goes on after `done` of `total` steps."""
    if all(part is not bare(recorder.model) for part in trained.modules()):
        raise ExemplaError(
            f"the Recorder holds another {type(recorder.model).__name__} than the one that is "
            "trained: give both the same object."
        )
    if recorder.optimizer is None:
        recorder.optimizer = optimizer
    if done:
        recorder.restart_at(done)
    if math.isfinite(total) and total > done:
        recorder.expect(int(total))


def bare(model: Any) -> Any:
    """The module without what compiles or distributes it."""
    while True:
        inside = getattr(model, "_orig_mod", None)
        if inside is None and type(model).__name__ in ("DistributedDataParallel", "DataParallel"):
            inside = model.module
        if inside is None:
            return model
        model = inside


def trainer_callback(recorder: Recorder) -> Any:
    """The recorder as a `transformers.TrainerCallback`."""
    from transformers import TrainerCallback

    class TrainerRecorder(TrainerCallback):
        """Records on the first process alone."""

        def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.is_world_process_zero:
                trained = given.get("model", recorder.model)
                optimizer, total = given.get("optimizer"), state.max_steps
                _begin(recorder, trained, optimizer, state.global_step, total)

        def on_step_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.is_world_process_zero:
                recorder.step()

        def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
            if state.is_world_process_zero:
                recorder.finish()

    return TrainerRecorder()


def lightning_callback(recorder: Recorder) -> Any:
    """The recorder as a `Callback` of Lightning, under either of its package's names."""
    bases = tuple(_callbacks())
    if not bases:
        raise ExemplaError("lightning is not installed: pip install lightning.")

    class LightningRecorder(*bases):
        """Counts optimizer steps, not batches: gradients may be accumulated."""

        seen = 0

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            if trainer.is_global_zero:
                self.seen = trainer.global_step
                optimizer = trainer.optimizers[0] if trainer.optimizers else None
                total = trainer.estimated_stepping_batches
                _begin(recorder, pl_module, optimizer, self.seen, total)

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


def _callbacks() -> list[type]:
    """Lightning's class of that name, of each package in use: they do not know each other."""
    found = []
    for name in [name for name in LIGHTNINGS if name in sys.modules] or LIGHTNINGS:
        try:
            found.append(import_module(name).Callback)
        except ModuleNotFoundError:
            continue
    return found
