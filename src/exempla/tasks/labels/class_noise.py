"""How likely each class label is wrong, from out-of-fold predictions alone.

A right label is what the model says, at the temperature T under which labels are likeliest:
p_T(c) ∝ p(c)^(1/T). A wrong one is of one of two kinds:

    blunder      it has the share that its class has among all rows, whatever x
    confusion    it is drawn from what else the model holds likely

With curated rows T is that of right labels; both kinds are fitted to the rest, the share π of wrong
labels with the prior 1/π and a posterior over a grid, as for numbers (`mixture`).

Without them nothing tells wrong labels from classes that overlap: a model of noisy labels predicts
them well. So π is read off where classes overlap least: it is the share of labels, among the most
confident predictions, that are not the predicted ones, which errs upwards. The interval begins at
what the likelihood alone demands (T and π fitted together), of models that have learnt from every
row too, which errs downwards; where overlap outweighs wrong labels, at none.

Which of very many classes' labels are wrong, in memory that does not grow with rows × classes.

Labels such as `animal/dog/terrier` are a hierarchy: of each suspect it is said at which level the
given and the suggested class part (1 is the first).

Two rounds of out-of-fold predictions, the second without the first's suspects, then judged.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import beta

from exempla import __version__
from exempla.checks import check_ids, check_k, check_seed
from exempla.data import take_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.memory import announce
from exempla.tasks.labels.crossfit import (
    MIN_PROBABILITY,
    Predictions,
    block_rows,
    out_of_fold_predictions,
    room,
)
from exempla.tasks.labels.fix_labels import row_bytes
from exempla.tasks.labels.mixture import SoftmaxRegression, weight_bytes
from exempla.tasks.labels.problem import read_problem
from exempla.tasks.labels.result import ClassFixes
from exempla.tasks.labels.spread import PARTS, count_interval, posterior_points
from exempla.tasks.retrain import Fit, check_fit, refit

_COARSE, _FINE, STEPS = 12, 6, 20
_MOST_WRONG = 0.45
_FEWEST_SURE = 100
"""Rows that can bound a share."""
_COLDEST, _HOTTEST = 0.1, 8.0


@dataclass(frozen=True)
class _Judged:
    """What is estimated of every label."""

    probabilities: np.ndarray
    evidence: np.ndarray
    """(n,) log p of a blunder less log p of a right label: what the order goes by."""
    suggested: np.ndarray
    """(n,) codes of the likeliest labels, the given ones included."""
    alternatives: np.ndarray
    """(n,) codes of the likeliest labels beside the given ones."""
    expected_errors: float
    interval: tuple[float, float]
    temperature: float


def judge(
    said: Predictions, codes: np.ndarray, curated: np.ndarray, first: Predictions | None = None
) -> _Judged:
    """Judge the labels that are not curated; `first` are predictions by models that have learnt
    from every row of the other folds."""
    train, trusted = ~curated, bool(curated.any())
    n = int(train.sum())
    frequency = np.bincount(codes[train], minlength=said.classes) + 0.5
    frequency = frequency / frequency.sum()
    T = _temperature(said, codes, curated if trusted else train, None if trusted else frequency)
    right, other, kept = _tempered(said, codes, T)
    ways = [_blunder(right, kept, said, codes, frequency)]
    if trusted:
        ways.append(_confusion(right, kept, said, codes))
    mixed = _Mixture(right[train], np.maximum(np.column_stack(ways), 1e-300)[train])
    shares = mixed.posterior(n)
    chance, counts = mixed.averaged(shares)
    low, high = count_interval(shares, counts, n)
    if not trusted:
        shares = _shares_in_doubt(said, codes)
        T = _temperature(said, codes, train, frequency, float(np.median(shares)))
        right, other, kept = _tempered(said, codes, T)
        ways = [_blunder(right, kept, said, codes, frequency)]
        mixed = _Mixture(right, np.maximum(ways[0], 1e-300)[:, None])
        chance, counts = mixed.averaged(shares)
        bounds = count_interval(shares, counts, n)
        low, high = min(low, bounds[0]), max(high, bounds[1])
        if float(np.mean(said.top[:, 0] != codes)) > 2.0 * float(np.median(shares)):
            low = 0.0  # classes overlap, and all that is contradicted may be that
        elif first is not None:
            low = min(low, _least(first, codes, frequency))
    p = np.zeros(len(codes))
    p[train] = np.minimum(chance, n / (n + 3.0))
    plain, way = right, ways[0]
    if not trusted:  # T hangs on π, which is a guess: the order, across several labels, must not
        plain, _, kept = _tempered(said, codes, 1.0)
        way = _blunder(plain, kept, said, codes, frequency)
    evidence = np.log(np.maximum(way, 1e-300)) - np.log(plain)
    second = said.top[:, min(1, said.top.shape[1] - 1)]
    second = np.where(said.top[:, 0] == codes, second, said.top[:, 0])
    better = p * other / np.maximum(1.0 - right, MIN_PROBABILITY) > 1.0 - p
    return _Judged(
        p,
        evidence,
        np.where(better, second, codes),
        second,
        float(p.sum()),
        (low, high),
        T,
    )


def _least(said: Predictions, codes: np.ndarray, frequency: np.ndarray) -> float:
    """The lower end of the number of wrong labels by the likelihood alone."""
    T = _temperature(said, codes, np.ones(len(codes), dtype=bool), frequency)
    right, _, kept = _tempered(said, codes, T)
    way = np.maximum(_blunder(right, kept, said, codes, frequency), 1e-300)
    mixed = _Mixture(right, way[:, None])
    shares = mixed.posterior(len(codes))
    return count_interval(shares, mixed.averaged(shares)[1], len(codes))[0]


def _shares_in_doubt(said: Predictions, codes: np.ndarray) -> np.ndarray:
    """Shares that stand for the posterior of π, from the most confident rows.

    Half of them, or a quarter, an eighth, a sixteenth, whichever bounds π best: where classes
    overlap fewer rows say more, where they do not the most rows do.
    """
    order = np.argsort(-said.chances[:, 0], kind="stable")
    wrong = np.cumsum(said.top[order, 0] != codes[order])
    sizes = [size for size in len(codes) // 2 ** np.arange(1, 5) if size >= _FEWEST_SURE]
    found = [(wrong[m - 1] + 0.5, m - wrong[m - 1] + 0.5) for m in sizes or [len(codes)]]
    best = min(found, key=lambda counts: float(beta.ppf(0.9, *counts)))
    points = beta.ppf((np.arange(PARTS) + 0.5) / PARTS, *best)
    return np.clip(points, 1e-9, _MOST_WRONG)


def _blunder(
    right: np.ndarray,
    kept: np.ndarray,
    said: Predictions,
    codes: np.ndarray,
    frequency: np.ndarray,
) -> np.ndarray:
    """Σ_t≠g p(t)·f(g)/(1 − f(t)): the label is any other than the true one, by its frequency."""
    away = kept / (1.0 - frequency[said.top])
    away[said.top == codes[:, None]] = 0.0
    known = np.where((said.top == codes[:, None]).any(axis=1), 0.0, right)
    rest = np.maximum(1.0 - kept.sum(axis=1) - known, 0.0)
    return frequency[codes] * (away.sum(axis=1) + rest)


def _tempered(
    said: Predictions, codes: np.ndarray, T: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p_T of the given label, of the likeliest other one, and of the kept classes, (n, m)."""
    m = said.top.shape[1]
    left = max(said.classes - m, 0)
    rest = np.maximum(1.0 - said.chances.sum(axis=1), MIN_PROBABILITY * max(left, 1))
    kept, own = said.chances ** (1.0 / T), said.own ** (1.0 / T)
    norm = kept.sum(axis=1)
    if left:
        norm = norm + left * (rest / left) ** (1.0 / T)
    others = np.where(said.top == codes[:, None], 0.0, kept)
    right = np.clip(own / norm, MIN_PROBABILITY, 1.0 - MIN_PROBABILITY)
    return right, others.max(axis=1) / norm, kept / norm[:, None]


def _temperature(
    said: Predictions,
    codes: np.ndarray,
    rows: np.ndarray,
    frequency: np.ndarray | None,
    share: float | None = None,
) -> float:
    """The likeliest temperature of these rows' labels; a share of them, if it is known, or the
    likeliest share, are blunders; without `frequency`, none."""
    part = Predictions(said.own[rows], said.top[rows], said.chances[rows], said.classes)
    given = codes[rows]

    def loss(log_T: float) -> float:
        right, _, kept = _tempered(part, given, float(np.exp(log_T)))
        if frequency is None:
            return -float(np.log(right).sum())
        way = _blunder(right, kept, part, given, frequency)
        pi = 0.02 if share is None else share
        for _ in range(STEPS if share is None else 0):
            pi = float(
                np.clip(np.mean(pi * way / (pi * way + (1 - pi) * right)), 1e-6, _MOST_WRONG)
            )
        return -float(np.log(pi * way + (1 - pi) * right).sum())

    bounds = (np.log(_COLDEST), np.log(_HOTTEST))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.01})
    return float(np.exp(found.x))


def _confusion(
    right: np.ndarray, kept: np.ndarray, said: Predictions, codes: np.ndarray
) -> np.ndarray:
    """Σ_t≠g p(t)·p(g)/(1 − p(t)): the label is drawn as the model would, but for the true one."""
    odds = kept / np.maximum(1.0 - kept, MIN_PROBABILITY)
    odds[said.top == codes[:, None]] = 0.0
    return right * np.minimum(odds.sum(axis=1), (1.0 - right) / MIN_PROBABILITY)


class _Mixture(NamedTuple):
    """Densities of the given labels: as right ones, (n,), and as wrong ones by kind, (n, K)."""

    right: np.ndarray
    ways: np.ndarray

    def at(self, share: float) -> tuple[float, np.ndarray]:
        """Log-likelihood, and P(wrong) of each label, at a share of wrong ones."""
        mix = np.full(self.ways.shape[1], 1.0 / self.ways.shape[1])
        wrong = self.ways @ mix * share
        for _ in range(STEPS if len(mix) > 1 else 0):
            chance = wrong / (wrong + (1 - share) * self.right)
            parts = self.ways * mix / np.maximum(self.ways @ mix, 1e-300)[:, None]
            counts = chance @ parts + 0.5
            mix = counts / counts.sum()
            wrong = self.ways @ mix * share
        total = wrong + (1 - share) * self.right
        return float(np.log(total).sum()), wrong / total

    def posterior(self, n: int) -> np.ndarray:
        """Shares that stand for the posterior under the prior 1/π."""
        return posterior_points(lambda s: self.at(s)[0], 0.5 / n, _MOST_WRONG, _COARSE, _FINE)

    def averaged(self, shares: np.ndarray) -> tuple[np.ndarray, list[tuple[float, float]]]:
        """P(wrong), averaged over shares; at each, the number of wrong labels and its spread."""
        chance, counts = np.zeros(len(self.right)), []
        for share in shares.tolist():
            p = self.at(share)[1]
            chance += p / len(shares)
            counts.append((float(p.sum()), float(np.sqrt((p * (1 - p)).sum()))))
        return chance, counts


_FOLDS = 5
_ODDS = 4.0


class Labels(NamedTuple):
    """Rows and their labels' positions in `classes`: those to be judged, then the curated ones."""

    X: Any
    codes: np.ndarray
    classes: np.ndarray
    curated: np.ndarray
    """(n + m,) which rows are."""
    fold: np.ndarray
    weights: np.ndarray | None = None


def folds_of(groups: np.ndarray, codes: np.ndarray | None, seed: int) -> np.ndarray:
    """A fold for every row; rows of a group share theirs, and codes are spread over the folds.

    >>> folds_of(np.array([0, 0, 1, 1, 2]), None, 0)[[0, 2]] == folds_of(
    ...     np.array([0, 0, 1, 1, 2]), None, 0)[[1, 3]]
    array([ True,  True])
    """
    rng = np.random.default_rng(seed)
    members, place = np.unique(groups, return_inverse=True)
    order = rng.permutation(len(members))
    if codes is not None:  # every row is its own group
        order = order[np.argsort(codes[order], kind="stable")]
    fold = np.empty(len(members), dtype=np.int64)
    fold[order] = np.arange(len(members)) % min(_FOLDS, len(members))
    return fold[place]


def judged(model: Any, labels: Labels, seed: int, *, rounds: int = 1) -> _Judged:
    """Judge the labels by models of the other folds."""

    def fitted(rows: np.ndarray, seed: int) -> Any:
        y = labels.classes[labels.codes[rows]]
        if len(np.unique(labels.codes[rows])) < 2:
            raise ExemplaError(
                "the labels cannot be judged: with a few rows set aside only one class is left to "
                "learn from; give more rows of every class."
            )
        weights = None if labels.weights is None else labels.weights[rows]
        return refit(
            model, take_rows(labels.X, rows), y, weights, None, seed, keep_random_state=True
        )

    said = out_of_fold_predictions(
        fitted, labels.X, labels.codes, labels.classes, labels.fold, seed
    )
    first = said
    for step in range(1, rounds + 1):
        keep = ~_doubted(said, labels)
        left = np.bincount(labels.codes[keep], minlength=len(labels.classes))
        if keep.all() or np.count_nonzero(left >= 2) < 2:
            break
        said = out_of_fold_predictions(
            fitted, labels.X, labels.codes, labels.classes, labels.fold, seed + 101 * step,
            learn_from=keep, what="again without the suspects",
        )  # fmt: skip
    return judge(said, labels.codes, labels.curated, first)


def _doubted(said: Predictions, labels: Labels) -> np.ndarray:
    """Rows that a model should not learn from: another label is ODDS times as likely.

    A model that has learnt wrong labels holds them possible. Without these rows it does not; that
    some of them were right, and it grows too sure of itself, is what the temperature mends.
    """
    return (said.chances[:, 0] > _ODDS * said.own) & ~labels.curated


def judged_from(probabilities: Any, labels: Labels) -> _Judged:
    """Judge the labels by probabilities that are there already."""
    n, C = len(labels.codes), len(labels.classes)
    shape = getattr(probabilities, "shape", ())
    if shape != (n, C):
        raise ExemplaError(
            f"probabilities have shape {tuple(shape)}; give one for each of {n:,} labels and {C:,} "
            "classes, in the order of the sorted classes."
        )
    said = Predictions.empty(n, C)
    size = block_rows(C)
    for start in range(0, n, size):
        rows = np.arange(start, min(start + size, n))
        part = np.asarray(probabilities[start : start + size], dtype=np.float64)
        if not np.isfinite(part).all() or part.min() < 0 or part.max() > 1 + 1e-6:
            raise ExemplaError("probabilities must be numbers from 0 to 1; look at your model.")
        said.put(rows, part, labels.codes[rows])
    return judge(said, labels.codes, labels.curated)


def check_classifier(model: Any, fit: Fit | None) -> None:
    """Whether this model can be trained again and gives probabilities."""
    if fit is not None:
        raise ExemplaError(
            "fit= trains single classes and numbers; here give a scikit-learn classifier, or the "
            "probabilities of your own model with probabilities=."
        )
    check_fit(model, None)
    if not hasattr(model, "predict_proba"):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives no class probabilities, which finding wrong labels "
            "needs: use a classifier with predict_proba, such as LogisticRegression."
        )


_SEPARATORS = ("/", ">", "::", "|")


def fix_many_classes(
    model: Any,
    train: Any,
    curated: Any = None,
    k: int | None = None,
    *,
    fit: Fit | None = None,
    seed: int = 0,
    ids: Any = None,
    probabilities: Any = None,
) -> ClassFixes:
    """Rank rows by how likely their labels are wrong; see `exempla.fix_labels`."""
    problem = read_problem(train, curated)
    n, seed = problem.n_train, check_seed(seed)
    k = None if k is None else check_k(k, n, "training rows")
    names = check_ids(problem.ids if ids is None else ids, n)
    known = np.arange(len(problem)) >= n
    fold = folds_of(np.arange(len(problem)), problem.codes, seed)
    given = Labels(problem.X, problem.codes, problem.classes, known, fold, problem.weights)
    what = f"{len(problem):,} labels of {len(problem.classes):,} classes"
    announce(_expected_bytes(given, model), what)
    if probabilities is not None:
        if curated is not None:
            raise ExemplaError("probabilities are of the training rows: leave curated out.")
        found = judged_from(probabilities, given)
    else:
        model = SoftmaxRegression(random_state=seed) if model is None else model
        check_classifier(model, fit)
        found = judged(model, given, seed)
    p = found.probabilities[:n]
    order = np.lexsort((-found.evidence[:n], -np.where(p > 0.5, p, 0.0)))[:k]
    labels = problem.classes[problem.codes[order]]
    suggested = problem.classes[found.suggested[order]]
    return ClassFixes(
        indices=order.astype(np.int64),
        ids=None if names is None else names[order],
        probabilities=p[order],
        given=labels,
        suggested=suggested,
        alternative=problem.classes[found.alternatives[order]],
        level=levels_apart(labels, suggested),
        expected_errors=found.expected_errors,
        interval=found.interval,
        method="predictions",
        k=n if k is None else k,
        n_train=n,
        n_labels=n,
        n_trusted=len(problem) - n,
        seed=seed,
        version=__version__,
    )


def _expected_bytes(given: Labels, model: Any = None) -> float:
    """A fold's rows, the kept predictions and a block of all classes, and the weights of a linear
    model; a model of the caller's may take more."""
    n, C = len(given.codes), len(given.classes)
    columns = given.X.shape[1] if len(getattr(given.X, "shape", ())) == 2 else 0
    return row_bytes(given.X) * n + room(n, C) + weight_bytes(columns, C) + 40.0 * n


def levels_apart(given: np.ndarray, suggested: np.ndarray) -> np.ndarray:
    """At which level each pair of classes parts; 0 where they are the same.

    >>> levels_apart(np.array(["a/b/c", "a/b/c"]), np.array(["a/d/c", "a/b/c"]))
    array([2, 0])
    """
    texts = [str(label) for label in (*given, *suggested)]
    mark = next((m for m in _SEPARATORS if texts and all(m in t for t in texts)), None)
    out = np.zeros(len(given), dtype=np.int64)
    for row, (a, b) in enumerate(zip(given, suggested, strict=True)):
        if a == b:
            continue
        parts = [str(label).split(mark) if mark else [str(label)] for label in (a, b)]
        same = [x == y for x, y in zip(*parts, strict=False)]
        out[row] = 1 + (same.index(False) if False in same else len(same))
    return out
