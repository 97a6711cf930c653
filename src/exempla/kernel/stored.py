"""Training sets in sketch space: the streaming loop from factors to rows.

    basis ──▶ Fisher of the sample in that basis ──▶ rows of every training example

Rows are kept unwhitened, so that damping stays a choice of the question, not of the embedding.

Inside: models (the door: every model of a list), whole (rows in memory), stored (rows on disk,
shard by shard), prepare (basis and Fisher), kept (both in a file), left_out (the Fisher outside the
basis), evidence, gather, forecast, stopping. Imports: fisher, sketch, progress, oracles, store,
checks, arrays, errors.

Training sets in sketch space, on disk: rows go there shard by shard as they are made.

    store.json            what the store belongs to: models, data, options
    basis-0.safetensors   basis, metric and evidence of the first model
    rows-0/…-….npy        its rows, a file for each range of examples

Killed at any byte, a store holds whole shards; the same call makes the missing ones. Several
processes may each make a part of them: they find the same basis, that of the first to finish one.

Basis, metric and evidence of one model in a file, so that every run and every machine that adds
rows to a store makes them with the same numbers.

A K-FAC basis is written out: eigenvectors found on another machine may be turned. The identity
needs none. The dual form, which is for few examples, is found again and its numbers compared.

Ctrl-C and SIGTERM in the middle of a store: what was made stays, and how to go on is said.

The training set as every model of a list embeds it, in memory or in a store.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from exempla.arrays import concatenate, to_numpy
from exempla.checks import whole_number
from exempla.errors import ExemplaError
from exempla.kernel.basis import IdentitySketch, KroneckerSketch, Sketch, SpanSketch
from exempla.kernel.damping import FisherEvidence
from exempla.kernel.embed import (
    Embedding,
    Prepared,
    Preparing,
    Seen,
    embed_training_set,
    refuse_unusable,
    with_rows,
)
from exempla.kernel.fisher import DiagonalMetric, FullMetric, IdentityMetric, Metric
from exempla.memory import Forecast, announce, explain_bytes, stored_bytes
from exempla.oracles import is_checkpoint
from exempla.oracles.base import Examples, Oracle
from exempla.progress import Bar, counter, say
from exempla.store import RowSet, claim, failing_disk, identity_of, publish_first, shard_height

_PROBES = 16
"""Training examples whose rows are kept beside the basis and compared by everybody who goes on."""
_ALIKE = 1e-3
"""Relative difference that rounding on another machine may make."""
KINDS = {"identity": IdentitySketch, "kronecker": KroneckerSketch, "span": SpanSketch}


@dataclass(frozen=True)
class Kept:
    """What was read back."""

    prepared: Prepared
    digest: str
    """Of everything in the file: what rows made with it say of themselves."""
    probes: np.ndarray
    """Rows of a few examples."""


def keep(path: Path, prepared: Prepared, oracle: Oracle, train: Examples) -> None:
    """Write the file, unless another was first."""
    from safetensors.numpy import save

    basis, metric = prepared.basis, prepared.metric
    kind = next(name for name, sort in KINDS.items() if isinstance(basis, sort))
    arrays = {f"basis.{name}": a for name, a in _basis_arrays(basis).items()}
    if isinstance(metric, FullMetric):
        arrays["metric"] = metric.matrix
    elif isinstance(metric, DiagonalMetric):
        arrays["metric"] = metric.diagonal
    arrays["probes"] = _probe_rows(basis, oracle, train)
    said = {
        "basis": kind,
        "metric": metric.name,
        "evidence": json.dumps(asdict(prepared.evidence)),
    }
    arrays = {name: np.ascontiguousarray(values) for name, values in arrays.items()}
    said["sha256"] = _digest(arrays, said)
    publish_first(path, save(arrays, said))


def _reopen(path: Path, oracle: Oracle, train: Examples, again: Preparing | None) -> Kept:
    """What the file holds, once it is found whole. `again` has the dual form found anew."""
    arrays, said = _read(path)
    own = {name[6:]: values for name, values in arrays.items() if name.startswith("basis.")}
    metric = _metric(said["metric"], arrays)
    evidence = FisherEvidence(**json.loads(said["evidence"]))
    if said["basis"] == "span":
        assert again is not None
        prepared = again.done()
        if not np.array_equal(own["lower"], _basis_arrays(prepared.basis)["lower"]):
            raise ExemplaError(
                f"the basis found here is not the one in {path.parent}, which another machine or "
                "library made: go on there, or give a number as sketch=, whose basis is kept."
            )
    else:
        like = getattr(getattr(oracle, "network", None), "like", None)
        basis = _basis(said["basis"], oracle, own, like)
        prepared = Prepared(basis, metric, evidence)
    return Kept(prepared, said["sha256"], arrays["probes"])


def _needs_again(path: Path) -> bool:
    """Whether the basis in this file has to be found anew."""
    return _read(path)[1]["basis"] == "span"


def _probe_rows(basis: Sketch, oracle: Oracle, train: Examples) -> np.ndarray:
    """Rows of a few examples, spread over the data."""
    some = np.unique(np.linspace(0, len(train) - 1, _PROBES).astype(np.int64))
    batches = oracle.scores(train.take(some))
    return to_numpy(concatenate([basis.project(batch) for batch in batches]))


def _refuse_other_scores(kept: Kept, oracle: Oracle, train: Examples, path: Path) -> None:
    """Raise if a few examples are scored otherwise here: hashes do not see all that may differ."""
    rows = _probe_rows(kept.prepared.basis, oracle, train)
    scale = np.abs(kept.probes).max(initial=0.0)
    same = rows.shape == kept.probes.shape and rows.dtype == kept.probes.dtype
    if not same or np.abs(rows - kept.probes).max(initial=0.0) > _ALIKE * scale:
        raise ExemplaError(
            f"the model does not score the training examples as it did when the store in "
            f"{path.parent} was begun (other weights, data or options, or random inputs): give "
            "another folder."
        )


# ---- the file


def _basis_arrays(basis: Sketch) -> dict[str, np.ndarray]:
    if isinstance(basis, KroneckerSketch):
        return basis.arrays()
    return {"lower": basis.lower} if isinstance(basis, SpanSketch) else {}


def _basis(kind: str, oracle: Oracle, arrays: Mapping[str, np.ndarray], like: Any) -> Sketch:
    if kind == "kronecker":
        return KroneckerSketch.from_arrays(oracle.layers, arrays, like)
    return IdentitySketch(oracle.layers)


def _metric(name: str, arrays: Mapping[str, np.ndarray]) -> Metric:
    if name == FullMetric.name:
        return FullMetric(arrays["metric"])
    return DiagonalMetric(arrays["metric"]) if name == DiagonalMetric.name else IdentityMetric()


def _read(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            said = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        digest = said.pop("sha256")
        if _digest(arrays, said) == digest:
            return arrays, {**said, "sha256": digest}
    except OSError as problem:
        raise ExemplaError(f"{path} cannot be read: {problem.strerror or problem}.") from None
    except (SafetensorError, KeyError, ValueError):
        pass
    raise ExemplaError(
        f"{path} is damaged, and without it no row in {path.parent} has a meaning: delete that "
        "folder and fit again."
    )


def _digest(arrays: Mapping[str, np.ndarray], said: Mapping[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(dict(said), sort_keys=True).encode())
    for name in sorted(arrays):
        values = arrays[name]
        digest.update(f"{name}{values.dtype.str}{values.shape}".encode())
        digest.update(np.ascontiguousarray(values).tobytes())
    return digest.hexdigest()


class Terminated(KeyboardInterrupt):
    """SIGTERM, raised where the work is, so that it ends as by Ctrl-C."""


@contextmanager
def _goes_on_from(rows: RowSet) -> Iterator[None]:
    """Whoever stops the block is told what is kept."""
    try:
        with _terminable():
            yield
    except KeyboardInterrupt as stopped:
        every = len(rows.ranges)
        told = (
            f"{every - len(rows.absent())} of {every} shards are kept in {rows.folder}: the same "
            "call with the same store goes on from there"
        )
        stopped.add_note(told)
        say(f"stopped; {told}")
        raise


@contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM is an exception for the time of the block, where nobody else handles it."""
    main = threading.current_thread() is threading.main_thread()
    if not main or signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
        yield
        return

    def stop(*_: Any) -> None:
        raise Terminated

    signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


_Range = tuple[int, int]


def _embed_into_store(
    models: list[Any],
    oracles: list[Oracle],
    data: Any,
    store: Path,
    *,
    fisher: str,
    sketch: str | int,
    seed: int,
    part: tuple[int, int] | None = None,
    **options: Any,
) -> list[Embedding]:
    """The training set as each model embeds it, its rows in the folder `store`.

    With `part` = (i, n) only the i-th of n parts of the rows is made, and nothing is returned.
    """
    store = store.absolute()  # a saved Explainer names it, and may be loaded from elsewhere
    trains = [oracle.read(data, role="train") for oracle in oracles]
    labels, count = trains[0].labels, len(trains[0])
    chosen = {"fisher": fisher, "sketch": sketch, "seed": seed}
    with failing_disk(store):
        claim(store, identity_of(models, data, labels, count, **chosen, **options))
    fitted, made = [], 0
    for i, (oracle, train) in enumerate(zip(oracles, trains, strict=True)):
        start = perf_counter()
        kept = _prepared_in(store / f"basis-{i}.safetensors", oracle, train, **chosen)
        basis, seconds = kept.prepared.basis, dict(kept.prepared.seconds)
        rows = _row_set(store / f"rows-{i}", kept, count)
        _say_needs(rows, oracle, train, basis, len(oracles), silent=i > 0)
        ranges = rows.ranges if part is None else rows.share(*part)
        with rows.writing(ranges):
            left = rows.missing(ranges)
            made += len(left)
            _refuse_full_disk(rows, left)
            with _goes_on_from(rows):
                fill(rows, left, oracle, train, basis)
        if part is None:
            stored = rows.finish()
            evidence = with_rows(kept.prepared.evidence, oracle, basis, Seen(stored))
            seconds["scores"] = perf_counter() - start - sum(seconds.values())
            metric = kept.prepared.metric
            fitted.append(Embedding(oracle, train, basis, metric, evidence, stored, seconds))
        else:
            say(f"{len(rows.absent())} of {len(rows.ranges)} shards of {rows.folder} are missing")
    return fitted


def _prepared_in(
    path: Path, oracle: Oracle, train: Examples, *, fisher: str, sketch: str | int, seed: int
) -> Kept:
    """Basis and metric as the store has them; made and kept by the first to ask."""
    begun = None
    if not path.exists():
        begun = Preparing(oracle, train, fisher, sketch, seed)
        prepared = begun.done()
        with failing_disk(path.parent):
            keep(path, prepared, oracle, train)
    if _needs_again(path):
        begun = Preparing(oracle, train, fisher, sketch, seed)
    kept = _reopen(path, oracle, train, begun)
    _refuse_other_scores(kept, oracle, train, path)
    return kept


def _row_set(folder: Path, kept: Kept, count: int) -> RowSet:
    """The shards of this model's rows."""
    width, dtype = kept.probes.shape[1], kept.probes.dtype
    height = shard_height(count, width * dtype.itemsize)
    return RowSet(folder, count, width, dtype, height, {"basis": kept.digest})


def _say_needs(
    rows: RowSet, oracle: Oracle, train: Examples, basis: Sketch, models: int, silent: bool
) -> None:
    """Memory and disk that the job will take, if that is much."""
    kept = basis.kept_bytes + train.made_bytes + oracle.pass_bytes
    size = (rows.rows, rows.width, rows.height, rows.dtype.itemsize)
    memory, disk = stored_bytes(*size, kept, basis.built_bytes, models)
    if not silent:
        said = f"{rows.rows} examples, {oracle.n_parameters} parameters; {basis.note}"
        announce(memory, f"{said}; about {disk / 2**30:.2g} GiB of disk", disk)


def _refuse_full_disk(rows: RowSet, left: list[_Range]) -> None:
    """Before the first row: the shards that are missing must fit."""
    needed = sum(stop - start for start, stop in left) * rows.width * rows.dtype.itemsize
    free = shutil.disk_usage(rows.folder).free
    if needed > free:
        raise ExemplaError(
            f"the rows take {needed / 2**30:.2g} GiB more and {rows.folder} has "
            f"{free / 2**30:.2g} GiB free: make room, give another folder, or a smaller sketch=."
        )


def check_part(part: Any, store: Path | None) -> tuple[int, int] | None:
    """(i, n) with 1 ≤ i ≤ n, or None."""
    if part is None:
        return None
    if store is None:
        raise ExemplaError("a part of the rows is of use in a store alone: give store=FOLDER too.")
    sound = isinstance(part, tuple) and len(part) == 2 and all(map(whole_number, part))
    if not sound or not 1 <= part[0] <= part[1]:
        raise ExemplaError(f"part is {part!r:.60}: give (i, n), the i-th of n parts, from (1, n).")
    return int(part[0]), int(part[1])


# ---- making rows


def fill(rows: RowSet, left: list[_Range], oracle: Oracle, train: Examples, basis: Sketch) -> None:
    """Make the shards that are left."""
    if not left:
        return
    known, basis.score_rows = basis.score_rows, None
    with counter("scoring the training set", sum(b - a for a, b in left), "ex") as bar:
        if known is not None:
            for start, stop in left:
                write(rows, start, known[start:stop], bar)
            return
        if left == rows.ranges:  # in one go: no example is copied, and batches are as in memory
            left = left[stream(rows, oracle, train, basis, bar) :]
        for start, stop in left:
            write(rows, start, scored(oracle, train, basis, start, stop), bar)


def stream(rows: RowSet, oracle: Oracle, train: Examples, basis: Sketch, bar: Bar) -> int:
    """Make all shards from one pass over the data; how many were made before memory ran out."""
    waiting, held, start, made = [], 0, 0, 0
    try:
        for batch in oracle.scores(train):
            waiting.append(to_numpy(basis.project(batch)))
            held += len(waiting[-1])
            while held >= rows.height:
                whole = np.concatenate(waiting) if len(waiting) > 1 else waiting[0]
                write(rows, start, whole[: rows.height], bar)
                waiting, held = [whole[rows.height :]], held - rows.height
                start, made = start + rows.height, made + 1
        if held:
            write(rows, start, np.concatenate(waiting), bar)
            made += 1
    except MemoryError:
        say("memory ran out: going on with smaller batches")
    return made


def scored(oracle: Oracle, train: Examples, basis: Sketch, start: int, stop: int) -> np.ndarray:
    """The rows of these examples, by halves where memory runs out."""
    try:
        batches = oracle.scores(train.take(np.arange(start, stop)))
        return np.concatenate([to_numpy(basis.project(batch)) for batch in batches])
    except MemoryError:
        if stop - start == 1:
            raise ExemplaError(
                f"training example {start} alone does not fit in memory: use a smaller sketch=."
            ) from None
    middle = (start + stop) // 2
    halves = ((start, middle), (middle, stop))
    return np.concatenate([scored(oracle, train, basis, *half) for half in halves])


def write(rows: RowSet, start: int, values: np.ndarray, bar: Bar) -> None:
    """One shard, if every number in it is one."""
    refuse_unusable(values, "the training examples", start)
    rows.write(start, values)
    bar.update(len(values))


def embed_models(
    models: list[Any],
    oracles: list[Oracle],
    data: Any,
    *,
    fisher: str,
    sketch: str | int,
    seed: int,
    store: Path | None = None,
    part: tuple[int, int] | None = None,
    forecast: Forecast = explain_bytes,
    **options: Any,
) -> list[Embedding]:
    """The training set as each model embeds it; its rows in the folder `store`, if one is given.

    With `part` = (i, n) only the i-th of n parts is added to the store, and nothing comes back.
    `options` are what else the scores depend on.
    """
    if store is not None:
        chosen: Any = {"fisher": fisher, "sketch": sketch, "seed": seed}
        made = _embed_into_store(models, oracles, data, store, part=part, **chosen, **options)
        return _of_one_run(made, models)
    fitted = []
    for i, oracle in enumerate(oracles):
        with announce(0.0, "") if i else nullcontext():  # the first forecast covers all models
            fitted.append(
                embed_training_set(
                    oracle, data, fisher=fisher, sketch=sketch, seed=seed, models=len(oracles),
                    forecast=forecast,
                )
            )  # fmt: skip
    return _of_one_run(fitted, models)


def _of_one_run(fitted: list[Embedding], models: list[Any]) -> list[Embedding]:
    """Where some of the models are earlier weights of another, each knows of the weights at the
    end of the training."""
    earlier = [is_checkpoint(model) for model in models]
    if not fitted or not any(earlier) or all(earlier):
        return fitted
    last = fitted[earlier.index(False)].evidence.weight_square
    return [
        replace(e, evidence=replace(e.evidence, weight_square=last, of_run=True)) for e in fitted
    ]
