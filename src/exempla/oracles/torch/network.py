"""A network under the tape: survey it once, then run passes that return factors.

If a pass gathers rows by index, no axis carries the samples: a mixture of experts sends each token
where its router says, a packed sequence leaves padding out. The backward pass, however, is linear
in the cotangent. With the cotangent of sample i scaled by 2^d, the gradient at a row of sample i is
scaled by exactly 2^d, in any precision. With the number of a sample written to the base B, its
digits are found in log_B(n) more backward passes.

Parameters that the tape cannot describe are scored by vmap where it works, otherwise by a loop over
samples; the rest of the model is scored by factors.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.oracles.factors import Factors
from exempla.oracles.torch.examples import Batch
from exempla.oracles.torch.factors import DenseFactors
from exempla.oracles.torch.layers import Block, Layout, Rows, Seen, Use
from exempla.oracles.torch.restore import random_state, restore_random_state
from exempla.oracles.torch.sources import leaves
from exempla.oracles.torch.survey import PROBE, Survey, full_precision, pull_back, survey
from exempla.oracles.torch.tape import Tape
from exempla.progress import available_memory

_BASE = 16
"""Values of a digit: factors of up to 2^15, which every type but float16 can represent."""
_HALF_BASE = 4
"""The base for float16: factors of up to 2^3."""
_MAX_LOG_ERROR = 0.02
"""Largest distance of the logarithm of a factor from a whole number; beyond it, a row belongs to
two samples."""


class _RowProbe:
    """Gradients at every use under one cotangent, and under those scaled by each digit."""

    def __init__(self, outputs: Tensor, uses: Sequence[Use], n: int) -> None:
        generator = torch.Generator().manual_seed(0)
        directions = torch.randn(outputs.shape, generator=generator)
        directions = directions.to(outputs.device, outputs.dtype)
        self.n, self.base = n, _HALF_BASE if outputs.dtype == torch.float16 else _BASE
        edges = [use.edge for use in uses]
        self.plain = pull_back(outputs, edges, directions, again=True)
        self.scaled, digit = [], 1
        while digit < n:
            factors = 2.0 ** ((torch.arange(n, device=outputs.device) // digit) % self.base)
            along = directions * factors.to(outputs.dtype).reshape(-1, *[1] * (outputs.ndim - 1))
            self.scaled.append(pull_back(outputs, edges, along, again=True))
            digit *= self.base

    def _samples(self, place: int, rows: Callable[[Tensor], Tensor]) -> Tensor | None:
        """Return the sample of each row, −1 if no gradient reaches it; None if a row has several.

        `rows` turns a gradient into (rows, numbers).
        """
        first = self.plain[place]
        assert first is not None
        norms = rows(first).double().norm(dim=1)
        reached = norms > 0
        found = torch.zeros(len(norms), dtype=torch.long, device=norms.device)
        for digit, gradients in enumerate(self.scaled):
            g = gradients[place]
            assert g is not None
            factor = (rows(g).double().norm(dim=1)[reached] / norms[reached]).log2()
            if bool(((factor - factor.round()).abs() > _MAX_LOG_ERROR).any()):
                return None
            found[reached] += factor.round().long() * self.base**digit
        if bool((found >= self.n).any()) or bool((found < 0).any()):
            return None
        return found.masked_fill(~reached, -1)

    def layout(self, place: int, use: Use, usual: Layout | Rows) -> Layout | Rows | None:
        """Return where samples stand at this use in this pass; None if a row has several."""
        if use.repeat is not None or self.plain[place] is None:
            return usual
        if isinstance(usual, Layout) and use.axes and use.shape[usual.axis] % self.n == 0:
            samples = self._samples(place, lambda g: usual.split(g, self.n).flatten(1))
            if samples is not None:
                known = torch.arange(self.n, device=samples.device)
                if bool(((samples == known) | (samples < 0)).all()):
                    return usual
        if not use.by_row:
            return None
        samples = self._samples(place, lambda g: g.reshape(-1, g.shape[-1]))
        return None if samples is None else Rows.of(samples, self.n)


Run = Callable[[Any, Batch], Tensor]
"""(model, batch) → outputs, or log-probabilities of a custom likelihood."""


_GOOD_BYTES = {"cpu": 2**26, "cuda": 2**30}
"""Bytes of factors beyond which a larger batch is no faster."""
_MIN_EXAMPLES = {"cpu": 4, "cuda": 8}
"""Smallest batch, if it fits in a quarter of the free memory."""
_PASS_TIMES = 3
"""Memory of a pass, in multiples of its factors."""
_HALF_SCALE = 1024.0
"""Factor by which float16 gradients are scaled, so that small ones do not vanish."""


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
        self.planned: set[str] = set()
        self.warned: set[str] = set()
        self.vmap_works: bool | None = None
        """Whether vmap can score what the tape cannot; None until it has been tried."""

    @property
    def blocks(self) -> tuple[Block, ...]:
        if self.found is None:
            raise ExemplaError("the layers of a network are unknown until data has been read.")
        return self.found.blocks

    def survey(self, run: Run, batch: Batch) -> None:
        """Survey the model with a few examples (repeated if there are fewer)."""
        with full_precision():
            self._refuse_batch_dependence(run, batch)
            found = self._looked_at(run, _some_of(batch, 0))
            for start in range(PROBE, len(batch), PROBE):
                # continue until every expert has been sent an example
                if not found.routed or _reached(found) == set(self.parameters):
                    break
                found = found.with_more(self._looked_at(run, _some_of(batch, start)))
        self.found = found
        self.planned = _reached(found)

    def _refuse_batch_dependence(self, run: Run, batch: Batch) -> None:
        """Raise if the outputs of an example depend on the other examples in its batch."""
        last, state, rows = len(batch) - 1, random_state(), []
        for one in (_some_of(batch, 0), batch.take(np.array([0, last, last]))):
            restore_random_state(state)
            rows.append(run(self.model, one)[0].detach().float())
        if _differ(*rows):
            raise ExemplaError(
                "the outputs of an example depend on which other examples are in the batch: such a "
                "model has no score per example; use running statistics, or normalise each example "
                "by itself."
            )

    def _looked_at(self, run: Run, probe: Batch) -> Survey:
        found = survey(lambda: run(self.model, probe), self.parameters, PROBE)
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

    def forward(self, run: Run, batch: Batch) -> _Pass:
        """Run one forward pass under the tape."""
        assert self.found is not None
        tape = Tape(self.names, len(batch), self.found.treatments)
        with tape:
            outputs = run(self.model, batch)
        return _Pass(self, run, batch, tape, outputs)

    @property
    def row_bytes(self) -> int:
        """Memory of one example in a pass: its factors, their graph, and their projections."""
        return _PASS_TIMES * int(self.found.row_bytes) if self.found is not None else 0

    def batch_size(self) -> int:
        """Return the number of examples that keeps the processor busy and fits in memory."""
        assert self.found is not None
        kind = "cuda" if self.like.is_cuda else "cpu"
        row = max(int(self.found.row_bytes), 1)
        wanted = np.clip(_GOOD_BYTES[kind] / row, _MIN_EXAMPLES[kind], 2048)
        return int(max(1, min(wanted, _free_memory(self.like) // 4 // row)))


class _Pass:
    """A forward pass that can be pulled back one or more times."""

    def __init__(
        self, network: TapedNetwork, run: Run, batch: Batch, tape: Tape, out: Tensor
    ) -> None:
        self.network, self.run, self.batch, self.tape, self.outputs = network, run, batch, tape, out
        self._layouts: list[Layout | Rows | None] | None = None

    def rows(self, cotangent: Tensor, again: bool = False) -> tuple[Factors, ...]:
        """Return the scores ∂⟨outputs, cotangent⟩/∂θ of each example, block by block."""
        found, n = self.network.found, len(self.batch)
        assert found is not None
        scale = _HALF_SCALE if self.outputs.dtype == torch.float16 else 1.0
        if scale != 1.0:
            cotangent = cotangent * scale
        cotangent = cotangent.to(self.outputs.dtype)
        edges: Any = [use.edge for use in self.tape.uses]
        layouts, otherwise = self._laid_out()
        gradients: Any = ()
        if edges:
            gradients = pull_back(self.outputs, edges, cotangent, again)
        if scale != 1.0:
            gradients = [None if g is None else g.float() / scale for g in gradients]
        dense = self._fallback(cotangent / scale, found.fallback | otherwise)
        like = self.network.like
        seen: dict[str, list[Seen]] = {}
        for use, layout, g in zip(self.tape.uses, layouts, gradients, strict=True):
            if g is not None and layout is not None:
                entry = (use, g, layout)
                for name in use.names:
                    seen.setdefault(name, []).append(entry)
        self._warn_left_out(set(seen))
        out: list[Factors] = []
        for block in found.blocks:
            if block.kind == "fallback" or not otherwise.isdisjoint(block.parameters):
                out.append(DenseFactors(block.pack(dense)))
            else:  # a bias in a block is used wherever its weight is
                out.append(block.factors(seen.get(block.weight, []), n, like))
        return tuple(out)

    def _warn_left_out(self, used: set[str]) -> None:
        """Warn if a batch reaches a parameter that the survey, which fixes the layers, did not."""
        network = self.network
        new = used - network.planned - network.warned
        if new:
            network.warned |= new
            warnings.warn(
                f"the first examples do not reach {brief(sorted(new))}, which later "
                "ones do: scores leave these parameters out.",
                ExemplaWarning,
                stacklevel=6,
            )

    def _laid_out(self) -> tuple[list[Layout | Rows | None], set[str]]:
        """Return where samples stand at each use, and the parameters to score by sample.

        The latter are those of blocks that this batch uses in another way than the survey saw.
        """
        if self._layouts is None:
            self._layouts = [*self._seen_layouts()]
        found, uses = self.network.found, self.tape.uses
        assert found is not None
        unfit = set(self.tape.unknown)
        for use, layout in zip(uses, self._layouts, strict=True):
            if layout is None:
                unfit |= use.names
        if not unfit - found.fallback:
            return self._layouts, set()
        blocks = [b for b in found.blocks if b.kind != "fallback" and unfit & set(b.parameters)]
        return self._layouts, {name for block in blocks for name in block.parameters}

    def _seen_layouts(self) -> Iterator[Layout | Rows | None]:
        found, tape, n = self.network.found, self.tape, len(self.batch)
        assert found is not None
        known = [found.layout(key) for key in tape.keys]
        if tape.routed:  # rows were gathered by index: an order of this batch alone
            probe = _RowProbe(self.outputs, tape.uses, n)
            for place, (use, layout) in enumerate(zip(tape.uses, known, strict=True)):
                yield probe.layout(place, use, layout)
            return
        for use, layout in zip(tape.uses, known, strict=True):
            fits = use.repeat is not None or not use.axes
            fits = fits or (isinstance(layout, Layout) and use.shape[layout.axis] % n == 0)
            yield layout if fits else None

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
                if network.vmap_works and isinstance(error, RuntimeError) and out_of_memory(error):
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
    return batch.take(np.resize(np.arange(start, min(start + PROBE, len(batch))), PROBE))


def _reached(found: Survey) -> set[str]:
    return {name for block in found.blocks for name in block.parameters}


def _refuse_size(parameters: dict[str, Tensor]) -> None:
    """Raise if the gradients of one example do not fit in memory."""
    needed = 4 * sum(p.numel() for p in parameters.values())
    if needed > _free_memory(next(iter(parameters.values()))):
        raise ExemplaError(
            f"the use of {brief(parameters)} in the model is not one exempla keeps in factored "
            f"form, and written out their scores take {needed / 2**30:.0f} GiB per example: leave "
            "these out with parameters=, or apply them by F.linear, matmul or a grouped product."
        )


def failure(error: Exception, batch: Batch, dtype: torch.dtype) -> str:
    """Return why the model fails on the first examples, and what to do about it."""
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


def refuse_headless(model: nn.Module, error: Exception) -> None:
    """Raise if the module has no forward (a LightningModule need not have one)."""
    if isinstance(error, NotImplementedError) and "forward" in str(error):
        inside = brief(name for name, _ in model.named_children())
        raise ExemplaError(
            f"{type(model).__name__} has no forward: give the network inside it that turns inputs "
            f"into outputs ({inside}), or add a forward that calls it."
        ) from error


def refuse_parameters(model: nn.Module) -> None:
    """Raise if the model itself holds NaN or infinity."""
    named = [*model.named_parameters(), *model.named_buffers()]
    wrong = [name for name, p in named if p.is_floating_point() and not bool(p.isfinite().all())]
    if wrong:
        raise ExemplaError(
            f"the model holds NaN or infinity in {brief(wrong)}: train it again, or "
            "load weights that are finite."
        )


def _free_memory(like: Tensor) -> int:
    """Return the free bytes on the tensor's device."""
    return torch.cuda.mem_get_info(like.device)[0] if like.is_cuda else available_memory()


def out_of_memory(error: RuntimeError) -> bool:
    """Return True if the device or main memory ran out."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def brief(names: Iterable[str]) -> str:
    """Return the first names and the number of the others."""
    listed = list(dict.fromkeys(names))
    return ", ".join(listed[:6]) + (f" and {len(listed) - 6} more" if len(listed) > 6 else "")
