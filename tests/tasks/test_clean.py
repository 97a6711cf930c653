"""Cleaning: the right rows, in the right order, and retraining says so."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

import exempla
from exempla import ExemplaError, ExemplaWarning, Explainer
from exempla.tasks.clean import clean_from
from exempla.tasks.retrain import refit
from experiments.mnist_methods import FisherRankings
from experiments.paper_cnn import PaperCNN, Recipe, predict, train_cnn

FLIPS = 30


@pytest.fixture(scope="module")
def planted() -> tuple:
    X, y = load_breast_cancer(return_X_y=True)
    X, noisy = np.asarray(scale(X)), np.array(y)
    noisy[:FLIPS] = 1 - noisy[:FLIPS]
    train, test = (X[:300], noisy[:300]), (X[300:], np.asarray(y)[300:])
    return LogisticRegression().fit(*train), train, test


@pytest.fixture(scope="module")
def network() -> tuple:
    """A small network of the paper's shape on digits blown up to 28 × 28."""
    X, y = load_digits(return_X_y=True)
    images = np.pad(np.kron(X.reshape(-1, 8, 8) / 16.0, np.ones((3, 3))), ((0, 0), (2, 2), (2, 2)))
    x, y = torch.tensor(images[:160, None], dtype=torch.float32), torch.tensor(y[:160])
    model = train_cnn(x[:100], y[:100], torch.arange(100), 0, small())
    return model, (x[:100], y[:100]), (x[100:], y[100:])


def small(epochs: int = 3) -> Recipe:
    return Recipe(epochs=epochs, batch=20, rate=1e-2, channels=(3, 4), hidden=8)


def test_order_is_that_of_influence_on_the_mean_of_the_errors(planted: tuple) -> None:
    model, train, (X, y) = planted
    wrong = model.predict(X) != y
    found = exempla.clean(model, train, (X, y), 20, ask=wrong, progress=False)
    influence = Explainer(model, progress=False).fit(train).influence((X[wrong], y[wrong])).mean(1)
    np.testing.assert_array_equal(found.indices, np.argsort(influence)[:20])
    np.testing.assert_allclose(found.effect, -np.sort(influence)[:20], rtol=1e-6)
    assert found.n_test == wrong.sum()
    assert (found.alignment < 0).all()
    assert 0 < found.explained <= 1
    assert "effect" in found.to_dict()


def test_most_of_what_is_named_was_planted(planted: tuple) -> None:
    model, train, test = planted
    found = exempla.clean(model, train, test, FLIPS, ask="all", progress=False)
    assert np.mean(found.indices < FLIPS) > 5 * FLIPS / 300


def test_retraining_mends_the_target_more_than_chance_does(planted: tuple) -> None:
    model, train, test = planted
    check = exempla.clean(model, train, test, FLIPS, progress=False).verify(seeds=3)
    selected = check.mean("queried", "selected removed")
    assert check.mean("queried", "nothing removed") == 0.0
    assert selected >= 0.5
    assert selected > check.mean("queried", "random removed") + 0.2
    # the predictions nobody asked about are reported, better or worse
    assert check.mean("not queried", "nothing removed") == 1.0
    assert set(check.table.judged) == {"queried", "not queried"}
    assert len(check.runs) == 3 * 3 * 2
    assert str(FLIPS) in str(check)


def test_a_holdout_of_ones_own_is_judged_instead(planted: tuple) -> None:
    model, train, (X, y) = planted
    found = exempla.clean(model, train, (X[:150], y[:150]), 5, ask="all", progress=False)
    check = found.verify(seeds=1, holdout=(X[150:], y[150:]))
    refitted = LogisticRegression().fit(*train)
    expected = refitted.score(X[150:], y[150:])
    assert check.mean("not queried", "nothing removed") == pytest.approx(expected)


def test_sbq_is_the_papers_way(planted: tuple) -> None:
    model, train, (X, y) = planted
    wrong = model.predict(X) != y
    sbq = exempla.SBQ(noise=10)
    found = exempla.clean(model, train, (X, y), 10, ask=wrong, selector=sbq, progress=False)
    by_hand = exempla.explain(model, train, (X[wrong], y[wrong]), k=10, progress=False)
    np.testing.assert_array_equal(found.indices, by_hand.indices)
    assert found.selector == "SBQ"


def test_earlier_checkpoints_are_heard_but_have_no_vote(network: tuple) -> None:
    model, train, (x, y) = network
    blank = {name: torch.zeros_like(value) for name, value in model.state_dict().items()}
    wrong = np.flatnonzero(predict(model, x) != y.numpy())
    alone = exempla.clean(model, train, (x, y), 5, sketch=10, progress=False)
    found = exempla.clean([model, blank, blank], train, (x, y), 5, sketch=10, progress=False)
    np.testing.assert_array_equal(found.question.rows, wrong)  # the blank ones get nearly all wrong
    assert not np.allclose(found.effect, alone.effect)


def test_the_experiment_ranks_as_clean_does(network: tuple) -> None:
    model, train, (x, y) = network
    rows = np.flatnonzero(predict(model, x) != y.numpy())[:6]
    explainer = Explainer(
        [model, refitted(model, train)], parameters=["conv2", "fc1", "out"], sketch=30,
        progress=False,
    ).fit(train)  # fmt: skip
    rankings = FisherRankings(explainer, (x[rows], y[rows]))
    target = np.array([0, 2, 3])
    by_experiment = rankings.influence([target])[0]
    found = clean_from(explainer, (x, y), 25, ask=rows[target])
    np.testing.assert_array_equal(by_experiment[:25], found.indices)


def refitted(model: PaperCNN, train: tuple) -> PaperCNN:
    return refit(model, *train, None, fit, 1)


def fit(module: PaperCNN, X: torch.Tensor, y: torch.Tensor, _: object) -> PaperCNN:
    trained = train_cnn(X, y, torch.arange(len(X)), int(torch.initial_seed()), small(1))
    module.load_state_dict(trained.state_dict())
    return module


def test_a_torch_module_is_refitted_by_the_callers_function(network: tuple) -> None:
    model, train, test = network
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = exempla.clean(model, train, test, 5, sketch=30, fit=fit, progress=False)
    check = found.verify(seeds=2)
    assert check.mean("queried", "nothing removed", "log_likelihood") < 0
    same_seed = check.runs[(check.runs.arm == "nothing removed") & (check.runs.seed == 0)]
    again = found.verify(seeds=1).runs
    again = again[again.arm == "nothing removed"]
    np.testing.assert_allclose(same_seed.log_likelihood, again.log_likelihood, rtol=1e-6)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name])


def test_refit_forgets_what_was_learnt_and_keeps_what_is_frozen() -> None:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    model[0].weight.requires_grad_(False)
    model[0].bias.requires_grad_(False)
    fresh = refit(model, None, None, None, lambda module, *_: module, 0)
    assert torch.equal(fresh[0].weight, model[0].weight)
    assert not torch.equal(fresh[1].weight, model[1].weight)


def test_fewer_than_asked_for_is_said(planted: tuple) -> None:
    model, train, (X, y) = planted
    with pytest.warns(ExemplaWarning, match="no other one harms"):
        found = exempla.clean(model, train, (X, y), 300, progress=False)
    assert 0 < len(found) < 300
    assert found.warnings


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"selector": "magic"}, "selector="),
        ({"ask": "some"}, "ask="),
        ({"k": 0}, "k is 0"),
        ({"k": 301}, "at most 300"),
    ],
)
def test_mistakes_are_named(planted: tuple, options: dict, words: str) -> None:
    model, train, test = planted
    with pytest.raises(ExemplaError, match=words):
        exempla.clean(model, train, test, **{"k": 5, "progress": False, **options})


def test_verify_says_what_it_lacks(planted: tuple, network: tuple) -> None:
    model, train, test = planted
    found = exempla.clean(model, train, test, 3, progress=False)
    with pytest.raises(ExemplaError, match="seeds is 0"):
        found.verify(seeds=0)
    module, digits, asked = network
    answer = exempla.explain(module, digits, asked, k=2, sketch=20, progress=False)
    with pytest.raises(ExemplaError, match="give fit="):
        answer.verify()
    with pytest.raises(ExemplaError, match="returned None"):
        answer.verify(fit=lambda *_: None, seeds=1)
