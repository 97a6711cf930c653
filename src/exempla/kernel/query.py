"""The Fisher kernel of one or several models at one damping: rows whose dot products it is.

Training rows and questioned rows are whitened alike; several models' rows stand side by side, so
that their kernels are averaged. For selection on unit rows the two uses of the kernel part here:
rows for selection have unit length and a damping of their own, rows for influence have neither.

The question as one vector: the mean embedding of the questioned predictions.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from exempla.arrays import (
    Array,
    as_like,
    concatenate,
    on_device_of,
    real_numbers,
    row_squares,
    to_numpy,
)
from exempla.errors import ExemplaError
from exempla.kernel.damping import Damping, resolve_damping
from exempla.kernel.embed import Embedding
from exempla.oracles.base import Examples, Labels
from exempla.progress import counter
from exempla.results import Features
from exempla.store import RowSet, StoredRows, failing_disk, read_seal, shard_height


def unit_rows(rows: Array, outside: np.ndarray | None = None, *, overwrite: bool = False) -> Array:
    """Each row divided by its norm; a zero row stays zero.

    `outside` is each row's squared norm in directions the rows do not show. The rows are used up
    if they may be overwritten.
    """
    return _scaled_rows(rows, unit_scale(rows, outside), overwrite=overwrite)


def _scaled_rows(rows: Array, scale: np.ndarray, *, overwrite: bool = False) -> Array:
    """Each row times a number of its own, in place if the rows may be overwritten."""
    if overwrite:
        rows *= as_like(scale, rows)[:, None]
        return rows
    return rows * as_like(scale, rows)[:, None]


def unit_scale(rows: Array, outside: np.ndarray | None = None) -> np.ndarray:
    """What each row is multiplied by to have unit length; 0 for a zero row."""
    norm2 = row_squares(rows).astype(np.float64)
    if outside is not None:
        norm2 = norm2 + outside
    return np.where(norm2 > 0, 1.0 / np.sqrt(np.where(norm2 > 0, norm2, 1.0)), 0.0)


def mean_embedding(rows: Array, weights: object = None) -> Array:
    """μ = Σ w_i f_i / Σ |w_i| over the questioned rows; a (T, n) weight matrix gives T targets."""
    if weights is None and len(rows):
        return rows.sum(0) / len(rows)
    return as_like(shares(weights, len(rows)), rows) @ rows


def shares(weights: object, count: int) -> np.ndarray:
    """The share of each questioned example in the question: (count,), or (T, count) of several.

    >>> shares(None, 4), shares([1, 3], 2)
    (array([0.25, 0.25, 0.25, 0.25]), array([0.25, 0.75]))
    """
    if count == 0:
        raise ExemplaError("the target is empty: give at least one questioned example.")
    if weights is None:
        return np.full(count, 1.0 / count)
    w = real_numbers(weights, "the target weights")
    if w.shape[-1:] != (count,) or w.ndim > 2:
        raise ExemplaError(
            f"target weights have shape {w.shape} but there are {count} questioned examples: "
            "give one weight each (or one line of weights per target)."
        )
    if not np.isfinite(w).all() or not (np.abs(w).sum(-1) > 0).all():
        raise ExemplaError("target weights must be finite and not all zero.")
    return w / np.abs(w).sum(-1, keepdims=True)


Use = Literal["influence", "selection"]
_KEPT_SETS = 3
"""Whitened sets that stay in a store: those of the dampings used last."""


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
    values, lengths = [d.value for d in chosen], None
    if isinstance(embeddings[0].rows, StoredRows):
        rows = _whitened_on_disk(embeddings, values, use)
    else:
        pairs = zip(embeddings, values, strict=True)
        rows = joined([e.metric.whiten(e.rows_near_model(), value) for e, value in pairs])
        if use == "selection":
            scale = unit_scale(rows)
            lengths = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
            # whitened rows are nobody else's; those of the identity metric are the embedding's own
            own = all(rows is not e.rows for e in embeddings)
            rows = _scaled_rows(rows, scale, overwrite=own)
    return Features(
        rows=rows,
        lengths=lengths,
        damping=float(np.mean(values)),
        damping_rule=chosen[0].rule,
        share=float(np.mean([e.evidence.share for e in embeddings])),
    )


def _whitened_on_disk(embeddings: list[Embedding], values: list[float], use: Use) -> StoredRows:
    """The whitened rows of stored rows: a second set of shards in the store, made block by block
    once for each damping.

    Not whitened anew in every pass: that takes p products for each one of the pass itself. Nor are
    the rows left as they are and the directions turned, though that is the same kernel: what rows
    of single precision lose in a product grows with the condition of the metric, and picks would no
    longer be those made in memory.
    """
    first = embeddings[0].rows
    if len(embeddings) == 1 and use == "influence" and embeddings[0].metric.name == "identity":
        return first
    whole = _whitened_set(embeddings, values, use)
    with whole.writing(whole.ranges):
        left = whole.missing()
        with counter("whitening the training rows", sum(b - a for a, b in left), "ex") as bar:
            for start, stop in left:
                whole.write(start, whitened(embeddings, values, use, start, stop))
                bar.update(stop - start)
    rows = whole.finish()
    _forget_others(whole.folder)
    return rows


def _whitened_set(embeddings: list[Embedding], values: list[float], use: Use) -> RowSet:
    """Where these rows belong, named by all that they depend on."""
    folders = [e.rows.shards[0].path.parent for e in embeddings]
    bases = [_basis_of(folder) for folder in folders]
    about = {"bases": bases, "dampings": values, "use": use}
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    count, dtype = len(embeddings[0].train), np.result_type(*(e.rows.dtype for e in embeddings))
    width = sum(e.rows.shape[1] for e in embeddings)
    height = shard_height(count, width * dtype.itemsize)
    return RowSet(folders[0].parent / f"white-{name}", count, width, dtype, height, about)


def _basis_of(folder: Path) -> str:
    """The digest of the basis that the rows in this folder were made with."""
    first = min(folder.glob("*.npy"), default=folder / "000000000000.npy")
    with failing_disk(folder):
        return str((read_seal(first) or {}).get("basis"))


def whitened(
    embeddings: list[Embedding], values: list[float], use: Use, start: int, stop: int
) -> np.ndarray:
    """Rows start … stop of all models, side by side."""
    pairs = zip(embeddings, values, strict=True)
    parts = [to_numpy(e.metric.whiten(e.near_model(e.rows[start:stop]), d)) for e, d in pairs]
    rows = joined(parts)
    return unit_rows(rows, overwrite=True) if use == "selection" else rows


def _forget_others(mine: Path) -> None:
    """Of the whitened sets in a store the newest stay: each is as large as the rows."""
    with failing_disk(mine.parent):
        mine.touch()
        others = sorted(mine.parent.glob("white-*"), key=lambda path: path.stat().st_mtime)
        for old in others[:-_KEPT_SETS]:
            shutil.rmtree(old, ignore_errors=True)


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
