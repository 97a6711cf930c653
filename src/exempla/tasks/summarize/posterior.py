"""What a summary has to match: scores over the posterior; and which examples it may pick.

At the optimum θ̂ the mean score is zero, so there is nothing to match there. A weighted set that
has the data's mean score at many parameters around θ̂ has the data's likelihood around θ̂, up to a
constant, and a refit on it ends where a fit on the data does. The parameters are draws
θ ~ N(θ̂, I⁻¹/(2k)): the width of what k examples leave open. I is the mean Fisher with the penalty
as k examples feel it (n/k times as strong as in the mean over n), so that directions which a fit
on k examples leaves to the penalty do not count.

Draws and rows are made with the symmetric root I^(−1/2), which unlike eigenvectors has no free
signs. Equal examples have equal rows, to the last bit, so that a tie goes to the first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.sparse import csr_array
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, Ridge, RidgeCV

from exempla.arrays import Array, is_sparse, row_squares
from exempla.data import plain_labels, row_hashes, take_rows, unpack
from exempla.errors import ExemplaError
from exempla.oracles import make_oracle
from exempla.oracles.sklearn.base import unwrap_estimator
from exempla.selection.rows import tie_threshold
from exempla.store import RowSet
from exempla.tasks.retrain import is_module, refit, weight_argument
from exempla.tasks.summarize.last_layer import LastLayer

DRAWS = 30
FULL_FISHER = 2500
"""Up to so many parameters the Fisher is a full matrix; beyond, only its diagonal is used."""
WIDTH = 4096
"""Longest feature row: longer ones (draws × parameters) are hashed down to it."""
_NEGLIGIBLE = 1e-9
"""Directions whose Fisher is below this share of the largest carry no information."""
BATCH_BYTES = 2**25
"""Scores at all draws are written out for so many bytes of examples at a time."""


@dataclass(frozen=True)
class Posterior:
    """Draws around θ̂ and the whitening that makes their scores comparable."""

    thetas: np.ndarray
    """(draws, d_in, d_out)"""
    whitening: np.ndarray
    """I^(−1/2): (p, p) and symmetric, or (p,) where the Fisher is diagonal."""
    hashing: csr_array | None
    """(draws·p, WIDTH) signed hashing, None where rows are short enough."""

    @property
    def width(self) -> int:
        """Length of a feature row."""
        return self.thetas.size if self.hashing is None else WIDTH

    def mean(self, layer: LastLayer) -> np.ndarray:
        """Mean feature row of the examples, without writing their rows out."""
        total = np.zeros(self.thetas.shape)
        for part in layer.batches():
            for s, theta in enumerate(self.thetas):
                g = part.residuals(theta)
                total[s] += part.a.T @ (g if part.counts is None else g * part.counts[:, None])
        whitened = self._whiten(total.reshape(len(total), -1) / layer.size)
        return self._finish(whitened.reshape(1, -1))[0]

    def leverage(self, layer: LastLayer) -> np.ndarray:
        """Squared norm of each example's whitened score at θ̂: how much it alone can move."""
        found = [np.empty(0)]
        for part in self._batches(layer):
            scores = self._scores(part, layer.theta[None])
            squares = scores.multiply(scores) if is_sparse(scores) else scores * scores
            found.append(np.asarray(squares.sum(axis=1)))
        return np.concatenate(found)

    def fill(self, rows: np.ndarray, layer: LastLayer) -> None:
        """Write each example's whitened scores at every draw, side by side, into its row."""
        start = 0
        for part in self._batches(layer):
            scores = self._scores(part, self.thetas)
            rows[start : start + len(part), : self.width] = self._finish(scores)
            start += len(part)

    def _batches(self, layer: LastLayer) -> Iterator[LastLayer]:
        """The examples, as many at a time as BATCH_BYTES allow."""
        draws, _, d_out = self.thetas.shape
        if is_sparse(layer.a) and self.whitening.ndim == 1:
            # only what is not zero is written out: value, place, and a copy of each on the way
            scores = 5 * draws * d_out * layer.a.nnz / max(1, len(layer))
        else:
            scores = self.thetas.size
        return layer.batches(max(1, int(BATCH_BYTES / (8 * (self.width + scores)))))

    def _scores(self, part: LastLayer, thetas: np.ndarray) -> Array:
        """(n, draws·p) whitened scores at these parameters; CSR where nothing makes them dense."""
        g = np.stack([part.residuals(theta) for theta in thetas], axis=1)
        n, draws, d_out = g.shape
        if self.whitening.ndim == 1:
            scores, whitening = products(part.a, g), np.tile(self.whitening, draws)
            if not is_sparse(scores):
                return scores * whitening
            scores.data *= whitening[scores.indices]
            return scores
        if d_out == 1:
            # (a g)ᵀW = g (aᵀW), and aᵀW is the same at every draw
            return (g * np.asarray(part.a @ self.whitening)[:, None, :]).reshape(n, -1)
        a = part.a.toarray() if is_sparse(part.a) else part.a
        return self._whiten(products(a, g).reshape(n * draws, -1)).reshape(n, -1)

    def _whiten(self, scores: np.ndarray) -> np.ndarray:
        return scores @ self.whitening if self.whitening.ndim == 2 else scores * self.whitening

    def _finish(self, scores: Array) -> np.ndarray:
        """(n, draws·p) scaled so that kernels are means over the draws, hashed if too long."""
        rows = scores if self.hashing is None else scores @ self.hashing
        rows = rows.toarray() if is_sparse(rows) else rows
        return rows / np.sqrt(len(self.thetas))


def products(a: Array, g: np.ndarray) -> Array:
    """Return each example's a gᵀ at every draw, (n, draws·d_in·d_out); CSR if `a` is."""
    n, draws, d_out = g.shape
    if not is_sparse(a):
        return (a[:, None, :, None] * g[:, :, None, :]).reshape(n, -1)
    d_in = a.shape[1]
    values = a.data[:, None, None] * g[np.repeat(np.arange(n), np.diff(a.indptr))]
    columns = np.arange(draws)[:, None] * d_in * d_out + np.arange(d_out)
    columns = a.indices.astype(np.int64)[:, None, None] * d_out + columns
    starts = a.indptr.astype(np.int64) * (draws * d_out)
    shape = (n, draws * d_in * d_out)
    return csr_array((values.ravel(), columns.ravel(), starts), shape=shape)


def posterior(
    layer: LastLayer,
    k: int,
    rng: np.random.Generator,
    draws: int = DRAWS,
    spread: float = 0.5,
    damping: float = 0.0,
) -> Posterior:
    """Draw parameters around θ̂, with `spread` times the variance that k examples leave open."""
    penalty = np.repeat(layer.penalty, layer.theta.shape[1]) * layer.size / k + damping
    full = layer.theta.size <= FULL_FISHER
    metric = layer.fisher() + np.diag(penalty) if full else layer.fisher_diagonal() + penalty
    whitening = _inverse_root(metric)
    noise = rng.standard_normal((draws, layer.theta.size)) * np.sqrt(spread / k)
    steps = noise @ whitening if whitening.ndim == 2 else noise * whitening
    thetas = layer.theta[None] + steps.reshape(draws, *layer.theta.shape)
    if (length := thetas.size) <= WIDTH:
        return Posterior(thetas, whitening, None)
    # each coordinate is added, with a random sign, to one of WIDTH: keeps dot products on average
    signs, columns = rng.choice([-1.0, 1.0], length), rng.integers(0, WIDTH, length)
    hashing = csr_array((signs, (np.arange(length), columns)), shape=(length, WIDTH))
    return Posterior(thetas, whitening, hashing)


def _inverse_root(metric: np.ndarray) -> np.ndarray:
    """The I^(−1/2) of a symmetric matrix or of a diagonal, zero along negligible directions."""
    values, vectors = metric, None
    if metric.ndim == 2 and np.isfinite(metric).all():
        values, vectors = np.linalg.eigh(metric)
    kept = values > _NEGLIGIBLE * values.max()
    if not kept.any() or not np.isfinite(values).all():
        raise ExemplaError(
            "the model's Fisher is zero or not finite, so its training data cannot be told apart: "
            "check its inputs and parameters."
        )
    roots = np.where(kept, 1 / np.sqrt(np.where(kept, values, 1.0)), 0.0)
    return roots if vectors is None else (vectors * roots) @ vectors.T


Refit = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
"""(picked rows, weights, other rows) → log-likelihood of the others after a refit."""


def refitter(
    model: Any, train: Any, likelihood: Any, fit: Any, device: Any, seed: int = 0
) -> Refit:
    """How well a fit on some weighted training rows predicts others."""
    given = unpack(train, []) if isinstance(train, tuple) else None
    if given is None or given.y is None:
        raise ExemplaError(
            "total='auto' refits the model, for which the training data must be (X, y): give "
            "arrays, or choose total='k' or total='n'."
        )
    if fit is None and is_module(model):
        raise ExemplaError(
            "total='auto' refits the model, and a torch module does not know how: give "
            "fit=callable(module, X, y, sample_weight), or choose total='k' or total='n'."
        )
    X, y, transform = train[0], train[1], None  # as the user gave them: tensors stay tensors
    if fit is None:
        unwrapped = unwrap_estimator(model)
        model, transform, device = _without_search(unwrapped.model), unwrapped.transform, None
        weight_argument(model)  # refuses a model that takes no weights
        # steps before the last one stay as they were fitted on all the data
        X = given.X if transform is None else transform(given.X)
        labels = unwrapped.labels
        y = given.y if labels is None else labels.inside(plain_labels(given.y))

    def evaluate(picked: np.ndarray, weights: np.ndarray, others: np.ndarray) -> np.ndarray:
        some = (take_rows(X, picked), take_rows(y, picked), weights)
        # quiet: a total under which the fit does not converge is not chosen for its likelihood
        trained = refit(model, *some, fit, seed, keep_random_state=True)
        oracle = make_oracle(trained, likelihood, None, device)
        if fit is None:
            oracle.read(some, role="train")  # a Gaussian's variance is that of the summary
        test = (take_rows(X, others), take_rows(y, others))
        return oracle.log_likelihood(oracle.read(test, role="test"))

    return evaluate


def _without_search(last: Any) -> Any:
    """A model that searches its own penalty, with the penalty it found."""
    if isinstance(last, LogisticRegressionCV):
        C = float(np.exp(np.mean(np.log(last.C_))))
        names = set(LogisticRegression().get_params()) - {"C", "l1_ratio", "penalty"}
        given = last.get_params()
        return LogisticRegression(C=C, **{name: given[name] for name in names & given.keys()})
    if isinstance(last, RidgeCV):
        alpha: Any = last.alpha_
        return Ridge(alpha=alpha, fit_intercept=last.fit_intercept)
    return last


FEWEST = 100
"""Examples of each class that a sample of candidates keeps, where there are so many."""


def stratified_sample(
    classes: np.ndarray | None,
    among: np.ndarray,
    size: int,
    rng: np.random.Generator,
    leverage: np.ndarray | None = None,
) -> np.ndarray:
    """Return `size` of the rows `among`, by chance, with some of every class; in order.

    With `leverage` (one number per row of `among`) every other one is drawn in proportion to it.
    """
    if size >= len(among):
        return among
    order = rng.permutation(among)
    if leverage is not None and leverage.sum() > 0:
        # the smallest of exponential times with rate leverage: draws without replacement
        times = rng.standard_exponential(len(among)) / np.maximum(leverage, 1e-300)
        order = pd.unique(np.stack([among[np.argsort(times)], order], axis=1).ravel())
    if classes is not None:  # the first of each class come first
        rank = pd.Series(classes[order]).groupby(classes[order]).cumcount().to_numpy()
        order = order[np.argsort(rank >= FEWEST, kind="stable")]
    return np.sort(order[:size])


def with_every_class(
    picked: np.ndarray, classes: np.ndarray, rows: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """The picks, with the latest ones exchanged for the best example of each missing class.

    The best is the one whose row points most towards the target. A pick leaves only if another
    of its class stays; if there are fewer picks than classes, the smallest classes are left out.
    """
    picked = np.array(picked)
    present, counts = np.unique(classes, return_counts=True)
    wanted = present[np.argsort(-counts, kind="stable")][: len(picked)]
    for missing in wanted[~np.isin(wanted, classes[picked])]:
        candidates = np.flatnonzero(classes == missing)
        norms = np.sqrt(np.einsum("ij,ij->i", rows[candidates], rows[candidates]))
        towards = (rows[candidates] @ target) / np.maximum(norms, np.finfo(np.float32).tiny)
        held, times = np.unique(classes[picked], return_counts=True)
        spare = np.isin(classes[picked], held[times > 1])
        if not spare.any():
            # only classes beyond the wanted ones can be in the way: they go first
            spare = ~np.isin(classes[picked], wanted)
        best = int(np.argmax(towards >= tie_threshold(towards.max())))
        picked[np.flatnonzero(spare)[-1]] = candidates[best]
    return picked


_FEWEST_CANDIDATES, _PER_PICK = 5000, 5
ROW_BYTES = 2**30
"""Of a large training set a random part are candidates, so many for each pick and no more than
this memory holds, while the target stays the mean of all. Half of them are drawn by leverage, or
what only a few examples show (a rare feature) would be missing."""
_NO_LEVERAGE = 1e-12
"""Leverage below this share of the largest is rounding."""


@dataclass(frozen=True)
class SummaryPool:
    """The candidates' feature rows, in memory or stored, and the mean row to match.

    The last columns say which class an example is of, scaled like the rest of the row. They are
    zero while the classes' shares are left free.
    """

    examples: np.ndarray
    """Rows of the training data."""
    rows: Any
    target: np.ndarray
    shares: np.ndarray
    """Share of each class in the training data; empty where labels are no classes."""
    typical: float
    """Median squared norm of the rows, classes aside."""
    stored: RowSet | None = None

    def marked(self, codes: np.ndarray, by_class: bool) -> Any:
        """Return the rows with their last columns filled: in place, or in files of their own."""
        if not len(self.shares):
            return self.rows
        width = self.rows.shape[1] - len(self.shares)
        height = np.sqrt(self.typical) * by_class
        self.target[width:] = height * self.shares

        def filled(where: tuple[int, int]) -> np.ndarray:
            rows = self.rows[slice(*where)]
            same = codes[self.examples[slice(*where)], None] == np.arange(len(self.shares))
            rows[:, width:] = height * same
            return rows

        if self.stored is None:
            return filled((0, len(self.rows)))
        if not by_class:  # stored with zeros
            return self.rows
        classes = replace(self.stored, folder=self.stored.folder.with_name("rows-classes"))
        classes.fill(partial(map, filled), "marking the classes")
        return classes.finish()


def candidates(
    layer: LastLayer, around: Posterior, k: int, rng: np.random.Generator, store: Path | None = None
) -> SummaryPool:
    """Feature rows of the examples that may be picked, and of all of them the mean."""
    shares = np.empty(0)
    if layer.discrete:
        shares = np.bincount(layer.codes, weights=layer.counts) / layer.size
    width = around.width + len(shares)
    size, counted, leverage = pool_size(k, width), np.arange(len(layer)), None
    if layer.counts is not None:
        counted = counted[layer.counts > 0]
    if size < len(counted):
        leverage = around.leverage(layer.take(counted))
        leverage[leverage < _NO_LEVERAGE * leverage.max()] = 0.0
    classes = layer.codes if layer.discrete else None
    examples = stratified_sample(classes, counted, size, rng, leverage)
    chosen, size, stored = layer.take(examples), len(examples), None
    first = first_equal(chosen)

    def make(where: tuple[int, int]) -> np.ndarray:
        rows, here = np.zeros((where[1] - where[0], width), np.float32), np.arange(*where)
        around.fill(rows, chosen if len(here) == size else chosen.take(here))
        copies = np.flatnonzero(first[here] != here)
        source = first[here[copies]] - where[0]
        rows[copies] = rows[np.maximum(source, 0)]
        if stored is not None and (before := source < 0).any():  # in files written before
            rows[copies[before]] = stored.before(where[0])[source[before] + where[0]]
        return rows

    if store is None:
        rows: Any = make((0, size))
    else:
        about = {"examples": hashlib.sha256(examples.tobytes()).hexdigest()}
        stored = RowSet.sized(store / "rows-0", size, width, np.dtype(np.float32), about)
        stored.fill(partial(map, make), "scoring the candidates")
        rows = stored.finish()
    target = np.concatenate([around.mean(layer), np.zeros(len(shares))])
    return SummaryPool(examples, rows, target, shares, float(np.median(row_squares(rows))), stored)


def pool_size(k: int, width: int) -> int:
    """How many candidates there are for k picks, in rows of so many numbers."""
    return max(k, min(max(_FEWEST_CANDIDATES, _PER_PICK * k), ROW_BYTES // (4 * width)))


def first_equal(layer: LastLayer) -> np.ndarray:
    """Return for each example the first one with the same label, scale and float32 inputs."""
    scale = np.ones(len(layer)) if layer.scale is None else layer.scale
    parts: list[Any] = [row_hashes(layer.a.astype(np.float32)), layer.codes, scale]
    _, first, same = np.unique(np.rec.fromarrays(parts), return_index=True, return_inverse=True)
    return first[same]
