"""The default model of a file is chosen by cross-validation; a surrogate stands in for a model
without scores."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier, IsolationForest
from sklearn.linear_model import LogisticRegression, Ridge, RidgeClassifier
from sklearn.svm import SVC
from sklearn.tree import DecisionTreeClassifier

import exempla
from exempla.tables import CrossValidation, choose_model, infer_columns, read_table, split
from exempla.tables.models import choose, surrogate
from exempla.tables.models.choose import (
    Compared,
    _compared_rows,
    _simplest,
    boosted_model,
    can_explain,
)
from tests.cli.case import run

assert surrogate.surrogate  # loaded before any test changes what can be explained


@pytest.fixture(autouse=True)
def _three_folds(monkeypatch):
    """Three folds are enough to compare models here, and take three fifths of the time."""
    monkeypatch.setattr(choose, "_FOLDS", 3)


def saved(folder, kind, n=300):
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(n, 3)), columns=["a", "b", "c"])
    frame["town"] = rng.choice(["here", "there", "far"], n)
    frame["day"] = pd.date_range("2024-01-01", periods=n).strftime("%Y-%m-%d")
    line = frame["a"] + 0.5 * frame["b"]
    crossed = frame["a"] * frame["b"] > 0  # no line tells these apart
    if kind == "numbers":
        frame["y"] = np.where(crossed, 3.0, -3.0) + rng.normal(size=n).round(3)
    else:
        frame["y"] = np.where(crossed if kind == "crossed" else line > 0, "yes", "no")
    frame.loc[::17, "a"] = np.nan
    path = folder / f"{kind}.csv"
    frame.to_csv(path, index=False)
    return path


def chosen_for(path, task="auto", **options):
    table = read_table(path)
    columns = infer_columns(table, "y", task=task)
    parts = split(table, columns)
    return choose_model(
        table, columns, parts.X_train, parts.y_train, rows=parts.train, **options
    ), parts


@pytest.fixture
def everything(monkeypatch):
    monkeypatch.setattr(choose, "can_explain", lambda model: True)


def test_the_simplest_within_one_standard_error_is_taken():
    def one(loss, se):
        return Compared("", None, CrossValidation(0, 0, 0), loss, se)

    assert _simplest([one(0.50, 0.01), one(0.40, 0.02)]) == 1
    assert _simplest([one(0.419, 0.09), one(0.40, 0.02)]) == 0
    assert _simplest([one(0.421, 0.09), one(0.40, 0.02)]) == 1  # the best one's error counts
    assert _simplest([one(0.40, 0.01), one(0.50, 0.01)]) == 0


@pytest.mark.usefixtures("everything")
def test_boosting_where_it_is_better_and_a_line_where_that_will_do(tmp_path):
    found, parts = chosen_for(saved(tmp_path, "crossed"))
    assert isinstance(found.model[-1], HistGradientBoostingClassifier)
    assert found.model.fit(parts.X_train, parts.y_train).score(parts.X_test, parts.y_test) > 0.8
    lines = found.table().splitlines()
    assert lines[0] == "2 models, 3-fold cross-validation on 240 rows:"
    assert [line.endswith("<- chosen") for line in lines[2:4]] == [False, True]
    found, _ = chosen_for(saved(tmp_path, "straight"))
    assert isinstance(found.model[-1], LogisticRegression)
    assert found.accuracy is not None
    assert found.accuracy.mean > 0.85
    found, _ = chosen_for(saved(tmp_path, "numbers"), task="regression")
    assert "R²" in found.table()
    assert found.compared[0].name == "ridge regression"
    assert found.place == 1


def test_what_cannot_be_explained_or_is_not_wanted_is_no_candidate(tmp_path, monkeypatch):
    monkeypatch.setattr(choose, "can_explain", lambda model: False)
    found, _ = chosen_for(saved(tmp_path, "crossed"))
    assert not found.compared
    assert isinstance(found.model[-1], LogisticRegression)
    monkeypatch.setattr(choose, "can_explain", lambda model: pytest.fail("not asked"))
    assert not chosen_for(saved(tmp_path, "crossed"), linear=True)[0].compared
    assert can_explain(SVC())
    assert not can_explain(RidgeClassifier())


@pytest.mark.usefixtures("everything")
def test_text_alone_keeps_its_linear_model(tmp_path):
    rng = np.random.default_rng(0)
    words = np.array(["good", "fine", "great", "bad", "dull", "poor", "film", "plot", "cast"])
    text = [" ".join(rng.choice(words, 8)) for _ in range(120)]
    frame = pd.DataFrame({"t": text, "y": ["up" if t.count("good") else "down" for t in text]})
    frame.to_csv(tmp_path / "t.csv", index=False)
    found, _ = chosen_for(tmp_path / "t.csv")
    assert not found.compared


def test_large_comparisons_use_fewer_rows_and_huge_ones_are_not_made():
    frame = pd.DataFrame(np.zeros((30_000, 50)))
    two, many = np.arange(30_000) % 2, np.arange(30_000) % 500
    assert _compared_rows(frame, two, False) == 20_000
    assert _compared_rows(frame, np.arange(30_000) % 4, False) == 10_000
    assert _compared_rows(frame, many, False) is None
    assert _compared_rows(frame[:2], two[:2], False) is None
    assert _compared_rows(frame[:9], np.arange(9), False) is None
    assert _compared_rows(frame[:9], np.arange(9.0), True) == 20_000


def test_boosted_columns_keep_gaps_and_code_categories(tmp_path):
    table = read_table(saved(tmp_path, "crossed"))
    columns = infer_columns(table, "y")
    parts = split(table, columns)
    model = boosted_model(columns).fit(parts.X_train, parts.y_train)
    ready = model[:-1].transform(parts.X_train)
    assert model[-1].is_categorical_.tolist() == [True] + [False] * 23
    assert np.isnan(ready).any()
    odd = parts.X_test[:2].assign(town="never seen", a=np.nan)
    assert len(model.predict(odd)) == 2


@pytest.mark.usefixtures("everything")
def test_the_command_line_prints_the_scores_and_explains_the_winner(tmp_path, capsys):
    path = saved(tmp_path, "straight")
    assert run("explain", path, "--label", "y", "-k", 5, "--out", tmp_path / "out") == 0
    said = capsys.readouterr().out
    assert "2 models, 3-fold cross-validation on 240 rows" in said
    assert said.index("<- chosen") < said.index("Model: logistic regression")
    kept = json.loads((tmp_path / "out" / "explanation.json").read_text())
    assert [one["model"] for one in kept["compared"]] == [
        "logistic regression",
        "histogram gradient boosting",
    ]
    # these take linear models alone, so none else is tried
    assert run("summarize", path, "--label", "y", "-k", 8, "--out", tmp_path / "few") == 0
    assert "-fold" not in capsys.readouterr().out


# ---- surrogates


RNG = np.random.default_rng(1)
X = RNG.normal(size=(300, 3))
Y = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")


class BlackBox:
    """Answers, and nothing else."""

    def fit(self, X, y):
        self.tree = DecisionTreeClassifier(random_state=0).fit(X, y)
        return self

    def predict(self, X):
        return self.tree.predict(X)


def test_a_surrogate_is_fitted_to_the_answers_and_its_agreement_measured(monkeypatch):
    monkeypatch.setattr(choose, "_FOLDS", 5)
    box = BlackBox().fit(X, Y)
    found = exempla.surrogate(box, X, Y)
    agreement = np.mean(found.model.predict(X) == box.predict(X))
    assert found.agreement.mean == pytest.approx(agreement, abs=0.05)
    assert found.agreement.mean > 0.9
    assert f"{found.agreement.mean:.1%}" in found.sentence
    assert "BlackBox" in found.sentence
    answer = exempla.explain(found.model, (X, Y), (X[:20], Y[:20]), k=3, progress=False)
    assert len(answer) == 3
    only = exempla.surrogate(box, X, candidates=[LogisticRegression()])
    assert only.name == "LogisticRegression"
    deaf = LogisticRegression(C=1e-9)
    poor = exempla.surrogate(box, RNG.normal(size=(300, 3)), candidates=[deaf])
    assert "says nothing about your model" in poor.sentence


def test_surrogates_of_frames_numbers_texts_and_rare_classes():
    frame = pd.DataFrame(X, columns=["a", "b", "c"]).assign(
        town=RNG.choice(["x", "y"], 300), day=pd.date_range("2024-01-01", periods=300)
    )

    class Frame(BlackBox):
        def predict(self, X):
            return np.where(X["a"] + (X["town"] == "x") > 0.5, "yes", "no")

    found = exempla.surrogate(Frame(), frame)
    assert found.agreement.mean > 0.85
    assert found.model.predict(frame[:2]).shape == (2,)

    class Number(BlackBox):
        def predict(self, X):
            return X[:, 0] * 2.0 - X[:, 2]

    found = exempla.surrogate(Number(), X, candidates=[Ridge()])
    assert found.regression
    assert "R²" in found.sentence
    texts = [" ".join(RNG.choice(["good", "bad", "film", "plot"], 6)) for _ in range(120)]

    class Text(BlackBox):
        def predict(self, X):
            return np.array(["up" if "good" in t else "down" for t in X])

    assert exempla.surrogate(Text(), texts).agreement.mean > 0.8
    rare = Y.astype("U20")
    rare[:5] = "never answered"
    found = exempla.surrogate(BlackBox().fit(X, Y), X, rare, candidates=[LogisticRegression()])
    assert found.model.classes_.tolist() == ["never answered", "no", "yes"]


def test_what_no_surrogate_can_do_is_said():
    with pytest.raises(exempla.ExemplaError, match="no predict"):
        exempla.surrogate(object(), X)

    class Same(BlackBox):
        def predict(self, X):
            return np.zeros(len(X), dtype=int)

    with pytest.raises(exempla.ExemplaError, match="predicts the same for every row"):
        exempla.surrogate(Same(), X)
    with pytest.raises(exempla.ExemplaError, match="RidgeClassifier"):
        exempla.surrogate(BlackBox().fit(X, Y), X, candidates=[RidgeClassifier()])
    with pytest.raises(exempla.ExemplaError, match=r"exempla\.surrogate.*ScoreModel"):
        exempla.Explainer(IsolationForest())


BOX = """
import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin

class Box(ClassifierMixin, BaseEstimator):
    def fit(self, X, y):
        self.classes_ = np.unique(y)
        return self
    def predict(self, X):
        return np.where(X["a"].fillna(0) + X["b"] > 0, "yes", "no")
"""


def test_the_command_line_says_the_agreement_first(tmp_path, capsys, monkeypatch):
    path = saved(tmp_path, "straight")
    (tmp_path / "surrogate_box.py").write_text(BOX)
    monkeypatch.chdir(tmp_path)
    words = ("explain", path, "--label", "y", "-k", 5, "--model", "surrogate_box:Box")
    assert run(*words, "--out", tmp_path / "no") == 2
    assert "--surrogate" in capsys.readouterr().err
    assert run(*words, "--surrogate", "--out", tmp_path / "out") == 0
    said = capsys.readouterr()
    both = said.out + said.err
    assert "is explained instead of Box" in both
    assert both.index("is explained instead of Box") < both.index("On 60 test rows")
    kept = json.loads((tmp_path / "out" / "explanation.json").read_text())
    assert kept["surrogate"]["agreement"] > 0.8
    assert "is explained instead of Box" in (tmp_path / "out" / "report.html").read_text()
    alone = ("explain", path, "--label", "y", "--surrogate", "--out", tmp_path / "none")
    assert run(*alone) == 2
    assert "give it with --model" in capsys.readouterr().err
