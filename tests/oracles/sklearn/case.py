"""A small real data set and slow, independent answers about scikit-learn models of it."""

from __future__ import annotations

import copy
import inspect
import warnings

import numpy as np
import scipy.sparse as sp
from scipy.special import log_expit
from scipy.stats import norm, poisson
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

from exempla.oracles import make_oracle

# What newer versions of scikit-learn ask for to be quiet, and older ones do not know.
CV_OPTIONS = {"l1_ratios": (0,), "use_legacy_attributes": False}
if "use_legacy_attributes" not in inspect.signature(LogisticRegressionCV).parameters:
    CV_OPTIONS = {}
# … and what older ones ask for before they heed l1_ratio.
ELASTIC = {"penalty": "elasticnet"}
if inspect.signature(LogisticRegression).parameters["penalty"].default != "l2":
    ELASTIC = {}

X, CODES = load_iris(return_X_y=True)
X = (X - X.mean(axis=0)) / X.std(axis=0)
SPECIES = np.array(["setosa", "versicolor", "virginica"])[CODES]
HARD = np.where(CODES == 2, "yes", "no")
RNG = np.random.default_rng(0)
WEIGHTS = RNG.uniform(0.2, 2.0, len(X))
NUMBERS = X @ [1.0, -2.0, 0.5, 0.0] + RNG.normal(size=len(X))
PAIRS = np.c_[NUMBERS, np.sin(NUMBERS)]
COUNTS = RNG.poisson(np.exp(0.5 * X[:, 0])).astype(float)


def dense(rows) -> list[np.ndarray]:
    """Multiplied-out scores of each layer, (n, d_out, d_in)."""
    per_layer = []
    for factors in zip(*(batch.factors for batch in rows)):
        full = [f.g[:, :, None] * _array(f.a)[:, None, :] for f in factors]
        per_layer.append(np.concatenate(full))
    return per_layer


def _array(a):
    return a.toarray() if sp.issparse(a) else a


def read_train(model, *data):
    oracle = make_oracle(model)
    return oracle, oracle.read(data, role="train")


# ---- log p by scikit-learn's own predictions


def proba(model, X, y):
    p = model.predict_proba(X)
    return np.log(p[np.arange(len(y)), np.searchsorted(model.classes_, y)])


def one_vs_rest(model, X, y):
    answers = 2 * (model.classes_ == np.asarray(y)[:, None]) - 1
    return log_expit(answers * model.decision_function(X)).sum(axis=1)


def gaussian(variance):
    def log_prob(model, X, y):
        each = norm.logpdf(y, model.predict(X), np.sqrt(variance))
        return each.reshape(len(X), -1).sum(axis=1)

    return log_prob


def counts(model, X, y):
    return poisson.logpmf(y, model.predict(X))


def finite_differences(model, log_prob, X, y, h=1e-5):
    """Central differences over the model's public arrays, in the layout of `dense`."""
    mlp = hasattr(model, "coefs_")
    weights = model.coefs_ if mlp else [np.atleast_2d(model.coef_).T]
    layers = []
    for depth, W in enumerate(weights):
        d_in, d_out = W.shape
        bias = 1 if mlp or model.fit_intercept else 0
        slopes = np.empty((len(X), d_out, d_in + bias))
        for i, j in np.ndindex(d_out, d_in + bias):
            up, down = (log_prob(nudged(model, depth, i, j, step), X, y).copy() for step in (h, -h))
            slopes[:, i, j] = (up - down) / (2 * h)
        layers.append(slopes)
    return layers


def nudged(model, depth, i, j, step):
    """A copy of the model with one weight (or, beyond the last input, one bias) moved."""
    other = copy.deepcopy(model)
    mlp = hasattr(model, "coefs_")
    W = other.coefs_[depth].T if mlp else np.atleast_2d(other.coef_)
    if j < W.shape[1]:
        W[i, j] += step  # a view: the copy itself changes
    elif mlp:
        other.intercepts_[depth][i] += step
    else:
        unit = (np.arange(np.size(other.intercept_)) == i).reshape(np.shape(other.intercept_))
        other.intercept_ = other.intercept_ + step * unit
    return other


def perceptron(kind, activation, y, layers=(5, 3), **options):
    model = kind(
        hidden_layer_sizes=layers, activation=activation, max_iter=15, random_state=0, **options
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.fit(X, y)


def summed(oracle, examples):
    """Σ r rᵀ over all Fisher rows of all examples, all layers side by side."""
    flat = [s.reshape(len(s), -1) for s in dense(oracle.fisher_rows(examples))]
    rows = np.concatenate(flat, axis=1)
    return rows.T @ rows


def flat_scores(oracle, examples, labels="true"):
    flat = [s.reshape(len(s), -1) for s in dense(oracle.scores(examples, labels))]
    return np.concatenate(flat, axis=1)


def model_name(value):
    """Ids of parametrised models; arrays and functions are told by the model before them."""
    return type(value).__name__ if hasattr(value, "fit") else ""
