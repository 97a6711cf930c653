"""Summarise a training set: k weighted examples that a refit cannot tell from all the data.

    last layer ──▶ draws around θ̂ ──▶ whitened scores ──▶ SBQ ──▶ weights ≥ 0 ──▶ their total

The paper matches the mean score at θ̂, which is zero at the optimum; matching it at draws from the
posterior around θ̂ is what makes the summary work (see `summary.posterior`).
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.progress import say, track
from exempla.selection import SBQ, Selector, select
from exempla.selection.inputs import check_k
from exempla.tasks.summary.classes import stratified_sample, with_every_class
from exempla.tasks.summary.head import Read, read_head
from exempla.tasks.summary.posterior import Posterior, posterior
from exempla.tasks.summary.refit import Refit, refitter
from exempla.tasks.summary.weights import fit_weights
from exempla.types import Selection

__all__ = ["summarize"]

Total = Literal["auto", "k", "n"]

NOISE = 1e-3
"""σ² of the selection, in units of the median squared row norm."""
RIDGE = 1e-2
"""Pull of the weights towards equal ones, in the same units."""
ROW_BYTES = 2**30
"""Memory for candidates' rows: of a larger training set a random part are candidates, while the
target stays the mean of all."""
HELD_OUT = 0.1
MOST_HELD_OUT = 20_000
FEWEST_HELD_OUT = 10
TOTALS = 9
"""How many totals are tried, evenly spaced on a logarithmic scale."""


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
    model : fitted model
        A linear scikit-learn model, alone or at the end of a Pipeline; of a perceptron or torch
        module the last linear layer is used. Never changed.
    train : (X, y) or (X, y, sample_weight)
        What it was fitted on.
    k : int
        How many examples to keep.
    total : {"auto", "k", "n"}
        What the weights sum to. "auto" holds a tenth of the training data out of the candidates,
        refits on the summary at nine totals between 1 and n, and takes the one under which the
        held-out examples are most likely.
    fit : callable
        ``fit(module, X, y, sample_weight) -> module``, needed for torch with total="auto". It is
        given a copy of the model.
    likelihood, parameters, device
        As for `Explainer`; `parameters` names the one linear layer to use.
    selector : Selector
        SBQ with noise 0.001 × the median squared row norm by default.
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
    refit = refitter(model, train, likelihood, fit, device) if total == "auto" else None
    read = read_head(model, train, likelihood, parameters, device)
    n = len(read.head)
    k = check_k(k, n)
    rng = np.random.default_rng(seed)
    held_out = _hold_out(read, k, rng) if refit is not None else np.empty(0, dtype=np.int64)
    kept = np.setdiff1d(np.arange(n), held_out)
    around = posterior(read.head, k, rng)
    choice = _choose(read, around, kept, k, selector, rng, progress)
    if refit is None or not len(held_out):
        if refit is not None:
            warnings.warn(
                f"too few examples are left beside {k} of {n} to choose the total weight by: it "
                "is n; give total='k' or 'n' to say it yourself",
                ExemplaWarning,
                stacklevel=2,
            )
        amount = float(k) if total == "k" else read.head.size
    else:
        amount = _best_total(choice, refit, held_out, read, progress)
        # the total is known: now the held-out examples count in the target too
        choice = _weigh(choice, around.mean(read.head))
    return replace(choice.selection, weights=choice.selection.weights * amount, state=None)


@dataclass(frozen=True)
class _Choice:
    """What was picked, with all that fitting the weights again needs."""

    selection: Selection
    """Indices into the training data; weights that sum to 1."""
    rows: np.ndarray
    """(k, width) feature rows of the picks."""
    ridge: float


def _choose(
    read: Read,
    around: Posterior,
    kept: np.ndarray,
    k: int,
    selector: Selector | None,
    rng: np.random.Generator,
    progress: bool,
) -> _Choice:
    """Pick k of the kept examples, with weights that match the kept examples' mean."""
    classes = read.head.codes if read.discrete else None
    width = around.width
    pool = stratified_sample(classes, kept, max(k, ROW_BYTES // (4 * width)), rng)
    say(
        f"summarising {len(read.head)} examples in rows of {width} numbers; {len(pool)} candidates",
        progress and len(pool) < len(kept),
    )
    rows = around.rows(read.head.take(pool))
    target = around.mean(read.head.take(kept))
    typical = float(np.median(np.einsum("ij,ij->i", rows, rows)))
    selector = SBQ(noise=NOISE * typical) if selector is None else selector
    with warnings.catch_warnings():
        # fewer picks than k are filled up below
        warnings.simplefilter("ignore", ExemplaWarning)
        found = select(rows, target, k, selector)
    picked = found.indices
    if len(picked) < k:
        rest = np.setdiff1d(np.arange(len(pool)), picked)
        picked = np.concatenate([picked, rng.choice(rest, k - len(picked), replace=False)])
    if classes is not None:
        picked = with_every_class(picked, classes[pool], rows, target)
    gains = np.zeros(k)
    gains[: len(found.gains)] = found.gains
    selection = replace(found, indices=pool[picked], gains=gains, candidates=len(pool))
    return _weigh(_Choice(selection, rows[picked], RIDGE * typical), target)


def _weigh(choice: _Choice, target: np.ndarray) -> _Choice:
    """The same picks with weights for this target, and how well they match it."""
    weights = fit_weights(choice.rows, target, choice.ridge)
    apart = target - weights @ choice.rows
    mmd2, norm2 = float(apart @ apart), float(target @ target)
    measured = replace(
        choice.selection,
        weights=weights,
        mmd2=mmd2,
        variance=mmd2,
        explained=1.0 - mmd2 / norm2,
        target_norm2=norm2,
    )
    return replace(choice, selection=measured)


def _hold_out(read: Read, k: int, rng: np.random.Generator) -> np.ndarray:
    """Examples by which the total is judged: a tenth, as far as k leaves any."""
    n = len(read.head)
    size = min(int(HELD_OUT * n), MOST_HELD_OUT, n - k)
    if size < FEWEST_HELD_OUT:
        return np.empty(0, dtype=np.int64)
    held_out = rng.permutation(n)[:size]
    if read.discrete:
        # the only examples of a class stay candidates
        seen = np.unique(np.delete(read.head.codes, held_out))
        held_out = held_out[np.isin(read.head.codes[held_out], seen)]
    return held_out


def _best_total(
    choice: _Choice, refit: Refit, held_out: np.ndarray, read: Read, progress: bool
) -> float:
    """The total under which a refit predicts the held-out examples best; ties go to n."""
    counts = None if read.head.counts is None else read.head.counts[held_out]
    best, chosen = -np.inf, read.head.size
    picked, weights = choice.selection.indices, choice.selection.weights
    # from n down, so that a total that changes nothing stays n
    totals = np.geomspace(read.head.size, min(1.0, len(picked) / 32), TOTALS)
    for amount in track(list(totals), "choosing the total weight", progress):
        likely = float(np.average(refit(picked, weights * amount, held_out), weights=counts))
        if likely > best + 1e-9 * abs(best if np.isfinite(best) else 0.0):
            best, chosen = likely, float(amount)
    return chosen
