"""`Explainer` and `explain` as a user meets them, on real small data."""

import json
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler

import exempla
from exempla import ExemplaError, Explainer
from tests.reference import dense_metric, dense_rows


@pytest.fixture(scope="module")
def cancer():
    X, y = load_breast_cancer(return_X_y=True)
    X = StandardScaler().fit_transform(X)
    return X[:400], y[:400], X[400:], y[400:]


@pytest.fixture(scope="module")
def model(cancer):
    return LogisticRegression(C=0.1, tol=1e-8, max_iter=1000).fit(*cancer[:2])


@pytest.fixture(scope="module")
def explainer(cancer, model):
    return Explainer(model, progress=False).fit(cancer[:2])


def literal_explanation(explainer, test, k, side):
    """Unit rows in the written-out metric, then the greedy rule by brute force."""
    embedding = explainer.embeddings[0]
    damping = explainer.explain(test, k=1).damping
    M = dense_metric(embedding.oracle, embedding.train, damping)
    L = np.linalg.cholesky(M)
    rows = np.linalg.solve(L, dense_rows(embedding.oracle.scores(embedding.train)).T).T
    questioned = embedding.oracle.read(test, role="test")
    target = np.linalg.solve(L, dense_rows(embedding.oracle.scores(questioned)).T).T
    unit = lambda r: r / np.linalg.norm(r, axis=1, keepdims=True)  # noqa: E731
    rows, mu = unit(rows), unit(target).mean(0)
    z = rows @ mu
    allowed = {"opponents": z < 0, "proponents": z > 0, "both": z == z}[side]
    picked: list[int] = []
    for _ in range(k):
        best, value = -1, -np.inf
        for j in np.flatnonzero(allowed):
            if j in picked:
                continue
            S = [*picked, j]
            K = rows[S] @ rows[S].T + 10.0 * np.eye(len(S))
            gain = z[S] @ np.linalg.solve(K, z[S])
            if gain > value:
                best, value = int(j), gain
        picked.append(best)
    K = rows[picked] @ rows[picked].T + 10.0 * np.eye(k)
    return picked, np.linalg.solve(K, z[picked]), value / (mu @ mu)


@pytest.mark.parametrize("side", ["opponents", "proponents", "both"])
def test_explain_equals_the_literal_algorithm(cancer, explainer, side):
    test = (cancer[2][:30], cancer[3][:30])
    answer = explainer.explain(test, k=4, side=side)
    picked, weights, explained = literal_explanation(explainer, test, 4, side)
    assert answer.indices.tolist() == picked
    np.testing.assert_allclose(answer.weights, weights, rtol=1e-6)
    assert answer.explained == pytest.approx(explained, rel=1e-8)
    assert answer.indices.dtype == np.int64


def test_sides_have_the_sign_they_promise(cancer, explainer):
    test = cancer[2:]
    against = explainer.explain(test, k=10, side="opponents")
    towards = explainer.explain(test, k=10, side="proponents")
    assert (against.alignment < 0).all()
    assert (towards.alignment > 0).all()
    assert against.side == "opponents"


def test_influence_is_the_written_out_formula(cancer, explainer):
    test = (cancer[2][:7], cancer[3][:7])
    embedding = explainer.embeddings[0]
    M = dense_metric(embedding.oracle, embedding.train, explainer.features.damping)
    S = dense_rows(embedding.oracle.scores(embedding.train))
    Z = dense_rows(embedding.oracle.scores(embedding.oracle.read(test, role="test")))
    np.testing.assert_allclose(
        explainer.influence(test), S @ np.linalg.solve(M, Z.T) / 400, rtol=1e-8
    )
    own = np.einsum("ij,ji->i", S, np.linalg.solve(M, S.T)) / 400
    np.testing.assert_allclose(explainer.self_influence(), own, rtol=1e-8)


def test_features_are_whitened_rows(explainer):
    rows = explainer.features.rows
    np.testing.assert_allclose((rows**2).sum(1) / 400, explainer.self_influence())
    assert explainer.features.share == 1.0
    assert explainer.features.damping > 0
    assert explainer.features.damping_rule.startswith("implicit")


def test_a_converged_model_needs_no_damping_and_a_stopped_one_does(cancer):
    """At the optimum mean score = λRθ̂; short of it, the missing penalty is the damping."""
    X, y, *_ = cancer
    converged = LogisticRegression(C=0.1, tol=1e-10, max_iter=5000).fit(X, y)
    stopped = LogisticRegression(C=0.1, max_iter=2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        stopped.fit(X, y)
    dampings = []
    for fitted in (converged, stopped):
        explainer = Explainer(fitted, progress=False).fit((X, y))
        evidence = explainer.embeddings[0].evidence
        oracle, train = explainer.embeddings[0].oracle, explainer.embeddings[0].train
        penalty = np.concatenate([np.repeat(x.penalty, x.d_out) for x in oracle.layers])
        left = dense_rows(oracle.scores(train)).mean(0) - penalty * oracle.theta
        expected = np.linalg.norm(left) / np.linalg.norm(oracle.theta)
        assert evidence.gradient_gap == pytest.approx(expected, rel=1e-6, abs=1e-12)
        dampings.append(explainer.features.damping)
    assert dampings[0] < 1e-5 < dampings[1]


def test_damping_is_a_choice_of_the_question(cancer, model):
    explainer = Explainer(model, progress=False).fit(cancer[:2])
    embedded = explainer.embeddings[0].rows
    first = explainer.influence(cancer[2:])
    second = explainer.set_damping(0.5).influence(cancer[2:])
    assert explainer.embeddings[0].rows is embedded
    fresh = Explainer(model, damping=0.5, progress=False).fit(cancer[:2]).influence(cancer[2:])
    np.testing.assert_array_equal(second, fresh)
    assert not np.allclose(first, second)


def test_one_questioned_point_and_labels_of_either_kind(cancer, explainer, model):
    X, y = cancer[2][:1], cancer[3][:1]
    predicted = model.predict(X)
    assert explainer.explain((X, predicted), k=3).indices.tolist() == (
        explainer.explain((X, 1 - predicted), k=3, labels="predicted").indices.tolist()
    )
    unlabeled = explainer.explain(X, k=3)
    assert unlabeled.labels == "predicted"
    assert any("no labels" in note for note in unlabeled.warnings)
    assert len(explainer.explain((X, y), k=3)) == 3


def test_target_weights_count(cancer, explainer):
    X, y = cancer[2][:10], cancer[3][:10]
    only_third = np.eye(10)[2]
    one = explainer.explain((X[2:3], y[2:3]), k=5)
    weighted = explainer.explain((X, y), k=5, weights=only_third)
    np.testing.assert_array_equal(one.indices, weighted.indices)
    with pytest.raises(ExemplaError, match="weights"):
        explainer.explain((X, y), k=5, weights=np.ones(3))


def test_several_questions_in_one_pass(cancer, explainer):
    X, y = cancer[2][:6], cancer[3][:6]
    together = explainer.explain_each((X, y), k=4)
    alone = [explainer.explain((X[i : i + 1], y[i : i + 1]), k=4) for i in range(6)]
    for one, other in zip(together, alone, strict=True):
        np.testing.assert_array_equal(one.indices, other.indices)
        np.testing.assert_allclose(one.weights, other.weights)
    halves = explainer.explain_each(
        (X, y), k=4, weights=[[1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]], side=["opponents", "both"]
    )
    np.testing.assert_array_equal(halves[0].indices, explainer.explain((X[:3], y[:3]), k=4).indices)
    assert [h.side for h in halves] == ["opponents", "both"]
    with pytest.raises(ExemplaError, match="explain_each"):
        explainer.explain((X, y), weights=np.ones((2, 6)))
    with pytest.raises(ExemplaError, match="one row of weights"):
        explainer.explain_each((X, y), weights=np.ones(6))


def test_several_models_average_their_kernels(cancer):
    X, y, X_test, y_test = cancer
    models = [LogisticRegression(C=c, max_iter=1000).fit(X, y) for c in (0.1, 1.0)]
    each = [Explainer(m, progress=False).fit((X, y)).influence((X_test, y_test)) for m in models]
    together = Explainer(models, progress=False).fit((X, y)).influence((X_test, y_test))
    np.testing.assert_allclose(together, np.mean(each, axis=0), rtol=1e-8, atol=1e-15)


@pytest.mark.parametrize("fisher", ["true", "empirical", "diagonal", "identity"])
def test_every_metric(cancer, model, fisher):
    X, y, X_test, y_test = cancer
    explainer = Explainer(model, fisher=fisher, damping=0.1, progress=False).fit((X, y))
    embedding = explainer.embeddings[0]
    S = dense_rows(embedding.oracle.scores(embedding.train))
    Z = dense_rows(embedding.oracle.scores(embedding.oracle.read((X_test, y_test), role="test")))
    M = dense_metric(embedding.oracle, embedding.train, 0.1, empirical=fisher == "empirical")
    if fisher == "diagonal":
        M = np.diag(np.diag(M))
    if fisher == "identity":
        M = np.eye(len(M))
    expected = S @ np.linalg.solve(M, Z.T) / 400
    np.testing.assert_allclose(explainer.influence((X_test, y_test)), expected, rtol=1e-8)


def test_explanation_can_be_kept(tmp_path, cancer, explainer):
    answer = explainer.explain(cancer[2:], k=6)
    stored = json.loads(answer.to_json(tmp_path / "explanation.json").read_text())
    wanted = "indices weights side explained variance damping damping_rule k seed version"
    assert set(wanted.split()) <= set(stored)
    assert stored["indices"] == answer.indices.tolist()
    table = pd.read_csv(answer.to_csv(tmp_path / "table.csv"))
    assert table["index"].tolist() == answer.indices.tolist()
    np.testing.assert_allclose(table["weight"], answer.weights)


def test_pandas_index_becomes_ids(cancer, model):
    X, y, *_ = cancer
    frame = pd.DataFrame(X, index=[f"patient-{i}" for i in range(400)])
    answer = exempla.explain(model, (frame, y), cancer[2:], k=3, progress=False)
    assert answer.ids is not None
    assert answer.ids.tolist() == [f"patient-{i}" for i in answer.indices]


def test_fewer_than_k_is_said(cancer, model):
    X, y, X_test, y_test = cancer
    explainer = Explainer(model, normalize=False, progress=False).fit((X, y))
    with pytest.warns(exempla.ExemplaWarning, match="31 of 60"):
        answer = explainer.explain((X_test, y_test), k=60, side="both")
    assert len(answer) == answer.rank == 31
    assert any("31 of 60" in note for note in answer.warnings)


def test_caller_is_left_alone(cancer, model):
    X, y, X_test, y_test = (np.array(a) for a in cancer)
    for a in (X, y, X_test, y_test):
        a.flags.writeable = False
    before = model.coef_.copy()
    exempla.explain(model, (X, y), (X_test, y_test), k=3, progress=False)
    np.testing.assert_array_equal(model.coef_, before)


def test_quick_jobs_are_silent(capsys, cancer, model):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        exempla.explain(model, cancer[:2], cancer[2:], k=3)
    out, err = capsys.readouterr()
    assert out == ""
    assert err == ""


def test_regression_is_explained():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(80, 5))
    y = X @ np.arange(5.0) + rng.normal(size=80)
    y[7] += 12  # one broken measurement
    model = Ridge(alpha=1.0).fit(X, y)
    explainer = Explainer(model, normalize=False, progress=False).fit((X, y))
    assert explainer.self_influence().argmax() == 7
    with pytest.raises(ExemplaError, match="zero"):
        explainer.explain(X[:3], k=2, labels="predicted")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"fisher": "exact"}, "fisher="),
        ({"damping": "lots"}, "damping="),
        ({"damping": -1.0}, "damping="),
        ({"damping": float("nan")}, "damping="),
        ({"damping": True}, "damping="),
    ],
)
def test_bad_options_are_refused_at_once(model, options, message):
    with pytest.raises(ExemplaError, match=message):
        Explainer(model, **options)


def test_bad_questions_are_refused(cancer, model, explainer):
    X_test, y_test = cancer[2:]
    with pytest.raises(ExemplaError, match="fit"):
        Explainer(model).explain((X_test, y_test))
    with pytest.raises(ExemplaError, match="labels="):
        explainer.explain((X_test, y_test), labels="guessed")
    with pytest.raises(ExemplaError, match="side"):
        explainer.explain((X_test, y_test), side="left")
    for k in (0, -1, 2.5, True, 401):
        with pytest.raises(ExemplaError, match="k"):
            explainer.explain((X_test, y_test), k=k)
    with pytest.raises(ExemplaError):
        explainer.explain((X_test[:0], y_test[:0]))
    with pytest.raises(ExemplaError):
        Explainer([])


def test_digits_mistakes_have_opponents_of_the_confused_class():
    """The core claim on real images: what opposes the true label carries the predicted one."""
    X, y = load_digits(return_X_y=True)
    X = X / 16
    model = LogisticRegression(C=0.05, max_iter=2000).fit(X[:900], y[:900])
    predicted = model.predict(X[900:])
    wrong = np.flatnonzero(predicted != y[900:])
    explainer = Explainer(model, progress=False).fit((X[:900], y[:900]))
    hits = []
    for i in wrong[:10]:
        one = (X[900:][i : i + 1], y[900:][i : i + 1])
        opponents = explainer.explain(one, k=5, side="opponents").indices
        hits.append(np.mean(y[:900][opponents] == predicted[i]))
    assert np.mean(hits) > 0.5  # chance is 0.1


def test_save_and_load(tmp_path, cancer, explainer):
    kept = explainer.save(tmp_path / "explainer.joblib")
    again = Explainer.load(kept)
    np.testing.assert_array_equal(again.influence(cancer[2:]), explainer.influence(cancer[2:]))
    first, second = (e.explain(cancer[2:], k=5) for e in (explainer, again))
    np.testing.assert_array_equal(first.indices, second.indices)


def test_what_cannot_be_loaded_is_said(tmp_path):
    with pytest.raises(ExemplaError, match="no file"):
        Explainer.load(tmp_path / "nothing.joblib")
    (tmp_path / "other.joblib").write_bytes(b"something else")
    with pytest.raises(ExemplaError, match=r"not written by Explainer\.save"):
        Explainer.load(tmp_path / "other.joblib")


def test_an_unfitted_explainer_is_not_saved(tmp_path, model):
    with pytest.raises(ExemplaError, match="fit"):
        Explainer(model).save(tmp_path / "empty.joblib")
