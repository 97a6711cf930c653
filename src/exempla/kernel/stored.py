"""Embeddings in a store: rows go to disk shard by shard as they are made.

    store.json         what the store belongs to: models, data, options
    basis-0.npz        basis, metric and evidence of the first model
    rows-0/…-….npy     its rows, one file per range of examples
    white-…/…-….npy    whitened rows, one folder per set of dampings

A store that is killed at any byte holds complete shards; the same call makes the missing ones.
Several processes may each make a part of them. They all use the basis that was finished first,
because eigenvectors found on another machine may be rotated. The dual form, which is for few
examples, is recomputed and compared.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from exempla.arrays import Array, concatenate, to_numpy
from exempla.errors import ExemplaError
from exempla.io import read_seal, verified, write_sealed
from exempla.kernel.basis import IdentitySketch, KroneckerSketch, Sketch, SpanSketch
from exempla.kernel.damping import FisherEvidence
from exempla.kernel.embed import (
    Embedding,
    EmbeddingOptions,
    find_basis,
    refuse_unusable,
    unit_rows,
    whiten_rows,
    with_rows,
)
from exempla.kernel.fisher import DiagonalMetric, FullMetric, Metric, estimate_fisher
from exempla.memory import announce, stored_bytes
from exempla.oracles.base import Examples, Oracle
from exempla.progress import say
from exempla.store import (
    RowSet,
    StoredRows,
    claim,
    delete_rows,
    disk_errors,
    identity_of,
)

_N_PROBES = 16
"""Training examples whose rows are kept beside the basis and compared before it is used again."""
_PROBE_TOLERANCE = 1e-3
"""Relative difference that rounding on another machine may make."""
_MAX_WHITENED_SETS = 3
"""Whitened copies that stay in a store: those of the dampings used last."""
_BASES = {"identity": IdentitySketch, "kronecker": KroneckerSketch, "span": SpanSketch}
_METRICS = {metric.name: metric for metric in (FullMetric, DiagonalMetric)}
_Range = tuple[int, int]


# ---- rows


def embed_into_store(
    models: list[Any],
    oracles: list[Oracle],
    trains: list[Examples],
    data: Any,
    options: EmbeddingOptions,
    store: Path,
    part: tuple[int, int] | None,
    score_options: dict[str, Any],
) -> list[Embedding]:
    """Embed the training set with every model; with `part`, only make a part of the rows."""
    about = {**options._asdict(), **score_options}
    count = len(trains[0])
    if part is not None and part[1] > count:
        raise ExemplaError(f"part is {part!r}, but there are only {count} training examples.")
    with disk_errors(store):
        claim(store, identity_of(models, data, trains[0].labels, count, **about))
    fitted = []
    for i, (oracle, train) in enumerate(zip(oracles, trains, strict=True)):
        saved = _load_or_prepare(store / f"basis-{i}.npz", oracle, train, options)
        width, dtype = saved.probes.shape[1], saved.probes.dtype
        rows = RowSet.sized(store / f"rows-{i}", count, width, dtype, {"basis": saved.digest})
        if i == 0:
            _announce(rows, oracle, train, saved.basis, len(oracles))
        ranges = rows.ranges if part is None else rows.share(*part)
        made = partial(_rows_of, oracle=oracle, train=train, basis=saved.basis)
        rows.fill(made, "scoring the training set", ranges)
        if part is not None:
            say(f"{len(rows.absent())} of {len(rows.ranges)} shards of {rows.folder} are missing")
            continue
        stored = rows.finish()
        evidence = with_rows(saved.evidence, oracle, saved.basis, stored)
        fitted.append(Embedding(oracle, train, saved.basis, saved.metric, evidence, stored))
    return fitted


def _announce(rows: RowSet, oracle: Oracle, train: Examples, basis: Sketch, models: int) -> None:
    """Announce the memory and the disk space of the job."""
    kept = basis.kept_bytes + train.made_bytes + oracle.pass_bytes
    size = (rows.rows, rows.width, rows.height, rows.dtype.itemsize)
    memory, disk = stored_bytes(*size, kept, basis.built_bytes, models)
    what = f"{rows.rows} examples, {oracle.n_parameters} parameters; {basis.note}"
    announce(memory, f"{what}; about {disk / 2**30:.2g} GiB of disk", disk)


def _rows_of(
    missing: list[_Range], oracle: Oracle, train: Examples, basis: Sketch
) -> Iterator[np.ndarray]:
    """Yield the rows of each missing shard in one pass over their examples."""
    positions = np.concatenate([np.arange(*each) for each in missing])
    known, basis.score_rows = basis.score_rows, None
    if known is not None:
        parts: Iterator[np.ndarray] = iter([known[positions]])
    else:
        some = train if len(positions) == len(train) else train.take(positions)
        parts = (to_numpy(basis.project(batch)) for batch in oracle.scores(some))
    waiting: list[np.ndarray] = []
    for start, stop in missing:
        while sum(map(len, waiting)) < stop - start:
            waiting.append(next(parts))
        joined = np.concatenate(waiting) if len(waiting) > 1 else waiting[0]
        values, waiting = joined[: stop - start], [joined[stop - start :]]
        refuse_unusable(values, "the training examples", start)
        yield values


# ---- whitened rows


def whiten_on_disk(
    embeddings: list[Embedding],
    values: list[float],
    use: str,
    whiten: Callable[[slice], Array] | None = None,
) -> StoredRows:
    """Whiten stored rows into a second set of shards, once per set of dampings and use.

    Rows for "selection" have unit length; `whiten` makes the rows of another use. Whitening in
    every pass instead would take p products for each one of the pass itself. Applying the inverse
    to the targets instead is the same kernel, but rows in single precision lose digits with the
    condition of the metric, and picks would differ from those made in memory.
    """
    first = embeddings[0].rows
    if len(embeddings) == 1 and use == "influence" and embeddings[0].metric.name == "identity":
        return first

    def made(where: _Range) -> np.ndarray:
        if whiten is not None:
            return to_numpy(whiten(slice(*where)))
        rows = to_numpy(whiten_rows(embeddings, values, slice(*where)))
        return unit_rows(rows, overwrite=True) if use == "selection" else rows

    folders = [e.rows.shards[0].path.parent for e in embeddings]
    about = {"bases": [_basis_of(f) for f in folders], "dampings": values, "use": use}
    name = hashlib.sha256(json.dumps(about).encode()).hexdigest()[:16]
    row, folder = made((0, 1)), folders[0].parent / f"white-{name}"
    white = RowSet.sized(folder, len(first), row.shape[1], row.dtype, about)
    white.fill(partial(map, made), "whitening the training rows")
    with disk_errors(white.folder.parent):  # each copy is as large as the rows: keep the newest
        white.folder.touch()
        ours = white.folder.parent.glob("white-" + 16 * "[0-9a-f]")
        copies = [path for path in ours if any(path.glob("*.npy"))]
        for old in sorted(copies, key=lambda p: p.stat().st_mtime)[:-_MAX_WHITENED_SETS]:
            delete_rows(old)
    return white.finish()


def _basis_of(folder: Path) -> str:
    """Return the digest of the basis that the rows in this folder were made with."""
    first = min(folder.glob("*.npy"), default=folder / "000000000000.npy")
    with disk_errors(folder):
        return str((read_seal(first) or {}).get("basis"))


# ---- the basis in a file


class _SavedBasis(NamedTuple):
    """Basis, metric and evidence as read from their file."""

    basis: Sketch
    metric: Metric
    evidence: FisherEvidence
    digest: str
    """Checksum of the file: every shard made with it names it."""
    probes: np.ndarray
    """Rows of a few examples."""


_Prepared = tuple[Sketch, Metric, FisherEvidence]


def _load_or_prepare(
    path: Path, oracle: Oracle, train: Examples, options: EmbeddingOptions
) -> _SavedBasis:
    """Read basis and metric from the store, or compute them and write the file if it is missing."""

    def prepare() -> _Prepared:
        basis, positions = find_basis(oracle, train, options)
        return basis, *estimate_fisher(oracle, train, positions, basis, options.fisher)

    if not path.exists():
        prepared = prepare()
        with disk_errors(path.parent):
            _save_basis(path, prepared, _probe_rows(prepared[0], oracle, train))
    saved = _load_basis(path, oracle, prepare)
    # hashes do not see everything that may differ: compare the scores of a few examples
    rows = _probe_rows(saved.basis, oracle, train)
    scale = np.abs(saved.probes).max(initial=0.0)
    same = rows.shape == saved.probes.shape and rows.dtype == saved.probes.dtype
    if not same or np.abs(rows - saved.probes).max(initial=0.0) > _PROBE_TOLERANCE * scale:
        raise ExemplaError(
            f"the model no longer gives the scores it gave when the store in {path.parent} was "
            "started (other weights, data or options, or random inputs): give another folder."
        )
    return saved


def _save_basis(path: Path, prepared: _Prepared, probes: np.ndarray) -> None:
    """Write the file, unless another process was first."""
    basis, metric, evidence = prepared
    arrays = {f"basis.{name}": a for name, a in basis.arrays().items()}
    if isinstance(metric, FullMetric | DiagonalMetric):
        arrays["metric"] = metric.matrix
    arrays["probes"] = probes
    about = {
        "basis": next(name for name, kind in _BASES.items() if isinstance(basis, kind)),
        "given_up": basis.given_up,
        "metric": metric.name,
        "evidence": asdict(evidence),
    }
    write_sealed(
        path, lambda sink: np.savez(sink, allow_pickle=False, **arrays), about, keep_existing=True
    )


def _load_basis(path: Path, oracle: Oracle, prepare: Callable[[], _Prepared]) -> _SavedBasis:
    """Read the file after checking its seal; `prepare` computes a dual form again."""
    try:
        about = verified(path)
        with np.load(path, allow_pickle=False) as file:
            arrays = {name: file[name] for name in file.files}
        evidence = FisherEvidence(**about["evidence"])
        kind, digest, probes = about["basis"], about["sha256"], arrays["probes"]
    except (ExemplaError, OSError, ValueError, KeyError, TypeError) as problem:
        raise ExemplaError(
            f"{path} is damaged ({problem}), and the rows in {path.parent} cannot be read without "
            "it: delete that folder and fit again."
        ) from None
    own = {name[6:]: values for name, values in arrays.items() if name.startswith("basis.")}
    if kind == "span":
        prepared = prepare()
        if not np.array_equal(own["lower"], prepared[0].arrays()["lower"]):
            raise ExemplaError(
                f"the basis computed here differs from the one in {path.parent}, which another "
                "machine or library version made: continue there, or give a number as sketch=."
            )
        return _SavedBasis(*prepared, digest, probes)
    basis: Sketch = IdentitySketch(oracle.layers)
    if kind == "kronecker":
        like = getattr(getattr(oracle, "network", None), "like", None)
        basis = KroneckerSketch.from_arrays(oracle.layers, own, like)
    basis.given_up = str(about.get("given_up", ""))
    name = about["metric"]
    metric = _METRICS[name](arrays["metric"]) if name in _METRICS else Metric()
    return _SavedBasis(basis, metric, evidence, digest, probes)


def _probe_rows(basis: Sketch, oracle: Oracle, train: Examples) -> np.ndarray:
    """Return the rows of a few examples, spread over the data."""
    some = np.unique(np.linspace(0, len(train) - 1, _N_PROBES).astype(np.int64))
    batches = oracle.scores(train.take(some))
    return to_numpy(concatenate([basis.project(batch) for batch in batches]))
