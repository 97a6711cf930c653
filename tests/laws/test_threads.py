"""The same answers whatever the number of BLAS threads: no choice hangs on the last bit of a sum.

Threads split a product differently and round it differently; so do the columns of a matrix in
another order, which is the same law without threads. And the same answers whatever other threads
ask of the same Explainer.
"""

from __future__ import annotations

from functools import cache, partial

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale
from threadpoolctl import threadpool_limits

import exempla
from tests.laws.test_selectors import SELECTORS, law
from tests.threads import hammered

pytestmark = pytest.mark.filterwarnings("ignore::exempla.errors.ExemplaWarning")
LOADERS = {
    "breast cancer": load_breast_cancer,
    "iris": load_iris,
    "digits": partial(load_digits, n_class=4),
    "wine": load_wine,
}
SETS = [*LOADERS, "text"]
SOME = ["breast cancer", "digits", "text"]


def messages(n: int = 200) -> tuple[list[str], np.ndarray]:
    """Short texts of two classes in words of very different frequency, some of them twice."""
    rng = np.random.default_rng(0)
    words = np.array([f"word{i}" for i in range(600)])
    y = rng.integers(0, 2, n)
    texts = []
    for label in y:
        often = 1.0 / np.arange(1, 601)
        often[label * 40 : (label + 1) * 40] *= 2
        texts.append(" ".join(rng.choice(words, rng.integers(3, 15), p=often / often.sum())))
    texts[10:20], y[10:20] = texts[:10], y[:10]
    return texts, y


@cache
def case(name: str):
    """A fitted model, its training data and questioned examples."""
    if name == "text":
        texts, y = messages()
        X = TfidfVectorizer().fit_transform(texts)
    else:
        X, y = LOADERS[name](return_X_y=True)
        X = scale(X)
    order = np.random.default_rng(1).permutation(len(y))[:200]
    train, test = np.split(order, [int(0.7 * len(order))])
    model = LogisticRegression(max_iter=1000).fit(X[train], y[train])
    asked = y[test].copy()
    asked[:5] = (asked[:5] + 1) % (y.max() + 1)  # so that some predictions are wrong
    return model, (X[train], y[train]), (X[test], asked)


def summary(name):
    model, train, _ = case(name)
    found = exempla.summarize(model, train, 12, progress=False)
    return found.indices, found.weights


def explanation(name):
    found = exempla.explain(*case(name), k=10, progress=False)
    return found.indices, found.weights


def cleaning(name):
    found = exempla.clean(*case(name), k=15, progress=False)
    return found.indices, found.effect


def selection(name):
    """Up to the rank, where the last row to complete it is any of them."""
    X = case(name)[1][0]
    rows = X if isinstance(X, np.ndarray) else X.toarray()
    found = exempla.select(rows, rows[:20].mean(0), min(30, rows.shape[1]))
    return found.indices, found.weights


@pytest.mark.parametrize("name", SOME)
@pytest.mark.parametrize("job", [summary, explanation, cleaning, selection])
def test_answers_do_not_depend_on_the_number_of_blas_threads(job, name):
    case(name)  # the model itself is fitted once: it may depend on them
    with threadpool_limits(1):
        indices, weights = job(name)
    with threadpool_limits(3):  # cuts sums at other places than two or four halves would
        again = job(name)
    np.testing.assert_array_equal(indices, again[0])
    np.testing.assert_allclose(weights, again[1], rtol=1e-6, atol=1e-6 * np.abs(weights).max())


@pytest.mark.parametrize("selector", SELECTORS, ids=repr)
def test_the_order_of_the_coordinates_does_not_matter(selector):
    @law
    def check(problem):
        rows, target, _, rng = problem
        rows[-2:] = rows[:2]  # copies, and with k = p the rank is reached: true ties both
        k = min(rows.shape)
        order = rng.permutation(len(target))
        one = exempla.select(rows, target, k, selector)
        two = exempla.select(rows[:, order], target[order], k, selector)
        np.testing.assert_array_equal(one.indices, two.indices)

    check()


def test_rows_orthogonal_to_the_target_are_on_no_side():
    rng = np.random.default_rng(0)
    target = rng.standard_normal(50)
    rows = rng.standard_normal((40, 50))
    rows[::2] -= np.outer(rows[::2] @ target, target) / (target @ target)
    for side in ("opponents", "proponents"):
        assert (exempla.select(rows, target, 5, side=side).indices % 2 == 1).all()
        assert exempla.select(rows, target, 40, exempla.SBQ(1.0), side).candidates <= 20


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize("normalize", [True, False])
def test_questions_of_several_threads_do_not_meet(name, normalize):
    model, train, (X, y) = case(name)
    asked, few = (X, y), (X[:3], y[:3])
    explainer = exempla.Explainer(model, normalize=normalize, progress=False).fit(train)
    jobs = [
        lambda: explainer.influence(asked),
        lambda: explainer.explain(asked, k=4).weights,
        explainer.self_influence,
        lambda: explainer.features.rows.sum(0),
        lambda: explainer.explain_each(few, k=3)[-1].weights,
        lambda: explainer.affinity([2, 5], few),
    ]
    alone = [job() for job in jobs]
    for expected, got in zip(alone, hammered(jobs, times=4), strict=True):
        for one in got:
            np.testing.assert_allclose(one, expected, rtol=1e-12, atol=1e-12)
