"""The baselines of the benchmark of trees do what their papers say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("lightgbm")

from benchmarks.tree_baselines import Stages, boost_in, hessian, leaf_influence, tree_sim
from tests.oracles.trees.cases import fitted


def stages_of(name: str) -> tuple[Any, Stages, np.ndarray]:
    model, X, y = fitted("lightgbm", name)
    return model, Stages.of(model, (X, y), (X[:20], y[:20])), X


def replayed(stages: Stages, weights: np.ndarray) -> np.ndarray:
    """Test outputs after boosting again with these weights, the structure of the trees fixed."""
    F = np.tile(stages.start, (len(stages.leaves), 1))
    E = np.tile(stages.start, (len(stages.test_leaves), 1))
    for tree in range(stages.leaves.shape[1]):
        leaf, size = stages.leaves[:, tree], len(stages.steps[tree])
        g = -stages.family.score(F, stages.y)[:, 0] * weights
        h = hessian(stages.family, F, 0) * weights
        sums = np.bincount(leaf, h, size) + stages.l2
        theta = -np.bincount(leaf, g, size) / np.maximum(sums, 1e-12)
        F[:, 0] += stages.rate * theta[leaf]
        E[:, 0] += stages.rate * theta[stages.test_leaves[:, tree]]
    return E


@pytest.mark.parametrize("name", ["binary", "multiclass", "squared"])
def test_stages_add_up_to_the_model(name: str) -> None:
    model, stages, X = stages_of(name)
    *_, (tree, _, before, _) = stages
    last = before.copy()
    for output in range(len(stages.start)):
        at = tree - len(stages.start) + 1 + output
        last[:, output] += stages.rate * stages.steps[at][stages.leaves[:, at]]
    own = model.booster_.predict(X, raw_score=True).reshape(last.shape)
    np.testing.assert_allclose(last, own, atol=1e-6)


@pytest.mark.parametrize("name", ["binary", "squared"])
def test_leaf_influence_is_the_derivative_through_boosting(name: str) -> None:
    _, stages, _ = stages_of(name)
    ones = np.ones(len(stages.leaves))
    found, step = leaf_influence(stages), 1e-5
    pull = stages.family.score(replayed(stages, ones), stages.test_y)[:, 0]
    for row in (0, 7, 100):
        up, down = ones.copy(), ones.copy()
        up[row] += step
        down[row] -= step
        slope = (replayed(stages, up) - replayed(stages, down))[:, 0] / (2 * step)
        np.testing.assert_allclose(found[row], pull * slope, rtol=1e-3, atol=1e-6)


def test_with_one_tree_boost_in_is_leaf_influence() -> None:
    """Nothing comes after the only tree; the test gradient is taken before it, not after."""
    _, stages, _ = stages_of("squared")
    one = Stages(**{**vars(stages), "leaves": stages.leaves[:, :1], "steps": stages.steps[:1],
                    "test_leaves": stages.test_leaves[:, :1]})  # fmt: skip
    both = boost_in(one), leaf_influence(one)
    same = np.abs(both[0]) > 0
    assert (same == (np.abs(both[1]) > 0)).all()
    assert (np.sign(both[0]) == np.sign(both[1])).mean() > 0.9


def test_tree_sim_counts_shared_leaves() -> None:
    _, stages, _ = stages_of("binary")
    found = tree_sim(stages)
    assert (found[np.arange(20), np.arange(20)] == stages.leaves.shape[1]).all()
    assert (np.sign(found[found != 0]) == np.sign(
        np.where(stages.y[:, None] == stages.test_y[None, :], 1, -1)[found != 0]
    )).all()  # fmt: skip
