"""Published ways to attribute a boosted ensemble's predictions, from their papers' formulas.

    BoostIn         Brophy, Hammoudeh, Lowd (JMLR 24:154): TracIn with trees for checkpoints
    LeafInfluence   Sharchilev et al. (ICML 2018): the exact derivative of every leaf value through
                    all later trees, their structure fixed
    TreeSim         cosine similarity of leaf indicators, its sign by whether the labels agree

All of them are (n_train, n_test) and larger where the training example helps, like
`Explainer.influence`. They see the ensemble as `Stages`: leaves, gradients and Hessians tree by
tree, g = −∂ log p/∂F and h = −∂² log p/∂F², as the papers have them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.oracles.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from exempla.oracles.trees.oracle import TreeOracle

__all__ = ["Stages", "boost_in", "leaf_influence", "tree_sim"]


@dataclass(frozen=True)
class Stages:
    """An ensemble before each of its rounds: one tree an output in every round."""

    leaves: np.ndarray
    """(n, T) of the training rows, and of the test rows below."""
    test_leaves: np.ndarray
    steps: list[np.ndarray]
    """Leaf values of each tree, before the learning rate."""
    start: np.ndarray
    """(outputs,) where boosting starts."""
    rate: float
    l2: float
    family: Likelihood
    y: np.ndarray
    test_y: np.ndarray

    @staticmethod
    def of(model: Any, train: Any, test: Any) -> Stages:
        """The stages of a LightGBM model, which hides where it starts in its first trees."""
        oracle = TreeOracle(model)
        examples, asked = oracle.read(train, role="train"), oracle.read(test, role="test")
        reader, family = oracle._reader, oracle.family
        start = starting_point(family, examples.codes, reader.n_outputs)
        steps = []
        for tree, (first, size) in enumerate(zip(reader.starts, reader.sizes, strict=True)):
            value = reader.values[first : first + size, 0]
            folded = start[reader.outputs[tree]] if tree < reader.n_outputs else 0.0
            steps.append((value - folded) / reader.rate)
        family = Gaussian(1.0) if isinstance(family, Gaussian) else family
        return Stages(
            examples.X.astype(np.int64), asked.X.astype(np.int64), steps, start,
            reader.rate, reader.l2, family, examples.codes, asked.codes,
        )  # fmt: skip

    def __iter__(self) -> Any:
        """(tree, output, train outputs, test outputs) before each tree was grown."""
        F = np.tile(self.start, (len(self.leaves), 1))
        E = np.tile(self.start, (len(self.test_leaves), 1))
        outputs = len(self.start)
        for first in range(0, self.leaves.shape[1], outputs):
            before, asked = F.copy(), E.copy()  # all trees of a round see the same outputs
            for output in range(outputs):
                tree = first + output
                yield tree, output, before, asked
                F[:, output] += self.rate * self.steps[tree][self.leaves[:, tree]]
                E[:, output] += self.rate * self.steps[tree][self.test_leaves[:, tree]]


def starting_point(family: Likelihood, y: np.ndarray, outputs: int) -> np.ndarray:
    """Where LightGBM's boost_from_average starts."""
    if isinstance(family, Bernoulli):
        return np.array([np.log(y.mean() / (1 - y.mean()))])
    if isinstance(family, Categorical):
        return np.log(np.bincount(y, minlength=outputs) / len(y))
    return np.array([y.mean()])


def hessian(family: Likelihood, outputs: np.ndarray, output: int) -> np.ndarray:
    """h of one output."""
    if isinstance(family, Gaussian):
        return np.ones(len(outputs))
    p = probabilities(family, outputs)[:, output]
    return p * (1 - p)


def third(family: Likelihood, outputs: np.ndarray, output: int) -> np.ndarray:
    """dh/dF of one output."""
    if isinstance(family, Gaussian):
        return np.zeros(len(outputs))
    p = probabilities(family, outputs)[:, output]
    return p * (1 - p) * (1 - 2 * p)


def probabilities(family: Likelihood, outputs: np.ndarray) -> np.ndarray:
    y = np.zeros(len(outputs), dtype=np.int64)
    if isinstance(family, Bernoulli):
        return -family.score(outputs, y)
    return np.eye(outputs.shape[1])[y] - family.score(outputs, y)


def boost_in(stages: Stages) -> np.ndarray:
    """Σ over trees of (test gradient) · (derivative of the shared leaf's value in a weight)."""
    total = np.zeros((len(stages.leaves), len(stages.test_leaves)))
    for tree, output, F, E in stages:
        moves = own_part(stages, tree, output, F)
        pull = stages.family.score(E, stages.test_y)[:, output]
        same = stages.leaves[:, tree][:, None] == stages.test_leaves[:, tree][None, :]
        total += stages.rate * same * np.outer(moves, pull)
    return total


def own_part(stages: Stages, tree: int, output: int, F: np.ndarray) -> np.ndarray:
    """∂θ/∂w_i = −(g_i + h_i θ)/(Σ h + l2) of the leaf that row i is in, earlier trees fixed."""
    leaf, theta = stages.leaves[:, tree], stages.steps[tree]
    h = hessian(stages.family, F, output)
    sums = np.bincount(leaf, weights=h, minlength=len(theta)) + stages.l2
    g = -stages.family.score(F, stages.y)[:, output]
    return -(g + h * theta[leaf]) / sums[leaf]


def leaf_influence(stages: Stages) -> np.ndarray:
    """d log p(test)/d w_i through every leaf value of every tree; other outputs' part of the
    Hessian is left out, as the boosting libraries do."""
    n, outputs = len(stages.leaves), len(stages.start)
    D = np.zeros((outputs, n, n))  # dF_k/dw_i
    E = np.zeros((outputs, len(stages.test_leaves), n))
    final = np.tile(stages.start, (len(stages.test_leaves), 1))
    for tree, output, F, _ in stages:
        leaf, theta = stages.leaves[:, tree], stages.steps[tree]
        h, c = hessian(stages.family, F, output), third(stages.family, F, output)
        sums = np.bincount(leaf, weights=h, minlength=len(theta)) + stages.l2
        through = (h + c * theta[leaf])[:, None] * D[output]
        inside = np.arange(len(theta))[:, None] == leaf[None, :]
        moved = -(inside.astype(np.float64) @ through) / np.maximum(sums, 1e-12)[:, None]
        moved[leaf, np.arange(n)] += own_part(stages, tree, output, F)
        D[output] += stages.rate * moved[leaf]
        E[output] += stages.rate * moved[stages.test_leaves[:, tree]]
        final[:, output] += stages.rate * theta[stages.test_leaves[:, tree]]
    pull = stages.family.score(final, stages.test_y)
    return np.einsum("eo,oei->ie", pull, E)


def tree_sim(stages: Stages) -> np.ndarray:
    """Share of trees in which two rows share their leaf, negative where their labels differ."""
    total = np.zeros((len(stages.leaves), len(stages.test_leaves)))
    for tree in range(stages.leaves.shape[1]):
        total += stages.leaves[:, tree][:, None] == stages.test_leaves[:, tree][None, :]
    if stages.family.discrete:
        agree = stages.y[:, None] == stages.test_y[None, :]
    else:  # both on the same side of the mean
        middle = stages.y.mean()
        agree = (stages.y[:, None] > middle) == (stages.test_y[None, :] > middle)
    return np.where(agree, total, -total)
