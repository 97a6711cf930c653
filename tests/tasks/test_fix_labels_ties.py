"""The same rows whatever the last bits: BLAS threads and rounding decide nothing between equals."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import scale
from threadpoolctl import threadpool_limits

from exempla.arrays import first_largest, levels
from exempla.data import take_rows
from exempla.tasks.labels.crossfit import Learner
from exempla.tasks.labels.fisher import FisherView
from exempla.tasks.labels.fix_labels import fix_labels_from, gather


def texts(n: int = 90) -> tuple[list[str], np.ndarray]:
    """Short messages about one of three topics."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(200)])
    topics = 0.7 * rng.dirichlet(np.full(200, 0.1), 3) + 0.3 / 200
    y = rng.integers(0, 3, n)
    return [" ".join(rng.choice(words, 10, p=topics[c])) for c in y], y


def data_sets() -> Iterator[Any]:
    # L-BFGS waits long for threads on a busy machine; this solver sums over all rows as well
    plain = LogisticRegression(solver="newton-cg")
    for load in (load_breast_cancer, load_iris, load_wine):
        X, y = load(return_X_y=True)
        yield pytest.param(scale(X), y, plain, id=load.__name__[5:])
    X, y = load_digits(n_class=4, return_X_y=True)
    yield pytest.param(X[:120] / 16.0, y[:120], plain, id="digits")
    yield pytest.param(*texts(), make_pipeline(TfidfVectorizer(), plain), id="texts")


def twice(X: Any, y: np.ndarray, seed: int = 0) -> tuple[Any, Any]:
    """(train, curated), a tenth of the training labels flipped, then every training row twice."""
    order = np.random.default_rng(seed).permutation(len(y))
    train, curated = order[: 3 * len(y) // 4], order[3 * len(y) // 4 :]
    noisy = y[train].copy()
    noisy[::10] = (noisy[::10] + 1) % (y.max() + 1)
    both = np.tile(np.arange(len(train)), 2)
    return (take_rows(X, train[both]), noisy[both]), (take_rows(X, curated), y[curated])


def choices(model: Any, train: Any, curated: Any) -> list[list[int]]:
    """Every choice among rows or labels that `fix_labels` makes."""
    evidence = gather(model, train, curated)
    out = []
    for method in ("calibrated", "sbq"):
        fixes = fix_labels_from(evidence, method=method)
        out.append(fixes.indices.tolist())
        out.append(fixes.suggested.tolist())
        out.extend(fixes.contradicting[rank].indices.tolist() for rank in range(5))
    return out


@pytest.mark.parametrize(("X", "y", "model"), list(data_sets()))
def test_the_same_rows_for_any_number_of_threads(X: Any, y: np.ndarray, model: Any) -> None:
    train, curated = twice(X, y)
    found = []
    for threads in (1, 3):
        with threadpool_limits({"blas": threads, "openmp": 1}):
            found.append(choices(model, train, curated))
    assert found[0] == found[1]


@pytest.mark.parametrize("trusted", [True, False], ids=["curated", "none"])
def test_the_last_bits_decide_nothing(trusted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = load_iris(return_X_y=True)
    train, curated = twice(scale(X), y)
    model = LogisticRegression()
    expected = choices(model, train, curated if trusted else None)
    rng = np.random.default_rng(1)

    def jittered(method: Any) -> Any:
        def call(*arguments: Any) -> np.ndarray:
            exact = method(*arguments)
            return exact * (1.0 + 1e-14 * rng.normal(size=exact.shape))

        return call

    monkeypatch.setattr(Learner, "log_proba", jittered(Learner.log_proba))
    monkeypatch.setattr(FisherView, "unit", jittered(FisherView.unit))
    for _ in range(2):
        assert choices(model, train, curated if trusted else None) == expected


def test_levels_join_what_nearly_ties() -> None:
    step = 1e-12
    assert levels(np.array([1.0, 1.0 + step, 1.0 + 2 * step, 2.0, 0.5])).tolist() == [1, 1, 1, 2, 0]
    assert levels(np.array([1e-20, 2e-20])).tolist() == [0, 1]
    assert levels(np.array([1e-20, 2e-20]), scale=1.0).tolist() == [0, 0]
    assert levels(np.array([])).tolist() == []


def test_equal_probabilities_fall_to_the_first() -> None:
    half = np.log(np.array([[0.5, 0.5 + 1e-14], [0.5 + 1e-14, 0.5], [0.4, 0.6]]))
    assert first_largest(half).tolist() == [0, 0, 1]
