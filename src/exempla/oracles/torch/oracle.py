"""Scores of a torch network over whole data sets.

survey (once, three examples) ──▶ blocks
batch ──▶ forward under the tape ──▶ outputs ──▶ cotangent ──▶ backward ──▶ Factors per block

A batch whose pass does not fit in memory is split in halves, and later batches start at that size.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from exempla.arrays import leaves, tree_map
from exempla.errors import ExemplaError
from exempla.oracles.base import Labels, Layer, Oracle, ScoreRows
from exempla.oracles.likelihoods import Categorical, Custom, Gaussian
from exempla.oracles.torch.curvature import GaussNewton
from exempla.oracles.torch.examples import (
    ArraySource,
    Batch,
    CallForm,
    ItemSource,
    TorchExamples,
    refuse_rows,
    refuse_weights,
    source_of,
)
from exempla.oracles.torch.likelihood import (
    POSITIONS,
    FamilyHead,
    Head,
    TokenHead,
    choose_head,
    outputs_of,
    weighted,
)
from exempla.oracles.torch.model import (
    BORROWING,
    ModelRestorer,
    Reader,
    refuse_absent,
    select_parameters,
    unwrap_module,
)
from exempla.oracles.torch.network import TapedNetwork, brief, out_of_memory

_NOT_FINITE = "make the model return NaN or infinity"
_NO_GRADIENT = (
    "the model's outputs carry no gradient: its forward runs under torch.no_grad() or "
    "torch.inference_mode(), or detaches its result; give a module whose forward records gradients."
)
_MAX_VARIANCE_SAMPLE = 8192
"""Largest number of training examples from which a Gaussian's variance is fitted."""
_PROBED = 8
"""Examples whose outputs decide the likelihood."""
DEFAULT_BUDGET = 3.0
"""Epochs that a fit may cost by default. On three networks LDS was at most .005 below that of the
exact embedding (`benchmarks.fit_cost`, which has the rule)."""
_DEVICE_SHARE = 8
"""Arrays that take less than 1/8 of a GPU's free memory are moved there whole."""


class TorchOracle(Oracle):
    """Scores of one torch module, over whole data sets.

    Parameters
    ----------
    model : torch.nn.Module
        Scored in evaluation mode, and left exactly as it was.
    likelihood : str or object
        "auto", "categorical", "bernoulli", "multilabel", "gaussian", "poisson", "causal_lm"
        (labels are the inputs, shifted here), "tokens" (labels already aligned with the
        outputs), "pixels" (the same, classes on the second axis), or a custom one: a function
        log_prob(model, batch), or `exempla.oracles.likelihoods.Custom(log_prob, sample)`.
    parameters : names, globs, modules or parameters
        Parameters to score; all trainable ones by default.
    device
        Where to compute; a copy of the model is used if it is on another device.
    draws : int
        Sampled labels per example if the Fisher cannot be exact.
    batch_size : int
        Examples per pass; by default chosen for the machine.
    reader : Reader
        How the Trainer or pipeline that the module comes from reads data.

    Examples
    --------
    >>> import torch
    >>> model = torch.nn.Linear(2, 3)
    >>> oracle = TorchOracle(model)
    >>> train = oracle.read((torch.randn(5, 2), torch.tensor([0, 1, 2, 0, 1])), role="train")
    >>> oracle.likelihood, [layer.size for layer in oracle.layers]
    ('categorical', [9])
    >>> [len(rows) for rows in oracle.scores(train)]
    [5]
    """

    def __init__(
        self,
        model: nn.Module,
        likelihood: Any = "auto",
        parameters: Any = None,
        device: Any = None,
        *,
        draws: int = 1,
        batch_size: int | None = None,
        reader: Reader | None = None,
    ) -> None:
        with BORROWING:  # while another thread borrows the model, its requires_grad is changed
            inner = unwrap_module(model)
            refuse_absent(inner)
            names = select_parameters(inner, parameters)
            self.model = _on_device(inner, device)
        by_name = dict(self.model.named_parameters())
        chosen: dict[str, Tensor] = {name: by_name[name] for name in names}
        if callable(likelihood) and not isinstance(likelihood, type):
            likelihood = Custom(likelihood)
        self.head: Head | Custom | None = likelihood if isinstance(likelihood, Custom) else None
        self.network = TapedNetwork(self.model, chosen)
        self.restorer = ModelRestorer(self.model, {id(p) for p in chosen.values()})
        first = next(iter(chosen.values()))
        self.device, self.dtype = first.device, first.dtype
        self.form = CallForm(self.model, self.device, self.dtype)
        self.form.any_columns = self.head is not None
        self.wanted, self.draws, self.batch_size = likelihood, draws, batch_size
        self.reader = reader or Reader({})

    def __reduce__(self) -> Any:
        # The tape knows parameters by id, so a stored oracle is rebuilt around the stored model,
        # which is surveyed again when it next reads data.
        names = list(self.network.parameters)
        rebuild = partial(TorchOracle, draws=self.draws, reader=self.reader)
        return rebuild, (self.model, self.wanted, names), {"head": self.head}

    # ---- known once data has been read

    @property
    def layers(self) -> tuple[Layer, ...]:  # type: ignore[override]
        """The blocks of parameters; known once data has been read."""
        return tuple(block.layer for block in self.network.blocks)

    @property
    def itemsize(self) -> int:  # type: ignore[override]
        return self.network.like.element_size()

    @property
    def pass_bytes(self) -> int:
        return (self.batch_size or self.network.batch_size()) * self.network.row_bytes

    @property
    def theta_squares(self) -> list[tuple[int, float]]:
        modules: dict[str, list[Tensor]] = {}
        for name, parameter in self.network.parameters.items():
            modules.setdefault(name.rpartition(".")[0], []).append(parameter.detach())
        return [
            (sum(p.numel() for p in own), float(sum(p.float().square().sum() for p in own)))
            for own in modules.values()
        ]

    @property
    def budget(self) -> float | None:  # type: ignore[override]
        # facts that a language model learned are found less well within a budget
        several = isinstance(self.head, Custom) or self.likelihood in POSITIONS
        return None if several else DEFAULT_BUDGET

    @property
    def likelihood(self) -> str:  # type: ignore[override]
        return self.head.name if self.head is not None else str(self.wanted)

    @property
    def fisher_note(self) -> str:  # type: ignore[override]
        if isinstance(self.head, Custom):
            sampled = f"{self.draws} sampled label(s) per example"
            return sampled if self.head.sample else "empirical: the likelihood cannot sample labels"
        return "exact" if self.head is None else self.head.fisher_note

    # ---- reading

    def read(self, data: Any, *, role: Literal["train", "test"]) -> TorchExamples:
        """Read arrays (X, y[, weight]), dictionaries, a Dataset, a DataLoader or a list of rows."""
        if isinstance(data, TorchExamples):
            return data
        fill = getattr(getattr(self.model, "config", None), "pad_token_id", None) or 0
        collate = partial(self.reader.collated, names=self.form.names, fill=fill)
        with self.restorer.borrowed(gradients=False):
            source = source_of(self.reader.read(data), collate)
            if isinstance(source, ItemSource):
                source.fix_augmentation()
            examples = TorchExamples(source, self.form, weighted=role == "train")
            self._prepare(examples, role)
        return examples

    def _prepare(self, examples: TorchExamples, role: str) -> None:
        """Choose the likelihood and survey the model, on the first data that is read.

        All labels and weights of arrays are checked here; those of a dataset when they are read.
        """
        first = known = next(examples.read(0, min(len(examples), 64)))
        if isinstance(examples.source, ArraySource):
            known = examples.whole()  # the first few labels may all be of one class
            if known.weights is not None and examples.weighted:
                refuse_weights(known.weights, known.positions)
                if not bool((known.weights > 0).any()):
                    raise ExemplaError("every weight is zero: no training example would count.")
        if not isinstance(self.head, Custom):
            # only a few: the outputs of a language model are its largest tensor
            outputs = self._tried(first.take(np.arange(min(len(first), _PROBED))))
            if self.head is None:
                self.head = choose_head(self.wanted, self.model, outputs, known, self.draws)
            self._note_classes(known.labels, outputs.shape[1:].numel())
            if role == "train" and first.labels is None and isinstance(self.head, FamilyHead):
                raise ExemplaError("the training data has no labels: give (X, y).")
            if known.labels is not None:
                self.head.refuse(outputs.shape, known)
                examples.checked = known is not first
        if self.network.found is None:
            with self.restorer.watching():
                self.network.survey(self.run, first)
            self.restorer.draws |= isinstance(self.head, Custom)  # whose sampling was not watched
        if role == "train":
            self._choose_batches(examples)
            self._fit_variance(examples)
        _move_whole(examples)

    def _note_classes(self, labels: Any, count: int) -> None:
        """Let one-hot labels be read as class numbers from now on, and say so."""
        if not isinstance(self.head, FamilyHead) or not isinstance(self.head.family, Categorical):
            return
        self.form.classes = count
        if isinstance(labels, Tensor) and labels.ndim == 2 and labels.shape[1] == count > 1:
            note = (
                f"labels with a column for each of {count} classes, adding up to one, were read as "
                "cross entropy reads them; use likelihood='multilabel' if the network was trained "
                "with a yes or no for each class."
            )
            self.notes = (note,) if self.wanted == "auto" else ()

    def _tried(self, batch: Batch) -> Tensor:
        """Return the outputs of a few examples, or raise with the reason why there are none."""
        try:
            outputs = self.run(self.model, batch)
        except ExemplaError:
            raise
        except (RuntimeError, TypeError, ValueError, IndexError) as error:
            if out_of_memory(error):
                raise
            raise ExemplaError(_failure(self.model, error, batch, self.dtype)) from error
        if not outputs.requires_grad:
            raise ExemplaError(_NO_GRADIENT)
        outputs = outputs.detach()
        wrong = ~outputs.isfinite()
        if bool(wrong.any()):
            held = [*self.model.named_parameters(), *self.model.named_buffers()]
            reals = [(name, t) for name, t in held if t.is_floating_point()]
            broken = [name for name, t in reals if not bool(t.isfinite().all())]
            if broken:
                raise ExemplaError(
                    f"the model holds NaN or infinity in {brief(broken)}: train it again, or "
                    "load weights that are finite."
                )
            refuse_rows(wrong, batch.positions, _NOT_FINITE)
        return outputs

    def _fit_variance(self, examples: TorchExamples) -> None:
        """Fit a Gaussian's σ² as the mean squared residual of the training data."""
        head = self.head
        if not isinstance(head, FamilyHead) or not isinstance(head.family, Gaussian):
            return
        if head.family.variance is not None:
            return
        step = max(1, len(examples) // _MAX_VARIANCE_SAMPLE)
        part = examples.take(np.arange(0, len(examples), step))
        pairs = [(head.natural(o), b.labels, b.weights) for b, o in self._forward(part)]
        outputs, labels = torch.cat([p[0] for p in pairs]), torch.cat([p[1] for p in pairs])
        given = [p[2] for p in pairs if p[2] is not None]
        weights = torch.cat(given) if given else None
        self.head = replace(head, family=head.family.fitted(outputs, labels, weights))

    def gauss_newton(self, train: Any) -> GaussNewton | None:
        return GaussNewton(self, train) if isinstance(self.head, Head) else None

    # ---- passes over the data

    def run(self, model: Any, batch: Batch) -> Tensor:
        """Return the outputs, or the log-probabilities of a custom likelihood.

        The model gets copies: its forward may work in place, on views of the user's arrays.
        """
        if not isinstance(self.head, Custom):
            return outputs_of(model(*_copied(batch.args), **_copied(batch.kwargs)), len(batch))
        values = self.head.log_prob(model, _copied(batch.given))
        if not isinstance(values, Tensor) or values.shape != (len(batch),):
            shape = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
            raise ExemplaError(
                f"log_prob returned {shape} for a batch of {len(batch)} examples: it must return "
                "one log-probability per example, not their mean or sum (reduction='none')."
            )
        return values

    def _choose_batches(self, examples: TorchExamples) -> None:
        """Choose the size of all batches from the first data."""
        if self.batch_size is None:
            fits = self.network.batch_size()
            self.batch_size = min(fits, examples.source.batch_size or fits)

    def batches(self, examples: TorchExamples) -> Iterator[Batch]:
        """Yield batches in order, of the size that fits in memory at the time."""
        if self.network.found is None:  # an oracle from storage, with examples it read before
            with self.restorer.borrowed(gradients=False):
                self._prepare(examples, "test")
        self._choose_batches(examples)
        start = 0
        while start < len(examples):
            assert self.batch_size is not None  # a pass may make it smaller, never forget it
            stop = min(start + self.batch_size, len(examples))
            arrays = isinstance(examples.source, ArraySource)
            # reading an item runs the user's code, which may draw random numbers
            guard = torch.inference_mode(False) if arrays else self.restorer.borrowed(False)
            with guard:
                batches = list(examples.read(start, stop))
            yield from batches
            start = stop

    def _forward(self, examples: TorchExamples) -> Iterator[tuple[Batch, Tensor]]:
        for batch in self.batches(examples):
            with self.restorer.borrowed(), torch.no_grad():
                outputs = self.run(self.model, batch)
            yield batch, outputs

    def scores(self, examples: Any, labels: Labels = "true") -> Iterator[ScoreRows]:
        if labels == "predicted" and isinstance(self.head, Custom):
            raise ExemplaError("a custom likelihood has no predicted labels: give the true ones.")
        check = labels == "true" and not examples.checked
        work = partial(self._score, predicted=labels == "predicted", check=check)
        for batch in self.batches(examples):
            yield from self._in_memory(work, batch)

    def _score(self, batch: Batch, predicted: bool, check: bool) -> ScoreRows:
        """Return the scores of a batch; `check` validates its labels."""
        with self.restorer.borrowed():
            run = self.network.forward(self.run, batch)
            outputs = run.outputs.detach()
            if isinstance(self.head, Head):
                if check:
                    self.head.refuse(outputs.shape, batch)
                cotangent = self.head.score(outputs, batch, predicted)
            else:
                cotangent = torch.ones_like(outputs)
            factors = run.rows(weighted(cotangent, batch))
        # last: the check waits for the device
        custom = isinstance(self.head, Custom)
        what = "have a log-likelihood of NaN or infinity" if custom else _NOT_FINITE
        refuse_rows(~_sums_of(outputs).isfinite(), batch.positions, what)
        return ScoreRows(batch.positions, factors)

    def fisher_and_scores(self, examples: Any) -> Iterator[ScoreRows]:
        return self.fisher_rows(examples, with_scores=True)

    def fisher_rows(self, examples: Any, with_scores: bool = False) -> Iterator[ScoreRows]:
        generator = torch.Generator(self.device).manual_seed(0)
        for batch in self.batches(examples):
            if isinstance(self.head, Custom):
                for _ in range(self.draws if self.head.sample else 1):
                    yield from self._in_memory(partial(self._drawn, generator=generator), batch)
            else:
                yield from self._fisher(batch, generator, not examples.checked, with_scores)

    def _fisher(
        self,
        batch: Batch,
        generator: torch.Generator,
        check: bool,
        with_scores: bool = False,
        rank: int = 0,
    ) -> Iterator[ScoreRows]:
        """Yield Fisher rows: one backward pass per rank of class that most examples reach.

        Classes that few examples reach are collected and pulled back in passes of full size. The
        row of an example's given label is a multiple of its score, which `to_score` records: such
        examples need no scoring pass. Tokens have drawn labels: their scores are pulled back
        through the same forward pass, `with_scores`. `check` validates the labels first.
        """
        head, score, done = self.head, None, rank
        assert isinstance(head, Head)
        few: list[tuple[np.ndarray, Tensor]] = []
        halves: list[tuple[slice, Batch]] = []
        try:
            with self.restorer.borrowed():
                run = self.network.forward(self.run, batch)
                outputs = run.outputs.detach()
                refuse_rows(~_sums_of(outputs).isfinite(), batch.positions, _NOT_FINITE)
                if isinstance(head, FamilyHead) and batch.labels is not None:
                    if check:
                        head.refuse(outputs.shape, batch)
                    score = weighted(head.score(outputs, batch, False), batch)
            for active, cotangent in islice(head.fisher(outputs, batch, generator), rank, None):
                chosen = active.nonzero()[:, 0].cpu().numpy()
                if len(chosen) == 0:
                    break
                cotangent = weighted(cotangent, batch, root=True)
                if 2 * len(chosen) <= len(batch) and done > rank:
                    few.append((chosen, cotangent[chosen]))
                    continue
                scale = None if score is None else _multiples(score, cotangent)
                with self.restorer.borrowed():
                    factors = run.rows(cotangent, again=True)
                rows = ScoreRows(batch.positions, factors, to_score=scale)
                yield rows if len(chosen) == len(batch) else rows.take(chosen)
                rows = factors = None  # the next pass needs their memory
                done += 1
            if with_scores and isinstance(head, TokenHead):
                if check:
                    head.refuse(outputs.shape, batch)
                cotangent = weighted(head.score(outputs, batch, False), batch)
                with self.restorer.borrowed():
                    factors = run.rows(cotangent)
                yield ScoreRows(batch.positions, factors, is_score=True)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            halves = self._halves(batch)
        run = rows = factors = outputs = cotangent = None
        for _, part in halves:
            yield from self._fisher(part, generator, check, with_scores, done)
        if few:
            chosen = np.concatenate([rows for rows, _ in few])
            cotangent = torch.cat([part for _, part in few])
            scale = None if score is None else _multiples(score[chosen], cotangent)
            for i in range(0, len(chosen), len(batch)):
                some = slice(i, i + len(batch))
                own = None if scale is None else scale[some]
                part = batch.take(chosen[some])
                yield from self._in_memory(self._pulled, part, cotangent[some], own)

    def _pulled(self, batch: Batch, cotangent: Tensor, to_score: np.ndarray | None) -> ScoreRows:
        """Return the rows of given cotangents."""
        with self.restorer.borrowed():
            run = self.network.forward(self.run, batch)
            return ScoreRows(batch.positions, run.rows(cotangent), to_score=to_score)

    def _drawn(self, batch: Batch, generator: torch.Generator) -> ScoreRows:
        """Return rows of sampled labels, or of the given ones if the likelihood cannot sample."""
        head, drawn = self.head, batch
        assert isinstance(head, Custom)
        with self.restorer.borrowed():
            if head.sample:
                with torch.no_grad():
                    given = head.sample(self.model, _copied(batch.given), generator)
                drawn = self.form.batch(batch.positions, given)
            run = self.network.forward(self.run, drawn)
            share = 1 / (self.draws if head.sample else 1) ** 0.5
            cotangent = weighted(share * torch.ones_like(run.outputs), batch, root=True)
            return ScoreRows(batch.positions, run.rows(cotangent))

    def _in_memory(
        self, work: Callable[..., ScoreRows], batch: Batch, *per_row: Any
    ) -> Iterator[ScoreRows]:
        """Yield the rows of the batch, or of its halves if memory runs out."""
        try:
            rows = work(batch, *per_row)
        except RuntimeError as error:
            if not out_of_memory(error):
                raise
            rows = None
        if rows is not None:
            yield rows
            return
        for some, part in self._halves(batch):
            yield from self._in_memory(work, part, *(x if x is None else x[some] for x in per_row))

    def _halves(self, batch: Batch) -> list[tuple[slice, Batch]]:
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
        parts = (slice(half), slice(half, len(batch)))
        return [(some, batch.take(np.arange(len(batch))[some])) for some in parts]

    def predict(self, examples: Any) -> np.ndarray:
        if not isinstance(self.head, Head):
            raise ExemplaError("a custom likelihood has no predictions.")
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
                self.head.refuse(outputs.shape, batch)
                values = self.head.log_prob(outputs, batch)
            parts.append(values.double().cpu().numpy())
        return np.concatenate(parts)


def _failure(model: nn.Module, error: Exception, batch: Batch, dtype: torch.dtype) -> str:
    """Return why the model fails on the first examples, and what to do about it."""
    if isinstance(error, NotImplementedError) and "forward" in str(error):
        inside = brief(name for name, _ in model.named_children())  # a LightningModule, perhaps
        return (
            f"{type(model).__name__} has no forward: give the network inside it that turns inputs "
            f"into outputs ({inside}), or add a forward that calls it."
        )
    named = dict(enumerate(batch.args)) | batch.kwargs
    inputs = [(k, t) for k, part in named.items() for t in leaves(part) if isinstance(t, Tensor)]
    lines = str(error).splitlines()
    what = f"the model fails on the first examples ({lines[0] if lines else type(error).__name__})"
    if "dtype" in str(error) and any(not t.is_floating_point() for _, t in inputs):
        kind = str(dtype).removeprefix("torch.")
        return f"{what}: X holds whole numbers and the model computes in {kind}; give X.float()."
    if not inputs:
        return f"{what}: the data gives it no tensor; name the columns as its forward does."
    shapes = [
        f"{k} {tuple(t.shape[1:])}" if k in batch.kwargs else f"{tuple(t.shape[1:])}"
        for k, t in inputs
    ]
    return f"{what}: check that it takes examples of shape {', '.join(shapes)}."


def _copied(tree: Any) -> Any:
    """Copy every tensor, so that a forward that works in place changes no data of the caller."""
    return tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, tree)


def _sums_of(outputs: Tensor) -> Tensor:
    """Return one number per example that is finite if all its outputs are."""
    return outputs.reshape(len(outputs), -1).sum(1, dtype=torch.float32)


def _multiples(score: Tensor, rows: Tensor) -> np.ndarray:
    """Return k with score = k · row for each example, 0 where the two are not parallel."""
    wide = torch.float32 if score.device.type == "mps" else torch.float64
    a, b = (t.reshape(len(t), -1).to(wide) for t in (score, rows))
    k = (a * b).sum(1) / (b * b).sum(1).clamp_min(torch.finfo(wide).tiny)
    rounding = 16 * torch.finfo(score.dtype).eps
    parallel = (a - k[:, None] * b).norm(dim=1) <= rounding * a.norm(dim=1)
    return (k * parallel).cpu().numpy()


def _move_whole(examples: TorchExamples) -> None:
    """Move arrays that take little of a GPU's memory there once, not batch by batch."""
    source, device = examples.source, examples.form.device
    if device.type != "cuda" or not isinstance(source, ArraySource):
        return
    size = sum(getattr(t, "nbytes", 0) for t in leaves(source.arrays))
    if size * _DEVICE_SHARE < torch.cuda.mem_get_info(device)[0]:
        source.arrays = tree_map(examples.form.moved, source.arrays)


def _on_device(model: nn.Module, device: Any) -> nn.Module:
    """Return the model if it is on the device, otherwise a copy: the user's model never moves."""
    if any(p.is_inference() for p in model.parameters()):
        with torch.inference_mode(False):  # autograd takes no tensor made in inference mode
            model = copy.deepcopy(model)
    if device is None:
        return model
    try:
        wanted = torch.device(device)
    except (RuntimeError, TypeError):
        raise ExemplaError(
            f"device={device!r} is not a device: give 'cpu', 'cuda' or 'cuda:1', for example."
        ) from None
    if wanted.type == "cuda" and not torch.cuda.is_available():
        raise ExemplaError(f"device={device!r} was asked for and no CUDA device is available.")
    where = next(model.parameters()).device
    same = where.type == wanted.type and wanted.index in (None, where.index)
    return model if same else copy.deepcopy(model).to(wanted)
