"""What sketches leave out, counted towards a question: the kernel that `explain` selects with.

Where a sketch keeps less than half of the Fisher, as of large networks, rows in sketch space are
not the kernel. Of what lies outside, a question sees one direction, that of its own score s_μ. So
the products of all training scores with s_μ, one pass over the training set, are one more
coordinate of every row (`Beyond.toward`): with the question the kernel is then whole, one mean
eigenvalue standing in for the Fisher outside (`exempla.outside`), and between training rows it has
what bears on the question. Unit rows are as long as their whole scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from exempla.arrays import Array, as_like, concatenate, products, row_squares, to_numpy
from exempla.embedding import Embedding
from exempla.kernel import Asked, Use, dampings, questioned_rows, whitened_rows
from exempla.oracles.base import Examples, Labels
from exempla.outside import ALONG, counts, energy_of, price, raw_products
from exempla.results import Features
from exempla.store import StoredRows
from exempla.target import mean_embedding, shares

__all__ = ["Beyond", "Some", "affinity", "kernel_of", "read"]

LITTLE = 0.5
"""Where a sketch keeps less than this share of the Fisher's trace, its rows are not enough to
select with. Above it a pass over the training set for every question costs more than it brings."""
WIDER = 4
"""Questions may add one coordinate for so many that the rows have."""
TINY = 1e-6
"""Directions with less than this of the strongest one's energy are none of their own."""


class Some(NamedTuple):
    """Examples as one model reads and embeds them."""

    examples: Examples
    rows: Array
    """In sketch space."""
    labels: Labels = "true"

    def last(self) -> Some:
        """The last of them alone."""
        place = np.array([len(self.examples) - 1])
        return Some(self.examples.take(place), self.rows[place], self.labels)


class Beyond:
    """The part of the kernel that sketches leave out; false where it is left at that.

    Examples are given as a list, `Some` for each model.
    """

    def __init__(self, embeddings: list[Embedding], wanted: str | float, use: Use) -> None:
        self.embeddings, self.wanted = embeddings, wanted
        self.use: Use = use
        values = [d.value for d in dampings(embeddings, wanted, use)]
        self.parts = [
            (place, e, e.metric.outside(e.left_out_scale, value) / len(embeddings))
            for place, (e, value) in enumerate(zip(embeddings, values, strict=True))
            if little(e)
        ]
        """Places of those whose sketch keeps little, they, and 1 / metric outside."""

    def __bool__(self) -> bool:
        return bool(self.parts)

    def affordable(self, asked: Asked, questions: int = 1) -> bool:
        """Whether so many questions about these examples make the rows little wider, and take a few
        passes over the training set at most."""
        return all(
            0 < questions <= max(1, e.rows.shape[1] // WIDER)
            and price(e, asked.examples[i], asked.labels) <= ALONG
            for i, e, _ in self.parts
        )

    def inside(self, features: Features, asked: Asked) -> Array:
        """The questioned examples in sketch space, as they are where that is all."""
        given = (self.embeddings, asked.rows, self.wanted, self.use, features.rows)
        return questioned_rows(*given)

    def training(self, chosen: np.ndarray) -> list[Some]:
        """Some of the training examples."""
        return [Some(e.train.take(chosen), e.rows[chosen]) for e in self.embeddings]

    def products(
        self, left: Sequence[Some], right: Sequence[Some], mix: np.ndarray | None = None
    ) -> np.ndarray:
        """The kernel outside, (n_left, n_right), or (n_left, T) with sums of the right by `mix`."""
        found: Any = 0.0
        for i, e, scale in self.parts:
            found = found + scale * outside_products(e, left[i], right[i], mix)
        return found

    def questioned(self, features: Features, asked: Asked) -> tuple[list[Some], Array, np.ndarray]:
        """The questioned examples, their rows, whitened, and what each is divided by."""
        some = read(asked)
        given = (self.embeddings, asked.rows, self.wanted, self.use, features.rows)
        rows, _ = whitened_rows(*given)
        return some, rows, self.lengths(some, rows)

    def lengths(self, some: Sequence[Some], rows: Array) -> np.ndarray:
        """What each example is divided by, (n,): for selection the length of its whole score, of
        which `rows` have the part inside."""
        if self.use == "influence":
            return np.ones(len(rows))
        total = row_squares(rows).astype(np.float64)
        for i, e, scale in self.parts:
            total = total + scale * energy_of(e.oracle, *some[i])
        return np.sqrt(np.maximum(total, np.finfo(float).tiny))

    def training_lengths(self, features: Features) -> tuple[np.ndarray, np.ndarray]:
        """What training rows were divided by, and what they are to be: for selection the length of
        the whole score. A pass over the training set, the first time."""
        if features.lengths is None:
            return np.ones(len(features.rows)), np.ones(len(features.rows))
        total = features.lengths**2
        for _, e, scale in self.parts:
            total = total + scale * e.outside_energy
        return features.lengths, np.sqrt(np.maximum(total, np.finfo(float).tiny))

    def kernel(self, features: Features, chosen: np.ndarray, asked: Asked) -> np.ndarray:
        """The whole kernel of some training examples and each questioned one, (k, n_test)."""
        some, rows, lengths = self.questioned(features, asked)
        own, whole = (x[chosen, None] for x in self.training_lengths(features))
        inside = to_numpy(features.rows[chosen] @ rows.T).astype(np.float64) * own
        return (inside + self.products(self.training(chosen), some)) / whole / lengths

    def toward(self, features: Features, asked: Asked, counted: np.ndarray) -> tuple[Array, Array]:
        """Training rows with a coordinate more for each question, and the questions themselves;
        `counted` (T, n_test) are the shares of the questioned examples in each question."""
        some, rows, lengths = self.questioned(features, asked)
        own, whole = self.training_lengths(features)
        like = features.rows * as_like(own / whole, features.rows)[:, None]
        mix = np.ascontiguousarray((counted / lengths).T)
        columns, targets = [like], [as_like(mix.T, rows) @ rows]
        for i, e, scale in self.parts:
            root, inverse = roots(mix.T @ outside_products(e, some[i], some[i], mix))
            found = outside_products(e, Some(e.train, e.rows), some[i], mix) @ inverse
            columns.append(as_like(np.sqrt(scale) * found / whole[:, None], like))
            targets.append(as_like(np.sqrt(scale) * root, like))
        return concatenate(columns, axis=1), concatenate(targets, axis=1)


def kernel_of(
    beyond: Beyond, features: Features, asked: Asked, weights: np.ndarray | None, each: bool
) -> tuple[Array, Array]:
    """Training rows, and one question (p,) or several (T, p), whose products are the kernel: about
    all questioned examples as `weights` count them, or about each."""
    count = len(asked.examples[0])
    counted = np.zeros((0, count)) if each else shares(weights, count)  # refuses what is no weight
    questions = count if each else len(np.atleast_2d(counted))
    if beyond and beyond.affordable(asked, questions):
        wider, targets = beyond.toward(
            features, asked, np.eye(count) if each else np.atleast_2d(counted)
        )
        return wider, targets if each or counted.ndim > 1 else targets[0]
    rows = beyond.inside(features, asked)
    return features.rows, rows if each else mean_embedding(rows, weights)


def affinity(beyond: Beyond, features: Features, chosen: np.ndarray, asked: Asked) -> np.ndarray:
    """The kernel of some training examples and each questioned one, (k, n_test)."""
    if beyond and beyond.affordable(asked):
        return beyond.kernel(features, chosen, asked)
    rows = beyond.inside(features, asked)
    return to_numpy(features.rows[chosen] @ rows.T).astype(np.float64)


def little(embedding: Embedding) -> bool:
    """Whether a sketch keeps too little to select with; rows in a store stay as they are."""
    in_memory = not isinstance(embedding.rows, StoredRows)
    return in_memory and counts(embedding) and embedding.evidence.share < LITTLE


def read(asked: Asked) -> list[Some]:
    """Examples that every model has read and embedded."""
    pairs = zip(asked.examples, asked.rows, strict=True)
    return [Some(examples, rows, asked.labels) for examples, (rows, _) in pairs]


def outside_products(
    embedding: Embedding, left: Some, right: Some, mix: np.ndarray | None
) -> np.ndarray:
    """s_i·s_j less what the sketch has of it."""
    labels = (left.labels, right.labels)
    raw = raw_products(embedding.oracle, left.examples, right.examples, mix, labels)
    other = right.rows if mix is None else as_like(mix.T, right.rows) @ right.rows
    return raw - products(left.rows, as_like(to_numpy(other), left.rows))


def roots(gram: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """R and S with R Rᵀ = gram and Rᵀ S = 1, of as many directions as there are."""
    values, vectors = np.linalg.eigh((gram + gram.T) / 2)
    kept = values > TINY * max(values[-1], 0.0)
    if not kept.any():
        return np.zeros((len(gram), 1)), np.zeros((len(gram), 1))
    root = np.sqrt(values[kept])
    return vectors[:, kept] * root, vectors[:, kept] / root
