"""How many rows to name, and whether the size of their effect is true."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import scale

import exempla
from exempla.report.words import terminal_text
from exempla.tasks import retrain
from exempla.tasks import verify as removal
from exempla.tasks.verify import judge_rows

X, Y = load_breast_cancer(return_X_y=True)
X, Y = np.asarray(scale(X)), np.asarray(Y)
NOISY = Y.copy()
NOISY[:40] = 1 - NOISY[:40]
TRAIN, TEST = (X[:400], NOISY[:400]), (X[400:], Y[400:])


@pytest.mark.parametrize(
    "model",
    [LogisticRegression(C=0.1), HistGradientBoostingClassifier(max_iter=20, random_state=0)],
    ids=["linear", "trees"],
)
def test_where_retraining_is_cheap_the_effect_is_measured(model) -> None:
    model.fit(*TRAIN)
    wrong = np.flatnonzero(model.predict(TEST[0]) != TEST[1])
    found = exempla.explain(model, TRAIN, TEST, k=20, ask=wrong, progress=False)
    effect = found.removal
    assert effect["measured"]
    assert found.finding.startswith(f"Retrained without these {len(found.removed)} of 400")
    keep = np.setdiff1d(np.arange(400), found.removed)
    again = retrain.refit(model, X[keep], NOISY[keep], None, None, 0)
    query = (TEST[0][wrong], TEST[1][wrong])
    before, was = judge_rows(retrain.refit(model, *TRAIN, None, None, 0), query)
    after, now = judge_rows(again, query)
    assert effect["log_likelihood"] == pytest.approx(np.mean(after - before))
    assert effect["n_fixed"] == np.sum(~was & now)
    assert effect["n_broken"] == np.sum(was & ~now)
    assert effect["low"] <= effect["log_likelihood"] <= effect["high"]


def test_a_slow_model_is_predicted_with_an_interval(monkeypatch) -> None:
    monkeypatch.setattr(removal._Retrainer, "is_quick", lambda *_: False)
    model = MLPClassifier((8,), max_iter=50, random_state=0).fit(*TRAIN)
    found = exempla.explain(model, TRAIN, TEST, k=20, progress=False)
    effect, size = found.removal, removal.SIZE["network"]
    assert not effect["measured"]
    explainer = found.question.explainer
    scaled = explainer.removal_effect(found.removed, TEST, scale=size.factor)
    assert effect["log_likelihood"] == pytest.approx(scaled.log_likelihood)
    assert effect["low"] == pytest.approx(size.low * scaled.log_likelihood)
    assert effect["high"] == pytest.approx(size.high * scaled.log_likelihood)
    assert "should become" in found.finding
    assert "90 % interval" in found.finding
    trees = HistGradientBoostingClassifier(max_iter=20, random_state=0).fit(*TRAIN)
    found = exempla.explain(trees, TRAIN, TEST, k=20, progress=False)
    assert found.removal["low"] is None
    assert "cannot be predicted for trees" in found.finding


def test_a_module_without_fit_is_predicted() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(30, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    data = [tuple(torch.as_tensor(a) for a in part) for part in (TRAIN, TEST)]
    data = [(a.float(), b) for a, b in data]
    found = exempla.explain(net, *data, k=4, progress=False)
    assert not found.removal["measured"]


def test_auto_takes_the_smallest_set_within_reach() -> None:
    model = LogisticRegression(C=0.1).fit(*TRAIN)
    found = exempla.explain_errors(model, TRAIN, TEST, progress=False)
    limit = removal.auto_limit(400)
    assert 1 <= len(found) < limit
    more = exempla.explain_errors(model, TRAIN, TEST, k=limit, progress=False)
    np.testing.assert_array_equal(found.indices, more.indices[: len(found)])
    query = tuple(part[found.question.rows] for part in TEST)
    weights = found.question.shares
    influence = found.question.explainer.set_influence(
        query, weights=weights, solve="sketch"
    ).values
    total = np.cumsum(-influence[more.indices])
    assert total[len(found) - 1] >= removal.REACH * total.max()
    assert total[len(found) - 2] < removal.REACH * total.max()


def test_errors_without_a_cause_are_called_diffuse() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(size=(6000, 3))
    labels = (points[:, 0] + 1.5 * rng.normal(size=6000) > 0).astype(int)
    model = LogisticRegression().fit(points[:5000], labels[:5000])
    train, test = (points[:5000], labels[:5000]), (points[5000:], labels[5000:])
    found = exempla.explain_errors(model, train, test, progress=False)
    assert found.diffuse
    assert len(found) <= 10
    assert "No small set of rows causes these errors." in found.finding
    assert "acquire" in terminal_text(found)
    planted = exempla.explain_errors(LogisticRegression().fit(*TRAIN), TRAIN, TEST, progress=False)
    assert not planted.diffuse


def test_printing_an_answer_trains_nothing(monkeypatch) -> None:
    model = LogisticRegression().fit(*TRAIN)
    found = exempla.explain(model, TRAIN, TEST, k=5, progress=False)
    each = exempla.Explainer(model, progress=False).fit(TRAIN).explain(TEST, k=5)

    def refuse(*_, **__):
        raise AssertionError("an answer was printed and a model trained")

    monkeypatch.setattr(LogisticRegression, "fit", refuse)
    for answer in (found, each):
        assert str(answer)
        assert repr(answer)
        assert answer._repr_html_()


@pytest.mark.parametrize("bad", [{"k": 0}, {"k": "many"}, {"side": "left"}, {"labels": "both"},
                                 {"ask": "some"}, {"ask": "errors:a"}, {"selector": "SBQ"},
                                 {"weights": np.ones((2, 2))}])  # fmt: skip
def test_arguments_are_checked_before_anything_is_fitted(bad, monkeypatch) -> None:
    monkeypatch.setattr(exempla.Explainer, "fit", lambda *_, **__: pytest.fail("fitted"))
    with pytest.raises(exempla.ExemplaError):
        exempla.explain(LogisticRegression().fit(*TRAIN), TRAIN, TEST, **{"k": 3, **bad})
