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

from exempla.checks import check_choice, check_ids, check_k, check_seed
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.fisher import check_damping
from exempla.progress import say, showing
from exempla.results import Selection
from exempla.selection import SBQ, NonNegative, Selector, select
from exempla.tasks.retrain import fitted
from exempla.tasks.summarize.classes import stratified_sample, with_every_class
from exempla.tasks.summarize.head import Read, read_head
from exempla.tasks.summarize.posterior import Posterior, posterior
from exempla.tasks.summarize.refit import Refit, refitter
from exempla.tasks.summarize.result import Summary
from exempla.tasks.summarize.totals import best_total, judges
from exempla.tasks.summarize.weights import fit_weights
from exempla.version import __version__

__all__ = ["Summary", "summarize"]

Total = Literal["auto", "k", "n"]
TOTALS = ("auto", "k", "n")
NO_DAMPING = "none: the posterior around the fitted model takes its place"

MOST_NONNEGATIVE = 300
"""Up to so many picks the weights are refitted ≥ 0 after each pick; beyond, where almost every
good set has nearly positive weights, SBQ is cheaper."""
NOISE = 1e-3
"""σ² of SBQ, in units of the median squared row norm."""
RIDGE = 1e-2
"""Pull of the weights towards equal ones, in the same units."""
FEWEST_CANDIDATES, PER_PICK = 5000, 5
ROW_BYTES = 2**30
"""Of a large training set a random part are candidates, so many for each pick and no more than
this memory holds, while the target stays the mean of all. Half of them are drawn by leverage, or
what only a few examples show (a rare feature) would be missing."""


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
    rng = np.random.default_rng(check_seed(seed))
    with showing(progress):
        model = fitted(model, train, seed)
        refit = refitter(model, train, likelihood, fit, device) if total == "auto" else None
        read = read_head(model, train, likelihood, parameters, device)
        k = check_k(k, len(read.head))
        names = check_ids(read.ids if ids is None else ids, len(read.head))
        pool = _candidates(read, posterior(read.head, k, rng, damping=shrunk), k, rng)
        # without a refit to judge by, the safe choice: classes keep their shares
        both = refit is not None and len(pool.shares) > 0 and k <= MOST_NONNEGATIVE
        options = (False, True) if both else (True,)
        choices = [_choose(read, pool, k, selector, by_class, rng) for by_class in options]
        best, amount = len(choices) - 1, float(k) if total == "k" else read.head.size
        if refit is not None:
            best, amount = _chosen_total(choices, refit, read, k, rng)
    picked = choices[best].selection
    return Summary.of(
        picked,
        weights=picked.weights * amount,
        total=float(amount),
        k=k,
        n_train=len(read.head),
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
    choices: list[Any], refit: Refit, read: Read, k: int, rng: np.random.Generator
) -> tuple[int, float]:
    """Which choice of examples, and what its weights should sum to, judged by a refit."""
    weighted = [(c.selection.indices, c.selection.weights) for c in choices]
    others = judges(read.head, weighted, rng)
    if len(others):
        return best_total(weighted, refit, others, read.head)
    warnings.warn(
        f"too few examples are left beside {k} of {len(read.head)} to choose the total weight by: "
        "it is n; give total='k' or 'n' to say it yourself",
        ExemplaWarning,
        stacklevel=3,
    )
    return len(choices) - 1, read.head.size


@dataclass(frozen=True)
class _Pool:
    """The candidates' feature rows, and the mean row to match.

    The last columns say which class an example is of, scaled like the rest of the row. They are
    zero while the classes' shares are left free.
    """

    examples: np.ndarray
    """Rows of the training data."""
    rows: np.ndarray
    target: np.ndarray
    shares: np.ndarray
    """Share of each class in the training data; empty where labels are no classes."""
    typical: float
    """Median squared norm of the rows, classes aside."""

    def mark_classes(self, codes: np.ndarray, by_class: bool) -> None:
        """Fill the last columns, in place: the rows may be too many to copy."""
        if len(self.shares):
            width = self.rows.shape[1] - len(self.shares)
            height = np.sqrt(self.typical) * by_class
            same = codes[self.examples][:, None] == np.arange(len(self.shares))
            self.rows[:, width:] = height * same
            self.target[width:] = height * self.shares


def _candidates(read: Read, around: Posterior, k: int, rng: np.random.Generator) -> _Pool:
    """Feature rows of the examples that may be picked, and of all of them the mean."""
    head = read.head
    shares = np.empty(0)
    if read.discrete:
        shares = np.bincount(head.codes, weights=head.counts) / head.size
    width = around.width + len(shares)
    size = min(max(FEWEST_CANDIDATES, PER_PICK * k), ROW_BYTES // (4 * width))
    counted = np.arange(len(head))
    counted = counted if head.counts is None else counted[head.counts > 0]
    classes = head.codes if read.discrete else None
    size = max(k, size)
    leverage = around.leverage(head.take(counted)) if size < len(counted) else None
    examples = stratified_sample(classes, counted, size, rng, leverage)
    if 4 * len(examples) * width > 2**28:
        say(f"{len(examples)} of {len(head)} examples are candidates, in rows of {width} numbers")
    rows = np.empty((len(examples), width), dtype=np.float32)
    around.fill(rows, head.take(examples))
    rows[:, around.width :] = 0.0
    target = np.concatenate([around.mean(head), np.zeros(len(shares))])
    typical = float(np.median(np.einsum("ij,ij->i", rows, rows)))
    return _Pool(examples, rows, target, shares, typical)


@dataclass(frozen=True)
class _Choice:
    """What was picked, with all that fitting the weights again needs."""

    selection: Selection
    """Indices into the training data; weights that sum to 1."""
    rows: np.ndarray
    """(k, width) feature rows of the picks."""
    ridge: float
    by_class: bool
    """Whether the classes' shares were matched too."""


def _choose(
    read: Read,
    pool: _Pool,
    k: int,
    selector: Selector | None,
    by_class: bool,
    rng: np.random.Generator,
) -> _Choice:
    """Pick k candidates, with weights that match the mean row."""
    pool.mark_classes(read.head.codes, by_class)
    if selector is None:
        selector = NonNegative() if k <= MOST_NONNEGATIVE else SBQ(noise=NOISE * pool.typical)
    with warnings.catch_warnings():
        # fewer picks than k are filled up below
        warnings.simplefilter("ignore", ExemplaWarning)
        found = select(pool.rows, pool.target, k, selector)
    picked = found.indices
    if len(picked) < k:
        rest = np.setdiff1d(np.arange(len(pool.examples)), picked)
        picked = np.concatenate([picked, rng.choice(rest, k - len(picked), replace=False)])
    if read.discrete:
        classes = read.head.codes[pool.examples]
        picked = with_every_class(picked, classes, pool.rows, pool.target)
    gains = np.zeros(k)
    gains[: len(found.gains)] = found.gains
    selection = replace(
        found, indices=pool.examples[picked], gains=gains, candidates=len(pool.examples)
    )
    choice = _Choice(selection, pool.rows[picked], RIDGE * pool.typical, by_class)
    return _weigh(choice, pool.target)


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
