"""All five jobs on trees, and retraining of the user's own library."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, Ridge

import exempla
from exempla.errors import UnsupportedModelError
from exempla.tasks.retrain import refit
from tests.oracles.trees.cases import EACH, LIBRARIES, fitted, frame, needs

MODELS = [*EACH, pytest.param("forest", id="forest")]


def untrained(library: str) -> Any:
    if library == "forest":
        return RandomForestClassifier(30, random_state=0)
    return LIBRARIES[library]("binary")


@pytest.fixture(scope="module")
def noisy() -> tuple[Any, Any, np.ndarray]:
    """Training data with wrong labels, right test data, and which rows are wrong."""
    X, y = load_breast_cancer(return_X_y=True)
    rng = np.random.default_rng(0)
    rows = rng.permutation(len(y))
    X, y = X[rows], y[rows]
    wrong = rng.choice(300, 25, replace=False)
    given = y[:300].copy()
    given[wrong] = 1 - given[wrong]
    return (X[:300], given), (X[300:450], y[300:450]), wrong


@pytest.mark.parametrize("library", MODELS)
def test_clean_finds_wrong_labels_and_retraining_confirms_it(library: str, noisy: Any) -> None:
    train, test, wrong = noisy
    model = untrained(library).fit(*train)
    found = exempla.clean(model, train, test, 15, ask="all", progress=False)
    assert np.isin(found.indices, wrong).mean() > 0.6
    checked = found.verify(seeds=2)
    better = checked.mean("queried", "selected removed", "log_likelihood")
    assert better > checked.mean("queried", "random removed", "log_likelihood")


@pytest.mark.parametrize("library", ["hist", "forest"])
def test_fix_labels_weighs_leaf_scores(library: str, noisy: Any) -> None:
    train, test, wrong = noisy
    found = exempla.fix_labels(untrained(library), train, test, k=25, progress=False)
    assert np.isin(found.indices, wrong).mean() > 0.7
    assert found.share > 0  # the Fisher evidence was not left out


@pytest.mark.parametrize("library", MODELS)
def test_an_attack_gives_wrong_labels_and_moves_no_feature(library: str, noisy: Any) -> None:
    (X, _), test, _ = noisy
    y = load_breast_cancer(return_X_y=True)[1][np.random.default_rng(0).permutation(569)][:300]
    target = (test[0][:5], test[1][:5])
    model = untrained(library).fit(X, y)
    found = exempla.attack(model, (X, y), target, perturb="labels", k=12, progress=False)
    assert found.expected < 0
    assert (found.apply(y) != y).sum() == 12
    checked = found.verify(seeds=2)
    lower = checked.mean("attacked", "log_likelihood")
    assert lower < checked.mean("random direction", "log_likelihood")
    for perturb in ("train", "test"):
        with pytest.raises(UnsupportedModelError, match="perturb='labels'"):
            exempla.attack(model, (X, y), target, perturb=perturb, progress=False)


def test_relabelling_a_linear_model_does_what_was_predicted() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X = (X - X.mean(0)) / X.std(0)
    model = LogisticRegression(C=0.01).fit(X[:400], y[:400])
    train, target = (X[:400], y[:400]), (X[400:420], y[400:420])
    found = exempla.attack(model, train, target, perturb="labels", k=1, progress=False)
    check = found.verify(seeds=1)
    change = check.mean("attacked", "log_likelihood") - check.mean("untouched", "log_likelihood")
    assert change == pytest.approx(found.expected, rel=0.2)
    table = found.weak_points()
    assert table["index"][0] == found.indices[0]
    assert table["reach"].is_monotonic_decreasing


def test_words_stay_words_when_they_are_changed() -> None:
    X, y = frame()
    X = X[["size", "count"]].fillna(0.0)
    model = LIBRARIES["hist"]("binary").fit(X, y)
    found = exempla.attack(model, (X, y), X[:3], perturb="labels", k=3, progress=False)
    assert set(found.labels) <= {"yes", "no"}
    assert (found.labels != found.given).all()


@pytest.mark.parametrize("library", MODELS)
def test_summarize_says_why_it_does_not_take_trees(library: str, noisy: Any) -> None:
    train, _, _ = noisy
    model = untrained(library).fit(*train)
    with pytest.raises(UnsupportedModelError, match="splits of trees"):
        exempla.summarize(model, train, 10, progress=False)


@pytest.mark.parametrize("model", [Ridge(), LIBRARIES["hist"]("numbers")])
def test_a_regression_can_be_verified(model: Any) -> None:
    _, X, y = fitted("hist", "squared")
    train, test = (X[:180], y[:180]), (X[180:], y[180:])
    model.fit(*train)
    found = exempla.clean(model, train, test, 20, ask="all", progress=False)
    checked = found.verify(seeds=2)
    better = checked.mean("queried", "selected removed", "log_likelihood")
    assert better > checked.mean("queried", "random removed", "log_likelihood")


@pytest.mark.parametrize(
    "library", [pytest.param(x, marks=needs(x)) for x in ("lightgbm", "xgboost", "catboost")]
)
def test_a_refit_has_as_many_trees_as_early_stopping_kept(library: str) -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 3)), rng.integers(0, 2, 300)
    model = LIBRARIES[library]("binary")
    more: dict[str, Any] = {"eval_set": [(X[200:], y[200:])]}
    if library == "lightgbm":
        import lightgbm

        more["callbacks"] = [lightgbm.early_stopping(2, verbose=False)]
    else:
        model.set_params(early_stopping_rounds=2)
    model.fit(X[:200], y[:200], **more)
    again = refit(model, X, y, None, None, seed=0)
    kept = {
        "lightgbm": lambda: (again.n_estimators_, model.best_iteration_),
        "xgboost": lambda: (again.get_booster().num_boosted_rounds(), model.best_iteration + 1),
        "catboost": lambda: (again.tree_count_, model.tree_count_),
    }[library]()
    assert kept[0] == kept[1] < 12
    untouched = LIBRARIES[library]("binary")
    again = refit(untouched, X, y, None, None, seed=0, keep_random_state=True)  # not stopped
    assert again.get_params() == LIBRARIES[library]("binary").get_params()
