"""The paper's special case in its true form, against Hessians and against real refits."""

import numpy as np
import pytest
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.linear_model import LogisticRegression, PoissonRegressor, Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import StandardScaler

from exempla import SBQ, ExemplaError, Explainer, TopInfluence, select
from exempla.kernel.solve import (
    LEVELLING_EXPONENT,
    SetInfluence,
    average,
    relative_influence,
)
from exempla.metrics import hessian, hessian_influence
from exempla.oracles import make_oracle
from exempla.oracles.scores import ArrayScores
from tests.reference import dense_metric, dense_rows


def scaled(load, n):
    X, y = load(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(X))[:n]
    return StandardScaler().fit_transform(X[order]), y[order]


def canonical_models():
    X, y = scaled(load_breast_cancer, 120)
    yield "logistic", LogisticRegression(C=0.5).fit(X[:, :8], y), X[:, :8], y
    X, y = scaled(load_iris, 90)
    yield "multinomial", LogisticRegression(C=0.5).fit(X, y), X, y
    X, y = scaled(load_diabetes, 100)
    yield "poisson", PoissonRegressor(alpha=0.1).fit(X, np.round(y / 50)), X, np.round(y / 50)
    yield "gaussian", Ridge(alpha=2.0).fit(X, y), X, y


@pytest.mark.parametrize(
    ("model", "X", "y"), [pytest.param(*case[1:], id=case[0]) for case in canonical_models()]
)
def test_model_fisher_is_the_hessian_of_canonical_models_at_any_theta(model, X, y):
    oracle = make_oracle(model)
    train = oracle.read((X, y), role="train")
    rng = np.random.default_rng(0)
    for shift in (0.0, 0.1):
        moved = oracle.at(oracle.theta + shift * rng.normal(size=oracle.theta.shape))
        H = hessian(moved, train)
        np.testing.assert_allclose(
            dense_metric(moved, train, 0.0), H, rtol=1e-4, atol=1e-6 * np.abs(H).max()
        )


def test_empirical_fisher_is_not_the_hessian():
    X, y = scaled(load_breast_cancer, 200)
    model = LogisticRegression().fit(X, y)
    oracle = make_oracle(model)
    train = oracle.read((X, y), role="train")
    H = hessian(oracle, train)
    off = np.linalg.norm(dense_metric(oracle, train, 0.0, empirical=True) - H) / np.linalg.norm(H)
    assert off > 0.2


def whitened_by_hessian(model, train, test):
    """Rows whose dot products over n are Koh and Liang's influence."""
    oracle = make_oracle(model)
    examples = oracle.read(train, role="train")
    L = np.linalg.cholesky(hessian(oracle, examples))
    rows = np.linalg.solve(L, dense_rows(oracle.scores(examples)).T).T
    targets = dense_rows(oracle.scores(oracle.read(test, role="test")))
    return rows, np.linalg.solve(L, targets.T).T


def test_the_papers_equivalence_in_its_true_form():
    X, y = scaled(load_breast_cancer, 260)
    train, test = (X[:200], y[:200]), (X[200:], y[200:])
    model = LogisticRegression(C=0.5, tol=1e-8).fit(*train)
    influence = hessian_influence(model, train, test)
    rows, targets = whitened_by_hessian(model, train, test)
    own = np.sqrt((rows**2).sum(1))
    for j, mu in enumerate(targets):
        loudest = np.abs(influence[:, j]).argmax()
        assert select(rows, mu, 1, TopInfluence()).indices[0] == loudest
        huge_noise = SBQ(noise=1e6 * float((rows**2).sum(1).max()))
        assert select(rows, mu, 1, huge_noise).indices[0] == loudest
        relative = np.abs(influence[:, j]) / own
        assert select(rows, mu, 1, SBQ()).indices[0] == relative.argmax()


def test_the_papers_claim_as_printed_rarely_holds():
    """The practical kernel lacks the H⁻¹ of influence, so its first pick is another point."""
    X, y = scaled(load_breast_cancer, 260)
    train, test = (X[:200], y[:200]), (X[200:], y[200:])
    model = LogisticRegression(C=0.5, tol=1e-8).fit(*train)
    influence = hessian_influence(model, train, test)
    practical = Explainer(model, fisher="identity", normalize=False, progress=False).fit(train)
    picks = [
        practical.explain((test[0][j : j + 1], test[1][j : j + 1]), k=1, side="both").indices[0]
        for j in range(60)
    ]
    agreement = np.mean(np.array(picks) == np.abs(influence).argmax(0))
    assert agreement < 0.5


@pytest.mark.parametrize("family", ["logistic", "multinomial", "ridge", "poisson"])
def test_influence_predicts_leave_one_out_refits(family):
    if family in ("logistic", "multinomial"):
        X, y = scaled(load_breast_cancer if family == "logistic" else load_digits, 200)
        X, y = (X, y) if family == "logistic" else (X[y < 3], y[y < 3])
        make = lambda: LogisticRegression(C=0.05, tol=1e-10, max_iter=5000)  # noqa: E731
    else:
        X, y = scaled(load_diabetes, 150)
        y = np.round(y / 50) if family == "poisson" else y
        if family == "ridge":
            make = lambda: Ridge(alpha=5.0)  # noqa: E731
        else:
            make = lambda: PoissonRegressor(alpha=0.5, tol=1e-10, max_iter=5000)  # noqa: E731
    n = len(X) - 15
    train, test = (X[:n], y[:n]), (X[n:], y[n:])
    model = make().fit(*train)
    explainer = Explainer(model, damping=0.0, progress=False).fit(train)
    predicted = explainer.influence(test)
    oracle = explainer.embeddings[0].oracle
    questioned = oracle.read(test, role="test")
    before = oracle.log_likelihood(questioned)
    dropped = np.arange(0, n, 6)
    actual = []
    for i in dropped:
        keep = np.arange(n) != i
        refit = refitted(make(), X[:n][keep], y[:n][keep], n)
        actual.append(before - oracle.at(flat(refit)).log_likelihood(questioned))
    correlation = np.corrcoef(np.ravel(actual), predicted[dropped].ravel())[0, 1]
    assert correlation >= 0.99


def refitted(model, X, y, n):
    """Refit with the penalty of the mean over n kept as it was."""
    if isinstance(model, LogisticRegression | Ridge):
        return model.fit(X, y)  # their penalty is not divided by n
    # PoissonRegressor penalises the mean over its own rows
    return model.set_params(alpha=model.alpha * n / len(X)).fit(X, y)


def flat(model):
    """Parameters in the oracle's layout."""
    return make_oracle(model).theta


@pytest.mark.parametrize("networks", [1, 3])
def test_relative_influence_is_the_cosine_of_the_kernel_up_to_the_question(networks):
    """Divided by the question's own root too, it is what unit rows give at the same damping."""
    X, y = scaled(load_iris, 90)
    several = [
        MLPClassifier((4,), alpha=0.1, max_iter=500, random_state=seed).fit(X, y)
        for seed in range(networks)
    ]
    explainer = Explainer(several, damping=0.05, progress=False).fit((X[:80], y[:80]))
    test = (X[80:], y[80:])
    plain, own = explainer.influence(test), explainer.self_influence()
    relative = explainer.influence(test, relative=True)
    np.testing.assert_allclose(relative, plain / np.sqrt(own)[:, None], rtol=1e-9)
    cosines = explainer.affinity(np.arange(80), test)
    assert np.abs(cosines).max() <= 1 + 1e-9
    ratio = relative / cosines
    np.testing.assert_allclose(ratio, np.broadcast_to(ratio[0], ratio.shape), rtol=1e-5)


def test_relative_influence_names_who_speaks_about_the_question_not_who_is_loud():
    """A long score that bears on everything comes first, until scores are compared by what they
    are about."""
    scores = np.array([[1.0, 0.1], [3.0, 4.0], [-1.0, 2.0]])
    explainer = Explainer(ArrayScores(), fisher="identity", progress=False).fit(scores)
    asked = np.array([[1.0, 0.0]])
    assert explainer.influence(asked)[:, 0].argmax() == 1
    assert explainer.influence(asked, relative=True)[:, 0].argmax() == 0


def test_a_row_without_influence_of_its_own_has_none_relative_to_it():
    found = relative_influence(np.array([[3.0, 1.0], [0.0, 0.0]]), np.array([9.0, 0.0]))
    np.testing.assert_array_equal(found, [[1.0, 1.0 / 3.0], [0.0, 0.0]])


def test_relative_has_to_be_a_flag():
    X, y = scaled(load_iris, 60)
    explainer = Explainer(LogisticRegression().fit(X, y), progress=False).fit((X, y))
    with pytest.raises(ExemplaError, match="relative"):
        explainer.influence((X[:2], y[:2]), relative="yes")  # type: ignore[arg-type]


def test_perceptron_hessian_matches_its_fisher_only_roughly():
    X, y = scaled(load_iris, 90)
    mlp = MLPClassifier((4,), alpha=0.1, max_iter=2000, random_state=0).fit(X, y)
    A = hessian_influence(mlp, (X, y), (X[:5], y[:5]), damping=0.05)
    B = Explainer(mlp, damping=0.05, progress=False).fit((X, y)).influence((X[:5], y[:5]))
    correlation = np.corrcoef(A.ravel(), B.ravel())[0, 1]
    assert 0.8 < correlation < 1 - 1e-9


def test_hessian_says_when_it_is_too_large():
    X, y = load_digits(return_X_y=True)
    mlp = MLPClassifier((128,), max_iter=2).fit(X[:50], y[:50])
    with pytest.raises(ExemplaError, match="too large"):
        hessian_influence(mlp, (X[:50], y[:50]), (X[:2], y[:2]))


def moments(*sizes: float) -> list[SetInfluence]:
    """One influence each, of the same two questions, of different sizes."""
    rng = np.random.default_rng(0)
    return [SetInfluence(s * rng.normal(size=(50, 2)), "", float(s), 1) for s in sizes]


def test_separate_models_count_as_they_are():
    parts = moments(1.0, 5.0, 0.2)
    found = average(iter(parts), from_run=False)
    np.testing.assert_allclose(found.values, np.mean([p.values for p in parts], axis=0))
    assert (found.steps, found.residual) == (3, 5.0)


def test_moments_of_a_run_are_levelled_question_by_question():
    parts = moments(1.0, 100.0)
    parts[1].values[:, 1] /= 100.0  # the second question meets two moments of one size
    found = average(iter(parts), from_run=True).values
    sizes = np.array([[np.sqrt(np.mean(p.values[:, j] ** 2)) for j in (0, 1)] for p in parts])
    powers = sizes**-LEVELLING_EXPONENT
    expected = sum(p.values * w for p, w in zip(parts, powers, strict=True))
    expected *= sizes.mean(0) / (sizes * powers).sum(0)
    np.testing.assert_allclose(found, expected)
    # less than its size says, and more than nothing, of the first moment
    plain = np.mean([p.values for p in parts], axis=0)
    first = [np.corrcoef(parts[0].values[:, 0], v[:, 0])[0, 1] for v in (plain, found)]
    assert first[0] + 0.05 < first[1] < 0.9


def test_levelled_moments_keep_the_scale_and_bear_a_question_without_effect():
    (part,) = moments(2.0)
    part.values[:, 1] = 0.0
    found = average(iter([part] * 3), from_run=True).values
    np.testing.assert_allclose(found, part.values)
