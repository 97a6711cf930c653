"""Discriminants and naive Bayes: training scores are those of log p(x, y), questioned scores those
of log p(y | x), both by finite differences over the model's public arrays."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.special import log_softmax, logsumexp
from scipy.stats import multivariate_normal
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.naive_bayes import BernoulliNB, ComplementNB, GaussianNB, MultinomialNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import exempla
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle
from exempla.oracles.sklearn import generative as base
from tests.oracles.sklearn.case import (
    CODES,
    RNG,
    SPECIES,
    WEIGHTS,
    X,
    flat_scores,
    read_train,
    summed,
)

WORDS = RNG.poisson(np.exp(np.abs(X)) * [1.0, 0.5, 1.0, 2.0]).astype(float)
SOME = slice(0, 150, 7)


def joint_of_gaussians(model, kind):
    """log p(x, k) as a function of movements of weights, means and covariances."""
    classes, d = model.classes_, X.shape[1]
    if kind == "diag":
        means, prior = model.theta_, model.class_prior_
        covariances = [np.diag(v) for v in model.var_]
    elif kind == "full":
        means, prior = model.means_, model.priors_
        covariances = [R @ np.diag(S) @ R.T for R, S in zip(model.rotations_, model.scalings_)]
    else:
        means, prior = model.means_, model.priors_
        within = X - means[CODES]
        by = [within.T @ within / n for n in (len(X), len(X) - len(classes))]
        # newer scikit-learn divides by n, older by n − classes: its own log-odds tell
        fits = [np.abs((means - model.xbar_) @ np.linalg.inv(s) - model.coef_).max() for s in by]
        covariances = [by[int(np.argmin(fits))]] * len(classes)
    # the coordinates are those of C with C Cᵀ = Σ; any such C will do, as long as it is theirs
    if kind == "full":
        factors = [R * np.sqrt(S) for R, S in zip(model.rotations_, model.scalings_)]
    else:
        factors = []
        for sigma in covariances:
            values, vectors = np.linalg.eigh(sigma)
            factors.append(vectors * np.sqrt(values) if kind == "tied" else np.sqrt(sigma))

    def joint(theta, rows):
        K = len(classes)
        weights, rest = theta[:K], theta[K:]
        shifts, bends = rest[: K * d].reshape(K, d), rest[K * d :]
        i, j = (np.arange(d), np.arange(d)) if kind == "diag" else np.triu_indices(d)
        bends = np.tile(bends, (K, 1)) if kind == "tied" else bends.reshape(K, -1)
        out = np.empty((len(rows), K))
        for k in range(K):
            E = np.zeros((d, d))
            E[i, j] = E[j, i] = bends[k]
            mean = means[k] + factors[k] @ shifts[k]
            # exp(E) to second order, which is all that a central difference sees
            sigma = factors[k] @ (np.eye(d) + E + E @ E / 2) @ factors[k].T
            out[:, k] = multivariate_normal.logpdf(rows, mean, sigma)
        return out + log_softmax(np.log(prior) + weights)

    return joint


def joint_of_words(model):
    multinomial = isinstance(model, MultinomialNB)

    def joint(theta, rows):
        K, d = model.feature_log_prob_.shape
        moved = theta[K:].reshape(K, d)
        if multinomial:
            log_p = log_softmax(model.feature_log_prob_ + moved, axis=1)
            each = rows @ log_p.T
        else:
            x = (rows > 0).astype(float)
            odds = model.feature_log_prob_ - np.log1p(-np.exp(model.feature_log_prob_)) + moved
            each = x @ -np.logaddexp(0, -odds).T + (1 - x) @ -np.logaddexp(0, odds).T
        return each + log_softmax(model.class_log_prior_ + theta[:K])

    return joint


def slopes(function, size, h=1e-5):
    """Central differences of a function of θ around zero, a column a parameter."""
    steps = h * np.eye(size)
    return np.stack([(function(s) - function(-s)) / (2 * h) for s in steps], axis=1)


CASES = [
    (GaussianNB(), X, lambda m: joint_of_gaussians(m, "diag")),
    (LinearDiscriminantAnalysis(), X, lambda m: joint_of_gaussians(m, "tied")),
    (QuadraticDiscriminantAnalysis(), X, lambda m: joint_of_gaussians(m, "full")),
    (MultinomialNB(alpha=0.5), WORDS, joint_of_words),
    (BernoulliNB(), WORDS, joint_of_words),
]


@pytest.mark.parametrize(("model", "data", "made"), CASES, ids=lambda v: type(v).__name__)
def test_scores_are_finite_differences(model, data, made):
    model.fit(data, SPECIES)
    joint = made(model)
    oracle, train = read_train(model, data, SPECIES)
    rows, codes = data[SOME], CODES[SOME]
    here = np.arange(len(rows))

    def together(theta):
        return joint(theta, rows)[here, codes]

    def given_x(theta):
        both = joint(theta, rows)
        return both[here, codes] - logsumexp(both, axis=1)

    start = np.zeros(oracle.n_parameters)
    learnt = flat_scores(oracle, train.take(np.arange(len(data))[SOME]))
    expected = slopes(together, len(start))
    np.testing.assert_allclose(learnt, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())
    asked = oracle.read((rows, SPECIES[SOME]), role="test")
    expected = slopes(given_x, len(start))
    np.testing.assert_allclose(
        flat_scores(oracle, asked), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max()
    )
    np.testing.assert_allclose(oracle.log_likelihood(asked), given_x(start), atol=1e-8)
    assert oracle.predict(asked).tolist() == model.predict(rows).tolist()
    assert "log p(y | x)" in str(oracle.notes)


@pytest.mark.parametrize(
    ("model", "data", "made"), [CASES[0], CASES[2], CASES[4]], ids=lambda v: type(v).__name__
)
def test_the_closed_form_fisher_is_the_hessian_of_the_fit(model, data, made):
    """At a maximum of the likelihood the two are the same."""
    if isinstance(model, QuadraticDiscriminantAnalysis):
        model.fit(data, SPECIES)
        rows = [data[k == CODES] - model.means_[k] for k in range(3)]
        # the maximum, whether this scikit-learn divides by n or by n − 1
        model.scalings_ = [np.mean((r @ R) ** 2, axis=0) for r, R in zip(rows, model.rotations_)]
    else:
        model.set_params(**({"alpha": 1e-10} if isinstance(model, BernoulliNB) else {}))
        model.fit(data, SPECIES)
    joint = made(model)
    oracle, train = read_train(model, data, SPECIES)
    size, here = oracle.n_parameters, np.arange(len(data))

    def total(theta):
        return joint(theta, data)[here, CODES].mean()

    h = 1e-3
    hessian = np.empty((size, size))
    for i, one in enumerate(h * np.eye(size)):
        for j, two in enumerate(h * np.eye(size)[: i + 1]):
            rise = total(one + two) - total(one - two) - total(two - one) + total(-one - two)
            hessian[i, j] = hessian[j, i] = -rise / (4 * h**2)
    found = summed(oracle, train) / len(data)
    np.testing.assert_allclose(found, hessian, atol=2e-4)


def test_the_multinomial_metric_is_the_fisher_on_scores():
    model = MultinomialNB(alpha=1e-10).fit(WORDS, SPECIES)
    oracle, train = read_train(model, WORDS, SPECIES)
    s = flat_scores(oracle, train)
    theta, share = np.exp(model.feature_log_prob_), np.exp(model.class_log_prior_)
    lengths = [WORDS[k == CODES].sum(axis=1).mean() for k in range(3)]
    blocks = [p * n * (np.diag(t) - np.outer(t, t)) for p, n, t in zip(share, lengths, theta)]
    from scipy.linalg import block_diag

    fisher = block_diag(np.diag(share) - np.outer(share, share), *blocks)
    ours = summed(oracle, train) / len(WORDS)
    np.testing.assert_allclose(
        s @ np.linalg.pinv(ours) @ s.T, s @ np.linalg.pinv(fisher) @ s.T, rtol=1e-6, atol=1e-6
    )


def test_influence_is_what_a_refit_without_the_row_does():
    model = GaussianNB().fit(X, SPECIES)
    test = (X[SOME], SPECIES[SOME])
    explainer = exempla.Explainer(model, progress=False).fit((X, SPECIES))
    found = explainer.influence(test)
    before = read_train(model, X, SPECIES)[0]
    before = before.log_likelihood(before.read(test, role="test"))
    some = np.arange(0, 150, 11)
    truth = []
    for i in some:
        keep = np.arange(len(X)) != i
        oracle, _ = read_train(GaussianNB().fit(X[keep], SPECIES[keep]), X[keep], SPECIES[keep])
        truth.append(before - oracle.log_likelihood(oracle.read(test, role="test")))
    assert np.corrcoef(found[some].ravel(), np.ravel(truth))[0, 1] > 0.98
    scale = np.abs(truth).mean() / np.abs(found[some]).mean()
    assert 0.8 < scale < 1.25


def test_weights_priors_sparse_rows_and_pipelines():
    model = GaussianNB().fit(X, SPECIES, sample_weight=WEIGHTS)
    oracle, weighted = read_train(model, X, SPECIES, WEIGHTS)
    _, plain = read_train(model, X, SPECIES)
    np.testing.assert_allclose(
        flat_scores(oracle, weighted), WEIGHTS[:, None] * flat_scores(oracle, plain)
    )
    np.testing.assert_allclose(
        summed(oracle, weighted), WEIGHTS.mean() * summed(oracle, plain), rtol=1e-9
    )
    fixed, _ = read_train(GaussianNB(priors=[0.2, 0.3, 0.5]).fit(X, SPECIES), X, SPECIES)
    assert [layer.name for layer in fixed.layers] == ["means", "covariances"]
    dense, same = read_train(MultinomialNB().fit(WORDS, SPECIES), WORDS, SPECIES)
    rows = sp.csr_matrix(WORDS)
    sparse, also = read_train(MultinomialNB().fit(rows, SPECIES), rows, SPECIES)
    np.testing.assert_allclose(flat_scores(sparse, also), flat_scores(dense, same))
    piped = make_pipeline(StandardScaler(), LinearDiscriminantAnalysis()).fit(X, SPECIES)
    assert read_train(piped, X, SPECIES)[0].n_parameters == 3 + 12 + 10
    with pytest.raises(ExemplaError, match="without sample_weight"):
        read_train(LinearDiscriminantAnalysis().fit(X, SPECIES), X, SPECIES, WEIGHTS)
    with pytest.raises(ExemplaError, match="X is sparse"):
        read_train(GaussianNB().fit(X, SPECIES), sp.csr_matrix(X), SPECIES)
    with pytest.raises(UnsupportedModelError, match="nearest model it can is MultinomialNB"):
        read_train(ComplementNB().fit(WORDS, SPECIES), WORDS, SPECIES)


def test_discriminants_that_keep_or_shrink_their_covariance():
    for options in ({"solver": "lsqr", "shrinkage": "auto"}, {"solver": "eigen"}):
        model = LinearDiscriminantAnalysis(**options).fit(X, SPECIES)
        oracle, train = read_train(model, X, SPECIES)
        u = (X - model.means_[CODES]) @ oracle._density.root[0]
        np.testing.assert_allclose(
            oracle._density.root[0] @ oracle._density.root[0].T,
            np.linalg.inv(model.covariance_),
            rtol=1e-6,
        )
        means = flat_scores(oracle, train)[:, 3:15].reshape(-1, 3, 4)
        np.testing.assert_allclose(means[np.arange(150), CODES], u, atol=1e-9)


def test_past_the_closed_form_labels_are_summed_over(monkeypatch):
    model = MultinomialNB().fit(WORDS, SPECIES)
    monkeypatch.setattr(base, "_MAX_CLOSED_FORM", 3)
    oracle, train = read_train(model, WORDS, SPECIES)
    p, expected = model.predict_proba(WORDS), 0.0
    for k in range(3):
        hot = np.zeros((len(WORDS), 3))
        hot[:, k] = 1
        rows = np.hstack(oracle._blocks_of(WORDS, hot))
        expected = expected + (rows * p[:, [k]]).T @ rows
    np.testing.assert_allclose(summed(oracle, train), expected, rtol=1e-3, atol=0.05)
    assert "examples' own x" in oracle.fisher_note


def test_jobs_that_compare_rows_see_both_kinds_by_the_same_score():
    model = GaussianNB().fit(X, SPECIES)
    oracle = make_oracle(model).by_prediction()
    train = oracle.read((X, SPECIES), role="train")
    test = oracle.read((X, SPECIES), role="test")
    np.testing.assert_array_equal(flat_scores(oracle, train), flat_scores(oracle, test))
    plain, same = read_train(model, X, SPECIES)
    assert np.abs(flat_scores(plain, same) - flat_scores(oracle, train)).max() > 0.1
    np.testing.assert_array_equal(summed(plain, same), summed(oracle, train))
