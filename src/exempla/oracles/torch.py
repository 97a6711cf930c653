"""Scores of a torch network: one forward pass noted on a tape, one backward pass to its uses.

survey (once, three examples) ──▶ blocks
batch ──▶ forward under the tape ──▶ outputs ──▶ cotangent ──▶ backward ──▶ Factors per block
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from exempla.errors import ExemplaError
from exempla.likelihoods import Gaussian
from exempla.oracles.base import Labels, Layer, Oracle, ScoreRows
from exempla.oracles.torch_batch import Batch
from exempla.oracles.torch_data import source_of
from exempla.oracles.torch_examples import CallForm, TorchExamples, pad_rows, warn_of_augmentation
from exempla.oracles.torch_heads import choose_head, outputs_of
from exempla.oracles.torch_likelihoods import Custom, FamilyHead, Head, refuse_rows
from exempla.oracles.torch_network import Network
from exempla.oracles.torch_select import select_parameters, unwrap
from exempla.oracles.torch_state import borrowed

__all__ = ["TorchOracle", "torch_oracle"]

VARIANCE_SAMPLE = 8192
"""Training examples from which a Gaussian's variance is fitted, at most."""


def torch_oracle(
    model: nn.Module,
    likelihood: Any = "auto",
    parameters: Any = None,
    device: Any = None,
    *,
    draws: int = 1,
    seed: int = 0,
    batch_size: int | None = None,
) -> TorchOracle:
    """The oracle of a torch module.

    Parameters
    ----------
    model : torch.nn.Module
        Left exactly as it is found. Scored in evaluation mode.
    likelihood : str or object
        "auto", "categorical", "bernoulli", "multilabel", "gaussian", "poisson", "causal_lm"
        (labels are the inputs, shifted here), "tokens" (labels already aligned with the
        outputs), or `Custom(log_prob, sample)`.
    parameters : names, globs, modules or parameters
        Part of the model to look at; all trainable parameters by default.
    device
        Where to compute; on another device than the model's a copy of it is used.
    draws : int
        Sampled labels per example where the Fisher cannot be exact.
    batch_size : int
        Examples per pass; by default what the loader says and the memory allows.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 3)
    >>> oracle = torch_oracle(model)
    >>> train = oracle.read((torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])), role="train")
    >>> oracle.likelihood, [layer.size for layer in oracle.layers]
    ('categorical', [9])
    >>> [len(rows) for rows in oracle.scores(train)]
    [5]
    """
    return TorchOracle(
        model, likelihood, parameters, device, draws=draws, seed=seed, batch_size=batch_size
    )


class TorchOracle(Oracle):
    """Scores of one torch network."""

    def __init__(
        self,
        model: nn.Module,
        likelihood: Any = "auto",
        parameters: Any = None,
        device: Any = None,
        *,
        draws: int = 1,
        seed: int = 0,
        batch_size: int | None = None,
    ) -> None:
        inner = unwrap(model)
        names = select_parameters(inner, parameters)
        self.model = moved(inner, device)
        by_name = dict(self.model.named_parameters())
        self.network = Network(self.model, {name: by_name[name] for name in names})
        first = next(iter(self.network.parameters.values()))
        self.device, self.dtype = first.device, first.dtype
        self.form = CallForm(self.model)
        self.asked, self.draws, self.seed = likelihood, draws, seed
        self.head: Head | Custom | None = likelihood if isinstance(likelihood, Custom) else None
        self._batch_size = batch_size

    # ---- what is known once data has been read

    @property
    def layers(self) -> tuple[Layer, ...]:  # type: ignore[override]
        """The blocks of parameters; known once data has been read."""
        return tuple(block.layer for block in self.network.blocks)

    @property
    def likelihood(self) -> str:  # type: ignore[override]
        return self.head.name if self.head is not None else str(self.asked)

    @property
    def fisher_note(self) -> str:  # type: ignore[override]
        if isinstance(self.head, Custom):
            sampled = f"{self.draws} sampled label(s) per example"
            return sampled if self.head.sample else "empirical: the likelihood cannot sample labels"
        return "exact" if self.head is None else self.head.fisher_note

    def read(self, data: Any, *, role: Literal["train", "test"]) -> TorchExamples:
        """Arrays (X, y), (X, y, weight), dictionaries, a Dataset, a DataLoader, a list of rows."""
        if isinstance(data, TorchExamples):
            return data
        fill = getattr(getattr(self.model, "config", None), "pad_token_id", None) or 0
        with borrowed(self.model):
            source = source_of(data, lambda rows: pad_rows(rows, fill))
            warn_of_augmentation(source)
            examples = TorchExamples(source, self.form, self.device, self.dtype)
            self._prepare(examples, role)
        return examples

    def _prepare(self, examples: TorchExamples, role: str) -> None:
        """Choose the likelihood and look at the model, on the first data that is read."""
        first = next(examples.read(0, min(len(examples), 64)))
        if self.head is None:
            with torch.no_grad():
                outputs = outputs_of(self.model(*first.args, **first.kwargs), len(first))
            self.head = choose_head(self.asked, self.model, outputs, first, self.draws)
        if isinstance(self.head, Head) and first.labels is not None:
            with torch.no_grad():
                outputs = outputs_of(self.model(*first.args, **first.kwargs), len(first))
            self.head.refuse(outputs, first)
        elif role == "train" and isinstance(self.head, FamilyHead):
            raise ExemplaError("the training data has no labels: give (X, y).")
        if not self.network.surveyed:
            self.network.survey(self._run, first)
        if role == "train":
            self._fit_variance(examples)

    def _fit_variance(self, examples: TorchExamples) -> None:
        """A Gaussian's σ² is the mean squared residual of the training data."""
        head = self.head
        if not isinstance(head, FamilyHead) or not isinstance(head.family, Gaussian):
            return
        if head.family.variance is not None:
            return
        step = max(1, len(examples) // VARIANCE_SAMPLE)
        part = examples.take(np.arange(0, len(examples), step))
        pairs = [(head.natural(o), b.labels, b.weights) for b, o in self._forward(part)]
        outputs, labels = torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])
        given = [p[2] for p in pairs if p[2] is not None]
        weights = torch.cat(given) if given else None
        self.head = FamilyHead(head.family.fitted(outputs, labels, weights), head.link, head.draws)

    # ---- passes over the data

    def _run(self, model: Any, batch: Batch) -> Tensor:
        """What is pulled back: the outputs, or the log-probabilities of a custom likelihood."""
        if isinstance(self.head, Custom):
            return one_value_each(self.head.log_prob(model, batch.given), len(batch))
        return outputs_of(model(*batch.args, **batch.kwargs), len(batch))

    def _batches(self, examples: TorchExamples) -> Iterator[Batch]:
        """Batches in order; a size that does not fit in memory is halved and tried again."""
        size = self._batch_size or self.network.batch_size(examples.source.batch_size)
        start = 0
        self._batch_size = size
        while start < len(examples):
            stop = min(start + self._batch_size, len(examples))
            with borrowed(self.model):
                batches = list(examples.read(start, stop))
            yield from batches
            start = stop

    def scores(self, examples: Any, labels: Labels = "true") -> Iterator[ScoreRows]:
        for batch in self._batches(examples):
            yield from self._in_memory(self._score, batch, labels)

    def _in_memory(self, work: Any, batch: Batch, *options: Any) -> Iterator[ScoreRows]:
        """`work` on the batch, or on its halves where memory runs out."""
        try:
            result = work(batch, *options)
        except torch.OutOfMemoryError:
            result = None
        if result is not None:
            yield from result
            return
        for part in self._halves(batch):
            yield from self._in_memory(work, part, *options)

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
        self._batch_size = min(half, self._batch_size or half)
        return [batch.take(np.arange(half)), batch.take(np.arange(half, len(batch)))]

    def _score(self, batch: Batch, labels: Labels) -> list[ScoreRows]:
        with self._borrowed():
            run = self.network.forward(self._run, batch)
            cotangent = self._score_cotangent(run.outputs.detach(), batch, labels)
            if batch.weights is not None:
                cotangent = scaled(cotangent, batch.weights)
            factors = run.rows(cotangent)
        return [ScoreRows(batch.positions, factors)]

    def _score_cotangent(self, outputs: Tensor, batch: Batch, labels: Labels) -> Tensor:
        assert self.head is not None
        if isinstance(self.head, Custom):
            if labels == "predicted":
                raise ExemplaError(
                    "a custom likelihood has no predicted labels: give the true ones."
                )
            refuse_rows(~outputs.isfinite(), batch, "have a log-likelihood that is not finite")
            return torch.ones_like(outputs)
        refuse_rows(~outputs.isfinite(), batch, "make the model return NaN or infinity")
        if labels == "true":
            self.head.refuse(outputs, batch)
        return self.head.score(outputs, batch, labels == "predicted")

    def fisher_rows(self, examples: Any) -> Iterator[ScoreRows]:
        generator = torch.Generator(self.device).manual_seed(self.seed)
        for batch in self._batches(examples):
            if isinstance(self.head, Custom):
                yield from self._in_memory(self._custom_fisher, batch, generator)
            else:
                yield from self._fisher(batch, 0, generator)

    def _fisher(self, batch: Batch, rank: int, generator: Any) -> Iterator[ScoreRows]:
        """One backward pass per rank of class, over the examples it still concerns."""
        assert isinstance(self.head, Head)
        done = rank
        try:
            with self._borrowed():
                run = self.network.forward(self._run, batch)
                outputs = run.outputs.detach()
                refuse_rows(~outputs.isfinite(), batch, "make the model return NaN or infinity")
            ranked = self.head.fisher(outputs, batch, generator)
            for active, cotangent in islice(ranked, rank, None):
                chosen = active.nonzero()[:, 0].cpu().numpy()
                if len(chosen) == 0:
                    return
                if 2 * len(chosen) <= len(batch) and done > rank:
                    break
                if batch.weights is not None:
                    cotangent = scaled(cotangent, batch.weights.sqrt())
                with self._borrowed():
                    rows = ScoreRows(batch.positions, run.rows(cotangent, again=True))
                yield rows if len(chosen) == len(batch) else rows.take(chosen)
                done += 1
            else:
                return
            # few examples are left: their own, smaller passes are cheaper from here on
            parts = [batch.take(chosen)]
        except torch.OutOfMemoryError:
            parts = self._halves(batch)
        run = rows = None
        for part in parts:
            yield from self._fisher(part, done, generator)

    def _custom_fisher(self, batch: Batch, generator: torch.Generator) -> list[ScoreRows]:
        head = self.head
        assert isinstance(head, Custom)
        out = []
        for _ in range(self.draws if head.sample else 1):
            drawn = batch
            with self._borrowed():
                if head.sample:
                    with torch.no_grad():
                        given = head.sample(self.model, batch.given, generator)
                    drawn = self.form.batch(batch.positions, given)
                run = self.network.forward(self._run, drawn)
                cotangent = torch.ones_like(run.outputs) / (self.draws if head.sample else 1) ** 0.5
                if batch.weights is not None:
                    cotangent = scaled(cotangent, batch.weights.sqrt())
                out.append(ScoreRows(batch.positions, run.rows(cotangent)))
        return out

    def _forward(self, examples: TorchExamples) -> Iterator[tuple[Batch, Tensor]]:
        for batch in self._batches(examples):
            with borrowed(self.model), torch.no_grad():
                outputs = self._run(self.model, batch)
            yield batch, outputs

    def predict(self, examples: Any) -> np.ndarray:
        if not isinstance(self.head, Head):
            raise ExemplaError("a custom likelihood has no predictions of its own.")
        parts = [self.head.predict(o, b).cpu().numpy() for b, o in self._forward(examples)]
        if len({p.shape[1:] for p in parts}) == 1:
            return np.concatenate(parts)
        longest = max(p.shape[1] for p in parts)
        pads = [np.pad(p, ((0, 0), (0, longest - p.shape[1])), constant_values=-100) for p in parts]
        return np.concatenate(pads)

    def log_likelihood(self, examples: Any) -> np.ndarray:
        parts = []
        for batch, outputs in self._forward(examples):
            values = outputs
            if isinstance(self.head, Head):
                self.head.refuse(outputs, batch)
                values = self.head.log_prob(outputs, batch)
            parts.append(values.double().cpu().numpy())
        return np.concatenate(parts)

    def _borrowed(self) -> Any:
        return borrowed(self.model, {id(p) for p in self.network.parameters.values()})


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


def moved(model: nn.Module, device: Any) -> nn.Module:
    """The model itself if it is there already, else a copy: the user's model never moves."""
    if device is None:
        return model
    wanted = torch.device(device)
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise ExemplaError(f"device={device!r} was asked for and no CUDA device is available.")
    where = next(model.parameters()).device
    same = where.type == wanted.type and wanted.index in (None, where.index)
    return model if same else copy.deepcopy(model).to(wanted)
