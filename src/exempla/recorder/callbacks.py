"""Use a Recorder as a callback of Hugging Face's Trainer or of Lightning.

Both frameworks know the number of steps in advance, so no snapshot has to be thinned out, and at
which step an interrupted training continues. Their base classes are imported on demand.
"""

from __future__ import annotations

import math
import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from exempla.errors import ExemplaError
from exempla.recorder.weights import unwrap_module

if TYPE_CHECKING:
    from exempla.recorder.recorder import Recorder

__all__ = ["lightning_callback", "trainer_callback"]

LIGHTNINGS = ("lightning.pytorch", "pytorch_lightning")


def _begin(recorder: Recorder, trained: Any, optimizer: Any, done: int, total: float) -> None:
    """Prepare for a training of this module that has made `done` of `total` steps."""
    if all(part is not unwrap_module(recorder.model) for part in trained.modules()):
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


def trainer_callback(recorder: Recorder) -> Any:
    """Return the recorder as a `transformers.TrainerCallback`."""
    from transformers import TrainerCallback

    class TrainerRecorder(TrainerCallback):
        """Record on the first process only."""

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
    """Return the recorder as a Lightning `Callback`, for either name of its package."""
    bases = []
    for name in [name for name in LIGHTNINGS if name in sys.modules] or LIGHTNINGS:
        try:
            bases.append(import_module(name).Callback)
        except ModuleNotFoundError:
            continue
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
