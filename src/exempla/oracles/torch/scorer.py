"""Scores and Fisher rows of one batch, and products with the Fisher of a whole data set.

`Scorer` runs a batch forward under the tape and pulls cotangents back. `GaussNewton` multiplies
vectors with the Fisher of all parameters without writing a row of it out: with J the derivative of
a batch's outputs in the parameters and C the cotangents of its Fisher rows, F v = Σ Jᵀ C Cᵀ J v.
J v comes from two backward passes (the derivative of Jᵀw in w), which serves every model that
autograd can differentiate twice. Vectors are laid out as the oracle's layers are, so that a sketch
of its scores can act on them; they are the columns of (P, B), and a batch runs once for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from exempla.errors import ExemplaError
from exempla.oracles.base import Labels, ScoreRows
from exempla.oracles.likelihoods import Custom
from exempla.oracles.torch.batch import Batch, copied, refuse_rows
from exempla.oracles.torch.examples import CallForm, TorchExamples
from exempla.oracles.torch.likelihood import FamilyHead, Head, outputs_of
from exempla.oracles.torch.network import TapedNetwork, out_of_memory
from exempla.oracles.torch.restore import ModelRestorer
from exempla.oracles.torch.sources import ExampleSource

if TYPE_CHECKING:
    from exempla.oracles.torch.oracle import TorchOracle

NOT_FINITE = "make the model return NaN or infinity"
CHECK_EVERY = 32
"""Batches between two checks that the outputs are finite."""
Pending = list[tuple[Tensor, np.ndarray]]
"""Sums of outputs that are not checked yet (each check waits for the device), with positions."""


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
        """Choose the size of all batches from the first data."""
        if self.batch_size is None:
            size = self.network.batch_size(source.batch_size, source.fixed)
            self.batch_size = source.whole_batches(size)

    def borrowed(self) -> AbstractContextManager[None]:
        """Borrow the model; a custom likelihood may draw random numbers."""
        return self.restorer.borrowed(randomness=isinstance(self.head, Custom))

    def run(self, model: Any, batch: Batch) -> Tensor:
        """Return the outputs, or the log-probabilities of a custom likelihood.

        The model gets copies: its forward may work in place (`x -= mean`), and the batch may be a
        view of the user's arrays that is read again.
        """
        if isinstance(self.head, Custom):
            return _one_value_each(self.head.log_prob(model, copied(batch.given)), len(batch))
        return outputs_of(model(*copied(batch.args), **copied(batch.kwargs)), len(batch))

    # ---- scores

    def refuse_labels(self, labels: Labels) -> None:
        """Raise if this likelihood has no labels of that kind."""
        if labels == "predicted" and isinstance(self.head, Custom):
            raise ExemplaError("a custom likelihood has no predicted labels: give the true ones.")

    def score(self, batch: Batch, labels: Labels, check: bool, pending: Pending) -> list[ScoreRows]:
        """Return the scores of a batch; `check` validates its labels."""
        with self.borrowed():
            run = self.network.forward(self.run, batch)
            outputs = run.outputs.detach()
            if isinstance(self.head, Head):
                if check:
                    self.head.refuse(outputs.shape, batch)
                cotangent = self.head.score(outputs, batch, labels == "predicted")
            else:
                cotangent = torch.ones_like(outputs)
            factors = run.rows(_weighted(cotangent, batch))
        pending.append((_sums_of(outputs), batch.positions))
        if len(pending) == CHECK_EVERY:
            self.refuse_pending(pending)
        return [ScoreRows(batch.positions, factors)]

    def refuse_pending(self, pending: Pending) -> None:
        """Raise if the outputs of the last batches were not finite."""
        if not pending:
            return
        sums, positions = zip(*pending)
        pending.clear()
        custom = isinstance(self.head, Custom)
        what = "have a log-likelihood of NaN or infinity" if custom else NOT_FINITE
        refuse_rows(~torch.cat(sums).isfinite(), np.concatenate(positions), what)

    # ---- Fisher rows

    def fisher(
        self, batch: Batch, generator: Any, check: bool = False, rank: int = 0
    ) -> Iterator[ScoreRows]:
        """Yield Fisher rows: one backward pass per rank of class that most examples reach.

        Classes that few examples reach are collected and pulled back in passes of full size. The
        row of an example's given label is a multiple of its score, which `to_score` records: such
        examples need no scoring pass. `check` validates the labels first.
        """
        assert isinstance(self.head, Head)
        done = rank
        few: list[tuple[np.ndarray, Tensor]] = []
        score = None
        halves: list[Batch] = []
        try:
            with self.borrowed():
                run = self.network.forward(self.run, batch)
                outputs = run.outputs.detach()
                refuse_rows(~_sums_of(outputs).isfinite(), batch.positions, NOT_FINITE)
                if isinstance(self.head, FamilyHead) and batch.labels is not None:
                    if check:
                        self.head.refuse(outputs.shape, batch)
                    score = _weighted(self.head.score(outputs, batch, False), batch)
            for active, cotangent in islice(
                self.head.fisher(outputs, batch, generator), rank, None
            ):
                chosen = active.nonzero()[:, 0].cpu().numpy()
                if len(chosen) == 0:
                    break
                cotangent = _weighted(cotangent, batch, root=True)
                if 2 * len(chosen) <= len(batch) and done > rank:
                    few.append((chosen, cotangent[chosen]))
                    continue
                scale = None if score is None else _multiples(score, cotangent)
                with self.borrowed():
                    factors = run.rows(cotangent, again=True)
                rows = ScoreRows(batch.positions, factors, to_score=scale)
                yield rows if len(chosen) == len(batch) else rows.take(chosen)
                done += 1
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            halves = self._halves(batch)
        run = rows = factors = outputs = cotangent = None
        for part in halves:
            yield from self.fisher(part, generator, check, done)
        if few:
            chosen = np.concatenate([rows for rows, _ in few])
            cotangent = torch.cat([part for _, part in few])
            scale = None if score is None else _multiples(score[chosen], cotangent)
            for i in range(0, len(chosen), len(batch)):
                some = slice(i, i + len(batch))
                own = None if scale is None else scale[some]
                yield from self._pulled(batch.take(chosen[some]), cotangent[some], own)

    def _pulled(
        self, batch: Batch, cotangent: Tensor, to_score: np.ndarray | None
    ) -> Iterator[ScoreRows]:
        """Yield the rows of given cotangents, in halves if memory runs out."""
        try:
            with self.borrowed():
                run = self.network.forward(self.run, batch)
                rows = ScoreRows(batch.positions, run.rows(cotangent), to_score=to_score)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            rows = None
        if rows is not None:
            yield rows
            return
        start = 0
        for part in self._halves(batch):
            some = slice(start, start + len(part))
            own = None if to_score is None else to_score[some]
            yield from self._pulled(part, cotangent[some], own)
            start += len(part)

    def custom_fisher(self, batch: Batch, generator: torch.Generator) -> list[ScoreRows]:
        """Return rows of sampled labels, or of the given ones if the likelihood cannot sample."""
        head = self.head
        assert isinstance(head, Custom)
        draws = self.draws if head.sample else 1
        out = []
        for _ in range(draws):
            drawn = batch
            with self.borrowed():
                if head.sample:
                    with torch.no_grad():
                        given = head.sample(self.model, copied(batch.given), generator)
                    drawn = self.form.batch(batch.positions, given)
                run = self.network.forward(self.run, drawn)
                cotangent = torch.ones_like(run.outputs) / draws**0.5
                cotangent = _weighted(cotangent, batch, root=True)
                out.append(ScoreRows(batch.positions, run.rows(cotangent)))
        return out

    # ---- memory

    def in_memory(
        self, work: Callable[..., list[ScoreRows]], batch: Batch, *options: Any
    ) -> Iterator[ScoreRows]:
        """Yield the results of `work` on the batch, or on its halves if memory runs out."""
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
        """Return the batch in two parts; later batches start at that size."""
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


def _sums_of(outputs: Tensor) -> Tensor:
    """Return one number per example that is finite if all its outputs are."""
    return outputs.reshape(len(outputs), -1).sum(1, dtype=torch.float32)


def _multiples(score: Tensor, rows: Tensor) -> np.ndarray:
    """Return k with score = k · row for each example, 0 where the two are not parallel.

    >>> _multiples(torch.tensor([[2.0, -2.0], [1.0, 1.0]]), torch.tensor([[1.0, -1.0]] * 2))
    array([2., 0.])
    """
    wide = torch.float32 if score.device.type == "mps" else torch.float64
    a, b = (t.reshape(len(t), -1).to(wide) for t in (score, rows))
    k = (a * b).sum(1) / (b * b).sum(1).clamp_min(torch.finfo(wide).tiny)
    rounding = 16 * torch.finfo(score.dtype).eps
    parallel = (a - k[:, None] * b).norm(dim=1) <= rounding * a.norm(dim=1)
    return (k * parallel).cpu().numpy()


def _one_value_each(values: Any, n: int) -> Tensor:
    if not isinstance(values, Tensor) or values.shape != (n,):
        shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise ExemplaError(
            f"log_prob returned {shape} for a batch of {n} examples: it must return one "
            "log-probability per example, not their mean or sum (reduction='none')."
        )
    return values


def _scaled(cotangent: Tensor, weights: Tensor) -> Tensor:
    return cotangent * weights.to(cotangent).reshape(-1, *[1] * (cotangent.ndim - 1))


def _weighted(cotangent: Tensor, batch: Batch, root: bool = False) -> Tensor:
    """Multiply by the examples' weights (scores), or by their square roots (Fisher rows)."""
    if batch.weights is None:
        return cotangent
    return _scaled(cotangent, batch.weights.sqrt() if root else batch.weights)


class GaussNewton:
    """F = (1/n) Σ over the training examples, and the scores of examples, as operators."""

    def __init__(self, oracle: TorchOracle, train: TorchExamples) -> None:
        head = oracle.head
        if not isinstance(head, Head):
            raise ExemplaError("a custom likelihood has no Fisher in closed form.")
        self.oracle, self.train, self.head = oracle, train, head
        self.names = [name for block in oracle.network.blocks for name in block.parameters]
        self.parameters = [oracle.network.parameters[name] for name in self.names]
        self.places = self._places()
        self._device, self._dtype = self.parameters[0].device, oracle.network.like.dtype

    def product(self, v: Tensor) -> Tensor:
        """Return F v of every column."""
        total = torch.zeros_like(v)
        tangents = [self._parameters_of(column) for column in v.T]
        generator = torch.Generator(self.oracle.device).manual_seed(self.oracle.seed)
        for batch, outputs in self._forward(self.train):
            along = list(self._derivatives(outputs, tangents))
            cotangents = [torch.zeros_like(outputs) for _ in along]
            for row in self._fisher_rows(batch, outputs.detach(), generator):
                for cotangent, one in zip(cotangents, along, strict=True):
                    cotangent += _scaled(row, (row * one).flatten(1).sum(1))
            for place, cotangent in enumerate(cotangents):
                total[:, place] += self._pulled(outputs, cotangent)
        return total / len(self.train)

    def along_scores(self, v: Tensor) -> np.ndarray:
        """Return s_i·v of every training example and column, (n, B)."""
        tangents, parts = [self._parameters_of(column) for column in v.T], []
        for batch, outputs in self._forward(self.train):
            cotangent = _weighted(self.head.score(outputs.detach(), batch, False), batch)
            found = [
                (cotangent * along).flatten(1).sum(1)
                for along in self._derivatives(outputs, tangents)
            ]
            parts.append(torch.stack(found, 1).double().cpu().numpy())
        return np.concatenate(parts)

    def score_sums(self, examples: TorchExamples, labels: Labels, weights: np.ndarray) -> Tensor:
        """Return Σ_j w_jb s_j over other examples, for each column of weights: (P, B)."""
        size = (len(self.places), weights.shape[1])
        total, start = torch.zeros(size, dtype=self._dtype, device=self._device), 0
        for batch, outputs in self._forward(examples):
            cotangent = self.head.score(outputs.detach(), batch, labels == "predicted")
            own = torch.from_numpy(weights[start : start + len(batch)]).to(cotangent)
            for place in np.flatnonzero(weights[start : start + len(batch)].any(0)):
                total[:, place] += self._pulled(outputs, _scaled(cotangent, own[:, place]))
            start += len(batch)
        return total

    def _fisher_rows(
        self, batch: Batch, outputs: Tensor, generator: torch.Generator
    ) -> Iterator[Tensor]:
        """Yield the cotangents of the Fisher rows, zero for examples that have none."""
        for active, rows in self.head.fisher(outputs, batch, generator):
            if not bool(active.any()):
                return
            yield _weighted(_scaled(rows, active), batch, root=True)

    def _forward(self, examples: TorchExamples) -> Iterator[tuple[Batch, Tensor]]:
        """Yield batches and their outputs, attached to the parameters."""
        scorer = self.oracle.scorer
        for batch in self.oracle._batches(examples):
            with scorer.borrowed():
                with sdpa_kernel(SDPBackend.MATH):  # the only attention with second derivatives
                    outputs = scorer.run(self.oracle.model, batch)
                yield batch, outputs

    def _derivatives(self, outputs: Tensor, tangents: list[list[Tensor]]) -> Iterator[Tensor]:
        """Yield J v at the outputs, for each v."""
        w = torch.zeros_like(outputs, requires_grad=True)
        pulled = torch.autograd.grad(
            outputs, self.parameters, w, create_graph=True, retain_graph=True, allow_unused=True
        )
        used = [place for place, g in enumerate(pulled) if g is not None]
        for one in tangents:
            found = torch.autograd.grad(
                [pulled[place] for place in used], w, [one[place] for place in used],
                retain_graph=True, allow_unused=True,
            )[0]  # fmt: skip
            yield torch.zeros_like(outputs) if found is None else found.detach()

    def _pulled(self, outputs: Tensor, cotangent: Tensor) -> Tensor:
        """Return Jᵀ c, in the layout of the layers."""
        found = torch.autograd.grad(
            outputs, self.parameters, cotangent.to(outputs.dtype), retain_graph=True,
            allow_unused=True,
        )  # fmt: skip
        pairs = zip(self.parameters, found, strict=True)
        whole = [torch.zeros_like(p) if g is None else g for p, g in pairs]
        return torch.cat([g.reshape(-1) for g in whole]).to(self._dtype)[self.places]

    def _parameters_of(self, v: Tensor) -> list[Tensor]:
        """Return a vector in the layout of the layers as one tensor for each parameter."""
        flat = torch.zeros_like(v)
        flat[self.places] = v
        parts = flat.split([p.numel() for p in self.parameters])
        return [
            part.reshape(p.shape).to(p.dtype)
            for part, p in zip(parts, self.parameters, strict=True)
        ]

    def _places(self) -> Tensor:
        """Return where each entry of the layers' blocks stands among the flattened parameters."""
        numbers, start = {}, 0
        for name, parameter in zip(self.names, self.parameters, strict=True):
            count = parameter.numel()
            own = torch.arange(start, start + count, device=parameter.device)
            numbers[name] = own.reshape(1, *parameter.shape)
            start += count
        blocks = self.oracle.network.blocks
        return torch.cat([block.pack(numbers).reshape(-1) for block in blocks])
