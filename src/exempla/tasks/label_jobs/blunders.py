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
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from scipy.stats import beta

from exempla.tasks.label_jobs.predictions import FLOOR, Predictions
from exempla.tasks.label_jobs.shares import PARTS, count_interval, posterior_points

__all__ = ["Judged", "judge"]

COARSE, FINE, STEPS = 12, 6, 20
MOST_WRONG = 0.45
FEWEST_SURE = 100
"""Rows that can bound a share."""
COLDEST, HOTTEST = 0.1, 8.0


@dataclass(frozen=True)
class Judged:
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
) -> Judged:
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
    better = p * other / np.maximum(1.0 - right, FLOOR) > 1.0 - p
    return Judged(
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
    sizes = [size for size in len(codes) // 2 ** np.arange(1, 5) if size >= FEWEST_SURE]
    found = [(wrong[m - 1] + 0.5, m - wrong[m - 1] + 0.5) for m in sizes or [len(codes)]]
    best = min(found, key=lambda counts: float(beta.ppf(0.9, *counts)))
    points = beta.ppf((np.arange(PARTS) + 0.5) / PARTS, *best)
    return np.clip(points, 1e-9, MOST_WRONG)


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
    rest = np.maximum(1.0 - said.chances.sum(axis=1), FLOOR * max(left, 1))
    kept, own = said.chances ** (1.0 / T), said.own ** (1.0 / T)
    norm = kept.sum(axis=1)
    if left:
        norm = norm + left * (rest / left) ** (1.0 / T)
    others = np.where(said.top == codes[:, None], 0.0, kept)
    right = np.clip(own / norm, FLOOR, 1.0 - FLOOR)
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
            pi = float(np.clip(np.mean(pi * way / (pi * way + (1 - pi) * right)), 1e-6, MOST_WRONG))
        return -float(np.log(pi * way + (1 - pi) * right).sum())

    bounds = (np.log(COLDEST), np.log(HOTTEST))
    found = minimize_scalar(loss, bounds=bounds, method="bounded", options={"xatol": 0.01})
    return float(np.exp(found.x))


def _confusion(
    right: np.ndarray, kept: np.ndarray, said: Predictions, codes: np.ndarray
) -> np.ndarray:
    """Σ_t≠g p(t)·p(g)/(1 − p(t)): the label is drawn as the model would, but for the true one."""
    odds = kept / np.maximum(1.0 - kept, FLOOR)
    odds[said.top == codes[:, None]] = 0.0
    return right * np.minimum(odds.sum(axis=1), (1.0 - right) / FLOOR)


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
        return posterior_points(lambda s: self.at(s)[0], 0.5 / n, MOST_WRONG, COARSE, FINE)

    def averaged(self, shares: np.ndarray) -> tuple[np.ndarray, list[tuple[float, float]]]:
        """P(wrong), averaged over shares; at each, the number of wrong labels and its spread."""
        chance, counts = np.zeros(len(self.right)), []
        for share in shares.tolist():
            p = self.at(share)[1]
            chance += p / len(shares)
            counts.append((float(p.sum()), float(np.sqrt((p * (1 - p)).sum()))))
        return chance, counts
