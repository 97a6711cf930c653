"""Gaussian mixtures: scores against finite differences of scikit-learn's own density, and the
sampled Fisher against the Fisher of a single Gaussian, which is known."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from scipy.linalg import expm
from sklearn.datasets import load_iris
from sklearn.mixture import GaussianMixture

from exempla.errors import ExemplaError
from exempla.oracles import make_oracle
from exempla.oracles.sklearn.generative import DRAWS

X = load_iris(return_X_y=True)[0][:, :3]
KINDS = ["full", "tied", "diag", "spherical"]


def fitted(kind, components=2):
    return GaussianMixture(components, covariance_type=kind, random_state=0).fit(X)


def roots(model):
    """C_k with C_k C_kᵀ = Σ_k, from the precisions scikit-learn keeps."""
    kind, d = model.covariance_type, model.means_.shape[1]
    P = model.precisions_cholesky_
    K = len(model.means_)
    P = {
        "full": lambda: P,
        "tied": lambda: np.stack([P] * K),
        "diag": lambda: np.stack([np.diag(p) for p in P]),
        "spherical": lambda: np.stack([p * np.eye(d) for p in P]),
    }[kind]()
    return np.stack([np.linalg.inv(p.T) for p in P])


def moved(model, logits, means, generators):
    """The mixture at these coordinates, as an equivalent full-covariance scikit-learn model."""
    other = GaussianMixture(len(model.means_), covariance_type="full")
    weights = np.log(model.weights_) + logits
    other.weights_ = np.exp(weights) / np.exp(weights).sum()
    C = roots(model)
    other.means_ = model.means_ + np.einsum("kij,kj->ki", C, means)
    covariances = np.stack([c @ expm(E) @ c.T for c, E in zip(C, generators)])
    other.covariances_ = covariances
    inverse = np.stack([np.linalg.inv(np.linalg.cholesky(S)) for S in covariances])
    other.precisions_cholesky_ = inverse.transpose(0, 2, 1)
    return other


def directions(model):
    """One (logits, means, generators) per parameter, in the oracle's order."""
    K, d = model.means_.shape
    zero = np.zeros(K), np.zeros((K, d)), np.zeros((K, d, d))
    for k in range(K):
        one = copy.deepcopy(zero)
        one[0][k] = 1
        yield one
    for k, i in np.ndindex(K, d):
        one = copy.deepcopy(zero)
        one[1][k, i] = 1
        yield one
    every = [slice(None)] if model.covariance_type == "tied" else range(K)
    for k in every:
        if model.covariance_type == "spherical":
            shapes = [np.eye(d)]
        elif model.covariance_type == "diag":
            shapes = [np.diag(e) for e in np.eye(d)]
        else:
            pairs = zip(*np.triu_indices(d))
            shapes = [np.maximum(np.outer(a, b), np.outer(b, a)) for a, b in _units(pairs, d)]
        for shape in shapes:
            one = copy.deepcopy(zero)
            one[2][k] = shape
            yield one


def _units(pairs, d):
    return [(np.eye(d)[i], np.eye(d)[j]) for i, j in pairs]


def dense(rows):
    return np.concatenate([np.hstack([f.g * f.a for f in batch.factors]) for batch in rows])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_are_finite_differences(kind):
    model, h = fitted(kind), 1e-5
    oracle = make_oracle(model)
    examples = oracle.read(X, role="train")
    scores = dense(oracle.scores(examples))
    expected = []
    for one in directions(model):
        up = moved(model, *(h * part for part in one)).score_samples(X)
        down = moved(model, *(-h * part for part in one)).score_samples(X)
        expected.append((up - down) / (2 * h))
    assert scores.shape == (len(X), oracle.n_parameters)
    np.testing.assert_allclose(scores, np.stack(expected, axis=1), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_density_and_components_are_scikit_learns(kind):
    model = fitted(kind, 3)
    oracle = make_oracle(model)
    examples = oracle.read(X, role="test")
    np.testing.assert_allclose(oracle.log_likelihood(examples), model.score_samples(X), atol=1e-9)
    assert oracle.predict(examples).tolist() == model.predict(X).tolist()
    assert not examples.needs_labels


def test_mean_score_is_zero_at_the_maximum():
    model = GaussianMixture(2, tol=1e-10, max_iter=2000, reg_covar=0, random_state=0).fit(X)
    oracle = make_oracle(model)
    scores = dense(oracle.scores(oracle.read(X, role="train")))
    assert np.abs(scores.mean(axis=0)).max() < 1e-4
    assert np.abs(scores).max() > 1


def test_fisher_of_one_gaussian_is_the_known_one():
    model = fitted("full", 1)
    oracle = make_oracle(model)
    repeated = np.repeat(X, 40, axis=0)
    examples = oracle.read(repeated, role="train")
    batches = list(oracle.fisher_rows(examples))
    sample = np.concatenate([rows.sample for rows in batches])
    assert np.bincount(sample).tolist() == [DRAWS] * len(repeated)
    rows = dense(batches)
    # whitened mean: I; generator: 1/2 on the diagonal, 1 off it (i ≤ j); the one weight: nothing
    expected = np.diag([0, 1, 1, 1, 0.5, 1, 1, 0.5, 1, 0.5])
    np.testing.assert_allclose(rows.T @ rows / len(repeated), expected, atol=0.05)


def test_the_sampled_fisher_is_seeded_and_says_so():
    oracle = make_oracle(fitted("diag"))
    examples = oracle.read(X, role="train")
    np.testing.assert_array_equal(*(dense(oracle.fisher_rows(examples)) for _ in range(2)))
    assert "sampled" in oracle.fisher_note
    assert "seed 0" in oracle.fisher_note


def test_parameters_and_bad_input():
    model = fitted("diag")
    oracle = make_oracle(model, parameters=["means"])
    (rows,) = oracle.scores(oracle.read(X, role="train"))
    assert [f.g.shape for f in rows.factors] == [(150, 6)]
    with pytest.raises(ExemplaError, match="own likelihood"):
        make_oracle(model, "gaussian")
    with pytest.raises(ExemplaError, match="without sample_weight"):
        oracle.read((X, None, np.ones(150)), role="train")
    with pytest.raises(ExemplaError, match="fitted on 3"):
        oracle.read(X[:, :2], role="train")
