"""What users hand in: pipelines, text, frames, sparse matrices, and everything that is wrong."""

from __future__ import annotations

import copy

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.base import clone
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_iris
from sklearn.ensemble import BaggingRegressor
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import (
    HuberRegressor,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
)
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV, HalvingGridSearchCV, RandomizedSearchCV
from sklearn.neighbors import KNeighborsRegressor
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.svm import NuSVC

from exempla.errors import ExemplaError, UnfittedModelError, UnsupportedModelError
from exempla.oracles import make_oracle

X, CODES = load_iris(return_X_y=True)
Y = np.array(["setosa", "versicolor", "virginica"])[CODES]
MODEL = LogisticRegression(max_iter=2000).fit(X, Y)


def flat(oracle, examples, labels="true"):
    rows = list(oracle.scores(examples, labels))
    parts = [[f.g, f.a.toarray() if sp.issparse(f.a) else f.a] for r in rows for f in r.factors]
    return np.concatenate([(g[:, :, None] * a[:, None, :]).reshape(len(g), -1) for g, a in parts])


def scored(model, X, y):
    oracle = make_oracle(model)
    return flat(oracle, oracle.read((X, y), role="train"))


# ---- every form of the same data gives the same scores


@pytest.mark.parametrize(
    "form",
    [
        X.tolist(),
        pd.DataFrame(X),
        pd.DataFrame(X).astype("Float64"),
        pd.DataFrame(X).astype(object),
        np.asfortranarray(X),
        np.repeat(X, 2, axis=0)[::2],
        X.astype(object),
        sp.coo_matrix(X),
        sp.csc_array(X),
    ],
    ids=["list", "frame", "nullable", "objects", "fortran", "strided", "object", "coo", "csc"],
)
@pytest.mark.parametrize(
    "y", [Y, Y.tolist(), pd.Series(Y), pd.Series(Y).astype("category"), Y[:, None]]
)
def test_forms_of_data_agree(form, y):
    np.testing.assert_allclose(scored(MODEL, form, y), scored(MODEL, X, Y), atol=1e-12)


def test_integer_boolean_and_read_only_arrays():
    whole = np.round(X).astype(np.int32)
    whole.flags.writeable = False
    np.testing.assert_array_equal(scored(MODEL, whole, Y), scored(MODEL, whole.astype(float), Y))
    yes = X.mean(axis=0) < X
    np.testing.assert_array_equal(scored(MODEL, yes, Y), scored(MODEL, yes.astype(float), Y))
    small = scored(MODEL, X.astype(np.float32), Y)
    assert small.dtype == np.float64
    np.testing.assert_allclose(small, scored(MODEL, X, Y), atol=1e-5)


def test_the_callers_data_and_model_are_not_changed():
    before, weights = X.copy(), MODEL.coef_.copy()
    scored(MODEL, X, Y)
    np.testing.assert_array_equal(X, before)
    np.testing.assert_array_equal(MODEL.coef_, weights)


def test_sparse_input_stays_sparse_with_its_ones_last():
    oracle = make_oracle(MODEL)
    examples = oracle.read((sp.csr_array(X), Y), role="train")
    for rows in [*oracle.scores(examples), *oracle.fisher_rows(examples)]:
        a = rows.factors[0].a
        assert sp.issparse(a)
        assert a.format == "csr"
        np.testing.assert_array_equal(a[:, [-1]].toarray(), 1.0)


def test_sparse_perceptron_equals_dense():
    model = MLPClassifier((4,), max_iter=3000, random_state=0, solver="lbfgs").fit(X, Y)
    a, b = (make_oracle(model) for _ in range(2))
    dense, sparse = a.read((X, Y), role="train"), b.read((sp.csr_array(X), Y), role="train")
    for one, two in zip(a.scores(dense), b.scores(sparse)):
        assert sp.issparse(two.factors[0].a)
        np.testing.assert_allclose(one.factors[0].g, two.factors[0].g, atol=1e-12)
        np.testing.assert_allclose(one.factors[1].a, two.factors[1].a, atol=1e-12)


def test_batches_are_in_order_and_cover_everything(monkeypatch):
    whole = scored(MODEL, X, Y)
    monkeypatch.setattr("exempla.oracles.sklearn.oracle.MAX_BATCH_ROWS", 7)
    oracle = make_oracle(MODEL)
    examples = oracle.read((X, Y), role="train")
    batches = list(oracle.scores(examples))
    assert len(batches) == 22
    assert np.concatenate([rows.sample for rows in batches]).tolist() == list(range(150))
    np.testing.assert_allclose(flat(oracle, examples), whole, atol=1e-12)
    fisher = np.concatenate([rows.sample for rows in oracle.fisher_rows(examples)])
    assert set(fisher) == set(range(150))
    assert np.all(np.diff(fisher) >= 0)


def test_take_keeps_rows_labels_weights_and_ids_together():
    frame = pd.DataFrame(X, index=[f"flower {i}" for i in range(150)])
    oracle = make_oracle(MODEL)
    examples = oracle.read((frame, Y, np.arange(150.0)), role="train")
    some = examples.take(np.array([149, 0, 60]))
    assert len(some) == 3
    assert some.ids.tolist() == ["flower 149", "flower 0", "flower 60"]
    assert some.labels.tolist() == ["virginica", "setosa", "versicolor"]
    np.testing.assert_allclose(flat(oracle, some), flat(oracle, examples)[[149, 0, 60]])


def test_ids_come_from_an_index_that_says_something():
    oracle = make_oracle(MODEL)
    assert oracle.read((pd.DataFrame(X), pd.Series(Y)), role="train").ids is None
    shuffled = pd.DataFrame(X).sample(frac=1, random_state=0)
    examples = oracle.read((shuffled, Y[shuffled.index]), role="train")
    assert examples.ids.tolist() == shuffled.index.tolist()
    by_label = oracle.read((X, pd.Series(Y, index=range(10, 160))), role="train")
    assert by_label.ids[0] == 10


# ---- pipelines and searches

TEXTS = ["cheap pills now", "meeting at noon", "cheap cheap offer", "lunch at noon then"] * 5
KINDS = ["spam", "ham", "spam", "ham"] * 5


def test_raw_text_through_a_pipeline_stays_sparse():
    pipe = make_pipeline(CountVectorizer(), LogisticRegression()).fit(TEXTS, KINDS)
    oracle = make_oracle(pipe)
    for form in (TEXTS, pd.Series(TEXTS), np.array(TEXTS), np.array(TEXTS, dtype=object)):
        examples = oracle.read((form, KINDS), role="train")
        (rows,) = oracle.scores(examples)
        assert sp.issparse(rows.factors[0].a)
        expected = pipe[:-1].transform(TEXTS).toarray()
        np.testing.assert_array_equal(rows.factors[0].a.toarray()[:, :-1], expected)
        assert oracle.predict(examples).tolist() == pipe.predict(TEXTS).tolist()
        p = pipe.predict_proba(TEXTS)[np.arange(20), np.searchsorted(pipe.classes_, KINDS)]
        np.testing.assert_allclose(oracle.log_likelihood(examples), np.log(p))


def test_wide_text_is_never_densified(monkeypatch):
    rng = np.random.default_rng(0)
    wide = sp.random_array((400, 50_000), density=2e-4, random_state=rng, format="csr")
    y = rng.integers(2, size=400)
    model = LogisticRegression().fit(wide, y)

    def refuse(self, *args, **kwargs):
        raise AssertionError("densified")

    monkeypatch.setattr(sp.csr_array, "toarray", refuse)
    monkeypatch.setattr(sp.csr_array, "todense", refuse)
    oracle = make_oracle(model)
    examples = oracle.read((wide, y), role="train")
    stored = sum(rows.factors[0].a.nnz for rows in oracle.scores(examples))
    assert stored == wide.nnz + 400
    assert sum(len(rows) for rows in oracle.fisher_rows(examples)) == 400


def frame(n=60):
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.normal(40, 9, n), "city": rng.choice(["Ulm", "Bonn"], n)})
    table.loc[3, "age"] = np.nan
    return table, np.where(table["city"] == "Ulm", rng.random(n) < 0.8, rng.random(n) < 0.3)


def test_column_transformer_imputes_before_rows_are_judged():
    table, y = frame()
    columns = make_column_transformer(
        (make_pipeline(SimpleImputer(), StandardScaler()), ["age"]), (OneHotEncoder(), ["city"])
    )
    pipe = make_pipeline(columns, LogisticRegression()).fit(table, y)
    seen = pipe[:-1].transform(table)
    np.testing.assert_allclose(scored(pipe, table, y), scored(pipe[-1], seen, y))


@pytest.mark.parametrize("search", [GridSearchCV, RandomizedSearchCV, HalvingGridSearchCV])
def test_searches_give_their_best_model(search):
    options = {"n_iter": 2} if search is RandomizedSearchCV else {}
    inner = make_pipeline(StandardScaler(), LogisticRegression())
    model = search(inner, {"logisticregression__C": [0.01, 1.0]}, cv=3, **options)
    make_oracle(model)  # not fitted yet, but supported
    model.fit(X, Y)
    np.testing.assert_allclose(scored(model, X, Y), scored(model.best_estimator_, X, Y))


def test_nested_pipelines_and_a_search_at_the_end():
    plain = make_pipeline(StandardScaler(), StandardScaler(), LogisticRegression()).fit(X, Y)
    nested = make_pipeline(
        StandardScaler(),
        GridSearchCV(make_pipeline(StandardScaler(), LogisticRegression()), {}, cv=2),
    ).fit(X, Y)
    np.testing.assert_allclose(scored(nested, X, Y), scored(plain, X, Y), atol=1e-8)


def test_a_search_that_chose_an_unsupported_model_is_refused():
    pipe = make_pipeline(StandardScaler(), LogisticRegression())
    model = GridSearchCV(pipe, {"logisticregression": [NuSVC(nu=0.1)]}, cv=2).fit(X, Y)
    with pytest.raises(UnsupportedModelError, match=r"NuSVC.* is SVC"):
        make_oracle(model)


def test_mixture_at_the_end_of_a_pipeline():
    pipe = make_pipeline(StandardScaler(), GaussianMixture(2, random_state=0)).fit(X)
    oracle = make_oracle(pipe)
    examples = oracle.read(X, role="train")
    np.testing.assert_allclose(oracle.log_likelihood(examples), pipe.score_samples(X))


# ---- what cannot work says so


def holes(rows):
    spoilt = X.copy()
    spoilt[rows, 1] = np.nan
    return spoilt


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ((holes([3]), Y), r"NaN or infinite values in row 3: impute"),
        ((holes(range(9)), Y), r"rows 0, 1, 2, 3, 4 and 4 more"),
        ((sp.csr_array(holes([3, 8])), Y), r"NaN or infinite values in rows 3, 8"),
        ((np.where(X > 7, np.inf, X), Y), r"NaN or infinite values in rows 102"),
        ((X, Y[:-1]), r"X has 150 rows but y has 149"),
        ((X[:0], Y[:0]), r"no rows"),
        (([], []), r"no rows"),
        ((X[:50], Y[:50]), r"all labels are 'setosa': training data need two classes"),
        ((X, np.where(Y == "setosa", "rose", Y)), r"never saw: 'rose'; it knows 'setosa'"),
        ((X, CODES), r"never saw: 0, 1, 2"),
        ((X, [None, *Y[1:]]), r"labels are missing in row 0"),
        ((X, np.c_[Y, Y]), r"one label per row, but has shape \(150, 2\)"),
        ((X[:, :3], Y), r"X has 3 features but the model was fitted on 4"),
        ((X[0], Y[:4]), r"2 dimensions \(rows and features\), not 1"),
        ((X[None], Y[:1]), r"2 dimensions \(rows and features\), not 3"),
        ((X.astype(complex), Y), r"table of real numbers \(its values are complex128\)"),
        ((pd.DataFrame(X).assign(e="a"), Y), r"columns \['e'\] are not numeric: encode"),
        ((np.full((150, 4), "a", dtype=object), Y), r"table of real numbers"),
        ((np.full((150, 4), "a"), Y), r"table of real numbers"),
        ((X, Y, np.ones(3)), r"sample_weight has shape \(3,\)"),
        ((X, Y, -np.ones(150)), r"sample_weight is negative, NaN or infinite in rows 0"),
        ((X, Y, np.zeros(150)), r"every sample_weight is zero"),
        ((X, Y, ["a"] * 150), r"sample_weight is not an array of numbers"),
        ((X, Y, None, None), r"tuple of 4"),
        (("a text", Y), r"X must be an array"),
        ((None, Y), r"X must be an array"),
        (((row for row in X), Y), r"X must be an array"),
        ((X, [[1], [1, 2]] * 75), r"one label, or the same number of values, for every row"),
        (([*X[:-1].tolist(), [1.0]], Y), r"table of real numbers"),
        (X, r"labels are missing: give \(X, y\)"),
        ((X, None), r"labels are missing: give \(X, y\)"),
    ],
)
def test_bad_training_data(data, message):
    with pytest.raises(ExemplaError, match=message):
        make_oracle(MODEL).read(data, role="train")


def test_all_problems_are_told_at_once():
    with pytest.raises(ExemplaError) as told:
        make_oracle(MODEL).read((holes([3]), ["rose"] * 150, -np.ones(150)), role="train")
    for part in ("training data", "row 3", "'rose'", "sample_weight is negative"):
        assert part in str(told.value)


def test_test_data_may_have_one_class_and_no_labels_but_no_new_labels():
    oracle = make_oracle(MODEL)
    assert len(oracle.read((X[:1], Y[:1]), role="test")) == 1
    assert oracle.read((X, None), role="test").labels is None
    with pytest.raises(ExemplaError, match="test data cannot be used: y holds labels"):
        oracle.read((X[:1], ["rose"]), role="test")


def test_frames_must_have_the_models_columns_in_order():
    table = pd.DataFrame(X, columns=list("abcd"))
    model = LogisticRegression(max_iter=2000).fit(table, Y)
    oracle = make_oracle(model)
    with pytest.raises(ExemplaError, match="another order"):
        oracle.read((table[list("badc")], Y), role="train")
    with pytest.raises(ExemplaError, match=r"not fitted on: \['z'\]"):
        oracle.read((table.rename(columns={"a": "z"}), Y), role="train")


def test_bad_regression_targets():
    oracle = make_oracle(Ridge().fit(X, CODES))
    for y, message in [
        (["a"] * 150, "y must be numeric"),
        (np.where(CODES == 1, np.nan, 1.0), "y is NaN or infinite in rows 50"),
        (np.c_[CODES, CODES], r"y has shape \(150, 2\), but the model has 1 output"),
    ]:
        with pytest.raises(ExemplaError, match=message):
            oracle.read((X, y), role="train")
    counts = make_oracle(PoissonRegressor().fit(X, CODES))
    with pytest.raises(ExemplaError, match="negative in rows 0"):
        counts.read((X, CODES - 1.0), role="train")


def test_a_pipeline_that_refuses_the_data_is_told_as_our_error():
    pipe = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, Y)
    with pytest.raises(ExemplaError, match="steps before the model refuse X"):
        make_oracle(pipe).read((X[:, :2], Y), role="train")
    hollow = make_pipeline(FunctionTransformer(lambda A: np.log(A - A.min())), LogisticRegression())
    hollow.steps[-1] = ("logisticregression", MODEL)
    with (
        np.errstate(divide="ignore"),
        pytest.raises(ExemplaError, match="after the pipeline's transformations"),
    ):
        make_oracle(hollow).read((X, Y), role="train")


@pytest.mark.parametrize(
    "model",
    [
        LogisticRegression(),
        make_pipeline(StandardScaler(), Ridge()),
        GridSearchCV(LogisticRegression(), {}),
        GaussianMixture(2),
    ],
    ids=lambda m: type(m).__name__,
)
def test_unfitted_models_are_refused_when_read(model):
    oracle = make_oracle(copy.deepcopy(model))
    with pytest.raises(UnfittedModelError, match=r"not fitted.*call model.fit"):
        oracle.read((X, Y), role="train")


def test_a_search_without_refit_has_no_model():
    model = GridSearchCV(LogisticRegression(max_iter=2000), {}, cv=2, refit=False).fit(X, Y)
    with pytest.raises(UnfittedModelError, match="refit=False"):
        make_oracle(model).read((X, Y), role="train")


def test_tensors_are_tables_too():
    torch = pytest.importorskip("torch")
    given = torch.tensor(X)
    np.testing.assert_array_equal(
        scored(MODEL, given.clone().requires_grad_(), Y), scored(MODEL, X, Y)
    )
    rounded = given.bfloat16()
    expected = scored(MODEL, rounded.double().numpy(), Y)
    np.testing.assert_array_equal(scored(MODEL, rounded, Y), expected)
    with pytest.raises(ExemplaError, match="meta device has no values"):
        scored(MODEL, given.to("meta"), Y)


@pytest.mark.parametrize("parameters", [3, [3], [], ["coef", None]])
def test_parameters_that_name_nothing(parameters):
    with pytest.raises(ExemplaError, match="parameters must name some of"):
        make_oracle(MODEL, parameters=parameters)


# ---- values that used to raise a raw exception


def test_repeated_columns_are_named():
    frame = pd.DataFrame(X, columns=["a", "b", "a", "d"])
    named = LogisticRegression(max_iter=2000).fit(pd.DataFrame(X, columns=list("abcd")), Y)
    with pytest.raises(ExemplaError, match=r"several columns called 'a'"):
        scored(named, frame, Y)


def test_integers_beyond_float64_are_a_sentence():
    huge = X.astype(object)
    huge[3, 1] = 10**400
    with pytest.raises(ExemplaError, match="integers beyond the range of float64"):
        scored(MODEL, huge.tolist(), Y)
    target = np.array([10**400, *range(1, 150)], dtype=object)
    with pytest.raises(ExemplaError, match="y has integers beyond the range of float64"):
        scored(LinearRegression().fit(X, CODES), X, target)


@pytest.mark.parametrize("scale", [1e-300, 1e200])
@pytest.mark.parametrize(
    "model",
    [LinearRegression(), HuberRegressor(), KNeighborsRegressor(), BaggingRegressor(Ridge())],
)
def test_targets_whose_squares_vanish_or_overflow_are_a_sentence(model, scale):
    model = clone(model).fit(X[:, 1:], X[:, 0])
    with pytest.raises(ExemplaError, match="rescale y"):
        make_oracle(model).read((X[:, 1:], scale * X[:, 0]), role="train")


def test_messages_show_plain_values():
    labels = np.array([np.str_("O"), *Y[1:]], dtype=object)
    with pytest.raises(ExemplaError, match="never saw: 'O'; it knows 'setosa'"):
        scored(MODEL, X, labels)
