"""Summarise a training set: k weighted examples that a refit cannot tell from all the data.

    last layer ──▶ draws around θ̂ ──▶ whitened scores ──▶ SBQ ──▶ weights ≥ 0 ──▶ their total

The paper matches the mean score at θ̂, which is zero at the optimum; matching it at draws from the
posterior around θ̂ is what makes the summary work (see `summarize.posterior`). How much a summary
may weigh is measured on the training examples that are not in it.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np

from exempla import __version__
from exempla.arrays import nbytes_of
from exempla.checks import check_choice, check_flag, check_folder, check_ids, check_k, check_seed
from exempla.data import count_examples, take_examples
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.kernel.damping import check_damping, resolve_damping
from exempla.memory import IMPORT_BYTES, STORE_BYTES, announce
from exempla.progress import showing, track
from exempla.results import Selection
from exempla.selection import SBQ, NonNegative, Selector
from exempla.selection.nnls import nonnegative_minimum
from exempla.selection.select import quiet_select
from exempla.store import claim, disk_errors, identity_of
from exempla.tasks.retrain import check_fit, fitted
from exempla.tasks.summarize.last_layer import LastLayer, read_last_layer
from exempla.tasks.summarize.posterior import (
    BATCH_BYTES,
    DRAWS,
    WIDTH,
    Refit,
    SummaryPool,
    candidates,
    pool_size,
    posterior,
    refitter,
    with_every_class,
)

__all__ = ["Summary", "best_total", "expected_peak", "fit_weights", "left_out", "summarize"]


def fit_weights(
    rows: np.ndarray, target: np.ndarray, ridge: float, floor: float = 0.01
) -> np.ndarray:
    """Return w ≥ floor/k that minimise ‖target − Σ w_i f_i‖² + ridge·‖w − 1/k‖², scaled to sum 1.

    The floor keeps every chosen example in the summary, hence every class that was chosen.
    """
    k = len(rows)
    rows = rows.astype(np.float64)
    least = floor / k
    gram = rows @ rows.T
    # rows may depend on each other: a trace of the ridge always stays
    ridge = max(ridge, 1e-10 * float(np.diag(gram).max()), np.finfo(float).tiny)
    gram[np.diag_indices(k)] += ridge
    # with w = u + least the constraint is u ≥ 0
    linear = rows @ target + ridge / k - least * gram.sum(1)
    weights = nonnegative_minimum(gram, linear) + least
    return weights / weights.sum()


_MOST_NONNEGATIVE = 300
"""Up to so many picks the weights are refitted ≥ 0 after each pick; beyond, where almost every
good set has nearly positive weights, SBQ is cheaper."""
NOISE = 1e-3
"""σ² of SBQ, in units of the median squared row norm."""
_RIDGE = 1e-2
"""Pull of the weights towards equal ones, in the same units."""


def _choose(
    pool: SummaryPool,
    codes: np.ndarray,
    k: int,
    selector: Selector | None,
    by_class: bool,
    fillers: np.ndarray,
) -> Selection:
    """k candidates, the first of `fillers` where fewer are found; weights of sum 1."""
    k = min(k, len(pool.examples))
    rows = pool.marked(codes, by_class)
    if selector is None:
        selector = NonNegative() if k <= _MOST_NONNEGATIVE else SBQ(noise=NOISE * pool.typical)
    found = quiet_select(rows, pool.target, k, selector)
    picked = found.indices
    if len(picked) < k:
        rest = fillers[~np.isin(fillers, picked)]
        picked = np.concatenate([picked, rest[: k - len(picked)]])
    if len(pool.shares):
        picked = with_every_class(picked, codes[pool.examples], rows, pool.target)
    weights = fit_weights(rows[picked], pool.target, _RIDGE * pool.typical)
    apart = pool.target - weights @ rows[picked]
    mmd2, norm2 = float(apart @ apart), float(pool.target @ pool.target)
    return replace(
        found,
        indices=pool.examples[picked],
        weights=weights,
        gains=np.pad(found.gains, (0, k - len(found.gains))),
        mmd2=mmd2,
        variance=mmd2,
        explained=1.0 - mmd2 / norm2,
        target_norm2=norm2,
        candidates=len(pool.examples),
    )


MOST, FEWEST = 50_000, 10
"""Examples to measure by: more say little more, fewer say nothing."""
_N_TOTALS = 9
"""How many totals are tried, evenly spaced on a logarithmic scale."""
_EQUAL = 1e-6
"""Mean log-likelihoods within this share of each other are equal: a refit stops that far from its
optimum, and where exactly is decided by rounding."""

Weighted = tuple[np.ndarray, np.ndarray]
"""Picked examples, and weights that sum to 1."""


def left_out(layer: LastLayer, choices: list[Weighted], rng: np.random.Generator) -> np.ndarray:
    """Training examples that no choice has picked; none if they are too few to measure by."""
    picked = np.unique(np.concatenate([indices for indices, _ in choices]))
    rest = np.setdiff1d(np.arange(len(layer)), picked)
    if layer.counts is not None:
        rest = rest[layer.counts[rest] > 0]
    if len(rest) < FEWEST:
        return np.empty(0, dtype=np.int64)
    return rest if len(rest) <= MOST else rng.choice(rest, MOST, replace=False)


def best_total(
    choices: list[Weighted], refit: Refit, others: np.ndarray, layer: LastLayer
) -> tuple[int, float]:
    """Which choice, at which total, lets a refit predict the others best; ties go to n."""
    counts = None if layer.counts is None else layer.counts[others]
    best, chosen = -np.inf, (0, layer.size)
    # from n down, so that a total that changes nothing stays n
    totals = np.geomspace(layer.size, min(1.0, len(choices[0][0]) / 32), _N_TOTALS)
    tried = [(i, float(amount)) for amount in totals for i in range(len(choices))]
    for i, amount in track(tried, "choosing the total weight", len(tried)):
        picked, weights = choices[i]
        each = refit(picked, weights * amount, others)
        likely = float(np.average(each, weights=counts))
        if likely > best + _EQUAL * abs(likely):
            best, chosen = likely, (i, amount)
    return chosen


_LOOKED_AT = 256
"""Examples that are read to see what one takes."""


def expected_peak(
    model: Any, train: Any, k: int, refitted: bool, stored: bool, *reading: Any
) -> tuple[int, float]:
    """Return the number of examples, and the bytes taken at the peak beside model and data.

    These are the layer's inputs, the candidates' rows in float32 and either the inputs once more
    while they are read, one to three batches of scores, or the choice: the picked rows in float64,
    twice, and the examples to judge a refit by. Stored rows take the buffers they are read through.
    Zeros if it cannot be told before something is refused.
    """
    try:
        n = count_examples(train) or 0
        some = np.unique(np.linspace(0, n - 1, _LOOKED_AT).astype(np.int64))
        few = read_last_layer(model, take_examples(train, some), *reading)
        k = min(int(k), n)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
        return 0, 0.0
    row, p = nbytes_of(few.a) / len(few), few.theta.size
    width = min(DRAWS * p, WIDTH) + (few.theta.shape[1] + 1 if few.discrete else 0)
    count = min(n, pool_size(k, width))
    choosing = 16.0 * k * width + 2.0 * min(n, MOST) * row * refitted
    kept = n * (row + 24.0) + min(4.0 * count * width, STORE_BYTES if stored else np.inf)
    batches = 1.5 if few.theta.shape[1] == 1 and DRAWS * p <= WIDTH else 3.0
    return n, IMPORT_BYTES + kept + max(n * row, batches * BATCH_BYTES, choosing)


@dataclass(frozen=True, kw_only=True, repr=False)
class Summary(Selection):
    """Weighted training examples that stand for all of them.

    Attributes
    ----------
    weights : float array
        Nonnegative; hand them to `fit` as `sample_weight`.
    total : float
        What they sum to.
    explained : float
        Share of the mean score over the posterior that they match.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> import exempla
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X, model = scale(X), LogisticRegression()
    >>> exempla.summarize(model, (X, y), k=20, total="n", progress=False)
    Summary: 20 weighted training examples stand for 569; their weights sum to 569.
    """

    k: int
    total: float
    n_train: int
    seed: int
    version: str
    damping: float = 0.0
    damping_rule: str = ""

    @property
    def finding(self) -> str:
        return (
            f"{len(self):,} weighted training examples stand for {self.n_train:,}; their weights "
            f"sum to {self.total:,.4g}."
        )


Total = Literal["auto", "k", "n"]


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
    store: Any = None,
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
    store : path
        A folder for the rows of the candidates, to keep them on disk. The same call with the same
        folder continues an interrupted one.
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
    check_choice("total", total, get_args(Total))
    shrunk = resolve_damping(check_damping(damping, "summary"), None, use="summary")
    if isinstance(model, list | tuple):
        raise ExemplaError("summarize takes one model, not a list: the summary is for its refit.")
    # a source of chance for each step, so that none hangs on what an earlier one came to
    draws, sample, order, rest = np.random.default_rng(check_seed(seed)).spawn(4)
    folder = check_folder("store", store)
    if fit is not None:
        check_fit(model, fit)
    with showing(check_flag("progress", progress)):
        model = fitted(model, train, seed)
        reading = likelihood, parameters, device
        n, needed = expected_peak(model, train, k, total == "auto", folder is not None, *reading)
        announce(needed, f"{n} examples to choose {k} of")
        refit = refitter(model, train, likelihood, fit, device) if total == "auto" else None
        layer = read_last_layer(model, train, *reading)
        k = check_k(k, len(layer))
        names = check_ids(layer.ids if ids is None else ids, len(layer))
        around = posterior(layer, k, draws, damping=shrunk.value)
        if folder is not None:
            folder, about = folder.absolute(), {"job": "summarize", "k": k, "seed": seed}
            about |= {"likelihood": likelihood, "parameters": parameters, "damping": shrunk.value}
            with disk_errors(folder):
                claim(folder, identity_of([model], train, layer.codes, len(layer), **about))
        pool = candidates(layer, around, k, sample, folder)
        # where a refit compares them, a summary that leaves the classes' shares free and one that
        # matches them; otherwise the second alone, which is the safe one
        both = refit is not None and len(pool.shares) > 0 and k <= _MOST_NONNEGATIVE
        fillers = order.permutation(len(pool.examples))
        ways = (False, True) if both else (True,)
        found = [_choose(pool, layer.codes, k, selector, way, fillers) for way in ways]
        best, amount = len(found) - 1, float(k) if total == "k" else layer.size
        if refit is not None:
            weighted = [(choice.indices, choice.weights) for choice in found]
            others = left_out(layer, weighted, rest)
            if len(others):
                best, amount = best_total(weighted, refit, others, layer)
            else:
                warnings.warn(
                    f"too few examples are left beside {k} of {len(layer)} to choose the total "
                    "weight by: it is n; give total='k' or 'n' to say it yourself",
                    ExemplaWarning,
                    stacklevel=2,
                )
    picked = found[best]
    return Summary.of(
        picked,
        weights=picked.weights * amount,
        total=float(amount),
        k=k,
        n_train=len(layer),
        seed=int(seed),
        version=__version__,
        damping=shrunk.value,
        damping_rule=shrunk.rule,
        ids=None if names is None else names[picked.indices],
        state=None,
    )
