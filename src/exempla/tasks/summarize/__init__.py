"""Summarise a training set: k weighted examples that a refit cannot tell from all the data.

    last layer ──▶ draws around θ̂ ──▶ whitened scores ──▶ SBQ ──▶ weights ≥ 0 ──▶ their total

The paper matches the mean score at θ̂, which is zero at the optimum; matching it at draws from the
posterior around θ̂ is what makes the summary work (see `summarize.posterior`).
"""

from __future__ import annotations

import warnings
from typing import Any, Literal

import numpy as np

from exempla.checks import check_choice, check_flag, check_ids, check_k, check_seed
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.fisher import check_damping
from exempla.progress import say_memory, showing
from exempla.results import Selection
from exempla.selection import Selector
from exempla.tasks.retrain import check_fit, fitted
from exempla.tasks.summarize.choices import choices
from exempla.tasks.summarize.last_layer import LastLayer, read_last_layer
from exempla.tasks.summarize.memory import expected_peak
from exempla.tasks.summarize.pool import candidates
from exempla.tasks.summarize.posterior import posterior
from exempla.tasks.summarize.refit import Refit, refitter
from exempla.tasks.summarize.result import Summary
from exempla.tasks.summarize.totals import best_total, left_out
from exempla.version import __version__

__all__ = ["Summary", "summarize"]

Total = Literal["auto", "k", "n"]
TOTALS = ("auto", "k", "n")
NO_DAMPING = "none: the posterior around the fitted model takes its place"


def summarize(
    model: Any,
    train: Any,
    k: int,
    total: Total = "auto",
    *,
    selector: Selector | None = None,
    fit: Any = None,
    ids: Any = None,
    likelihood: Any = "auto",
    damping: str | float = "auto",
    parameters: Any = None,
    device: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Summary:
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
    selector : Selector
        By default `NonNegative` up to 300 picks, then SBQ with noise 0.001 × the median squared
        row norm. Whatever it is, the weights are fitted again, nonnegative, afterwards.
    fit : callable
        ``fit(module, X, y, sample_weight) -> module``, needed for torch with total="auto". It is
        given a copy of the model.
    ids : sequence
        Your own names of the training examples.
    likelihood, parameters, device
        As for `Explainer`; `parameters` names the one linear layer to use.
    damping : "auto" or float
        Added to the Fisher's eigenvalues before draws are made; "auto" adds nothing.
    seed, progress
        The seed of every random choice, and whether to show progress.

    Returns
    -------
    Summary
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
    check_choice("total", total, TOTALS)
    shrunk = _damping(damping)
    if isinstance(model, list | tuple):
        raise ExemplaError("summarize takes one model, not a list: the summary is for its refit.")
    # a source of chance for each step, so that none hangs on what an earlier one came to
    draws, sample, order, rest = np.random.default_rng(check_seed(seed)).spawn(4)
    if fit is not None:
        check_fit(model, fit)
    with showing(check_flag("progress", progress)):
        model = fitted(model, train, seed)
        n, needed = expected_peak(model, train, k, total == "auto", likelihood, parameters, device)
        say_memory(needed, f"{n} examples to choose {k} of")
        refit = refitter(model, train, likelihood, fit, device) if total == "auto" else None
        layer = read_last_layer(model, train, likelihood, parameters, device)
        k = check_k(k, len(layer))
        names = check_ids(layer.ids if ids is None else ids, len(layer))
        pool = candidates(layer, posterior(layer, k, draws, damping=shrunk), k, sample)
        found = choices(pool, layer.codes, k, selector, refit is not None, order)
        best, amount = len(found) - 1, float(k) if total == "k" else layer.size
        if refit is not None:
            best, amount = _chosen_total(found, refit, layer, k, rest)
    picked = found[best]
    return Summary.of(
        picked,
        weights=picked.weights * amount,
        total=float(amount),
        k=k,
        n_train=len(layer),
        seed=int(seed),
        version=__version__,
        damping=shrunk,
        damping_rule=NO_DAMPING if damping == "auto" else "given",
        ids=None if names is None else names[picked.indices],
        state=None,
    )


def _damping(damping: str | float) -> float:
    """What to add to the Fisher's eigenvalues: nothing by default, as directions without
    information are left out anyway."""
    wanted = check_damping(damping)
    if isinstance(wanted, str) and wanted != "auto":
        raise ExemplaError(f"damping={wanted!r} is no rule of summarize: give 'auto' or a number.")
    return 0.0 if isinstance(wanted, str) else float(wanted)


def _chosen_total(
    found: list[Selection], refit: Refit, layer: LastLayer, k: int, rng: np.random.Generator
) -> tuple[int, float]:
    """Which choice of examples, and what its weights should sum to, judged by a refit."""
    weighted = [(choice.indices, choice.weights) for choice in found]
    others = left_out(layer, weighted, rng)
    if len(others):
        return best_total(weighted, refit, others, layer)
    warnings.warn(
        f"too few examples are left beside {k} of {len(layer)} to choose the total weight by: "
        "it is n; give total='k' or 'n' to say it yourself",
        ExemplaWarning,
        stacklevel=3,
    )
    return len(found) - 1, layer.size
