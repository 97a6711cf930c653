"""Wrong numbers: found, told in size and kind, and not invented where noise has heavy tails."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_diabetes, make_friedman1
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

import exempla
from exempla.errors import ExemplaError
from exempla.tasks.labels.problem import LabelledRows
from exempla.tasks.labels.regression import Case, assess, exchanged, repaired, residuals_of


def model():
    return make_pipeline(StandardScaler(), PolynomialFeatures(2), Ridge(1.0))


def friedman(seed=0, n=600, noise=None):
    X, y = make_friedman1(n, n_features=5, noise=0.0, random_state=seed)
    rng = np.random.default_rng(seed)
    return X, y + (rng.normal(size=n) if noise is None else noise(rng, n)), rng


@pytest.mark.parametrize(
    ("kind", "slip"), [("×10", lambda v: 10 * v), ("÷10", lambda v: v / 10), ("sign", lambda v: -v)]
)
def test_slips_are_found_named_and_undone(kind, slip):
    X, y, rng = friedman()
    bad = rng.choice(len(y), 24, replace=False)
    noisy = y.copy()
    noisy[bad] = slip(y[bad])
    fixes = exempla.fix_labels(model(), (X, noisy), progress=False)
    assert isinstance(fixes, exempla.LabelFixes)
    first = fixes.indices[:24]
    assert np.isin(first, bad).mean() > 0.8
    low, high = fixes.interval
    assert low <= fixes.expected_errors <= high
    assert 15 < fixes.expected_errors < 34
    sure = fixes.probabilities > 0.9
    assert np.mean(fixes.kind[sure] == kind) > 0.8
    right = np.isin(fixes.indices, bad) & sure & (fixes.kind == kind)
    np.testing.assert_allclose(fixes.suggested[right], y[fixes.indices[right]])


def test_numbers_of_other_rows_are_found():
    X, y, rng = friedman()
    bad = rng.choice(len(y), 40, replace=False)
    noisy = y.copy()
    noisy[bad] = np.roll(y[bad], 1)
    off = np.abs(noisy - y) > 4  # by more than the noise
    fixes = exempla.fix_labels(model(), (X, noisy), progress=False)
    assert np.isin(fixes.indices[: off.sum()], np.flatnonzero(off)).mean() > 0.7


@pytest.mark.parametrize("tail", [2.5, 4.0])
def test_heavy_tails_are_not_called_wrong(tail):
    X, y, _ = friedman(noise=lambda rng, n: rng.standard_t(tail, n))
    fixes = exempla.fix_labels(model(), (X, y), progress=False)
    assert fixes.expected_errors < 6  # of 600; |z| > 3 would call 24 and more of them wrong
    assert fixes.interval[0] < 3
    assert fixes.tail < 12


def test_clean_numbers_of_a_poor_model_are_not_called_wrong():
    X, y = load_diabetes(return_X_y=True)
    fixes = exempla.fix_labels(Ridge(0.1), (X, y), progress=False)
    assert fixes.expected_errors < 3
    assert fixes.interval[0] < 1 < fixes.interval[1]


def test_spread_follows_the_prediction():
    rng = np.random.default_rng(0)
    X = rng.uniform(0, 1, (800, 1))
    y = 10 * X[:, 0] + rng.normal(size=800) * (0.1 + 2 * X[:, 0])
    found, rule = residuals_of(Ridge(1e-6), LabelledRows(X, y, 800), 0)
    small, large = found.spread[X[:, 0] < 0.2].mean(), found.spread[X[:, 0] > 0.8].mean()
    assert rule == "spread by predicted value"
    assert large > 3 * small


def test_curated_rows_tell_noise_from_mistakes():
    # One number in ten has noise of ten times the usual: right, as curated rows show.
    def noise(rng, n):
        return rng.normal(size=n) * np.where(rng.random(n) < 0.1, 10.0, 1.0)

    X, y, _ = friedman(n=1200, noise=noise)
    alone = exempla.fix_labels(model(), (X[:600], y[:600]), progress=False)
    helped = exempla.fix_labels(model(), (X[:600], y[:600]), (X[600:], y[600:]), progress=False)
    assert helped.n_trusted == 600
    assert helped.expected_errors < max(0.5 * alone.expected_errors, 10)


def test_the_same_seed_gives_the_same_answer_and_the_model_is_untouched():
    X, y, _ = friedman(n=200)
    given = model()
    a, b = (exempla.fix_labels(given, (X, y), k=9, seed=3, progress=False) for _ in range(2))
    assert a.to_dict() == b.to_dict()
    assert not hasattr(given[-1], "coef_")
    assert len(a) == 9


def test_frames_files_and_first(tmp_path):
    X, y, _ = friedman(n=120)
    fixes = exempla.fix_labels(model(), (X, y), progress=False, ids=[f"p{i}" for i in range(120)])
    frame = fixes.first(5).to_frame()
    assert list(frame)[:4] == ["rank", "index", "given", "suggested"]
    assert {"expected", "spread", "kind", "probability", "id"} <= set(frame)
    assert fixes.first(5).to_csv(tmp_path / "a.csv").read_text().count("\n") == 6
    assert "numbers are expected to be wrong" in fixes.finding


@pytest.mark.parametrize(
    ("y", "said"),
    [
        (np.full(50, 3.0), "all numbers are 3"),
        (np.append(np.arange(49.0), np.nan), "missing or infinite in row 49"),
        (np.arange(50).astype(str).astype(object), None),
        (np.array(["a"] * 50), "holds words"),
    ],
)
def test_what_cannot_be_judged_is_refused(y, said):
    X = np.random.default_rng(0).normal(size=(50, 2))
    if said is None:
        assert exempla.fix_labels(Ridge(), (X, y), progress=False).n_train == 50
        return
    with pytest.raises(ExemplaError, match=said):
        exempla.fix_labels(Ridge(), (X, y), progress=False, task="regression")


def test_a_classifier_is_refused_for_numbers():
    X = np.random.default_rng(0).normal(size=(50, 2))
    with pytest.raises(ExemplaError, match="predicts no numbers"):
        exempla.fix_labels(
            LogisticRegression(), (X, np.arange(50.0)), progress=False, task="regression"
        )


def test_units_do_not_matter():
    X, y, _ = friedman(n=300)
    noisy = y.copy()
    noisy[[3, 80, 200]] *= 10
    one = exempla.fix_labels(model(), (X, noisy), progress=False)
    other = exempla.fix_labels(model(), (X, 1e6 * noisy), progress=False)
    np.testing.assert_array_equal(one.indices[:3], other.indices[:3])
    assert one.expected_errors == pytest.approx(other.expected_errors, abs=0.5)


def test_digits_in_each_others_place():
    assert exchanged(1520.0)[0] == 5120.0
    assert exchanged(0.0) == []
    case = Case(np.array([510.0]), np.array([149.0]), np.array([5.0]), np.array([False]))
    assert repaired(case, np.array([7])) == [150.0]


def test_nothing_is_surer_than_its_rows_allow():
    rng = np.random.default_rng(0)
    y = np.append(rng.normal(size=60), 1000.0)
    found = assess(Case(y, np.zeros(61), np.ones(61), np.zeros(61, dtype=bool)), 0)
    assert found.probabilities[-1] == pytest.approx(61 / 64)
