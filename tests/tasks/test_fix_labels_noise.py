"""The kind of mistakes is estimated: numbers, intervals and what cannot be told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import expit
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

from exempla.cli.main import main
from exempla.errors import ExemplaError
from exempla.tasks.labels.evidence import find_conflicts
from exempla.tasks.labels.fix_labels import fix_labels
from exempla.tasks.labels.wrong import assess, fit_stack
from experiments.label_cases import KINDS, mislabel
from experiments.label_study import Trial
from tests.reference import all_columns


def overlapping(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """log q of two classes, and labels drawn from q."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(scale=3.0, size=n)
    truth = (rng.random(n) < expit(odds)).astype(int)
    return np.log(expit(np.column_stack([-odds, odds]))), truth


# ---- the stack and the flip rate, on predictions that are right


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_uniform_flips_are_counted_without_trusted_rows(rate: float) -> None:
    log_q, truth = overlapping(6000, 0)
    flip = np.random.default_rng(1).random(6000) < rate
    columns = all_columns(np.where(flip, 1 - truth, truth), 2)
    stack = fit_stack({"models": log_q}, columns, 6000)
    assert 0.7 * rate < stack.flip_rates.mean() < 1.3 * rate


def test_right_labels_have_a_small_flip_rate() -> None:
    log_q, truth = overlapping(6000, 0)
    stack = fit_stack({"models": log_q}, all_columns(truth, 2), 6000)
    assert stack.flip_rates.max() < 0.02


def test_a_view_without_information_gets_no_weight_and_weights_are_bounded() -> None:
    rng = np.random.default_rng(0)
    log_q, truth = overlapping(600, 0)
    views = {"good": log_q, "chance": np.log(rng.dirichlet([1, 1], 600)), "against": log_q[:, ::-1]}
    for n_train in (600, 0):
        weights = fit_stack(views, all_columns(truth, 2), n_train).weights
        assert weights[0] > 0.5
        assert weights[1] < 0.15
        assert (weights >= 0).all()
        assert (weights <= 4).all()


def test_trusted_rows_move_the_class_biases() -> None:
    log_q, truth = overlapping(4000, 0)
    shifted = log_q + np.array([2.0, 0.0])  # a model that prefers class 0
    shifted -= np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    biases = fit_stack({"models": shifted}, all_columns(truth, 2), 0).biases
    assert biases[1] - biases[0] == pytest.approx(2.0, abs=0.4)


def test_many_classes_are_judged_by_the_likeliest_ones() -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 200, 3000)
    logits = rng.normal(size=(3000, 200)) + 7.0 * np.eye(200)[truth]
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    flip = rng.random(3000) < 0.05
    given = np.where(flip, (truth + 1) % 200, truth)
    fixes = fix_labels(None, (np.zeros((3000, 1)), given), probabilities=p, progress=False)
    assert flip[fixes.indices[: flip.sum()]].mean() > 0.95
    assert 0.6 < fixes.expected_errors / flip.sum() < 1.7
    assert np.mean(fixes.suggested[:100] == truth[fixes.indices[:100]]) > 0.95


def test_first_labels_of_trusted_rows_decide_the_count() -> None:
    held, n, N = 0, 3600, 4000
    for seed in range(10):
        log_q, truth = overlapping(N, seed)
        hard = np.abs(log_q[:, 1] - log_q[:, 0]) < 2.0  # mistakes that labels alone cannot show
        flip = hard & (np.random.default_rng(100 + seed).random(N) < 0.4)
        first = np.where(flip, 1 - truth, truth)
        given, true = np.concatenate([first[:n], truth[n:]]), flip[:n].sum()
        columns = all_columns(given, 2)
        alone = assess({"models": log_q}, columns, n)
        told = assess({"models": log_q}, columns, n, original=first[n:])
        assert alone.interval[0] <= true <= alone.interval[1]
        assert np.ptp(told.interval) < 0.5 * np.ptp(alone.interval)
        assert 0.6 < told.expected_errors / true < 1.6
        assert told.probabilities.sum() == pytest.approx(told.expected_errors, rel=1e-3)
        held += told.interval[0] <= true <= told.interval[1]
    assert held >= 7  # 90 % intervals: fewer than 7 of 10 has a probability of 1 %


# ---- from the door


def digits(kind: str, rate: float, seed: int = 0) -> tuple[Trial, np.ndarray]:
    X, y = map(np.asarray, load_digits(return_X_y=True))
    order = np.random.default_rng(seed).permutation(len(y))
    a, b = order[:900], order[900:1300]
    model = LogisticRegression(max_iter=60)
    trial = Trial("digits", seed, model, (X[a] / 16, y[a]), y[a], (X[b] / 16, y[b]), (X[b], y[b]))
    return trial, mislabel(trial, kind, rate, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_wrong_labels_holds_for_every_kind(kind: str) -> None:
    trial, given = digits(kind, 0.2)
    wrong = given != trial.truth
    fixes = fix_labels(trial.model, (trial.train[0], given), trial.curated, progress=False)
    assert 0.5 < fixes.expected_errors / wrong.sum() < 1.5
    low, high = fixes.interval
    assert low <= min(fixes.expected_errors, wrong.sum())
    assert max(fixes.expected_errors, wrong.sum()) <= high
    assert wrong[fixes.indices[: wrong.sum()]].mean() >= 0.8
    likely = fixes.probabilities > 0.5
    assert (fixes.suggested[likely] != fixes.given[likely]).all()
    assert (fixes.alternative == fixes.suggested)[likely].all()
    assert np.mean(fixes.alternative_chance[likely] > fixes.given_chance[likely]) > 0.9


def test_labels_drawn_by_chance_are_said_to_be_unknown() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 5)), rng.integers(0, 2, 300)
    for curated in (None, (rng.normal(size=(80, 5)), rng.integers(0, 2, 80))):
        fixes = fix_labels(LogisticRegression(), (X, y), curated, progress=False)
        assert not fixes.has_signal
        assert fixes.finding.startswith("Nothing is known")
        assert (fixes.suggested == fixes.given).all()


def test_original_labels_are_one_each_and_known() -> None:
    X, y = map(np.asarray, load_breast_cancer(return_X_y=True))
    X, train, curated = np.asarray(scale(X)), slice(0, 400), slice(400, None)
    given = (LogisticRegression(C=0.1), (X[train], y[train]), (X[curated], y[curated]))
    once = y[curated].copy()
    once[:40] = 1 - once[:40]
    more = fix_labels(*given, original_labels=once, progress=False)
    assert more.expected_errors > fix_labels(*given, progress=False).expected_errors
    with pytest.raises(ExemplaError, match="one label for each of the 169"):
        fix_labels(*given, original_labels=once[:5], progress=False)
    with pytest.raises(ExemplaError, match="never occur"):
        fix_labels(*given, original_labels=once + 7, progress=False)


def test_equal_rows_with_different_labels_are_pairs() -> None:
    table = pd.DataFrame({"a": [1, 2, 1, 1], "b": ["x", "y", "x", "x"]})
    for X in (table, np.array([[1.0, 2], [3, 4], [1, 2], [1, 2]]), ["A b", "c", "a  B", "a b"]):
        found = find_conflicts(X, np.array([0, 1, 1, 0]))
        assert [pair.rows for pair in found] == [(0, 2), (2, 3)]


# ---- the command line


@pytest.fixture
def table(tmp_path: Path) -> Path:
    loaded: Any = load_breast_cancer(return_X_y=True, as_frame=True)
    X, y = loaded
    frame: Any = X.iloc[:, :8].assign(label=np.where(y, "benign", "malignant"))
    frame.loc[5, "label"] = "malignant" if frame.loc[5, "label"] == "benign" else "benign"
    frame = pd.concat([frame.iloc[:200], frame.iloc[[7]]], ignore_index=True)
    frame.loc[200, "label"] = "benign" if frame.loc[7, "label"] == "malignant" else "malignant"
    frame.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def test_any_model_with_probabilities_will_do(
    table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mymod.py").write_text(
        "from sklearn.ensemble import AdaBoostClassifier\n"
        "rf = AdaBoostClassifier(n_estimators=10, random_state=0)\n"
    )
    out = tmp_path / "out"
    command = ["fix-labels", str(table), "--label", "label", "--model", "mymod:rf"]
    assert main([*command, "--out", str(out), "--quiet"]) == 0
    page = (out / "report.html").read_text()
    assert "trusted" not in page.lower()
    assert "has different labels: rows 7 and 200 (malignant / benign)" in page
