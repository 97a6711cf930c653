"""Summarise a training set: k weighted examples that a refit cannot tell from all the data.

    last layer ──▶ draws around θ̂ ──▶ whitened scores ──▶ SBQ ──▶ weights ≥ 0 ──▶ their total

The paper matches the mean score at θ̂, which is zero at the optimum; matching it at draws from the
posterior around θ̂ is what makes the summary work (see `summarize.posterior`).
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from exempla.checks import check_k, check_seed
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.progress import showing
from exempla.results import Selection
from exempla.selection import SBQ, NonNegative, Selector, select
from exempla.tasks.retrain import fitted
from exempla.tasks.summarize.classes import with_every_class
from exempla.tasks.summarize.last_layer import read_last_layer
from exempla.tasks.summarize.pool import Pool, candidates
from exempla.tasks.summarize.posterior import posterior
from exempla.tasks.summarize.refit import refitter
from exempla.tasks.summarize.totals import best_total, left_out
from exempla.tasks.summarize.weights import fit_weights

__all__ = ["summarize"]

Total = Literal["auto", "k", "n"]

MOST_NONNEGATIVE = 300
"""Up to so many picks the weights are refitted ≥ 0 after each pick; beyond, where almost every
good set has nearly positive weights, SBQ is cheaper."""
NOISE = 1e-3
"""σ² of SBQ, in units of the median squared row norm."""
RIDGE = 1e-2
"""Pull of the weights towards equal ones, in the same units."""


def summarize(
    model: Any,
    train: Any,
    k: int,
    total: Total = "auto",
    *,
    fit: Any = None,
    likelihood: Any = "auto",
    parameters: Any = None,
    selector: Selector | None = None,
    device: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Selection:
    """k training examples, with weights, that stand for the whole training set.

    Refit any estimator on them: ``estimator.fit(X[s.indices], y[s.indices],
    sample_weight=s.weights)``, with its settings unchanged. An L2 penalty weighs against the sum
    of the weights, as it weighed against n before, so `total` says how far the summary is
    trusted: a sum of n gives it the say of the whole data, a smaller sum leaves more to the
    penalty. (Models whose loss is a weighted mean, like PoissonRegressor, do not see the total.)

    Parameters
    ----------
    model : model
        A linear scikit-learn model, fitted or not yet, alone or at the end of a Pipeline; of a
        perceptron or torch module the last linear layer is used. Never changed.
    train : (X, y) or (X, y, sample_weight)
        What it was fitted on.
    k : int
        How many examples to keep.
    total : {"auto", "k", "n"}
        What the weights sum to. "auto" refits at nine totals between 1 and n, and takes the one
        under which the training examples outside the summary are most likely. Up to 300 picks it
        does so for two summaries, one that matches the classes' shares too and one that does not.
    fit : callable
        ``fit(module, X, y, sample_weight) -> module``, needed for torch with total="auto". It is
        given a copy of the model.
    likelihood, parameters, device
        As for `Explainer`; `parameters` names the one linear layer to use.
    selector : Selector
        By default `NonNegative` up to 300 picks, then SBQ with noise 0.001 × the median squared
        row norm. Whatever it is, the weights are fitted again, nonnegative, afterwards.
    seed, progress
        The seed of every random choice, and whether to show progress.

    Returns
    -------
    Selection
        `indices` into the training data, `weights` > 0, and how well the posterior scores are
        matched: `explained`, `mmd2` are those of the weights, scaled to sum 1. Every class that
        occurs in the training labels is among the picks (if k ≥ the number of classes).

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = StandardScaler().fit_transform(X)
    >>> model = LogisticRegression().fit(X, y)
    >>> few = summarize(model, (X, y), k=40, progress=False)
    >>> small = LogisticRegression().fit(X[few.indices], y[few.indices], sample_weight=few.weights)
    >>> bool(small.score(X, y) > 0.95)
    True
    """
    if total not in ("auto", "k", "n"):
        raise ExemplaError(f"total={total!r} is not known: use 'auto', 'k' or 'n'.")
    if isinstance(model, list | tuple):
        raise ExemplaError("summarize takes one model, not a list: the summary is for its refit.")
    with showing(progress):
        return _summary(model, train, k, total, selector, likelihood, parameters, fit, device, seed)


def _summary(
    model: Any,
    train: Any,
    k: int,
    total: Total,
    selector: Selector | None,
    likelihood: Any,
    parameters: Any,
    fit: Any,
    device: Any,
    seed: int,
) -> Selection:
    seed = check_seed(seed)
    model = fitted(model, train, seed)
    refit = refitter(model, train, likelihood, fit, device) if total == "auto" else None
    layer = read_last_layer(model, train, likelihood, parameters, device)
    n = len(layer)
    k = check_k(k, n)
    # a source of chance for each step, so that none hangs on what an earlier one came to
    draws, sample, order, rest = np.random.default_rng(seed).spawn(4)
    pool = candidates(layer, posterior(layer, k, draws), k, sample)
    fillers = order.permutation(len(pool.examples))
    # without a refit to compare them, the safe choice: classes keep their shares
    both = refit is not None and len(pool.shares) > 0 and k <= MOST_NONNEGATIVE
    options = (False, True) if both else (True,)
    choices = [_choose(layer.codes, pool, k, selector, by_class, fillers) for by_class in options]
    best, amount = len(choices) - 1, float(k) if total == "k" else layer.size
    if refit is not None:
        weighted = [(c.indices, c.weights) for c in choices]
        others = left_out(layer, weighted, rest)
        if len(others):
            best, amount = best_total(weighted, refit, others, layer)
        else:
            warnings.warn(
                f"too few examples are left beside {k} of {n} to choose the total weight by: it "
                "is n; give total='k' or 'n' to say it yourself",
                ExemplaWarning,
                stacklevel=2,
            )
    return replace(choices[best], weights=choices[best].weights * amount, state=None)


def _choose(
    codes: np.ndarray,
    pool: Pool,
    k: int,
    selector: Selector | None,
    by_class: bool,
    fillers: np.ndarray,
) -> Selection:
    """Pick k candidates, with weights of sum 1 that match the mean row, the classes' shares too
    if `by_class`; the first of `fillers` stand in where fewer than k are found."""
    pool.mark_classes(codes, by_class)
    if selector is None:
        selector = NonNegative() if k <= MOST_NONNEGATIVE else SBQ(noise=NOISE * pool.typical)
    with warnings.catch_warnings():
        # fewer picks than k are filled up below
        warnings.simplefilter("ignore", ExemplaWarning)
        found = select(pool.rows, pool.target, k, selector)
    picked = found.indices
    if len(picked) < k:
        rest = fillers[~np.isin(fillers, picked)]
        picked = np.concatenate([picked, rest[: k - len(picked)]])
    if len(pool.shares):
        picked = with_every_class(picked, codes[pool.examples], pool.rows, pool.target)
    gains = np.zeros(k)
    gains[: len(found.gains)] = found.gains
    weights = fit_weights(pool.rows[picked], pool.target, RIDGE * pool.typical)
    apart = pool.target - weights @ pool.rows[picked]
    mmd2, norm2 = float(apart @ apart), float(pool.target @ pool.target)
    return replace(
        found,
        indices=pool.examples[picked],
        weights=weights,
        gains=gains,
        mmd2=mmd2,
        variance=mmd2,
        explained=1.0 - mmd2 / norm2,
        target_norm2=norm2,
        candidates=len(pool.examples),
    )
