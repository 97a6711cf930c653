"""What a network's outputs say about labels: the cotangents that scores and Fisher start from.

A *head* turns outputs and labels into log p, and gives the vectors that are pulled back through
the network: ∂ log p/∂outputs for a score, and for the Fisher rows r with Σ r rᵀ = E_y[s sᵀ].
The formulas for one output vector per example are those of `exempla.likelihoods`; here they are
put in the order a network wants, the most probable class of every example first, so that a few
backward passes carry almost all of the probability.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from exempla.errors import ExemplaError
from exempla.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, Poisson
from exempla.oracles.base import CLASS_CUT
from exempla.oracles.torch.inputs.batch import Batch
from exempla.oracles.torch.inputs.usable import refuse_rows

__all__ = ["FamilyHead", "Head", "MultiLabel", "are_shares", "draw", "refuse_classes"]

EXACT_OUTPUTS = 32
"""Up to so many classes (or outputs) the Fisher's expectation over labels is exact."""
TOP_CLASSES = 8
"""With more classes: so many of the most probable are exact, the rest of the mass is sampled."""
DRAWN_AT_ONCE = 2**23
"""Probabilities turned into drawn classes at one time."""

Ranked = Iterator[tuple[Tensor, Tensor]]
"""(which examples have a row, the cotangents), one entry per backward pass."""


class Head(ABC):
    """A likelihood over what the network returns."""

    name: str
    fisher_note: str

    @abstractmethod
    def log_prob(self, outputs: Tensor, batch: Batch) -> Tensor:
        """log p(y | x) of each example, (n,)."""

    @abstractmethod
    def score(self, outputs: Tensor, batch: Batch, predicted: bool) -> Tensor:
        """∂ log p/∂outputs, under the given or the predicted labels."""

    @abstractmethod
    def fisher(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> Ranked:
        """Cotangents of the Fisher rows; the examples concerned only become fewer."""

    @abstractmethod
    def predict(self, outputs: Tensor, batch: Batch) -> Tensor: ...

    @abstractmethod
    def refuse(self, shape: torch.Size, batch: Batch) -> None:
        """Raise if the labels cannot be labels of outputs of this shape (after the first axis)."""


@dataclass(frozen=True)
class MultiLabel(Bernoulli):
    """Several yes/no questions an example: outputs and labels are (n, questions)."""

    name = "multilabel"

    def predict(self, outputs: Tensor) -> Tensor:
        return (outputs > 0).long()


@dataclass(frozen=True)
class FamilyHead(Head):
    """One output vector per example, of a family from `exempla.likelihoods`.

    `link` is "logits", or "probabilities" for a network that ends in a softmax or sigmoid.
    """

    family: Likelihood
    link: str = "logits"
    draws: int = 1

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.family.name

    @property
    def fisher_note(self) -> str:  # type: ignore[override]
        if isinstance(self.family, Categorical):
            return (
                f"exact over classes of probability above {CLASS_CUT:g}; of more than "
                f"{EXACT_OUTPUTS} classes the {TOP_CLASSES} most probable, the rest sampled"
            )
        return f"exact over up to {EXACT_OUTPUTS} outputs, random signs beyond"

    def natural(self, outputs: Tensor) -> Tensor:
        """The family's own parameters, (n, d): logits, means, log-rates."""
        # in double: 1 − p of a well-fitted example would lose its digits in single precision
        x = outputs.float() if outputs.device.type == "mps" else outputs.double()
        x = x.reshape(len(x), -1)
        if self.link == "logits":
            return x
        if isinstance(self.family, Categorical):
            return x.clamp_min(1e-30).log()
        return x.clamp(1e-12, 1 - 1e-7).logit()

    def _through(self, outputs: Tensor, cotangent: Tensor) -> Tensor:
        """A cotangent at the natural parameters, moved to the outputs."""
        if self.link != "logits":
            x = outputs.detach().requires_grad_()
            (cotangent,) = torch.autograd.grad(self.natural(x), x, cotangent)
        return cotangent.reshape(outputs.shape).to(outputs.dtype)

    def log_prob(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.family.log_prob(self.natural(outputs), self._labels(batch))

    def score(self, outputs: Tensor, batch: Batch, predicted: bool) -> Tensor:
        x = self.natural(outputs)
        if predicted and isinstance(self.family, (Gaussian, Poisson)):
            raise ExemplaError(
                f"labels='predicted' has no meaning for a {self.name} likelihood, whose score at "
                "its own prediction is zero: give the true targets."
            )
        labels = self.family.predict(x) if predicted else self._labels(batch)
        if isinstance(self.family, Categorical) and labels.ndim == 1:
            # e_y − p in four kernels, where a GPU waits
            score = x.softmax(1).neg_()
            score.scatter_add_(1, labels.reshape(-1, 1).long(), score.new_ones(len(x), 1))
        else:
            score = self.family.score(x, labels)
        return self._through(outputs, score)

    def _labels(self, batch: Batch) -> Tensor:
        """The labels; class numbers in one dimension, also where they were given as a column."""
        labels = labels_of(batch)
        one_each = labels.shape[1:].numel() == 1
        return labels.reshape(-1) if isinstance(self.family, Categorical) and one_each else labels

    def predict(self, outputs: Tensor, batch: Batch) -> Tensor:
        return self.family.predict(self.natural(outputs))

    def fisher(self, outputs: Tensor, batch: Batch, generator: torch.Generator) -> Ranked:
        x = self.natural(outputs)
        rows = self._classes if isinstance(self.family, Categorical) else self._separate
        for active, cotangent in rows(x, generator):
            yield active, self._through(outputs, cotangent)

    def _classes(self, x: Tensor, generator: torch.Generator) -> Ranked:
        """√p_c (e_c − p), c the first, second, … most probable class of each example."""
        p = x.softmax(1)
        exact = x.shape[1] <= EXACT_OUTPUTS
        ranked, classes = p.topk(x.shape[1] if exact else TOP_CLASSES, dim=1)
        carries = (ranked > CLASS_CUT).T.cpu()  # all ranks at once: the device is asked only once
        for active, mass, c in zip(carries, ranked.T, classes.T):
            yield active, mass.sqrt()[:, None] * (F.one_hot(c, x.shape[1]) - p)
        if exact:
            return
        # the rest of the mass m: one class drawn from it stands for all, with weight √m
        rest = p.scatter(1, classes, 0.0)
        mass = rest.sum(1)
        for _ in range(self.draws):
            c = draw(rest, generator)
            weight = (mass / self.draws).sqrt()[:, None]
            yield mass > CLASS_CUT, weight * (F.one_hot(c, x.shape[1]) - p)

    def _separate(self, x: Tensor, generator: torch.Generator) -> Ranked:
        """Independent outputs: E[g gᵀ] is diagonal, one row an output."""
        rows, roots = self.family.fisher_root(x)
        root = torch.zeros_like(x).index_add_(0, rows, roots)  # its diagonal's square root
        everyone = torch.ones(len(x), dtype=torch.bool, device=x.device)
        if x.shape[1] <= EXACT_OUTPUTS:
            for d in range(x.shape[1]):
                cotangent = torch.zeros_like(root)
                cotangent[:, d] = root[:, d]
                yield everyone, cotangent
            return
        for _ in range(draws := max(self.draws, TOP_CLASSES)):
            signs = torch.randint(0, 2, root.shape, generator=generator, device=x.device) * 2 - 1
            yield everyone, root * signs / draws**0.5  # E[(signs)(signs)ᵀ] = I

    def refuse(self, shape: torch.Size, batch: Batch) -> None:
        labels, width = labels_of(batch), shape[1:].numel()
        if isinstance(self.family, Categorical):
            if labels.ndim == 2 and 1 < labels.shape[1] == width:
                refuse_shares(labels, batch, self.name)
                return
            if labels.shape[1:].numel() != 1:
                raise ExemplaError(
                    f"the labels are {tuple(labels.shape)}: a {self.name} likelihood needs one "
                    "class number per example; a label at every position is 'tokens', at every "
                    "pixel 'pixels'."
                )
            refuse_classes(labels, width, batch, self.name)
        elif labels.shape[1:].numel() != width:
            raise ExemplaError(
                f"the model returns {width} outputs per example and the labels are "
                f"{tuple(labels.shape)}: a {self.name} likelihood needs one label per output."
            )
        elif isinstance(self.family, Bernoulli):
            refuse_rows(
                ~((labels == 0) | (labels == 1)), batch.positions, "have a label other than 0 and 1"
            )
        else:
            refuse_rows(~labels.isfinite(), batch.positions, "have a label of NaN or infinity")
            if isinstance(self.family, Poisson):
                refuse_rows(labels < 0, batch.positions, "have a negative count as label")


# ---- shared by the heads


def labels_of(batch: Batch) -> Tensor:
    if batch.labels is None:
        raise ExemplaError(
            "these examples have no labels: give (X, y), or ask with labels='predicted'."
        )
    if not isinstance(batch.labels, Tensor) or len(batch.labels.shape[:1]) == 0:
        raise ExemplaError("the labels are no array: give one label for every example.")
    return batch.labels


def are_shares(labels: Tensor) -> bool:
    """Whether every row says how much of each class it is: one-hot, smoothed or mixed labels."""
    return labels.ndim == 2 and labels.shape[1] > 1 and not bool(no_shares(labels).any())


def no_shares(labels: Tensor) -> Tensor:
    """Which rows are negative somewhere, or do not add up to one."""
    return (labels < 0).any(1) | ~((labels.double().sum(1) - 1).abs() < 1e-3)


def refuse_shares(labels: Tensor, batch: Batch, name: str) -> None:
    """Raise if a row of labels, one number a class, does not add up to one."""
    wrong = no_shares(labels)
    if bool(wrong.any()):
        at = batch.positions[int(wrong.nonzero()[0, 0])]
        raise ExemplaError(
            f"the labels have a column for each of {labels.shape[1]} classes and row {at} does not "
            f"add up to one, as a {name} likelihood needs: if an example can have several labels, "
            "or none, say likelihood='multilabel'."
        )


def draw(p: Tensor, generator: torch.Generator) -> Tensor:
    """One class per row with probability p: where the running sum of p passes a random share of
    its total, a few rows at a time (a vocabulary's probabilities are the largest thing in memory,
    and a random number for each of them would take longer than the network)."""
    shares = torch.rand(len(p), 1, generator=generator, device=p.device, dtype=p.dtype)
    step = max(1, DRAWN_AT_ONCE // p.shape[1])
    drawn = []
    for part, share in zip(p.split(step), shares.split(step), strict=True):
        sums = part.cumsum(1)
        drawn.append(torch.searchsorted(sums, share * sums[:, -1:], right=True)[:, 0])
    return torch.cat(drawn).clamp_(max=p.shape[1] - 1)


def refuse_classes(labels: Tensor, count: int, batch: Batch, name: str) -> None:
    """Raise if these are not class numbers below `count`."""
    if labels.is_floating_point() and not bool((labels == labels.round()).all()):
        raise ExemplaError(
            f"a {name} likelihood needs class numbers as labels and these are fractions: "
            "use likelihood='gaussian' for a regression."
        )
    outside = (labels < 0) | (labels >= count)
    refuse_rows(
        outside,
        batch.positions,
        f"have a label outside 0 … {count - 1}, the classes of the model's outputs",
    )
