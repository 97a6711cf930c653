"""Work that is done once: steps that ignore labels, rows without words, recorded runs."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.feature_selection import SelectKBest
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import exempla
from exempla.errors import ExemplaError
from exempla.tasks.labels.evidence import nearest, recorded_margins
from exempla.tasks.labels.fix_labels import fix_labels, fix_labels_from, gather
from exempla.tasks.labels.problem import without_unsupervised_steps
from tests.reference import all_columns

WORDS = ["cheap", "pills", "offer", "meeting", "agenda", "lunch", "report", "winner"]


class Counted(CountVectorizer):
    """A vectoriser of the caller's own: nobody knows what it looks at."""


def mails(n: int, seed: int = 0) -> tuple[list[str], np.ndarray]:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 2, n)
    p = np.array([[1, 1, 1, 5, 5, 5, 5, 1], [5, 5, 5, 1, 1, 1, 1, 5]], dtype=float)
    p /= p.sum(1, keepdims=True)
    return [" ".join(rng.choice(WORDS, 12, p=p[label])) for label in y], y


def test_steps_that_ignore_labels_are_fitted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = []
    fit_transform = TfidfVectorizer.fit_transform

    def spy(self: TfidfVectorizer, *given: object) -> object:
        fitted.append(len(given[0]))  # type: ignore[arg-type]
        return fit_transform(self, *given)

    monkeypatch.setattr(TfidfVectorizer, "fit_transform", spy)
    X, y = mails(300)
    noisy = np.where(np.arange(300) % 10 == 0, 1 - y, y)
    model = make_pipeline(TfidfVectorizer(), LogisticRegression(C=10.0))
    fixes = fix_labels(model, (X[:200], noisy[:200]), (X[200:], y[200:]), progress=False)
    assert fitted == [300]
    assert np.mean(fixes.indices[:20] % 10 == 0) > 0.7
    assert not hasattr(model[0], "vocabulary_")


@pytest.mark.parametrize("step", [SelectKBest(k=2), Counted()])
def test_steps_that_may_look_at_labels_are_part_of_every_training(step: object) -> None:
    model = make_pipeline(step, LogisticRegression())
    X, _ = mails(20)
    last, rows = without_unsupervised_steps(model, X, seed=0)
    assert last is model
    assert rows is X


def test_a_step_that_fails_is_told_as_before() -> None:
    model = make_pipeline(StandardScaler(), LogisticRegression())
    with pytest.raises(ExemplaError):
        fix_labels(model, (["a", "b"] * 20, [0, 1] * 20), progress=False)


def test_rows_without_words_are_nobodys_neighbours() -> None:
    rng = np.random.default_rng(0)
    dense = rng.random((60, 8)) * (rng.random((60, 8)) < 0.4)
    dense[5:15] = 0.0
    Z = dense / np.maximum(np.linalg.norm(dense, axis=1, keepdims=True), 1e-300)
    blank = ~Z.any(axis=1)
    found = nearest(sparse.csr_matrix(Z), seed=0, count=3)
    assert found is not None
    assert not blank[found.rows[~blank]].any()
    cosines = Z @ Z.T
    np.fill_diagonal(cosines, -1.0)
    best = -np.sort(-cosines, axis=1)[:, :3]
    assert np.sort(found.cosines[~blank])[:, ::-1] == pytest.approx(best[~blank], abs=1e-5)
    codes = rng.integers(0, 2, 60)
    shares = np.bincount(codes) / 60
    assert np.exp(found.log_votes(codes, all_columns(codes, 2)))[blank] == pytest.approx(
        np.tile(shares, (blank.sum(), 1))
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory):
    """A network that learnt 60 wrong labels among 600, its training recorded."""
    X, y = load_digits(return_X_y=True)
    X, rng = X[:600] / 16.0, np.random.default_rng(0)
    given, wrong = y[:600].copy(), rng.permutation(600)[:60]
    given[wrong] = (given[wrong] + 1) % 10
    model = MLPClassifier((32,), random_state=0, learning_rate_init=0.005)
    folder = tmp_path_factory.mktemp("recorded") / "run"
    recorder = exempla.Recorder(model, folder, keep=4, steps=25)
    for _ in range(25):
        model.partial_fit(X, given, classes=np.arange(10))
        recorder.step()
    recorder.finish()
    return model, folder, X, given, given != y[:600]


def test_margins_of_a_recorded_run_are_those_of_its_snapshots(run) -> None:
    model, folder, X, given, wrong = run
    found = recorded_margins(model, folder, X, np.arange(10), given)
    assert wrong[np.argsort(found)[:60]].mean() > 0.7
    last = model.predict_log_proba(X)
    own = last[np.arange(600), given]
    last[np.arange(600), given] = -np.inf
    assert not np.allclose(found, own - last.max(1))
    assert np.corrcoef(found, own - last.max(1))[0, 1] > 0.5


def test_a_recorded_run_hardly_moves_the_count_and_does_not_worsen_the_order(run) -> None:
    model, folder, X, given, wrong = run
    plain = fix_labels(LogisticRegression(), (X, given), progress=False)
    evidence = gather(LogisticRegression(), (X, given))
    evidence.recorded = (model, folder)
    helped = fix_labels_from(evidence)
    assert helped.expected_errors == pytest.approx(plain.expected_errors, rel=0.02)
    assert wrong[helped.indices[:60]].mean() >= wrong[plain.indices[:60]].mean() - 0.02


def test_a_run_that_is_not_there_is_said(tmp_path) -> None:
    X, y = load_digits(return_X_y=True)
    with pytest.raises(ExemplaError, match="folders that a Recorder filled"):
        fix_labels(
            LogisticRegression(), (X[:100], y[:100]), recorded=tmp_path / "no", progress=False
        )
