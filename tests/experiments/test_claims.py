"""The core claim of each small experiment, on something quick."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

from exempla.selection import SBQ, select
from experiments import influence, summaries, theorem, toy, variants


def test_toy_fisher_neighbours_share_the_label_and_rbf_ones_are_near():
    X, y = toy.points(0)
    model = LogisticRegression(C=100.0).fit(X, y)
    asked = toy.question(X, y)
    table = toy.describe(
        {
            "RBF": toy.nearest_and_farthest(toy.RBF(X).row(asked), asked),
            "Fisher": toy.nearest_and_farthest(toy.fisher_row(model, X, y, asked), asked),
        },
        X,
        y,
        model,
        asked,
    ).set_index(["kernel", "set"])
    near = "mean distance to the point"
    assert table.loc[("Fisher", "nearest 40"), "same label"] > 0.9
    assert table.loc[("RBF", "nearest 40"), near] < 0.5 * table.loc[("Fisher", "nearest 40"), near]
    assert toy.on_boundary(model) > 0.5


@pytest.mark.parametrize("noise", [0.0, 1.0, 10.0])
def test_no_certified_bound_exceeds_the_truth(noise):
    for seed in range(3):
        line = theorem.solve(seed, noise)
        assert line["true_ratio"] <= 1 + 1e-9
        assert line["certified_share"] <= line["true_ratio"] + 1e-9
        assert line["known_in_advance"] <= line["true_ratio"] + 1e-9
        assert line["m_over_M_on_selection"] > line["m_over_M_true"]


def test_the_special_case_holds_as_corrected_and_not_as_printed():
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)
    train, test = (X[:200], y[:200]), (X[200:240], y[200:240])
    model = influence.new_model().fit(*train)
    found = influence.first_picks(model, train, test)
    assert all(share == 1.0 for name, share in found.items() if name.startswith("true"))
    assert found["printed: practical kernel, SBQ"] < 0.5
    apart = influence.against_hessian(model, train)
    assert apart["model Fisher vs Hessian"] < 1e-6
    assert apart["empirical Fisher vs Hessian (the paper's proposition)"] > 0.2


def test_algorithm_1_with_the_sign_put_right_is_sbq():
    rows, target = variants.problem(60, seed=3)
    found = select(rows.astype(np.float64), target, 6, SBQ())
    assert variants.literal(rows, target, 6) == pytest.approx(
        found.variance / found.target_norm2, rel=1e-6
    )


def test_summaries_beat_chance_sensitivity_and_the_literal_paper():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 10))
    y = (rng.random(3000) < 1 / (1 + np.exp(-X @ rng.standard_normal(10)))).astype(int)
    case = summaries.split("made", X, y, seed=0, n_test=1000)
    model = summaries.new_model().fit(case.X, case.y)
    full = summaries.log_likelihood(model, case.test)
    reached = {
        name: summaries.refit(case, run(), case.test)
        for name, run in summaries.methods(case, model, 60).items()
    }
    assert full - reached["ours"] < 0.01
    for other in ("random", "sensitivity", "paper"):
        assert reached["ours"] > reached[other] + 0.01
