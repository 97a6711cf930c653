"""Split, default model and its cross-validated accuracy, on made files of every kind."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.svm import LinearSVC

from exempla import ExemplaError
from exempla.tables import (
    CrossValidation,
    cross_validated_accuracy,
    default_model,
    infer_columns,
    read_table,
    split,
)
from exempla.tables.infer import same_labels
from exempla.tables.models.choose import _make_folds


def mixed(n: int = 400, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    size, town = rng.normal(size=n), rng.integers(0, 30, n)
    words = np.array(
        ["good", "fine", "great", "bad", "dull", "poor", "film", "plot", "cast", "end"]
    )
    text = [" ".join(rng.choice(words, 8)) for _ in range(n)]
    signal = size + 0.1 * (town % 2) + np.array([t.count("good") - t.count("bad") for t in text])
    return pd.DataFrame(
        {
            "row_id": np.arange(n),
            "size": np.where(rng.random(n) < 0.1, np.nan, size.round(3)),
            "town": [f"town {t}" if t else "" for t in town],
            "day": pd.date_range("2023-05-01", periods=n).strftime("%Y-%m-%d"),
            "review": text,
            "y": np.where(signal > 0, "up", "down"),
        }
    )


def saved(folder: Path, frame: pd.DataFrame, name: str = "a.csv"):
    frame.to_csv(folder / name, index=False)
    return read_table(folder / name)


def test_every_kind_of_column_reaches_the_model(tmp_path):
    table = saved(tmp_path, mixed())
    columns = infer_columns(table, "y")
    assert [c.kind for c in columns] == ["id", "number", "category", "date", "text", "label"]
    parts = split(table, columns)
    model = default_model(table, columns, rows=parts.train).fit(parts.X_train, parts.y_train)
    assert isinstance(model[-1], LogisticRegression)
    names = " ".join(model[:-1].get_feature_names_out())
    for part in ("size", "missingindicator_size", "town_missing", "day_month_5", "good"):
        assert part in names
    assert "row_id" not in names
    assert model.score(parts.X_test, parts.y_test) > 0.7
    assert model.predict(parts.X_test[:1])[0] in ("up", "down")


def test_split_is_stratified_disjoint_and_repeatable(tmp_path):
    frame = mixed()
    frame.loc[:9, "y"] = "rare"
    frame.loc[[20, 30], "y"] = ""
    table = saved(tmp_path, frame)
    columns = infer_columns(table, "y")
    one, two = split(table, columns, seed=1), split(table, columns, seed=1)
    assert one.unlabelled.tolist() == [20, 30]
    assert any("2 row(s) have no label (rows 20, 30)" in note for note in one.notes)
    assert np.array_equal(np.sort(np.r_[one.train, one.test, one.unlabelled]), np.arange(400))
    assert (one.y_test == "rare").sum() == 2
    assert np.array_equal(one.test, two.test)
    assert not np.array_equal(one.test, split(table, columns, seed=2).test)
    assert one.X_train.index.tolist() == one.train.tolist()
    assert frame["y"][one.test].tolist() == one.y_test.tolist()
    everything = split(table, columns, test_size=0)
    assert len(everything.train) == 398
    assert everything.X_test is None
    with pytest.raises(ExemplaError, match="give a fraction of at least 0"):
        split(table, columns, test_size=1.5)


def test_a_class_of_one_row_stays_in_training(tmp_path):
    frame = mixed(60)
    frame.loc[7, "y"] = "once"
    table = saved(tmp_path, frame)
    parts = split(table, infer_columns(table, "y"), test_size=0.9)
    assert 7 in parts.train
    model = default_model(table, infer_columns(table, "y"), rows=parts.train)
    assert "once" in model.fit(parts.X_train, parts.y_train).classes_


def test_a_class_too_small_to_test_is_said_and_never_judged(tmp_path):
    frame = mixed(60)
    frame.loc[7, "y"] = "once"
    frame.loc[[8, 9], "y"] = "twice"
    table = saved(tmp_path, frame)
    columns = infer_columns(table, "y")
    parts = split(table, columns)
    assert {7, 8, 9} <= set(parts.train.tolist())
    assert any("2 class(es) have too few rows" in n and "'once', 'twice'" in n for n in parts.notes)
    y = parts.y_train
    folds = _make_folds(y, 5, classes=True, seed=0)
    once = int(np.flatnonzero(y == "once")[0])
    assert all(once in train and once not in test for train, test in folds)
    judged = np.concatenate([test for _, test in folds])
    assert np.array_equal(np.sort(judged), np.setdiff1d(np.arange(len(y)), once))
    for train, test in folds:
        assert not np.intersect1d(train, test).size
        assert set(y[test]) <= set(y[train]), "each tested class has been learnt"
    found = cross_validated_accuracy(default_model(table, columns), parts.X_train, y)
    assert 0.4 < found.mean < 1


def test_one_row_against_all_others_can_be_cross_validated():
    X = np.arange(20.0)[:, None]
    y = np.array(["p"] * 19 + ["once"])
    found = cross_validated_accuracy(LogisticRegression(), X, y)
    assert found.majority == 1.0
    assert "hardly better" in found.warning
    with pytest.raises(ExemplaError, match="Every class has a single row"):
        cross_validated_accuracy(LogisticRegression(), X, X[:, 0].astype(str))


def test_regressors_are_known_by_their_tags():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(60, 2))
    y = X @ [3.0, -1.0]
    assert cross_validated_accuracy(Ridge(1e-6), X, y).mean > 0.99
    # Whole numbers too are numbers to a regressor, and classes to a classifier.
    assert cross_validated_accuracy(Ridge(1e-6), X, (10 * y).astype(int)).majority == 0.0
    classes = (y > 0).astype(float)
    assert cross_validated_accuracy(LinearSVC(), X, classes).majority >= 0.5


def test_files_like_adults(tmp_path):
    rng = np.random.default_rng(0)
    ages = rng.integers(18, 80, 300)
    lines = [f"{a}, {'Private' if a % 2 else '?'}, {'>50K' if a > 50 else '<=50K'}" for a in ages]
    (tmp_path / "adult.data").write_text("\n".join(lines[:200]) + "\n")
    tail = "\n".join(line + "." for line in lines[200:]) + "\n"
    train = read_table(tmp_path / "adult.data")
    columns = infer_columns(train, label=-1)
    for above in ("|1x3 Cross validator\n", "age, workclass, income\n"):
        (tmp_path / "adult.test").write_text(above + tail)
        parts = split(train, columns, test=tmp_path / "adult.test")
        assert len(parts.test) == 100
        assert parts.y_test is not None
        assert set(parts.y_test) == {">50K", "<=50K"}
        assert any("matched to those of the training file" in note for note in parts.notes)
        model = default_model(train, columns, rows=parts.train).fit(parts.X_train, parts.y_train)
        assert model.score(parts.X_test, parts.y_test) > 0.95


def test_test_files_that_do_not_fit(tmp_path):
    table = saved(tmp_path, mixed(80))
    columns = infer_columns(table, "y")
    saved(tmp_path, mixed(40, 1).drop(columns="town"), "less.csv")
    with pytest.raises(ExemplaError, match=r"less\.csv lacks the column\(s\) 'town'"):
        split(table, columns, test=tmp_path / "less.csv")
    saved(tmp_path, mixed(40, 1).drop(columns="y"), "bare.csv")
    bare = split(table, columns, test=tmp_path / "bare.csv")
    assert bare.y_test is None
    assert any("no label column" in note for note in bare.notes)
    other = mixed(40, 1)
    saved(tmp_path, other.assign(y=["left", "right"] * 20), "other.csv")
    with pytest.raises(ExemplaError, match="None of the test file's labels"):
        split(table, columns, test=tmp_path / "other.csv")
    saved(tmp_path, other.assign(y=["up", "new"] * 20), "new.csv")
    parts = split(table, columns, test=tmp_path / "new.csv")
    assert len(parts.test) == 20
    assert any("do not occur in training ('new')" in note for note in parts.notes)


@pytest.mark.parametrize(
    ("train", "test", "expected"),
    [
        ([1, 2, 2], ["2", "new", "1.0"], [2, None, 1]),
        ([1.5, 2.5], ["2.5", "x", "nan"], [2.5, None, None]),
        ([True, False], ["false", "TRUE", "1", "maybe"], [False, True, True, None]),
        (["1", "2"], [2, 3], ["2", None]),
        (["a", "b"], ["b", "c"], ["b", None]),
        ([2**53, 2**53 + 1], [str(2**53 + 1)], [2**53 + 1]),
    ],
)
def test_labels_of_one_format_are_found_in_another(train, test, expected):
    labels, known, _ = same_labels(np.array(test), np.array(train))
    assert known.tolist() == [label is not None for label in expected]
    assert labels[known].tolist() == [label for label in expected if label is not None]


def test_a_parquet_file_with_a_csv_test_file_of_an_unknown_label(tmp_path):
    frame = mixed(80).assign(y=[0, 1] * 40)
    frame.to_parquet(tmp_path / "train.parquet", index=False)
    saved(tmp_path, mixed(40, 1).assign(y=["0", "new"] * 20), "test.csv")
    table = read_table(tmp_path / "train.parquet")
    parts = split(table, infer_columns(table, "y"), test=tmp_path / "test.csv")
    assert parts.y_test is not None
    assert parts.y_test.tolist() == [0] * 20
    assert any("do not occur in training ('new')" in note for note in parts.notes)


def test_curated_rows_by_column_and_by_file(tmp_path):
    frame = mixed(100).assign(checked=[1 if i < 10 else "" for i in range(100)])
    table = saved(tmp_path, frame)
    columns = infer_columns(table, "y")
    parts = split(table, columns, curated="checked", test_size=0)
    assert parts.curated.tolist() == list(range(10))
    assert "checked" not in parts.X_train.columns
    assert not np.isin(parts.curated, parts.train).any()
    saved(tmp_path, frame[:5], "gold.csv")
    parts = split(table, columns, curated=tmp_path / "gold.csv", test_size=0)
    assert parts.curated_table is not None
    assert parts.y_curated is not None
    assert len(parts.train) == 100
    assert parts.y_curated.tolist() == frame["y"][:5].tolist()
    with pytest.raises(ExemplaError, match="No row is marked"):
        split(table, columns, curated="town")


def test_regression(tmp_path):
    frame = mixed()
    frame["y"] = 3 * frame["size"].fillna(0) + 0.01 * np.arange(400)
    table = saved(tmp_path, frame)
    columns = infer_columns(table, "y", task="regression")
    parts = split(table, columns)
    model = default_model(table, columns, rows=parts.train)
    assert isinstance(model[-1], Ridge)
    found = cross_validated_accuracy(model, parts.X_train, parts.y_train)
    assert found.mean > 0.9
    assert found.majority == 0
    assert not found.warning


def test_a_model_no_better_than_the_majority_is_said(tmp_path):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"x": rng.normal(size=200), "y": rng.integers(0, 2, 200)})
    table = saved(tmp_path, frame)
    columns = infer_columns(table, "y")
    parts = split(table, columns)
    model = default_model(table, columns, rows=parts.train)
    found = cross_validated_accuracy(model, parts.X_train, parts.y_train)
    assert "hardly better" in found.warning
    good = CrossValidation(0.9, 0.01, 0.7)
    assert not good.warning
    assert CrossValidation(0.72, 0.01, 0.7).warning


def test_accuracy_is_measured_on_rows_not_fitted():
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(60, 80)), rng.integers(0, 2, 60)
    model = LogisticRegression(C=1e4)
    assert model.fit(X, y).score(X, y) == 1.0
    assert cross_validated_accuracy(model, X, y).mean < 0.75
    with pytest.raises(ExemplaError, match="too few"):
        cross_validated_accuracy(model, X[:3], y[:3])


def test_thousands_of_categories_and_a_large_vocabulary(tmp_path):
    rng = np.random.default_rng(0)
    n = 6000
    codes = rng.integers(0, 3000, n)
    frame = pd.DataFrame(
        {
            "code": [f"c{code}" for code in codes],
            "words": [" ".join(f"w{w}" for w in rng.integers(0, 40_000, 6)) for _ in range(n)],
            "y": codes % 2,
        }
    )
    table = saved(tmp_path, frame)
    columns = infer_columns(table, "y")
    assert [c.kind for c in columns] == ["category", "text", "label"]
    parts = split(table, columns)
    model = default_model(table, columns, rows=parts.train).fit(parts.X_train, parts.y_train)
    levels = model[0].named_transformers_["category"].get_feature_names_out()
    assert len(levels) == 1001
    assert "code_infrequent_sklearn" in levels
    assert model[:-1].transform(parts.X_test).shape[1] <= 1001 + 50_000
    assert model.score(parts.X_test, parts.y_test) > 0.55


def test_new_levels_words_and_gaps_at_prediction_time(tmp_path):
    table = saved(tmp_path, mixed())
    columns = infer_columns(table, "y")
    parts = split(table, columns)
    model = default_model(table, columns, rows=parts.train).fit(parts.X_train, parts.y_train)
    odd = parts.X_test[:3].assign(size=np.nan, town="never seen", day=pd.NaT, review="")
    assert len(model.predict(odd)) == 3


def test_the_search_finds_a_strength_that_fits(tmp_path):
    rng = np.random.default_rng(0)
    noise = pd.DataFrame(rng.normal(size=(200, 30)).round(4)).rename(columns=str)
    strong, weak = noise.assign(y=(noise["0"] > 0).astype(int)), noise.assign(y=[0, 1] * 100)
    found = []
    for frame in (strong, weak):
        table = saved(tmp_path, frame)
        found.append(default_model(table, infer_columns(table, "y"))[-1].C)
    assert found[0] >= 10
    assert found[1] <= 0.1


def test_words_that_never_repeat_still_make_a_model(tmp_path):
    frame = pd.DataFrame({"t": [f"a{i} b{i} c{i} d{i} e{i}" for i in range(60)], "y": [0, 1] * 30})
    table = saved(tmp_path, frame)
    columns = infer_columns(table, "y", text="t")
    parts = split(table, columns)
    model = default_model(table, columns, rows=parts.train).fit(parts.X_train, parts.y_train)
    assert model[:-1].transform(parts.X_train).shape[1] >= 5 * len(parts.train)
