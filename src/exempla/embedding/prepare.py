"""Before the first row: the basis, and the Fisher of a sample in it."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import perf_counter

import numpy as np

from exempla.checks import check_choice
from exempla.fisher.base import Metric
from exempla.fisher.damping import FisherEvidence
from exempla.fisher.estimate import estimate_fisher
from exempla.oracles.base import Examples, Oracle
from exempla.sketch import Sketch, choose_sketch
from exempla.sketch.choose import SAMPLE_PER_DIRECTION, auto_width

__all__ = ["FISHERS", "Prepared", "Preparing", "check_fisher"]

FISHERS = ("true", "empirical", "diagonal", "identity")
BASIS_SAMPLE = 512
"""Examples the K-FAC basis is estimated from, at most."""


@dataclass(frozen=True)
class Prepared:
    """What rows are made and read with."""

    basis: Sketch
    metric: Metric
    evidence: FisherEvidence
    seconds: dict[str, float] = field(default_factory=dict)
    """Wall time of each stage."""


class Preparing:
    """The two steps, for one model; the memory a job takes is known between them."""

    def __init__(
        self, oracle: Oracle, train: Examples, fisher: str, sketch: str | int, seed: int
    ) -> None:
        self.oracle, self.train = oracle, train
        self.fisher = "identity" if oracle.whitened else fisher
        self.sample = fisher_sample(train, sketch, seed)
        start = perf_counter()
        self.basis = choose_sketch(
            oracle, train, sketch, basis_sample(self.sample), dual=self.fisher != "diagonal"
        )
        self.seconds = perf_counter() - start

    def done(self) -> Prepared:
        """With the Fisher."""
        start, basis = perf_counter(), self.basis
        examples = self.train if basis.exact else self.sample
        metric, evidence = estimate_fisher(self.oracle, examples, basis, self.fisher)
        took = {"basis": self.seconds, "fisher": perf_counter() - start}
        return Prepared(basis, metric, evidence, took)


def fisher_sample(train: Examples, sketch: str | int, seed: int) -> Examples:
    """The part of a large training set that basis and Fisher are estimated from."""
    width = sketch if isinstance(sketch, int) else auto_width(len(train))
    wanted = SAMPLE_PER_DIRECTION * width
    if len(train) <= wanted:
        return train
    chosen = np.random.default_rng(seed).choice(len(train), wanted, replace=False)
    return train.take(np.sort(chosen))


def basis_sample(sample: Examples) -> Examples:
    """Moments of a layer's two sides settle on fewer examples than the p × p Fisher does."""
    if len(sample) <= BASIS_SAMPLE:
        return sample
    return sample.take(np.linspace(0, len(sample) - 1, BASIS_SAMPLE).astype(np.int64))


def check_fisher(wanted: str) -> str:
    """The option as given, if it means something."""
    return check_choice("fisher", wanted, FISHERS)
