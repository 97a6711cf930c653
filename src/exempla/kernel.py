"""The Fisher kernel of one or several models at one damping: rows whose dot products it is.

Training rows and questioned rows are whitened alike; several models' rows stand side by side, so
that their kernels are averaged. For selection on unit rows the two uses of the kernel part here:
rows for selection have unit length and a damping of their own, rows for influence have neither.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from exempla.arrays import Array, concatenate, on_device_of, to_numpy
from exempla.embedding import Embedding
from exempla.fisher import Damping, resolve_damping
from exempla.oracles.base import Examples, Labels
from exempla.progress import counter
from exempla.results import Features
from exempla.store import RowSet, StoredRows, failing_disk, read_seal, shard_height
from exempla.target import scaled_rows, unit_rows, unit_scale

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
KEPT_SETS = 3
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
        rows = whitened_on_disk(embeddings, values, use)
    else:
        pairs = zip(embeddings, values, strict=True)
        rows = joined([e.metric.whiten(e.rows_near_model(), value) for e, value in pairs])
        if use == "selection":
            scale = unit_scale(rows)
            lengths = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale > 0)
            # whitened rows are nobody else's; those of the identity metric are the embedding's own
            own = all(rows is not e.rows for e in embeddings)
            rows = scaled_rows(rows, scale, overwrite=own)
    return Features(
        rows=rows,
        lengths=lengths,
        damping=float(np.mean(values)),
        damping_rule=chosen[0].rule,
        share=float(np.mean([e.evidence.share for e in embeddings])),
    )


def whitened_on_disk(embeddings: list[Embedding], values: list[float], use: Use) -> StoredRows:
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
    whole = whitened_set(embeddings, values, use)
    with whole.writing(whole.ranges):
        left = whole.missing()
        with counter("whitening the training rows", sum(b - a for a, b in left), "ex") as bar:
            for start, stop in left:
                whole.write(start, whitened(embeddings, values, use, start, stop))
                bar.update(stop - start)
    rows = whole.finish()
    forget_others(whole.folder)
    return rows


def whitened_set(embeddings: list[Embedding], values: list[float], use: Use) -> RowSet:
    """Where these rows belong, named by all that they depend on."""
    folders = [e.rows.shards[0].path.parent for e in embeddings]
    bases = [basis_of(folder) for folder in folders]
    about = {"bases": bases, "dampings": values, "use": use}
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    count, dtype = len(embeddings[0].train), np.result_type(*(e.rows.dtype for e in embeddings))
    width = sum(e.rows.shape[1] for e in embeddings)
    height = shard_height(count, width * dtype.itemsize)
    return RowSet(folders[0].parent / f"white-{name}", count, width, dtype, height, about)


def basis_of(folder: Path) -> str:
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


def forget_others(mine: Path) -> None:
    """Of the whitened sets in a store the newest stay: each is as large as the rows."""
    with failing_disk(mine.parent):
        mine.touch()
        others = sorted(mine.parent.glob("white-*"), key=lambda path: path.stat().st_mtime)
        for old in others[:-KEPT_SETS]:
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
