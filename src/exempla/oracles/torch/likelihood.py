"""What a network's outputs say about labels: likelihoods, and which one a network was trained with.

A *head* turns outputs and labels into log p, and gives the vectors that are pulled back through
the network: ∂ log p/∂outputs for a score, and for the Fisher rows r with Σ r rᵀ = E_y[s sᵀ].
`FamilyHead` has one output vector per example; its formulas are in `exempla.oracles.likelihoods`,
here ordered as a network needs them, the most probable class of every example first, so that a few
backward passes carry almost all of the probability. `TokenHead` has the same methods for a label at
every position: language models, token classifiers, segmentation. `choose_head` picks one by name,
or from outputs and labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from exempla.errors import ExemplaError
from exempla.oracles.base import CLASS_CUT
from exempla.oracles.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from exempla.oracles.torch.examples import Batch, refuse_rows
from exempla.oracles.torch.model import IGNORED_LABEL

_MAX_EXACT_OUTPUTS = 32
"""Largest number of classes (or outputs) for which the expectation over labels is exact."""
_TOP_CLASSES = 8
"""With more classes, the number of most probable ones that are exact; the rest is sampled."""
_DRAWN_AT_ONCE = 2**23
"""Probabilities turned into drawn classes at one time."""
POSITIONS = ("causal_lm", "tokens", "pixels")
"""Likelihoods with a label at every position of an example."""
_VOID = 255
"""The label of ignored pixels in most segmentation data, beside −100."""

_Ranked = Iterator[tuple[Tensor, Tensor]]
"""(which examples have a row, the cotangents), one entry per backward pass."""


def scaled(rows: Tensor, factors: Tensor) -> Tensor:
    """Multiply each row by its factor."""
    return rows * factors.to(rows).reshape(-1, *[1] * (rows.ndim - 1))


def weighted(cotangent: Tensor, batch: Batch, root: bool = False) -> Tensor:
    """Multiply by the examples' weights (scores), or by their square roots (Fisher rows)."""
    if batch.weights is None:
        return cotangent
    return scaled(cotangent, batch.weights.sqrt() if root else batch.weights)


@dataclass(frozen=True)
class _MultiLabel(Bernoulli):
    """Several independent binary labels per example: outputs and labels are (n, labels)."""

    name = "multilabel"

    def predict(self, outputs: Tensor) -> Tensor:
        return (outputs > 0).long()


_FAMILIES: dict[str, Likelihood] = {
    family.name: family
    for family in (Categorical(), Bernoulli(), _MultiLabel(), Gaussian(), Poisson())
}


@dataclass(frozen=True)
class FamilyHead:
    """One output vector per example, of a family from `exempla.oracles.likelihoods`.

    `link` is "logits", or "probabilities" for a network that ends in a softmax or sigmoid.
    """

    family: Likelihood
    link: str = "logits"
    draws: int = 1

    @property
    def name(self) -> str:
        return self.family.name

    @property
    def fisher_note(self) -> str:
        if isinstance(self.family, Categorical):
            return (
                f"exact over classes of probability above {CLASS_CUT:g}; of more than "
                f"{_MAX_EXACT_OUTPUTS} classes the {_TOP_CLASSES} most probable, the rest sampled"
            )
        return f"exact over up to {_MAX_EXACT_OUTPUTS} outputs, random signs beyond"

    def natural(self, outputs: Tensor) -> Tensor:
        """Return the family's natural parameters, (n, d): logits, means, log-rates."""
        # in double: 1 − p of a well-fitted example would lose its digits in single precision
        x = outputs.float() if outputs.device.type == "mps" else outputs.double()
        x = x.reshape(len(x), -1)
        if self.link == "logits":
            return x
        if isinstance(self.family, Categorical):
            return x.clamp_min(1e-30).log()
        return x.clamp(1e-12, 1 - 1e-7).logit()

    def _through(self, outputs: Tensor, cotangent: Tensor) -> Tensor:
        """Pull a cotangent at the natural parameters back to the outputs."""
        if self.link != "logits":
            x = outputs.detach().requires_grad_()
            (cotangent,) = torch.autograd.grad(self.natural(x), x, cotangent)
        return cotangent.reshape(outputs.shape).to(outputs.dtype)

    def log_prob(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return log p(y | x) of each example, (n,)."""
        return self.family.log_prob(self.natural(outputs), self._labels(batch))

    def score(self, outputs: Tensor, batch: Batch, predicted: bool) -> Tensor:
        """Return ∂ log p/∂outputs, under the given or the predicted labels."""
        x = self.natural(outputs)
        if predicted and isinstance(self.family, (Gaussian, Poisson)):
            raise ExemplaError(
                f"labels='predicted' has no meaning for a {self.name} likelihood, whose score at "
                "its own prediction is zero: give the true targets."
            )
        labels = self.family.predict(x) if predicted else self._labels(batch)
        return self._through(outputs, self.family.score(x, labels))

    def _labels(self, batch: Batch) -> Tensor:
        """Return the labels; class numbers become one-dimensional if given as a column."""
        labels = _labels_of(batch)
        one_each = labels.shape[1:].numel() == 1
        return labels.reshape(-1) if isinstance(self.family, Categorical) and one_each else labels

    def predict(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the predicted labels."""
        return self.family.predict(self.natural(outputs))

    def fisher(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> _Ranked:
        """Yield cotangents of the Fisher rows, for fewer and fewer examples."""
        x = self.natural(outputs)
        rows = self._classes if isinstance(self.family, Categorical) else self._separate
        for active, cotangent in rows(x, generator):
            yield active, self._through(outputs, cotangent)

    def _classes(self, x: Tensor, generator: torch.Generator) -> _Ranked:
        """Yield √p_c (e_c − p) for the first, second, … most probable class c of each example."""
        p = x.softmax(1)
        exact = x.shape[1] <= _MAX_EXACT_OUTPUTS
        ranked, classes = p.topk(x.shape[1] if exact else _TOP_CLASSES, dim=1)
        carries = (ranked > CLASS_CUT).T.cpu()  # all ranks at once: one transfer from the device
        for active, mass, c in zip(carries, ranked.T, classes.T):
            yield active, mass.sqrt()[:, None] * (F.one_hot(c, x.shape[1]) - p)
        if exact:
            return
        # one class drawn from the remaining mass m stands for all of it, with weight √m
        rest = p.scatter(1, classes, 0.0)
        mass = rest.sum(1)
        for _ in range(self.draws):
            c = draw(rest, generator)
            weight = (mass / self.draws).sqrt()[:, None]
            yield mass > CLASS_CUT, weight * (F.one_hot(c, x.shape[1]) - p)

    def _separate(self, x: Tensor, generator: torch.Generator) -> _Ranked:
        """Yield one row per output: E[g gᵀ] of independent outputs is diagonal."""
        rows, roots = self.family.fisher_root(x)
        root = torch.zeros_like(x).index_add_(0, rows, roots)  # square root of the diagonal
        everyone = torch.ones(len(x), dtype=torch.bool, device=x.device)
        if x.shape[1] <= _MAX_EXACT_OUTPUTS:
            for d in range(x.shape[1]):
                cotangent = torch.zeros_like(root)
                cotangent[:, d] = root[:, d]
                yield everyone, cotangent
            return
        for _ in range(draws := max(self.draws, _TOP_CLASSES)):
            signs = torch.randint(0, 2, root.shape, generator=generator, device=x.device) * 2 - 1
            yield everyone, root * signs / draws**0.5  # E[(signs)(signs)ᵀ] = I

    def refuse(self, shape: torch.Size, batch: Batch) -> None:
        """Raise if the labels cannot be labels of outputs of this shape (after the first axis)."""
        labels, width = _labels_of(batch), shape[1:].numel()
        if isinstance(self.family, Categorical):
            if labels.ndim == 2 and 1 < labels.shape[1] == width:
                what = (
                    "have labels with a column for each class that do not add up to one, as a "
                    "categorical likelihood needs (use likelihood='multilabel' if an example can "
                    "have several labels, or none)"
                )
                refuse_rows(~_are_class_weights(labels), batch.positions, what)
                return
            if labels.shape[1:].numel() != 1:
                raise ExemplaError(
                    f"the labels are {tuple(labels.shape)}: a {self.name} likelihood needs one "
                    "class number per example; a label at every position is 'tokens', at every "
                    "pixel 'pixels'."
                )
            _refuse_classes(labels, width, batch, self.name)
        elif labels.shape[1:].numel() != width:
            raise ExemplaError(
                f"the model returns {width} outputs per example and the labels are "
                f"{tuple(labels.shape)}: a {self.name} likelihood needs one label per output."
            )
        elif isinstance(self.family, Bernoulli):
            wrong = ~((labels == 0) | (labels == 1))
            refuse_rows(wrong, batch.positions, "have a label other than 0 and 1")
        else:
            refuse_rows(~labels.isfinite(), batch.positions, "have a label of NaN or infinity")
            if isinstance(self.family, Poisson):
                refuse_rows(labels < 0, batch.positions, "have a negative count as label")


def _labels_of(batch: Batch) -> Tensor:
    if batch.labels is None:
        raise ExemplaError(
            "these examples have no labels: give (X, y), or ask with labels='predicted'."
        )
    if not isinstance(batch.labels, Tensor) or batch.labels.ndim == 0:
        raise ExemplaError("the labels are not an array: give one label for every example.")
    return batch.labels


def _are_class_weights(labels: Tensor) -> Tensor:
    """Return which rows are nonnegative and add up to one (one-hot, smoothed, mixed labels)."""
    return (labels >= 0).all(1) & ((labels.double().sum(1) - 1).abs() < 1e-3)


def draw(p: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one class per row with probability p.

    The class is where the cumulative sum of p passes a uniform share of its total. A few rows are
    drawn at a time: the probabilities of a vocabulary are the largest tensor in memory, and one
    random number for each of them would take longer than the network.
    """
    shares = torch.rand(len(p), 1, generator=generator, device=p.device, dtype=p.dtype)
    step = max(1, _DRAWN_AT_ONCE // p.shape[1])
    drawn = []
    for part, share in zip(p.split(step), shares.split(step), strict=True):
        sums = part.cumsum(1)
        drawn.append(torch.searchsorted(sums, share * sums[:, -1:], right=True)[:, 0])
    return torch.cat(drawn).clamp_(max=p.shape[1] - 1)


def _refuse_classes(labels: Tensor, count: int, batch: Batch, name: str) -> None:
    """Raise if these are not class numbers below `count`."""
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise ExemplaError(
            f"a {name} likelihood needs class numbers as labels and these are fractions: "
            "use likelihood='gaussian' for a regression."
        )
    what = f"have a label outside 0 … {count - 1}, the classes of the model's outputs"
    refuse_rows((labels < 0) | (labels >= count), batch.positions, what)


@dataclass(frozen=True)
class TokenHead:
    """A label per position, outputs (n, T, V): log p of an example is the sum over its positions.

    With `shift`, the labels are the inputs themselves and position t is scored by output t − 1,
    as Hugging Face's causal language models do; positions labelled −100 or masked do not count.
    With `classes_first`, outputs are (n, V, H, W) and labels (n, H, W), as torch's losses have
    them for images: a pixel is then a position.
    """

    shift: bool = True
    draws: int = 1
    classes_first: bool = False
    ignored: tuple[int, ...] = (IGNORED_LABEL,)

    @property
    def name(self) -> str:
        if self.classes_first:
            return "pixels"
        return "causal_lm" if self.shift else "tokens"

    @property
    def fisher_note(self) -> str:
        where = "position, given the true prefix" if self.shift else "position"
        return f"{self.draws} sampled label(s) per {where}"

    @property
    def _axis(self) -> int:
        """The axis of the classes in the outputs."""
        return 1 if self.classes_first else -1

    def _flat(self, outputs: Tensor) -> Tensor:
        """Return the outputs as (n, positions, classes)."""
        return outputs.movedim(self._axis, -1).flatten(1, -2)

    def _unflat(self, cotangent: Tensor, outputs: Tensor) -> Tensor:
        """Return a cotangent of `_flat` in the shape of the outputs."""
        shape = outputs.movedim(self._axis, -1).shape
        return cotangent.reshape(shape).movedim(-1, self._axis)

    def targets(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return (labels, which of them count), (n, positions) each, aligned with the outputs."""
        labels = batch.labels
        if labels is None:
            labels = batch.kwargs["input_ids"] if "input_ids" in batch.kwargs else batch.args[0]
        counts = torch.ones_like(labels, dtype=torch.bool)
        for value in self.ignored:
            counts &= labels != value
        mask = batch.kwargs.get("attention_mask")
        if mask is not None and mask.shape == labels.shape:
            counts = counts & (mask != 0)
        if self.shift:
            labels, counts = labels.roll(-1, 1), counts.roll(-1, 1)
            counts[:, -1] = False
        return labels.masked_fill(~counts, 0).flatten(1).long(), counts.flatten(1)

    def log_prob(self, outputs: Tensor, batch: Batch) -> Tensor:
        labels, counts = self.targets(batch)
        flat = self._flat(outputs).float().flatten(0, 1)
        losses = F.cross_entropy(flat, labels.flatten(), reduction="none")
        return -(losses.view_as(labels) * counts).sum(1)

    def score(self, outputs: Tensor, batch: Batch, predicted: bool) -> Tensor:
        labels, counts = self.targets(batch)
        flat = self._flat(outputs)
        labels = flat.argmax(2) if predicted else labels
        return self._unflat(self._minus_p(flat.float().softmax(2), labels, counts), outputs)

    @staticmethod
    def _minus_p(p: Tensor, labels: Tensor, counts: Tensor) -> Tensor:
        """Return e_y − p where positions count, written over p: no other tensor is as large."""
        out = p.neg_()
        out.scatter_add_(2, labels[:, :, None], torch.ones_like(out[:, :, :1]))
        return out.mul_(counts[:, :, None])

    def fisher(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> _Ranked:
        _, counts = self.targets(batch)
        flat = self._flat(outputs)
        for _ in range(self.draws):
            p = flat.float().softmax(2)
            labels = draw(p.flatten(0, 1), generator).view_as(counts)
            cotangent = self._minus_p(p, labels, counts).div_(self.draws**0.5)
            yield counts.any(1), self._unflat(cotangent, outputs)

    def predict(self, outputs: Tensor, batch: Batch) -> Tensor:
        return outputs.argmax(self._axis)

    def refuse(self, shape: torch.Size, batch: Batch) -> None:
        labels = batch.labels if batch.labels is not None else self.targets(batch)[0]
        places = list(shape[1:])
        count = places.pop(0 if self.classes_first else -1)
        if not places or labels.shape[1:].numel() != torch.Size(places).numel():
            wanted = "pixel" if self.classes_first else "position"
            raise ExemplaError(
                f"the model returns {tuple(shape[1:])} per example and the labels are "
                f"{tuple(labels.shape)}: a {self.name} likelihood needs a label per {wanted}; let "
                "the model return outputs of the labels' size, or resize the labels."
            )
        targets = self.targets(batch)[0]
        if labels.is_floating_point() and not bool((labels == labels.round()).all()):
            targets = labels  # refused below, as fractions
        _refuse_classes(targets, count, batch, self.name)


Head = FamilyHead | TokenHead
"""A likelihood over what the network returns."""


def outputs_of(result: Any, n: int) -> Tensor:
    """Return the tensor of outputs in what the model returns, one row per example."""
    if hasattr(result, "logits"):
        result = result.logits
    elif isinstance(result, dict):
        named = ("logits", "output", "outputs", "out")
        result = next((result[k] for k in named if k in result), result)
    if isinstance(result, (tuple, list)) and result:
        result = result[0]
    if hasattr(result, "pred_boxes") or (isinstance(result, dict) and "boxes" in result):
        raise ExemplaError(
            "the model returns boxes, as detectors do, and a list of boxes has no likelihood that "
            "can be told from it: give likelihood=Custom(log_prob), where log_prob(model, batch) "
            "is minus the training loss of each image."
        )
    if not isinstance(result, Tensor):
        raise ExemplaError(
            f"the model returns {type(result).__name__}: exempla needs a tensor, something with "
            ".logits, or a likelihood of your own, Custom(log_prob)."
        )
    if result.ndim == 0 or len(result) != n:
        raise ExemplaError(
            f"the model returns {tuple(result.shape)} for {n} examples: the first axis of its "
            "output must be the examples."
        )
    return result


def choose_head(wanted: Any, model: nn.Module, outputs: Tensor, batch: Batch, draws: int) -> Head:
    """Return the head of this name; for "auto", infer it from outputs and labels."""
    if isinstance(wanted, Head):
        return wanted
    if isinstance(wanted, Likelihood):
        return FamilyHead(wanted, draws=draws)
    name = wanted if isinstance(wanted, str) else ""
    if name == "auto":
        name = _infer(model, outputs, batch)
    if name in POSITIONS:
        first = name == "pixels"
        void = (_VOID,) if first and outputs.shape[1] <= _VOID else ()
        return TokenHead(name == "causal_lm", draws, first, (IGNORED_LABEL, *void))
    if name not in _FAMILIES:
        known = ", ".join(map(repr, (*_FAMILIES, *POSITIONS)))
        raise ExemplaError(
            f"likelihood={wanted!r} is not known: use 'auto', {known}, or Custom(log_prob)."
        )
    link = "probabilities" if _gives_probabilities(name, model, outputs) else "logits"
    return FamilyHead(_FAMILIES[name], link, draws)


def _infer(model: nn.Module, outputs: Tensor, batch: Batch) -> str:
    """Return the likelihood's name, from the batch's labels and the outputs of some examples."""
    if batch.labels is None:
        if outputs.ndim == 3:
            return "causal_lm"
        raise ExemplaError(
            "the likelihood cannot be inferred without labels: give labels, or name it "
            "(likelihood='categorical', for example)."
        )
    labels = _labels_of(batch)
    found = _infer_by_position(model, outputs, batch) or _infer_by_example(outputs, labels)
    if found:
        return found
    raise ExemplaError(
        f"the likelihood cannot be inferred from outputs {tuple(outputs.shape)} and labels "
        f"{tuple(labels.shape)} of {str(labels.dtype).removeprefix('torch.')}: name it, as in "
        "likelihood='gaussian', or give Custom(log_prob)."
    )


def _infer_by_position(model: nn.Module, outputs: Tensor, batch: Batch) -> str:
    """Return the name if every position of an example has a class number, otherwise ""."""
    labels = batch.labels
    if outputs.ndim < 3 or labels.is_floating_point() or labels.ndim < 2:
        return ""
    places, images = tuple(labels.shape[1:]), outputs.ndim > 3
    if len(places) == outputs.ndim - 1 and places[0] == 1 and outputs.shape[1] > 1:
        places = places[1:]  # labels with a channel axis
    first, last = places == tuple(outputs.shape[2:]), places == tuple(outputs.shape[1:-1])
    if first and (images or not last):
        return "pixels"
    if last:
        return "causal_lm" if _shifts(model, batch) else "tokens"
    if images and len(places) == outputs.ndim - 2:
        raise ExemplaError(
            f"the model returns {tuple(outputs.shape[1:])} per example and its labels are "
            f"{places}: a segmentation needs outputs of the labels' size; resize the labels, or "
            "give a module that enlarges the outputs."
        )
    return ""


def _shifts(model: nn.Module, batch: Batch) -> bool:
    """Return True if output t is for label t + 1, as in Hugging Face's causal models."""
    if not hasattr(model, "config"):
        return False
    kinds = [type(module).__name__ for module in model.modules()]
    if any("CausalLM" in kind or "LMHead" in kind for kind in kinds):
        return True
    inputs = batch.kwargs.get("input_ids")
    if inputs is None or inputs.shape != batch.labels.shape:
        return False
    if any("Masked" in kind or "TokenClassification" in kind for kind in kinds):
        return False
    return bool(((batch.labels == inputs) | (batch.labels == IGNORED_LABEL)).all())


def _infer_by_example(outputs: Tensor, labels: Tensor) -> str:
    """Return the name if an example has one label, or one per output; "" if it is unclear."""
    reals = labels.is_floating_point()
    binary = bool(((labels == 0) | (labels == 1)).all())
    single = outputs.ndim == 1 or outputs[0].numel() == 1
    one_each = labels.ndim == 1 or labels[0].numel() == 1
    if single and one_each and binary:
        return "bernoulli"
    if outputs.ndim == 2 and one_each and not reals and not single:
        return "categorical"
    if labels.shape[1:].numel() != outputs.shape[1:].numel():
        return ""
    if outputs.ndim == labels.ndim == 2 and not single and bool(_are_class_weights(labels).all()):
        return "categorical"
    if binary and not single:
        return "multilabel"
    return "gaussian" if reals else ""


def _gives_probabilities(name: str, model: nn.Module, outputs: Tensor) -> bool:
    """Return True if the network ends in a softmax or sigmoid."""
    x = outputs.detach().float()
    if bool(((x < 0) | (x > 1)).any()):
        return False
    if name == "categorical":
        return bool(((x.sum(1) - 1).abs() < 1e-3).all())
    last = list(model.modules())[-1]
    return name in ("bernoulli", "multilabel") and isinstance(last, nn.Sigmoid)
