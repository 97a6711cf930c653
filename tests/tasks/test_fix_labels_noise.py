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
from exempla.tasks.labels.calibrate import refit_after_decisions
from exempla.tasks.labels.fix_labels import fix_labels
from exempla.tasks.labels.neighbours import conflicts
from exempla.tasks.labels.noise import fit_noise, fit_posterior, support
from experiments.label_cases import KINDS, mislabel
from experiments.label_study import Trial


def overlapping(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """log q of two classes, and labels drawn from q."""
    rng = np.random.default_rng(seed)
    odds = rng.normal(scale=3.0, size=n)
    truth = (rng.random(n) < expit(odds)).astype(int)
    return np.log(expit(np.column_stack([-odds, odds]))), truth


# ---- the noise model, on q that is right


@pytest.mark.parametrize("rate", [0.05, 0.2])
def test_one_class_called_another_is_seen_as_such(rate: float) -> None:
    log_q, truth = overlapping(6000, 0)
    flip = (truth == 1) & (np.random.default_rng(1).random(6000) < 2 * rate)
    given = np.where(flip, 0, truth)
    noise = fit_noise(log_q, given)
    assert 0.7 < noise.wrong(log_q, given).sum() / flip.sum() < 1.4
    assert noise.errors[1, 0] > 3 * noise.errors[0, 1]


def test_mistakes_on_hard_rows_are_seen_as_such() -> None:
    log_q, truth = overlapping(8000, 0)
    chance = 0.4 * np.exp(-np.abs(log_q[:, 1] - log_q[:, 0]))
    flip = np.random.default_rng(1).random(8000) < chance
    given = np.where(flip, 1 - truth, truth)
    noise = fit_noise(log_q, given)
    plain = fit_noise(log_q, given, wavers=False)
    assert noise.wrong(log_q, given).sum() == pytest.approx(flip.sum(), rel=0.35)
    assert noise.log_likelihood > plain.log_likelihood + 3


def test_right_labels_have_hardly_any_mistakes() -> None:
    log_q, truth = overlapping(6000, 0)
    assert fit_noise(log_q, truth).wrong(log_q, truth).mean() < 0.02


def test_slopes_of_the_likelihood_are_right() -> None:
    from exempla.tasks.labels.noise import _Likelihood

    rng = np.random.default_rng(0)
    log_q = np.log(rng.dirichlet([0.5] * 3, 50))
    given = rng.integers(0, 3, 50)
    problem = _Likelihood(log_q, given, None, None, True, None)
    at = problem.base[problem.free] + 0.1 * rng.normal(size=len(problem.free))
    _, slope = problem.objective(at)
    for i in range(len(at)):
        step = np.zeros(len(at))
        step[i] = 1e-5
        up, down = problem.objective(at + step)[0], problem.objective(at - step)[0]
        assert slope[i] == pytest.approx((up - down) / 2e-5, rel=1e-4, abs=1e-4)


def test_known_originals_teach_the_noise() -> None:
    log_q = np.log(np.full((400, 2), 0.5))  # nothing can be told from the rows
    truth = np.arange(400) % 2
    given = np.where(np.arange(400) % 5 == 0, 1 - truth, truth)
    noise = fit_noise(log_q, given, known=truth)
    assert noise.wrong(log_q, given).mean() == pytest.approx(0.2, abs=0.05)


def test_a_view_that_knows_nothing_is_dropped_and_none_counts_against_itself() -> None:
    rng = np.random.default_rng(0)
    log_q, truth = overlapping(600, 0)
    views = [support(log_q), support(np.log(rng.dirichlet([1, 1], 600)))]
    found = fit_posterior([*views, -views[0]], truth, seed=0)
    assert found.weights[0] > 0.1
    assert abs(found.weights[1]) < 0.1
    assert (found.weights >= 0).all()


# ---- from the door


def digits(kind: str, rate: float, seed: int = 0) -> tuple[Trial, np.ndarray]:
    X, y = map(np.asarray, load_digits(return_X_y=True))
    order = np.random.default_rng(seed).permutation(len(y))
    a, b = order[:900], order[900:1300]
    model = LogisticRegression(C=0.1, max_iter=500)
    trial = Trial("digits", seed, model, (X[a] / 4, y[a]), y[a], (X[b] / 4, y[b]), (X[b], y[b]))
    return trial, mislabel(trial, kind, rate, np.random.default_rng(seed))


@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_wrong_labels_holds_for_every_kind(kind: str) -> None:
    trial, given = digits(kind, 0.2)
    wrong = given != trial.truth
    fixes = fix_labels(trial.model, (trial.train[0], given), trial.curated, progress=False)
    assert 0.7 < fixes.expected_errors / wrong.sum() < 1.4
    low, high = fixes.expected_errors_interval or (0.0, 0.0)
    assert low <= fixes.expected_errors <= high
    assert wrong[fixes.indices[: wrong.sum()]].mean() > 0.8
    likely = fixes.probabilities > 0.5
    assert (fixes.suggested[likely] != fixes.given[likely]).all()
    assert (fixes.alternative == fixes.suggested)[likely].all()
    assert np.mean(fixes.alternative_chance[likely] > fixes.given_chance[likely]) > 0.9


def test_labels_drawn_by_chance_are_said_to_be_unknown() -> None:
    rng = np.random.default_rng(0)
    X, y = rng.normal(size=(300, 5)), rng.integers(0, 2, 300)
    for curated in (None, (rng.normal(size=(80, 5)), rng.integers(0, 2, 80))):
        fixes = fix_labels(LogisticRegression(), (X, y), curated, progress=False)
        assert not fixes.informed
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
        found = conflicts(X, np.array([0, 1, 1, 0]))
        assert [pair.rows for pair in found] == [(0, 2), (2, 3)]


def test_decisions_move_the_probabilities_of_the_rest() -> None:
    rng = np.random.default_rng(0)
    p = rng.uniform(0.01, 0.3, 500)
    wrong = rng.random(500) < 3 * p
    decided = rng.choice(500, 60, replace=False)
    again = refit_after_decisions(None, p, decided, wrong[decided])
    rest = np.setdiff1d(np.arange(500), decided)
    assert again[rest].sum() == pytest.approx(wrong[rest].sum(), rel=0.35)
    assert p[rest].sum() < 0.5 * wrong[rest].sum()
    assert (again[decided] == wrong[decided]).all()


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
    assert "the same, but labelled" in page
