"""One kind: a small model that is trained on planted data and asked, or that is refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from time import process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor

import exempla
from exempla.errors import ExemplaError, ExemplaWarning

__all__ = ["KINDS", "Job", "Outcome", "Planted", "epoch_of", "kind", "plant", "run"]

ASKED = 3
"""Questioned examples, and so many planted copies of them."""
COUNT = 45
"""Other training examples."""
EPOCHS = 15


@dataclass
class Job:
    """A model to hand over, its data, and one epoch of its training."""

    model: Any
    train: Any
    asked: Any
    planted: list[int]
    learn: Callable[[], object]
    epochs: int = EPOCHS
    passes: int = 1
    """Epochs that one call of `learn` is."""
    options: dict[str, Any] = field(default_factory=dict)
    around: Callable[[], AbstractContextManager[Any]] = nullcontext
    """What the questions are asked inside of (autocast)."""


class Kind(NamedTuple):
    group: str
    name: str
    build: Callable[[], Job]
    refused: str
    """Words of the sentence that refuses it; "" if it works."""


class Outcome(NamedTuple):
    """What became of one kind."""

    found: int
    """Planted copies that came first, out of `ASKED`; −1 if refused."""
    epoch_s: float
    """Processor seconds, as explain_s: the machine may have other work."""
    explain_s: float
    slower: bool
    """Whether some parameters were scored example by example."""
    said: str
    """Warnings, or the sentence of the refusal."""


KINDS: list[Kind] = []


def kind(group: str, name: str, refused: str = "") -> Callable[[Any], Any]:
    """Adds a function that builds a job to the kinds."""

    def add(build: Callable[[], Job]) -> Callable[[], Job]:
        KINDS.append(Kind(group, name, build, refused))
        return build

    return add


class Planted(NamedTuple):
    """Training data with wrong copies of the questioned examples, and where those stand."""

    X: Tensor
    Y: Tensor
    questions: Tensor
    answers: Tensor
    where: list[int]

    @property
    def train(self) -> tuple[Tensor, Tensor]:
        return self.X, self.Y

    @property
    def asked(self) -> tuple[Tensor, Tensor]:
        return self.questions, self.answers


def plant(X: Tensor, Y: Tensor, wrong: Tensor) -> Planted:
    """The last examples are questioned; their copies in training carry the wrong labels.

    >>> torch.manual_seed(0).seed() and None
    >>> made = plant(torch.arange(48.0)[:, None], torch.zeros(48), torch.ones(3))
    >>> made.X[made.where].flatten().tolist(), made.Y[made.where].tolist()
    ([45.0, 46.0, 47.0], [1.0, 1.0, 1.0])
    """
    labels = torch.cat([Y[:-ASKED], wrong])
    order = torch.randperm(len(X), generator=torch.Generator().manual_seed(1))
    places = order.argsort()[-ASKED:].tolist()
    return Planted(X[order], labels[order], X[-ASKED:], Y[-ASKED:], places)


def epoch_of(
    model: Any, loss: Callable[[list[int]], Tensor], count: int = COUNT + ASKED, lr: float = 0.02
) -> Callable[[], None]:
    """One epoch of Adam: `loss` of the examples at these positions, 16 at a time."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(trained, lr=lr)

    def epoch() -> None:
        model.train()
        for rows in torch.randperm(count).split(16):
            optimizer.zero_grad()
            loss(rows.tolist()).backward()
            optimizer.step()

    return epoch


def run(one: Kind) -> Outcome:
    """Train it, ask it, and see whether each question's wrong copy is its first opponent."""
    torch.manual_seed(0)
    job = one.build()
    start = process_time()
    for _ in range(job.epochs):
        job.learn()
    epoch_s = (process_time() - start) / max(job.epochs * job.passes, 1)
    start = process_time()
    with job.around(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            explainer = exempla.Explainer(job.model, progress=False, **job.options)
            answers = explainer.fit(job.train).explain_each(job.asked, k=1)
        except ExemplaError as error:
            return Outcome(-1, epoch_s, process_time() - start, False, str(error))
    explain_s = process_time() - start
    said = [str(w.message) for w in caught if issubclass(w.category, ExemplaWarning)]
    found = sum(
        len(a.indices) > 0 and int(a.indices[0]) == place
        for a, place in zip(answers, job.planted, strict=True)
    )
    slower = any("scored by" in text for text in said)
    return Outcome(found, epoch_s, explain_s, slower, " ".join([*answers[0].warnings, *said]))
