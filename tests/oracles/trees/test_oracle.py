"""Scores and Fisher of boosted trees, against our own GLM on one-hot leaves."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from sklearn.ensemble import GradientBoostingClassifier, GradientBoostingRegressor
from sklearn.linear_model import (
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    SGDClassifier,
)
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import exempla
from exempla.errors import ExemplaError, UnfittedModelError, UnsupportedModelError
from exempla.kernel.basis import IdentitySketch
from exempla.oracles import make_oracle
from exempla.oracles.sklearn.oracle import SklearnOracle
from exempla.oracles.trees.oracle import TreeOracle
from tests.oracles.trees.cases import EACH, EVERY, LIBRARIES, fitted, frame

GLM = {
    "bernoulli": LogisticRegression,
    "categorical": LogisticRegression,
    "one-vs-rest": lambda: SGDClassifier(loss="log_loss", penalty=None),
    "gaussian": LinearRegression,
    "poisson": lambda: PoissonRegressor(alpha=0.0),
}


def written_out(oracle: Any, batches: Any) -> np.ndarray:
    sketch = IdentitySketch(oracle.layers)
    return np.concatenate([sketch.project(batch) for batch in batches])


def one_hot(oracle: TreeOracle, X: Any) -> np.ndarray:
    """Leaves of all layers' trees, one column each, in the order of the layers."""
    leaves = oracle._reader.leaves(X)
    return np.hstack([c.inputs(leaves).toarray() for c in oracle._columns])


def glm_on_leaves(oracle: TreeOracle, X: Any, y: np.ndarray, weights: Any) -> Any:
    """Our GLM oracle of a linear model whose features are leaves and whose coefficients are leaf
    values, its data, and which of its parameters the trees have."""
    Z = one_hot(oracle, X)
    outputs = oracle._reader.n_outputs
    W, owned = np.zeros((outputs, Z.shape[1])), np.zeros((Z.shape[1] + 1, outputs), dtype=bool)
    start = 0
    for columns in oracle._columns:
        here = slice(start, start + columns.width)
        W[columns.outputs, here] = columns.values.T
        owned[here, columns.outputs] = True
        start += columns.width
    model = GLM[oracle.likelihood]()
    model.coef_ = W if oracle.likelihood in ("bernoulli", "categorical", "one-vs-rest") else W[0]
    model.intercept_ = oracle._base if outputs > 1 or model.coef_.ndim == 2 else oracle._base[0]
    model.n_features_in_ = Z.shape[1]
    if oracle._reader.classes is not None:
        model.classes_ = oracle._reader.classes
    reference = SklearnOracle(model)
    return reference, reference.read((Z, y, weights), role="train"), owned


def in_order(oracle: TreeOracle, owned: np.ndarray) -> np.ndarray:
    """Places of the trees' parameters among the GLM's, layer after layer."""
    places = np.arange(owned.size).reshape(owned.shape)
    found, start = [], 0
    for columns in oracle._columns:
        found.append(places[start : start + columns.width][:, columns.outputs].ravel())
        start += columns.width
    return np.concatenate(found)


@pytest.mark.parametrize(("library", "name"), EVERY)
def test_scores_and_fisher_are_those_of_a_glm_on_one_hot_leaves(library: str, name: str) -> None:
    model, X, y = fitted(library, name)
    weights = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    oracle = make_oracle(model)
    assert isinstance(oracle, TreeOracle)
    train = oracle.read((X, y, weights), role="train")
    scores = written_out(oracle, oracle.scores(train))
    rows = written_out(oracle, oracle.fisher_rows(train))
    if name == "quantile":  # scikit-learn has no such GLM: by hand
        Z, family = one_hot(oracle, X), oracle.family
        below = y < oracle._outputs(train.X)[:, 0]
        expected = Z * (weights * (0.8 - below) / family.scale)[:, None]
        fisher = (Z * (weights * 0.16 / family.scale**2)[:, None]).T @ Z
    else:
        glm, examples, owned = glm_on_leaves(oracle, X, y, train.weights)
        at = in_order(oracle, owned)
        expected = written_out(glm, glm.scores(examples))[:, at]
        all_rows = written_out(glm, glm.fisher_rows(examples))[:, at]
        fisher = all_rows.T @ all_rows
    assert np.abs(scores).max() > 0
    np.testing.assert_allclose(scores, expected, atol=1e-9 * np.abs(expected).max(), rtol=1e-9)
    np.testing.assert_allclose(rows.T @ rows, fisher, atol=1e-9 * np.abs(fisher).max(), rtol=1e-9)


@pytest.mark.parametrize(("library", "name"), EVERY)
def test_predictions_are_the_models_own(library: str, name: str) -> None:
    model, X, _ = fitted(library, name)
    oracle = make_oracle(model)
    own = np.asarray(model.predict(X)).ravel()
    found = oracle.predict(oracle.read(X, role="test"))
    if own.dtype.kind == "f" and "quantile" not in name:
        if library == "catboost" and name == "poisson":
            own = np.exp(model.predict(X, prediction_type="RawFormulaVal"))
        np.testing.assert_allclose(found, own, rtol=1e-4)
    elif own.dtype.kind != "f":
        assert (found == own).all()


@pytest.mark.parametrize("library", EACH)
def test_nothing_is_made_dense(library: str) -> None:
    model, X, y = fitted(library, "binary")
    oracle = make_oracle(model)
    for rows in oracle.scores(oracle.read((X, y), role="train")):
        assert rows.factors[0].a.nnz == len(rows) * oracle._reader.n_trees


@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "hist"])
def test_missing_values_and_categories_fall_where_the_library_lets_them(library: str) -> None:
    pytest.importorskip(library if library != "hist" else "sklearn")
    X, y = frame()
    more = {"hist": {"categorical_features": "from_dtype"}, "xgboost": {"enable_categorical": True}}
    more["lightgbm"] = {"min_data_per_group": 5, "cat_smooth": 1.0}
    y = y if library != "xgboost" else (y == "yes").astype(int)
    model = LIBRARIES[library]("binary", **more[library]).fit(X, y)
    oracle = make_oracle(model)
    test = oracle.read((X, y), role="test")
    p = np.asarray(model.predict_proba(X))[np.arange(len(y)), np.searchsorted(model.classes_, y)]
    np.testing.assert_allclose(oracle.log_likelihood(test), np.log(p), rtol=1e-4, atol=1e-5)
    found = exempla.explain(model, (X, y), (X[:20], y[:20]), k=5, progress=False)
    assert len(found) == 5


def test_catboost_reads_words_of_a_data_frame() -> None:
    pytest.importorskip("catboost")
    X, y = frame()
    X = X.assign(kind=X["kind"].astype(object).fillna("none").astype(str))
    model = LIBRARIES["catboost"]("binary", cat_features=["kind"]).fit(X, y)
    found = exempla.explain(model, (X, y), (X[:20], y[:20]), k=5, progress=False)
    assert len(found) == 5


def test_leaves_that_do_not_add_up_are_an_error() -> None:
    model, X, y = fitted("hist", "binary")
    oracle = make_oracle(model)
    oracle.read((X, y), role="test")
    model._predictors[3][0].nodes["value"][-1] += 0.1  # not what the reader has seen
    with pytest.raises(ExemplaError, match="do not add up to its own predictions"):
        oracle.read((X, y), role="test")


@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "catboost"])
def test_early_stopping_keeps_the_best_iterations_trees(library: str) -> None:
    pytest.importorskip(library)
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 3)), rng.integers(0, 2, 300)  # nothing to learn: stops at once
    more: dict[str, Any] = {"eval_set": [(X[200:], y[200:])]}
    if library == "lightgbm":
        import lightgbm

        more["callbacks"] = [lightgbm.early_stopping(2, verbose=False)]
    model = LIBRARIES[library]("binary")
    if library != "lightgbm":
        model.set_params(early_stopping_rounds=2)
    model.fit(X[:200], y[:200], **more)
    oracle = make_oracle(model)
    oracle.read((X[:200], y[:200]), role="train")
    assert oracle._reader.n_trees < 12


def refused() -> list[Any]:
    return [
        pytest.param("lightgbm", {"boosting_type": "dart"}, "dart", id="lightgbm-dart"),
        pytest.param("lightgbm", {"linear_tree": True}, "linear_tree", id="lightgbm-linear"),
        pytest.param(
            "lightgbm",
            {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.5},
            "RandomForest",
            id="lightgbm-rf",
        ),
        pytest.param("xgboost", {"booster": "dart"}, "dart", id="xgboost-dart"),
        pytest.param("xgboost", {"booster": "gblinear"}, "no trees", id="xgboost-linear"),
        pytest.param("boosting", {"loss": "exponential"}, "log_loss", id="exponential"),
    ]


@pytest.mark.parametrize(("library", "more", "said"), refused())
def test_what_is_not_linear_in_leaf_values_is_refused(library: str, more: dict, said: str) -> None:
    pytest.importorskip("sklearn" if library == "boosting" else library)
    X, y = frame()
    X, y = X[["size", "count"]].fillna(0.0).to_numpy(), (y == "yes").astype(int)
    model = LIBRARIES[library]("binary", **more).fit(X, y)
    with pytest.raises(UnsupportedModelError, match=said):
        make_oracle(model)


def test_a_loss_without_a_likelihood_is_refused_by_name() -> None:
    X, y = frame()
    model = GradientBoostingRegressor(loss="huber", n_estimators=2)
    with pytest.raises(UnsupportedModelError, match="huber"):
        make_oracle(model.fit(X[["count"]], (y == "yes").astype(float)))


def test_an_unfitted_model_is_refused_when_it_is_read() -> None:
    oracle = make_oracle(GradientBoostingClassifier())
    with pytest.raises(UnfittedModelError):
        oracle.read(([[0.0], [1.0]], [0, 1]), role="train")


@pytest.mark.parametrize("library", EACH)
def test_a_fitted_explainer_survives_being_saved(library: str, tmp_path: Any) -> None:
    model, X, y = fitted(library, "binary")
    explainer = exempla.Explainer(model, progress=False).fit((X, y))
    again = exempla.Explainer.load(explainer.save(tmp_path / "kept.joblib"))
    test = (X[:5], y[:5])
    np.testing.assert_allclose(again.influence(test), explainer.influence(test))


def test_a_pipelines_steps_come_first() -> None:
    _, X, y = fitted("hist", "binary")
    pipeline = make_pipeline(StandardScaler(), LIBRARIES["boosting"]("binary")).fit(X, y)
    inside = exempla.Explainer(pipeline[-1], progress=False).fit((pipeline[0].transform(X), y))
    whole = exempla.Explainer(pipeline, progress=False).fit((X, y))
    test = (X[:5], y[:5])
    expected = inside.influence((pipeline[0].transform(X[:5]), y[:5]))
    np.testing.assert_allclose(whole.influence(test), expected)


@pytest.mark.parametrize("library", ["lightgbm", "xgboost"])
def test_a_bare_booster_has_the_scores_of_its_wrapper(library: str) -> None:
    pytest.importorskip(library)
    model, X, y = fitted(library, "binary")
    bare = model.booster_ if library == "lightgbm" else model.get_booster()
    test = (X[:5], y[:5])
    one, other = (exempla.Explainer(m, progress=False).fit((X, y)) for m in (model, bare))
    np.testing.assert_allclose(one.influence(test), other.influence(test))


def test_leaves_are_the_same_in_small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, X, y = fitted("hist", "multiclass")
    kept = exempla.Explainer(model, progress=False).fit((X, y)).influence((X[:5], y[:5]))
    monkeypatch.setattr("exempla.oracles.trees.oracle._CHUNK_BYTES", 1)
    again = exempla.Explainer(model, progress=False).fit((X, y))
    np.testing.assert_allclose(again.influence((X[:5], y[:5])), kept)


def test_rows_the_library_refuses_are_an_error_of_ours() -> None:
    model, X, y = fitted("hist", "binary")
    oracle = make_oracle(model)
    with pytest.raises(ExemplaError, match="refuses X"):
        oracle.read((X[:, :3], y), role="train")


def test_the_oracle_can_be_pickled_before_it_has_read() -> None:
    model, X, y = fitted("hist", "binary")
    oracle = pickle.loads(pickle.dumps(make_oracle(model)))
    assert len(oracle.read((X, y), role="train")) == len(y)


def test_a_model_fitted_again_is_read_again() -> None:
    model, X, y = fitted("hist", "squared")
    explainer = exempla.Explainer(model, progress=False).fit((X, y))
    model.fit(X, y + 1000.0)
    again = explainer.fit((X, y + 1000.0)).influence((X[:5], y[:5] + 1000.0))
    fresh = exempla.Explainer(model, progress=False).fit((X, y + 1000.0))
    np.testing.assert_allclose(again, fresh.influence((X[:5], y[:5] + 1000.0)))
