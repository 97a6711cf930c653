"""The Fisher kernel of one or several models at one damping: rows whose dot products it is.

Training rows and questioned rows are whitened alike; several models' rows stand side by side, so
that their kernels are averaged. For selection on unit rows the two uses of the kernel part here:
rows for selection have unit length and a damping of their own, rows for influence have neither.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

from exempla.arrays import Array, concatenate, on_device_of
from exempla.embedding import Embedding
from exempla.fisher import Damping, resolve_damping
from exempla.oracles.base import Examples, Labels
from exempla.results import Features
from exempla.target import unit_rows

__all__ = [
    "Asked",
    "Scored",
    "Use",
    "dampings",
    "joined",
    "questioned_rows",
    "scored",
    "training_features",
    "whitened_rows",
]

Use = Literal["influence", "selection"]


def dampings(embeddings: list[Embedding], wanted: str | float, use: Use) -> list[Damping]:
    """The damping of each model for this use, with how it was chosen."""
    return [resolve_damping(wanted, e.evidence, e.metric.name, use) for e in embeddings]


def joined(parts: list[Array]) -> Array:
    """Rows of several models side by side: their kernels averaged."""
    if len(parts) == 1:
        return parts[0]
    return concatenate(parts, axis=1) / np.sqrt(len(parts))


def training_features(embeddings: list[Embedding], wanted: str | float, use: Use) -> Features:
    """Every training row, whitened at the damping of this use."""
    chosen = dampings(embeddings, wanted, use)
    pairs = zip(embeddings, chosen, strict=True)
    rows = joined([e.metric.whiten(e.rows_near_model(), d.value) for e, d in pairs])
    if use == "selection":
        # whitened rows are nobody else's; those of the identity metric are the embedding's own
        rows = unit_rows(rows, overwrite=all(rows is not e.rows for e in embeddings))
    return Features(
        rows=rows,
        damping=float(np.mean([d.value for d in chosen])),
        damping_rule=chosen[0].rule,
        share=float(np.mean([e.evidence.share for e in embeddings])),
    )


Scored = list[tuple[Array, np.ndarray]]
"""Of each model, the rows of some examples and their squared norms outside its basis."""


class Asked(NamedTuple):
    """Questioned examples: as given, as each model reads them, and as it embeds them."""

    test: Any
    examples: list[Examples]
    labels: Labels
    rows: Scored
    notes: list[str]


def scored(embeddings: list[Embedding], examples: list[Examples], labels: Labels) -> Scored:
    """The questioned examples, read by each model's oracle, as it embeds them."""
    return [e.embed(x, labels) for e, x in zip(embeddings, examples, strict=True)]


def questioned_rows(
    embeddings: list[Embedding], asked: Scored, wanted: str | float, use: Use, like: Array
) -> Array:
    """The questioned examples, whitened and placed where the training rows `like` are. A unit row's
    length counts what the sketch does not show of it."""
    rows, outside = whitened_rows(embeddings, asked, wanted, use, like)
    return unit_rows(rows, outside) if use == "selection" else rows


def whitened_rows(
    embeddings: list[Embedding], asked: Scored, wanted: str | float, use: Use, like: Array
) -> tuple[Array, np.ndarray]:
    """Questioned rows at the damping of this use, as long as they are, and each one's squared
    length outside the sketch."""
    parts, outside = [], np.zeros(len(asked[0][0]))
    chosen = dampings(embeddings, wanted, use)
    for e, (rows, beyond), d in zip(embeddings, asked, chosen, strict=True):
        parts.append(on_device_of(e.metric.whiten(rows, d.value), like))
        if e.sketch.outside is not None:
            scale = e.metric.outside(e.sketch.outside, d.value)
            outside = outside + beyond * scale / len(embeddings)
    return joined(parts), outside
