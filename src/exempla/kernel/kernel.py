"""`Kernel`, the damped Fisher kernel of one or several models, and `Query`, what it is asked about.

Everything that needs the kernel asks this object: training features, targets and affinities for
selection, and influence. The rows of several models are concatenated, so that their kernels are
averaged; their influence is averaged by `solve.average`. Rows for selection have unit length and
their own damping; rows for influence have neither.

A query with mean score s_q depends on the residual of the sketch (`embed`) only through the
products s_i·s_q, so `rows_and_targets` computes them in one pass over the training set and appends
them to the rows as an extra coordinate. The kernel between training rows and the query is then
exact, up to the residual eigenvalue.

`removal_effect` predicts what happens to the queried predictions if several training examples S are
removed. That takes away their scores and their part of the Fisher matrix. One Newton step from the
trained weights to those of the rest is, with metric M and Fisher rows R of S,

    Δθ = −(nM − RᵀR)⁻¹ Σ_S s_i = −(x + M⁻¹Rᵀ(n − R M⁻¹Rᵀ)⁻¹ R x)/n,    x = M⁻¹ Σ_S s_i

The first term is the sum of the influences; the second matters if many removed examples share a
direction. For a classifier the change is applied to the log-odds, so that no probability exceeds 1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from threading import RLock
from typing import Any, Literal, NamedTuple

import numpy as np

from exempla.arrays import (
    Array,
    as_like,
    concatenate,
    on_device_of,
    products,
    real_numbers,
    row_squares,
    to_numpy,
)
from exempla.checks import check_choice
from exempla.errors import ExemplaError
from exempla.kernel.damping import Damping, resolve_damping
from exempla.kernel.embed import (
    Embedding,
    concatenate_models,
    raw_products,
    residual_norms2,
    unit_rows,
    unit_scale,
    whiten_rows,
)
from exempla.kernel.solve import (
    MAX_RESIDUAL_PASSES,
    MAX_SELECTION_PASSES,
    SetInfluence,
    Solve,
    query_influence,
)
from exempla.oracles.base import CLASSES, Examples, Labels, Oracle, ScoreRows
from exempla.results import Features
from exempla.store import StoredRows

KernelUse = Literal["influence", "selection"]
MAX_ADDED_WIDTH = 1 / 4
"""Coordinates added to the rows, relative to their width."""
_MIN_EIGENVALUE_SHARE = 1e-6
"""Directions of several queries with less than this share of the largest eigenvalue are dropped."""
MAX_FISHER_ROWS = 2048
"""Fisher rows of the removed examples up to which the second term of Δθ is computed."""
_MIN_PROBABILITY = 1e-9
"""Probabilities are kept this far from 0 and 1 before their log-odds are taken."""


class EmbeddedExamples(NamedTuple):
    """Examples as one model reads and embeds them."""

    examples: Examples
    rows: Array
    """In sketch space, not whitened."""
    labels: Labels = "true"
    norms2: Any = None
    """(n,) squared norm of each outside the span of an exact basis."""
    scores: ScoreRows | None = None
    """Their factors, if they are needed for the residual and take little memory."""

    def take(self, positions: np.ndarray) -> EmbeddedExamples:
        """Return some of the examples."""
        return EmbeddedExamples(self.examples.take(positions), self.rows[positions], self.labels)

    def residual_norms2(self, oracle: Oracle) -> np.ndarray:
        """Return the squared norm of each in the directions that the sketch drops."""
        if self.scores is None:
            return residual_norms2(oracle, self.examples, self.rows, self.labels)
        return np.maximum(self.scores.norm2() - row_squares(self.rows), 0.0)


class Query:
    """Test examples, read by each model and embedded once.

    `test` is the test data as given, or `Examples` if one model has read them already. Examples
    without labels are queried under the predicted ones, and `notes` says so.
    """

    def __init__(self, embeddings: list[Embedding], test: Any, labels: Labels = "true") -> None:
        check_choice("labels", labels, ("true", "predicted"))
        self.embeddings, self.test = embeddings, test
        self.notes: list[str] = []
        if isinstance(test, Examples):
            self.examples = [test]
        else:
            self.examples = [e.oracle.read(test, role="test") for e in embeddings]
        first = self.examples[0]
        if labels == "true" and first.labels is None and first.needs_labels:
            self.notes.append("The test examples have no labels: the predicted ones were used.")
            labels = "predicted"
        self.labels: Labels = labels

    def __len__(self) -> int:
        return len(self.examples[0])

    @cached_property
    def embedded(self) -> list[EmbeddedExamples]:
        """Per model, the examples with their rows."""
        found = []
        for e, x in zip(self.embeddings, self.examples, strict=True):
            held: list[ScoreRows] = []
            wanted = e.has_residual and e.residual_passes(len(x)) <= MAX_RESIDUAL_PASSES
            rows, norms2 = e.embed(x, self.labels, held if wanted else None)
            scores = ScoreRows.join(held) if held else None
            found.append(EmbeddedExamples(x, rows, self.labels, norms2, scores))
        return found

    def take(self, positions: np.ndarray) -> Query:
        """Return a query about some of the examples."""
        part = copy(self)
        part.__dict__.pop("embedded", None)
        part.examples = [x.take(positions) for x in self.examples]
        return part


def mean_embedding(rows: Array, weights: object = None) -> Array:
    """Return μ = Σ w_i f_i / Σ |w_i| of queried rows; a (T, n) weight matrix gives T targets."""
    if weights is None and len(rows):
        return rows.sum(0) / len(rows)
    return as_like(shares(weights, len(rows)), rows) @ rows


def shares(weights: object, count: int) -> np.ndarray:
    """Return the share of each queried example in the target, (count,), or in each of T targets."""
    if count == 0:
        raise ExemplaError("The query is empty: give at least one test example.")
    if weights is None:
        return np.full(count, 1.0 / count)
    w = real_numbers(weights, "the target weights")
    if w.shape[-1:] != (count,) or w.ndim > 2:
        raise ExemplaError(
            f"target weights have shape {w.shape} but there are {count} test examples: give one "
            "weight each (or one row of weights per target)."
        )
    if not np.isfinite(w).all() or not (np.abs(w).sum(-1) > 0).all():
        raise ExemplaError("target weights must be finite and not all zero.")
    return w / np.abs(w).sum(-1, keepdims=True)


@dataclass(frozen=True)
class RemovalEffect:
    """Predicted effect of removing training examples; `verify` retrains and measures it.

    Attributes
    ----------
    removed : int
        Number of training examples removed.
    log_likelihood : float
        Change of the mean log-likelihood of the queried predictions.
    random_baseline, random_sd : float
        Mean and standard deviation of the same change for as many examples drawn at random.
    n_fixed : int or None
        Predictions whose own label is at most 50 % likely and would become more likely than not;
        None if the labels are not classes.
    n_broken : int or None
        Predictions whose own label would cease to be more likely than not.
    """

    removed: int
    log_likelihood: float
    random_baseline: float
    random_sd: float
    n_fixed: int | None = None
    n_broken: int | None = None


class Kernel:
    """The Fisher kernel of fitted embeddings at one damping per model.

    The `use`, "influence" or "selection", decides what damping="auto" means, and whether rows are
    scaled to unit length (selection). Of kernels `beside` each other, one has features at a time.
    """

    def __init__(
        self,
        embeddings: list[Embedding],
        damping: str | float,
        use: KernelUse,
        beside: Kernel | None = None,
    ) -> None:
        self.embeddings = embeddings
        self.use: KernelUse = use
        self.dampings: list[Damping] = [
            resolve_damping(damping, e.evidence, e.metric.name, use) for e in embeddings
        ]
        self._values = [damping.value for damping in self.dampings]
        self._computed: dict[KernelUse, Features] = {} if beside is None else beside._computed
        self._lock = RLock() if beside is None else beside._lock

    @property
    def n_train(self) -> int:
        """Number of training examples."""
        return len(self.embeddings[0].train)

    @property
    def damping(self) -> float:
        """Mean damping of the models."""
        return float(np.mean(self._values))

    def _each(self) -> Iterator[tuple[Embedding, float]]:
        """Yield each embedding with its damping."""
        return zip(self.embeddings, self._values, strict=True)

    # ---- features

    @property
    def features(self) -> Features:
        """Whitened training rows, computed on first use."""
        with self._lock:
            found = self._computed.get(self.use)
            if found is None:
                self._computed.clear()  # frees the features of the other use first
                found = self._computed[self.use] = self._whiten_training_rows()
            return found

    def _whiten_training_rows(self) -> Features:
        lengths = None
        if isinstance(self.embeddings[0].rows, StoredRows):
            from exempla.kernel.stored import whiten_on_disk

            rows: Any = whiten_on_disk(self.embeddings, self._values, self.use)
        else:
            whitened = [e.metric.whiten(e.rows_near_model(), value) for e, value in self._each()]
            rows = concatenate_models(whitened)
            if self.use == "selection":
                scale = unit_scale(rows)
                lengths = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
                # the identity metric returns the rows of the embedding: do not overwrite those
                fresh = all(rows is not e.rows for e in self.embeddings)
                rows = unit_rows(rows, overwrite=fresh)
        share = float(np.mean([e.evidence.share for e in self.embeddings]))
        return Features(rows, self.damping, self.dampings[0].rule, share, lengths)

    def whiten_rows(self, indices: np.ndarray) -> Array:
        """Whiten some training rows, at their own length, without computing all features."""
        return whiten_rows(self.embeddings, self._values, indices)

    # ---- queries

    def query(self, test: Any, labels: Labels = "true") -> Query:
        """Read test data with every model, unless that has been done."""
        return test if isinstance(test, Query) else Query(self.embeddings, test, labels)

    def whiten(self, query: Query, like: Array) -> tuple[Array, np.ndarray]:
        """Whiten queried rows and place them on the device of `like`.

        Returns them at their own length, and for each the squared norm in directions outside the
        span of an exact basis.
        """
        parts, residual = [], np.zeros(len(query))
        for (e, value), known in zip(self._each(), query.embedded, strict=True):
            parts.append(on_device_of(e.metric.whiten(known.rows, value), like))
            if e.sketch.residual_penalty is not None:
                scale = e.metric.residual_inverse(e.sketch.residual_penalty, value)
                residual = residual + known.norms2 * scale / len(self.embeddings)
        return concatenate_models(parts), residual

    def query_rows(self, query: Query, like: Array) -> Array:
        """Whiten queried rows as the training rows are, without the residual of the sketch."""
        rows, residual = self.whiten(query, like)
        return unit_rows(rows, residual) if self.use == "selection" else rows

    def rows_and_targets(
        self, query: Query, weights: Any = None, each: bool = False
    ) -> tuple[Array, Array]:
        """Return training rows and one target (p,) or several (T, p) whose products are the kernel.

        `weights`, (n_test,) or (T, n_test), are those of each queried example in each target. With
        `each`, every queried example is a target, and `weights` are not used.
        """
        counted = None if each else shares(weights, len(query))  # refuses unusable weights
        n_targets = len(query) if counted is None else len(np.atleast_2d(counted))
        rows = self.features.rows
        if self.adds_residual(query, n_targets):
            mix = np.eye(len(query)) if counted is None else np.atleast_2d(counted)
            white, _ = self.whiten(query, rows)
            wide, targets = self._extend(query.embedded, white, mix)
            return wide, targets[0] if counted is not None and counted.ndim == 1 else targets
        white = self.query_rows(query, rows)
        return rows, white if each else mean_embedding(white, weights)

    def affinity(self, indices: np.ndarray, query: Query) -> np.ndarray:
        """Return the kernel of some training examples and each queried one, (k, n_test)."""
        rows, chosen = self.features.rows, self.features.rows[indices]
        if not self.adds_residual(query):
            return to_numpy(chosen @ self.query_rows(query, rows).T).astype(np.float64)
        white, _ = self.whiten(query, rows)
        own, full = (x[indices, None] for x in self.train_norms())
        inside = to_numpy(chosen @ white.T).astype(np.float64) * own
        outside = self.residual_products(self.train_examples(indices), query.embedded)
        return (inside + outside) / full / self.full_norms(query.embedded, white)

    # ---- influence

    def influence(self, query: Query, solve: Solve = "sketch") -> SetInfluence:
        """Return the influence on each queried example, (n_train, n_test)."""
        return query_influence(query, self._values, None, solve)

    def set_influence(
        self, query: Query, weights: Any = None, solve: Solve = "exact"
    ) -> SetInfluence:
        """Return the influence on the (weighted) mean log-likelihood of the query, (n_train,)."""
        share = shares(weights, len(query))
        if share.ndim != 1:
            raise ExemplaError("A set is one target: give one weight per test example.")
        found = query_influence(query, self._values, share[:, None], solve)
        return replace(found, values=found.values[:, 0])

    def self_influence(self) -> np.ndarray:
        """Return the influence of every training example on itself, (n_train,)."""
        total = row_squares(self.features.rows) / self.n_train
        for e, value in self._each():
            if e.has_residual:
                scale = e.residual_inverse(value) / (len(self.embeddings) * self.n_train)
                total = total + e.residual_norms2 * scale
        return total

    def removal_effect(
        self, query: Query, shares: np.ndarray, picked: np.ndarray, scale: float = 1.0
    ) -> RemovalEffect:
        """Predict the effect of removing the training examples `picked`, averaged over the models.

        The kernel must be at the damping for influence. `shares` (n_test,) has the share of each
        queried example. `scale` multiplies the change of each score (of the log-odds, for classes).
        """
        if not len(picked):
            return RemovalEffect(0, 0.0, 0.0, 0.0)
        n, models = self.n_train, len(self.embeddings)
        change, everyone = np.zeros(len(query)), np.zeros(n)
        for (e, damping), known in zip(self._each(), query.embedded, strict=True):
            train, rows = e.rows_near_model(), known.rows
            step = _newton_step(e, train, picked, damping)
            change += products(rows, step[None])[:, 0] / models
            together = e.metric.solve(as_like(shares[None, :], rows) @ rows, damping)
            everyone += products(train, together)[:, 0] / (n * models)
        change, everyone = scale * change, scale * everyone
        k = len(picked)
        mean, spread = -k * float(everyone.mean()), float(np.sqrt(k * (1 - k / n)) * everyone.std())
        first, examples = self.embeddings[0].oracle, query.examples[0]
        if first.likelihood not in CLASSES or query.labels != "true" or examples.labels is None:
            return RemovalEffect(k, float(shares @ change), mean, spread)
        p = np.clip(np.exp(first.log_likelihood(examples)), _MIN_PROBABILITY, 1 - _MIN_PROBABILITY)
        odds = np.log(p) - np.log1p(-p)
        moved = odds + change / (1 - p)
        after = -np.logaddexp(0.0, -moved)
        return RemovalEffect(
            k,
            float(shares @ (after - np.log(p))),
            mean,
            spread,
            n_fixed=int(np.sum((odds <= 0) & (moved > 0))),
            n_broken=int(np.sum((odds > 0) & (moved <= 0))),
        )

    # ---- the residual of the sketch, added for selection

    @cached_property
    def _with_residual(self) -> list[int]:
        """Models with a residual to add; rows in a store are never widened."""
        return [
            i
            for i, e in enumerate(self.embeddings)
            if e.has_residual and not isinstance(e.rows, StoredRows)
        ]

    def adds_residual(self, query: Query, n_targets: int = 1) -> bool:
        """Return True if there is a residual, and adding it is within the width and cost limits.

        Adding it appends `n_targets` coordinates to every row and takes residual products with
        every example of the query.
        """
        return bool(self._with_residual) and all(
            0 < n_targets <= max(1, int(self.embeddings[i].rows.shape[1] * MAX_ADDED_WIDTH))
            and self.embeddings[i].residual_passes(len(query)) <= MAX_SELECTION_PASSES
            for i in self._with_residual
        )

    def _residual_parts(self) -> Iterator[tuple[int, Embedding, float]]:
        """Yield the place of each model with a residual, its embedding, and 1 / metric there."""
        for i in self._with_residual:
            e = self.embeddings[i]
            yield i, e, e.residual_inverse(self._values[i]) / len(self.embeddings)

    def residual_products(
        self,
        left: Sequence[EmbeddedExamples],
        right: Sequence[EmbeddedExamples],
        mix: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return the residual kernel, (n_left, n_right), or (n_left, T) with sums by `mix`."""
        found: Any = 0.0
        for i, e, scale in self._residual_parts():
            found = found + scale * _residual_products(e, left[i], right[i], mix)
        return found

    def full_norms(self, examples: Sequence[EmbeddedExamples], rows: Array) -> np.ndarray:
        """Return what each example is divided by: for unit rows the length of its full score.

        `rows` are the whitened rows of the examples, the part of the score in the sketch.
        """
        if self.use != "selection":
            return np.ones(len(rows))
        total = row_squares(rows).astype(np.float64)
        for i, e, scale in self._residual_parts():
            total = total + scale * examples[i].residual_norms2(e.oracle)
        return np.sqrt(np.maximum(total, np.finfo(float).tiny))

    def train_norms(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths that training rows were divided by, and those with the residual.

        The first call makes a pass over the training set.
        """
        lengths = self.features.lengths
        if lengths is None:
            return np.ones(self.n_train), np.ones(self.n_train)
        total = lengths**2
        for _, e, scale in self._residual_parts():
            total = total + scale * e.residual_norms2
        return lengths, np.sqrt(np.maximum(total, np.finfo(float).tiny))

    def train_examples(self, indices: np.ndarray) -> list[EmbeddedExamples]:
        """Return some training examples as each model reads and embeds them."""
        return [EmbeddedExamples(e.train, e.rows).take(indices) for e in self.embeddings]

    def _extend(
        self, query: Sequence[EmbeddedExamples], rows: Array, counted: np.ndarray
    ) -> tuple[Array, Array]:
        """Append residual coordinates to the training rows and to the targets.

        `rows` are the whitened queried rows, and `counted` (T, n_test) their shares in each target.
        """
        mix = np.ascontiguousarray((counted / self.full_norms(query, rows)).T)
        added, targets = [], [to_numpy(as_like(mix.T, rows) @ rows)]
        for i, e, scale in self._residual_parts():
            train = EmbeddedExamples(e.train, e.rows)
            root, inverse = roots(mix.T @ _residual_products(e, query[i], query[i], mix))
            found = _residual_products(e, train, query[i], mix, norms=True)
            added.append(np.sqrt(scale) * found @ inverse)
            targets.append(np.sqrt(scale) * root)
        own, full = self.train_norms()  # the products with all training examples gave these, too
        added = [part / full[:, None] for part in added]
        like = self.features.rows
        extra = as_like(np.concatenate(added, axis=1), like)
        wide = concatenate([like, extra], axis=1)
        wide[:, : like.shape[1]] *= as_like(own / full, like)[:, None]
        return wide, as_like(np.concatenate(targets, axis=1), like)


def _newton_step(embedding: Embedding, train: Array, picked: np.ndarray, damping: float) -> Array:
    """Return Δθ of removing these training examples, in the sketch."""
    solve, n = embedding.metric.solve, len(train)
    x = solve(train[picked].sum(0)[None], damping)[0]
    if embedding.metric.name != "full":
        return x / -n
    parts: list[Array] = []
    for batch in embedding.oracle.fisher_rows(embedding.train.take(picked)):
        parts.append(embedding.sketch.project(batch))
        if sum(map(len, parts)) > MAX_FISHER_ROWS:
            return x / -n
    # With the Fisher rows R of these examples, (nM − RᵀR)⁻¹ by the Woodbury identity.
    R = as_like(concatenate(parts), x)
    white = to_numpy(embedding.metric.whiten(R, damping)).astype(np.float64)
    left = n * np.eye(len(R)) - white @ white.T
    more = np.linalg.solve(left, products(R, x[None])[:, 0])
    return (x + solve(as_like(more[None], R) @ R, damping)[0]) / -n


def _residual_products(
    e: Embedding,
    left: EmbeddedExamples,
    right: EmbeddedExamples,
    mix: np.ndarray | None,
    norms: bool = False,
) -> np.ndarray:
    """Return s_i·s_j minus its part in the sketch; `norms` asks for those of training scores."""
    if left.examples is e.train:
        raw = e.train_products(right.examples, right.labels, mix, right.scores, norms)
    else:
        labels: tuple[Labels, Labels] = left.labels, right.labels
        held = left.scores, right.scores
        raw = raw_products(e.oracle, left.examples, right.examples, mix, labels, held)
    other = right.rows if mix is None else as_like(mix.T, right.rows) @ right.rows
    return raw - products(left.rows, as_like(to_numpy(other), left.rows))


def roots(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return R and S with R Rᵀ = gram and Rᵀ S = 1, one column per independent direction."""
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    kept = values > _MIN_EIGENVALUE_SHARE * max(values[-1], 0.0)
    if not kept.any():
        return np.zeros((len(gram), 1)), np.zeros((len(gram), 1))
    root = np.sqrt(values[kept])
    return vectors[:, kept] * root, vectors[:, kept] / root
