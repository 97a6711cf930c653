"""Queries: test examples as every model reads and embeds them, and their mean embedding."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from exempla.arrays import Array, as_like, real_numbers, row_squares
from exempla.checks import check_choice
from exempla.errors import ExemplaError
from exempla.kernel.residual import EmbeddedExamples
from exempla.oracles.base import Examples, Labels

if TYPE_CHECKING:
    from exempla.kernel.embed import Embedding


class Query:
    """Test examples, read by each model and embedded once.

    Parameters
    ----------
    embeddings : list of Embedding
        One per model.
    test : Any
        The test data as given by the user, or `Examples` if one model has read them already.
    labels : {"true", "predicted"}
        Whose labels the query is about. Examples without labels are queried under the predicted
        ones, and `notes` says so.
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
    def scored(self) -> list[tuple[Array, np.ndarray]]:
        """Per model, the rows in sketch space and each one's squared norm outside an exact span."""
        each = zip(self.embeddings, self.examples, strict=True)
        return [e.embed(x, self.labels) for e, x in each]

    @property
    def embedded(self) -> list[EmbeddedExamples]:
        """Per model, the examples with their rows."""
        each = zip(self.examples, self.scored, strict=True)
        return [EmbeddedExamples(x, rows, self.labels) for x, (rows, _) in each]

    def take(self, positions: np.ndarray) -> Query:
        """Return a query about some of the examples."""
        part = Query.__new__(Query)
        part.embeddings, part.test, part.labels, part.notes = (
            self.embeddings, self.test, self.labels, self.notes,
        )  # fmt: skip
        part.examples = [x.take(positions) for x in self.examples]
        return part


def unit_rows(rows: Array, residual: np.ndarray | None = None, *, overwrite: bool = False) -> Array:
    """Divide each row by its norm; a zero row stays zero.

    `residual` is the squared norm of each row in directions that the rows do not show. The rows are
    modified in place with `overwrite`.
    """
    scale = as_like(unit_scale(rows, residual), rows)[:, None]
    if overwrite:
        rows *= scale
        return rows
    return rows * scale


def unit_scale(rows: Array, residual: np.ndarray | None = None) -> np.ndarray:
    """Return the factor that brings each row to unit length; 0 for a zero row."""
    norm2 = row_squares(rows).astype(np.float64)
    if residual is not None:
        norm2 = norm2 + residual
    return np.where(norm2 > 0, 1.0 / np.sqrt(np.where(norm2 > 0, norm2, 1.0)), 0.0)


def mean_embedding(rows: Array, weights: object = None) -> Array:
    """Return μ = Σ w_i f_i / Σ |w_i| of queried rows; a (T, n) weight matrix gives T targets."""
    if weights is None and len(rows):
        return rows.sum(0) / len(rows)
    return as_like(shares(weights, len(rows)), rows) @ rows


def shares(weights: object, count: int) -> np.ndarray:
    """Return the share of each queried example in the target, (count,), or in each of T targets.

    >>> shares(None, 4), shares([1, 3], 2)
    (array([0.25, 0.25, 0.25, 0.25]), array([0.25, 0.75]))
    """
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
