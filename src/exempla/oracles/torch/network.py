"""A network under the tape: survey it once, then run passes that return factors.

The survey uses three examples. A random direction of the outputs of each is pulled back alone. At
the output of a use, the gradient can then be non-zero only where that sample stands: this finds the
layout and proves it. The gradients of the parameters by plain autograd are compared with the scores
that the uses give, one example at a time; a parameter that does not agree goes to the fallback.
Parameters of the fallback are scored by vmap where it works, otherwise by a loop over samples; the
rest of the model is scored by factors.

The survey runs in full single precision. On recent GPUs torch rounds the inputs of convolutions,
and on request of matrix products, to TF32 (10 bits of mantissa instead of 23). Where a gradient is
a small difference of large terms, two orders of summation then disagree by several per cent, and a
correct layer looks wrong.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from threading import RLock
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.memory import available_memory
from exempla.oracles.base import Factors
from exempla.oracles.torch.examples import Batch
from exempla.oracles.torch.factors import DenseFactors, widen
from exempla.oracles.torch.layers import (
    Block,
    Layout,
    Place,
    RowProbe,
    SampleRows,
    Seen,
    Use,
    plan_blocks,
    pull_back,
    random_cotangent,
)
from exempla.oracles.torch.model import keep_random_state
from exempla.oracles.torch.tape import CLONE, Tape

_PROBE = 3
"""Examples in the survey: an odd number, so that an axis seldom has it by chance."""
_MAX_ROUNDS = 5
_MAX_LEAK = 1e-10
"""Share of a sample's squared gradient that may lie in the part of another."""
Forward = Callable[[Any, Batch], Tensor]
"""(model, batch) → outputs, or log-probabilities of a custom likelihood."""
_GOOD_BYTES = {"cpu": 2**26, "cuda": 2**30}
"""Bytes of factors beyond which a larger batch is no faster."""
_MIN_EXAMPLES = {"cpu": 4, "cuda": 10}
"""Smallest batch, if it fits in a quarter of the free memory."""
_PASS_TIMES = 3
"""Memory of a pass, in multiples of its factors."""
_HALF_SCALE = 1024.0
"""Factor by which float16 gradients are scaled, so that small ones do not vanish."""


# ---- survey


@dataclass
class Survey:
    """The result of a survey."""

    blocks: tuple[Block, ...] = ()
    layouts: dict[tuple[str, int], Place] = field(default_factory=dict)
    treatments: dict[tuple[str, int], int] = field(default_factory=dict)
    fallback: set[str] = field(default_factory=set)
    routed: bool = False
    """Whether rows were gathered by index before they met parameters."""
    row_bytes: float = 0.0
    """Memory of one example's inputs and gradients."""
    scale: float = 0.0
    """The largest entry of any gradient."""
    rounding: float = 1e-3
    """Relative difference attributed to rounding. In full precision a sum of s terms is off by
    about √s · 6e-8 of their size: 1e-3 leaves room for terms that cancel all but a ten-thousandth,
    and a layer that is truly different is off by its own size."""

    @property
    def reached(self) -> set[str]:
        """The parameters that the outputs of the surveyed examples depend on."""
        return {name for block in self.blocks for name in block.parameters}

    def allowed(self, largest: float) -> float:
        """Return the difference attributed to rounding, given the largest entry of a reference.

        Entries that cancel to zero are measured against the largest gradient of all.
        """
        return self.rounding * (largest + 1e-2 * self.scale)

    def with_more(self, other: Survey) -> Survey:
        """Return this survey extended by what a survey of other examples has reached."""
        known = self.reached
        new = tuple(b for b in other.blocks if known.isdisjoint(b.parameters))
        return replace(
            self,
            blocks=self.blocks + new,
            fallback=self.fallback | (other.fallback - known),
            layouts={**other.layouts, **self.layouts},
            treatments={**other.treatments, **self.treatments},
            row_bytes=max(self.row_bytes, other.row_bytes),
        )

    def layout(self, key: tuple[str, int]) -> Place:
        """Return the layout of a use; beyond the last one surveyed (a longer loop), of that."""
        name, k = key
        while k > 0 and (name, k) not in self.layouts:
            k -= 1
        return self.layouts.get((name, k), Layout(0))

    def _give_up(self, uses: set[tuple[str, int]]) -> None:
        self.fallback |= {name for name, _ in uses}
        for key in uses:
            self.treatments.pop(key, None)


def survey(forward: Callable[[], Tensor], parameters: Mapping[str, Tensor], n: int) -> Survey:
    """Run the model on n examples until every parameter has a layout or goes to the fallback."""
    found = Survey()
    low = any(p.dtype in (torch.float16, torch.bfloat16) for p in parameters.values())
    if low or torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        found.rounding = 5e-2
    names = {id(p): name for name, p in parameters.items()}
    fresh: set[tuple[str, int]] = set()
    rounds = _MAX_ROUNDS
    while True:
        rounds -= 1
        tape = Tape(names, n, found.treatments)
        try:
            with tape:
                outputs = forward()
        except Exception:
            # an output that was repeated for every sample may not suit the code that follows it
            repeats = {key for key in fresh if found.treatments[key] != CLONE}
            if not repeats:
                raise
            found._give_up(repeats)
            fresh -= repeats
            continue
        found.fallback |= tape.unknown
        pulled = _Pulled(outputs, tape.uses, parameters)
        fresh = _find_layouts(found, tape, pulled, n)
        if fresh and rounds > 0:
            continue
        found._give_up(fresh)
        _verify(found, tape, pulled, parameters, n)
        found.routed = tape.routed
        return found


class _Pulled:
    """Gradients of each sample alone: at each use's output, and on request of parameters."""

    def __init__(self, outputs: Tensor, uses: list[Use], parameters: Mapping[str, Tensor]) -> None:
        self.outputs, self.parameters = outputs, parameters
        self.cotangents = random_cotangent(outputs)
        self.largest: dict[str, float] = {}
        """The largest entry of a gradient, for each parameter that the outputs depend on."""
        rows = []
        for i in range(len(outputs)):
            found = self._of(i, [*(use.edge for use in uses), *parameters.values()])
            rows.append(found[: len(uses)])
            for name, g in zip(parameters, found[len(uses) :], strict=True):
                if g is not None:
                    largest = float(g.abs().max()) if g.numel() else 0.0
                    self.largest[name] = max(largest, self.largest.get(name, 0.0))
        self.uses: list[tuple[Tensor | None, ...]] = list(zip(*rows, strict=True))
        """For each use, the gradient of every sample at its output."""

    def _of(self, i: int, wanted: Sequence[Any]) -> tuple[Tensor | None, ...]:
        alone = torch.zeros_like(self.cotangents)
        alone[i] = self.cotangents[i]
        return pull_back(self.outputs, wanted, alone, again=True)

    def gradients(self, i: int, names: Sequence[str]) -> dict[str, Tensor]:
        """Return the gradients of these parameters for one sample, (1, *shape) each."""
        wanted = [self.parameters[name] for name in names]
        rows = zip(wanted, self._of(i, wanted) if wanted else (), strict=True)
        whole = [(torch.zeros_like(p) if g is None else g)[None] for p, g in rows]
        return dict(zip(names, whole, strict=True))


def _find_layouts(found: Survey, tape: Tape, pulled: _Pulled, n: int) -> set[tuple[str, int]]:
    """Find each use's layout; return the uses that need a treatment and another round."""
    fresh: set[tuple[str, int]] = set()
    for use, key, alone in zip(tape.uses, tape.keys, pulled.uses, strict=True):
        if use.names <= found.fallback:
            continue
        if all(g is None for g in alone):
            if use.names & set(pulled.largest) and key not in found.treatments:
                found.treatments[key] = CLONE
                fresh.add(key)
            found.layouts[key] = Layout(0)
            continue
        layout = _find_layout(use, alone, n) or (_find_rows(use, alone) if tape.routed else None)
        if layout is not None:
            found.layouts[key] = layout
        elif key not in found.treatments:
            found.treatments[key] = next((a for a in use.axes if use.shape[a] == 1), -1)
            fresh.add(key)
        else:
            found.fallback |= use.names
    return fresh


def _find_layout(use: Use, alone: Sequence[Tensor | None], n: int) -> Layout | None:
    """Return the first arrangement in which every sample's gradient lies in that sample's part."""
    if use.repeat is not None:
        candidates = [Layout(max(use.repeat, 0))]
    else:
        fits = [a for a in use.axes if use.shape[a] % n == 0 and use.shape[a] > 0]
        candidates = [Layout(a) for a in fits] + [Layout(a, True) for a in fits]
    for layout in candidates:
        if all(g is None or _stands_alone(g, i, n, layout) for i, g in enumerate(alone)):
            return layout
    return None


def _stands_alone(g: Tensor, i: int, n: int, layout: Layout) -> bool:
    energy = layout.split(g.double(), n).flatten(1).square().sum(1)
    return bool(energy.sum() - energy[i] <= _MAX_LEAK * energy.sum())


def _find_rows(use: Use, alone: Sequence[Tensor | None]) -> SampleRows | None:
    """Return the sample of each row if rows were gathered by index and none has two samples."""
    some = next(g for g in alone if g is not None)
    if not use.by_row or not some.ndim:
        return None
    rows = [torch.zeros_like(some) if g is None else g for g in alone]
    energy = torch.stack([g.double().reshape(-1, g.shape[-1]).square().sum(1) for g in rows])
    most, samples = energy.max(0)
    if bool((energy.sum(0) - most > _MAX_LEAK * most).any()):
        return None
    return SampleRows.of(samples.masked_fill(most == 0, -1), len(alone))


def _verify(
    found: Survey, tape: Tape, pulled: _Pulled, parameters: Mapping[str, Tensor], n: int
) -> None:
    """Compare the scores with plain autograd; send parameters that disagree to the fallback."""
    parts = [[g for g in alone if g is not None] for alone in pulled.uses]
    total = [torch.stack(part).sum(0) if part else None for part in parts]
    found.scale = max([0.0, *pulled.largest.values()])
    shapes = {name: p.shape for name, p in parameters.items()}
    # compiled code and custom autograd functions use parameters without calling torch functions
    found.fallback |= set(pulled.largest) - {name for use in tape.uses for name in use.names}
    for use, key, g in zip(tape.uses, tape.keys, total):
        if g is not None and key not in found.layouts:  # given up: also the bias of the weight
            found.fallback |= use.names
    wrong: set[str] | None = None
    while wrong is None or wrong:  # again with what disagreed in blocks of its own
        found.blocks = plan_blocks(shapes, tape.uses, found.fallback)
        found.fallback |= {b.weight for b in found.blocks if b.kind == "fallback"}
        wrong = _disagreeing(found, tape, total, pulled, n)
        found.fallback |= wrong
    held = sum(use.x.nbytes for use in tape.uses if use.x is not None)
    held += sum(g.nbytes for g in total if g is not None)
    found.row_bytes = held / n + 4 * sum(shapes[x].numel() for x in found.fallback)


def _disagreeing(
    found: Survey, tape: Tape, total: list[Tensor | None], pulled: _Pulled, n: int
) -> set[str]:
    """Return the parameters of the blocks whose scores are not the gradients by plain autograd.

    Scores are written out for one sample and block at a time: an embedding table may be as large as
    the rest of the model.
    """
    uses = list(zip(tape.uses, total, map(found.layout, tape.keys), strict=True))
    scores: dict[Block, Factors] = {}
    for block in (b for b in found.blocks if b.kind != "fallback"):
        seen: Any = [
            (use, g, layout)
            for use, g, layout in uses
            if g is not None and use.names & set(block.parameters)
        ]
        like = widen(pulled.parameters[block.weight].detach().new_zeros(0))
        scores[block] = block.factors(seen, n, like)
    wrong: set[str] = set()
    for i in range(n):
        gradients = pulled.gradients(i, [x for block in scores for x in block.parameters])
        for block, some in scores.items():
            own = {x: widen(gradients.pop(x)) for x in block.parameters}
            difference = some.take(np.array([i])).project(None, None) - block.pack(own)
            largest = max(pulled.largest.get(x, 0.0) for x in block.parameters)
            if float(difference.abs().max()) > found.allowed(largest):
                wrong |= set(block.parameters)
    return wrong


_PRECISION_LOCK = RLock()
"""The settings belong to the process: two threads must not restore each other's values."""


@contextmanager
def full_precision() -> Iterator[None]:
    """Use no TF32 or bfloat16 inside float32 operations; restore every setting at the end."""
    backends: Any = torch.backends
    operations = [backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn]
    operations += [backends.mkldnn.matmul, backends.mkldnn.conv, backends.mkldnn.rnn]
    with _PRECISION_LOCK:
        each = [operation.fp32_precision for operation in operations]
        # the older settings cover whole libraries; torch refuses to read one if the newer ones
        # below it contradict each other, and the newer ones then suffice
        matmul: Any = None
        cudnn: Any = None
        with suppress(RuntimeError):
            matmul = torch.get_float32_matmul_precision()
        with suppress(RuntimeError):
            cudnn = backends.cudnn.allow_tf32
        try:
            if matmul is not None:
                torch.set_float32_matmul_precision("highest")
            if cudnn is not None:
                backends.cudnn.allow_tf32 = False
            for operation in operations:
                operation.fp32_precision = "ieee"
            yield
        finally:
            if matmul is not None:
                torch.set_float32_matmul_precision(matmul)
            if cudnn is not None:
                backends.cudnn.allow_tf32 = cudnn
            for operation, value in zip(operations, each, strict=True):
                operation.fp32_precision = "none"  # inherit, if that gives the value found before
                if operation.fp32_precision != value:
                    operation.fp32_precision = value


# ---- passes


class TapedNetwork:
    """A module and the parameters that are scored."""

    def __init__(self, model: nn.Module, parameters: dict[str, Tensor]) -> None:
        self.model, self.parameters = model, parameters
        self.names = {id(p): name for name, p in parameters.items()}
        double = any(p.dtype == torch.float64 for p in parameters.values())
        dtype = torch.float64 if double else torch.float32
        self.like = torch.zeros((), device=next(iter(parameters.values())).device, dtype=dtype)
        """A tensor with the device and precision of the scores."""
        self.found: Survey | None = None
        self.warned: set[str] = set()
        self.vmap_works: bool | None = None
        """Whether vmap can score what the tape cannot; None until it has been tried."""

    @property
    def plan(self) -> Survey:
        """The survey, once there is one."""
        if self.found is None:
            raise ExemplaError("the layers of a network are unknown until data has been read.")
        return self.found

    @property
    def blocks(self) -> tuple[Block, ...]:
        return self.plan.blocks

    def survey(self, run: Forward, batch: Batch) -> None:
        """Survey the model with a few examples (repeated if there are fewer)."""
        with full_precision():
            self._refuse_batch_dependence(run, batch)
            found = self._survey_some(run, _some_of(batch, 0))
            for start in range(_PROBE, len(batch), _PROBE):
                # continue until every expert has been sent an example
                if not found.routed or found.reached == set(self.parameters):
                    break
                found = found.with_more(self._survey_some(run, _some_of(batch, start)))
        self.found = found

    def _refuse_batch_dependence(self, run: Forward, batch: Batch) -> None:
        """Raise if the outputs of an example depend on the other examples in its batch."""
        last, rows = len(batch) - 1, []
        for one in (_some_of(batch, 0), batch.take(np.array([0, last, last]))):
            with keep_random_state():
                rows.append(run(self.model, one)[0].detach().float())
        if _differ(*rows):
            raise ExemplaError(
                "the outputs of an example depend on which other examples are in the batch: such a "
                "model has no score per example; use running statistics, or normalise each example "
                "by itself."
            )

    def _survey_some(self, run: Forward, probe: Batch) -> Survey:
        found = survey(lambda: run(self.model, probe), self.parameters, _PROBE)
        if not found.blocks:
            raise ExemplaError(
                "the model's outputs do not depend on the chosen parameters: select others with "
                "parameters=."
            )
        if found.fallback:
            rest = {x: p for x, p in self.parameters.items() if x in found.fallback}
            _refuse_size(rest)
            warnings.warn(
                "scored by vmap or a loop over examples, which is slower, because their use in the "
                f"model is not one exempla keeps in factored form: {brief(rest)}.",
                ExemplaWarning,
                stacklevel=6,
            )
        return found

    def forward(self, run: Forward, batch: Batch) -> _Pass:
        """Run one forward pass under the tape."""
        return _Pass(self, run, batch)

    @property
    def row_bytes(self) -> int:
        """Memory of one example in a pass: its factors, their graph, and their projections."""
        return _PASS_TIMES * int(self.found.row_bytes) if self.found is not None else 0

    def batch_size(self) -> int:
        """Return the number of examples that keeps the processor busy and fits in memory."""
        kind = "cuda" if self.like.is_cuda else "cpu"
        row = max(int(self.plan.row_bytes), 1)
        wanted = np.clip(_GOOD_BYTES[kind] / row, _MIN_EXAMPLES[kind], 2048)
        return int(max(1, min(wanted, _free_memory(self.like) // 4 // row)))


class _Pass:
    """A forward pass that can be pulled back one or more times."""

    def __init__(self, network: TapedNetwork, run: Forward, batch: Batch) -> None:
        self.network, self.run, self.batch, self.plan = network, run, batch, network.plan
        self.tape = Tape(network.names, len(batch), self.plan.treatments)
        with self.tape:
            self.outputs = run(network.model, batch)

    def rows(self, cotangent: Tensor, again: bool = False) -> tuple[Factors, ...]:
        """Return the scores ∂⟨outputs, cotangent⟩/∂θ of each example, block by block."""
        scale = _HALF_SCALE if self.outputs.dtype == torch.float16 else 1.0
        if scale != 1.0:
            cotangent = cotangent * scale
        cotangent = cotangent.to(self.outputs.dtype)
        layouts, by_sample = self._layouts, self._by_sample
        gradients: Any = ()
        if self.tape.uses:
            edges = [use.edge for use in self.tape.uses]
            gradients = pull_back(self.outputs, edges, cotangent, again)
        if scale != 1.0:
            gradients = [None if g is None else g.float() / scale for g in gradients]
        dense = self._fallback(cotangent / scale, self.plan.fallback | by_sample)
        seen: dict[str, list[Seen]] = {}
        for use, layout, g in zip(self.tape.uses, layouts, gradients, strict=True):
            if g is not None and layout is not None:
                for name in use.names:
                    seen.setdefault(name, []).append((use, g, layout))
        self._warn_left_out(set(seen))
        out: list[Factors] = []
        for block in self.plan.blocks:
            if block.kind == "fallback" or not by_sample.isdisjoint(block.parameters):
                out.append(DenseFactors(block.pack(dense)))
            else:  # a bias in a block is used wherever its weight is
                uses = seen.get(block.weight, [])
                out.append(block.factors(uses, len(self.batch), self.network.like))
        return tuple(out)

    def _warn_left_out(self, used: set[str]) -> None:
        """Warn if a batch reaches a parameter that the survey, which fixes the layers, did not."""
        new = used - self.plan.reached - self.network.warned
        if new:
            self.network.warned |= new
            warnings.warn(
                f"the first examples do not reach {brief(sorted(new))}, which later "
                "ones do: scores leave these parameters out.",
                ExemplaWarning,
                stacklevel=6,
            )

    @cached_property
    def _layouts(self) -> list[Place | None]:
        """Where samples stand at each use; None if this batch does not fit what the survey saw."""
        uses, n = self.tape.uses, len(self.batch)
        known = [(use, self.plan.layout(key)) for use, key in zip(uses, self.tape.keys)]
        if self.tape.routed:  # rows were gathered by index: an order of this batch alone
            return RowProbe(self.outputs, uses, n).layouts(known)
        found: list[Place | None] = []
        for use, layout in known:
            fits = use.repeat is not None or not use.axes
            fits = fits or (isinstance(layout, Layout) and use.shape[layout.axis] % n == 0)
            found.append(layout if fits else None)
        return found

    @cached_property
    def _by_sample(self) -> set[str]:
        """Parameters of blocks that this batch uses in another way than the survey saw."""
        unfit = set(self.tape.unknown)
        for use, layout in zip(self.tape.uses, self._layouts, strict=True):
            if layout is None:
                unfit |= use.names
        unfit -= self.plan.fallback
        blocks = [set(block.parameters) for block in self.plan.blocks]
        return set().union(*(names for names in blocks if names & unfit))

    def _fallback(self, cotangent: Tensor, wanted: set[str]) -> dict[str, Tensor]:
        """Return the gradients of these parameters: by vmap, which is fast, or by the loop.

        Not every operation has a batching rule, and some rules are wrong, so the first batch is
        scored both ways; vmap is used from then on if the two agree.
        """
        network = self.network
        rest = {x: p for x, p in network.parameters.items() if x in wanted}
        if not rest:
            return {}
        quick = None
        if network.vmap_works is not False:
            try:
                quick = self._by_vmap(rest, cotangent)
            except Exception as error:
                if network.vmap_works and out_of_memory(error):
                    raise  # a smaller batch will do
                network.vmap_works = False
        found = quick if network.vmap_works and quick else self._by_loop(rest, cotangent)
        if network.vmap_works is None and quick:
            network.vmap_works = not any(_differ(quick[x], found[x]) for x in rest)
        return {x: g.detach().to(network.like.dtype) for x, g in found.items()}

    def _by_vmap(self, rest: dict[str, Tensor], cotangent: Tensor) -> dict[str, Tensor]:
        model, (values, rebuild) = self.network.model, self.batch.tensors()

        def pulled(changed: dict[str, Tensor], values: list[Tensor], cotangent: Tensor) -> Tensor:
            def call(*args: Any, **kwargs: Any) -> Any:
                return torch.func.functional_call(model, changed, args, kwargs)

            one = rebuild([v.unsqueeze(0) for v in values])
            return (self.run(call, one)[0] * cotangent).sum()

        each = torch.func.vmap(torch.func.grad(pulled), in_dims=(None, 0, 0), randomness="same")
        return each({x: p.detach() for x, p in rest.items()}, values, cotangent)

    def _by_loop(self, rest: dict[str, Tensor], cotangent: Tensor) -> dict[str, Tensor]:
        rows: list[tuple[Tensor | None, ...]] = []
        for i in range(len(self.batch)):
            outputs = self.run(self.network.model, self.batch.take([i]))
            rows.append(pull_back(outputs, list(rest.values()), cotangent[i : i + 1]))
        return {
            x: torch.stack([torch.zeros_like(p) if g is None else g for g in column])
            for (x, p), column in zip(rest.items(), zip(*rows, strict=True), strict=True)
        }


def _differ(one: Tensor, other: Tensor) -> bool:
    """Return True if two results of one example differ by more than rounding."""
    allowed = 1e-2 * float(torch.maximum(one.abs().max(), other.abs().max()))
    return one.shape != other.shape or bool((one - other).abs().max() > allowed)


def _some_of(batch: Batch, start: int) -> Batch:
    """Return as many examples as a survey takes, repeated if there are fewer."""
    return batch.take(np.resize(np.arange(start, min(start + _PROBE, len(batch))), _PROBE))


def _refuse_size(parameters: dict[str, Tensor]) -> None:
    """Raise if the gradients of one example do not fit in memory."""
    needed = 4 * sum(p.numel() for p in parameters.values())
    if needed > _free_memory(next(iter(parameters.values()))):
        raise ExemplaError(
            f"the use of {brief(parameters)} in the model is not one exempla keeps in factored "
            f"form, and written out their scores take {needed / 2**30:.0f} GiB per example: leave "
            "these out with parameters=, or apply them by F.linear, matmul or a grouped product."
        )


def _free_memory(like: Tensor) -> int:
    """Return the free bytes on the tensor's device."""
    return torch.cuda.mem_get_info(like.device)[0] if like.is_cuda else available_memory()


def out_of_memory(error: Exception) -> bool:
    """Return True if the device or main memory ran out."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def brief(names: Iterable[str]) -> str:
    """Return the first names and the number of the others."""
    listed = list(dict.fromkeys(names))
    return ", ".join(listed[:6]) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "")
