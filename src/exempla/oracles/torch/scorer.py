"""Scores and Fisher rows of one batch: forward under the tape, cotangents, backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from exempla.errors import ExemplaError
from exempla.likelihoods import Custom
from exempla.oracles.base import Labels, ScoreRows
from exempla.oracles.torch.inputs.batch import Batch
from exempla.oracles.torch.inputs.examples import CallForm
from exempla.oracles.torch.inputs.sources import ExampleSource
from exempla.oracles.torch.inputs.usable import refuse_rows
from exempla.oracles.torch.likelihood.choose import outputs_of
from exempla.oracles.torch.likelihood.heads import Head
from exempla.oracles.torch.tape.network import TapedNetwork, out_of_memory
from exempla.oracles.torch.tape.restore import ModelRestorer

__all__ = ["Scorer"]

NOT_FINITE = "make the model return NaN or infinity"
LOOK_EVERY = 32
"""Batches between two looks at whether the outputs are finite."""
Pending = list[tuple[Tensor, np.ndarray]]
"""Sums of the outputs of one pass over the data, not looked at yet (each look waits for the
device), and which examples they are of."""


class Scorer:
    """A network with its likelihood, batch by batch."""

    def __init__(
        self,
        model: nn.Module,
        parameters: dict[str, Tensor],
        form: CallForm,
        head: Head | Custom | None,
        draws: int,
    ) -> None:
        self.model, self.form, self.head, self.draws = model, form, head, draws
        self.network = TapedNetwork(model, parameters)
        self.restorer = ModelRestorer(model, {id(p) for p in parameters.values()})
        self.batch_size: int | None = None

    def choose_batches(self, source: ExampleSource) -> None:
        """The size of all batches, by the first data: what a pass will take is said before it."""
        if self.batch_size is None:
            size = self.network.batch_size(source.batch_size, source.fixed)
            self.batch_size = source.whole_batches(size)

    def borrowed(self) -> AbstractContextManager[None]:
        # a likelihood of the user's own may draw; a network was watched during the survey
        return self.restorer.borrowed(randomness=isinstance(self.head, Custom))

    def run(self, model: Any, batch: Batch) -> Tensor:
        """What is pulled back: the outputs, or the log-probabilities of a custom likelihood."""
        if isinstance(self.head, Custom):
            return one_value_each(self.head.log_prob(model, batch.given), len(batch))
        return outputs_of(model(*batch.args, **batch.kwargs), len(batch))

    # ---- scores

    def refuse_labels(self, labels: Labels) -> None:
        """Raise if this likelihood has no labels of that kind."""
        if labels == "predicted" and isinstance(self.head, Custom):
            raise ExemplaError("a custom likelihood has no predicted labels: give the true ones.")

    def score(self, batch: Batch, labels: Labels, check: bool, pending: Pending) -> list[ScoreRows]:
        with self.borrowed():
            run = self.network.forward(self.run, batch)
            outputs = run.outputs.detach()
            if isinstance(self.head, Head):
                if check:
                    self.head.refuse(outputs.shape, batch)
                cotangent = self.head.score(outputs, batch, labels == "predicted")
            else:
                cotangent = torch.ones_like(outputs)
            if batch.weights is not None:
                cotangent = scaled(cotangent, batch.weights)
            factors = run.rows(cotangent)
        pending.append((sums_of(outputs), batch.positions))
        if len(pending) == LOOK_EVERY:
            self.refuse_pending(pending)
        return [ScoreRows(batch.positions, factors)]

    def refuse_pending(self, pending: Pending) -> None:
        """Raise if the outputs of the last batches were not finite."""
        if not pending:
            return
        sums, positions = zip(*pending)
        pending.clear()
        own = isinstance(self.head, Custom)
        refuse_rows(
            ~torch.cat(sums).isfinite(),
            np.concatenate(positions),
            "have a log-likelihood of NaN or infinity" if own else NOT_FINITE,
        )

    # ---- Fisher rows

    def fisher(self, batch: Batch, generator: Any, rank: int = 0) -> Iterator[ScoreRows]:
        """A backward pass per rank of class that concerns most examples, then one for the rest."""
        assert isinstance(self.head, Head)
        done = rank
        few: list[tuple[np.ndarray, Tensor]] = []
        halves: list[Batch] = []
        try:
            with self.borrowed():
                run = self.network.forward(self.run, batch)
                outputs = run.outputs.detach()
                refuse_rows(~sums_of(outputs).isfinite(), batch.positions, NOT_FINITE)
            for active, cotangent in islice(
                self.head.fisher(outputs, batch, generator), rank, None
            ):
                chosen = active.nonzero()[:, 0].cpu().numpy()
                if len(chosen) == 0:
                    break
                if batch.weights is not None:
                    cotangent = scaled(cotangent, batch.weights.sqrt())
                if 2 * len(chosen) <= len(batch) and done > rank:
                    few.append((chosen, cotangent[chosen]))
                    continue
                with self.borrowed():
                    rows = ScoreRows(batch.positions, run.rows(cotangent, again=True))
                yield rows if len(chosen) == len(batch) else rows.take(chosen)
                done += 1
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            halves = self._halves(batch)
        run = rows = outputs = cotangent = None
        for part in halves:
            yield from self.fisher(part, generator, done)
        if few:  # the classes that few examples reach, all together in passes of full size
            chosen = np.concatenate([rows for rows, _ in few])
            cotangent = torch.cat([part for _, part in few])
            for i in range(0, len(chosen), len(batch)):
                some = slice(i, i + len(batch))
                yield from self._pulled(batch.take(chosen[some]), cotangent[some])

    def _pulled(self, batch: Batch, cotangent: Tensor) -> Iterator[ScoreRows]:
        """Rows of given cotangents, in halves where memory runs out."""
        try:
            with self.borrowed():
                run = self.network.forward(self.run, batch)
                rows = ScoreRows(batch.positions, run.rows(cotangent))
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            rows = None
        if rows is not None:
            yield rows
            return
        start = 0
        for part in self._halves(batch):
            yield from self._pulled(part, cotangent[start : start + len(part)])
            start += len(part)

    def custom_fisher(self, batch: Batch, generator: torch.Generator) -> list[ScoreRows]:
        """Rows of sampled labels, or of the given ones where the likelihood cannot sample."""
        head = self.head
        assert isinstance(head, Custom)
        draws = self.draws if head.sample else 1
        out = []
        for _ in range(draws):
            drawn = batch
            with self.borrowed():
                if head.sample:
                    with torch.no_grad():
                        given = head.sample(self.model, batch.given, generator)
                    drawn = self.form.batch(batch.positions, given)
                run = self.network.forward(self.run, drawn)
                cotangent = torch.ones_like(run.outputs) / draws**0.5
                if batch.weights is not None:
                    cotangent = scaled(cotangent, batch.weights.sqrt())
                out.append(ScoreRows(batch.positions, run.rows(cotangent)))
        return out

    # ---- memory

    def in_memory(
        self, work: Callable[..., list[ScoreRows]], batch: Batch, *options: Any
    ) -> Iterator[ScoreRows]:
        """`work` on the batch, or on its halves where memory runs out."""
        try:
            result = work(batch, *options)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            result = None
        if result is not None:
            yield from result
            return
        for part in self._halves(batch):
            yield from self.in_memory(work, part, *options)

    def _halves(self, batch: Batch) -> list[Batch]:
        """The batch in two parts; later batches start at that size."""
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        half = len(batch) // 2
        if half == 0:
            raise ExemplaError(
                "one example alone does not fit in the device's memory: name fewer parameters "
                "with parameters=, or use another device."
            )
        self.batch_size = min(half, self.batch_size or half)
        return [batch.take(np.arange(half)), batch.take(np.arange(half, len(batch)))]


def sums_of(outputs: Tensor) -> Tensor:
    """A number an example that is finite where all its outputs are (and do not overflow)."""
    return outputs.reshape(len(outputs), -1).sum(1, dtype=torch.float32)


def one_value_each(values: Any, n: int) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != (n,):
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ExemplaError(
            f"log_prob returned {shape} for a batch of {n} examples: it must return one "
            "log-probability per example, not their mean or sum (reduction='none')."
        )
    return values


def scaled(cotangent: Tensor, weights: Tensor) -> Tensor:
    return cotangent * weights.to(cotangent.dtype).reshape(-1, *[1] * (cotangent.ndim - 1))
