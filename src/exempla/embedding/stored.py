"""Training sets in sketch space, on disk: rows go there shard by shard as they are made.

    store.json            what the store belongs to: models, data, options
    basis-0.safetensors   basis, metric and evidence of the first model
    rows-0/…-….npy        its rows, a file for each range of examples

Killed at any byte, a store holds whole shards; the same call makes the missing ones. Several
processes may each make a part of them: they find the same basis, that of the first to finish one.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from exempla.arrays import to_numpy
from exempla.checks import whole_number
from exempla.embedding.evidence import Seen, refuse_unusable, with_rows
from exempla.embedding.forecast import forecast_stored
from exempla.embedding.kept import Kept, keep, needs_again, refuse_other_scores, reopen
from exempla.embedding.prepare import Preparing
from exempla.embedding.stopping import goes_on_from
from exempla.embedding.whole import Embedding
from exempla.errors import ExemplaError
from exempla.oracles.base import Examples, Oracle
from exempla.progress import Bar, counter, say, say_memory
from exempla.sketch import Sketch
from exempla.store import RowSet, claim, failing_disk, identity_of, shard_height

__all__ = ["check_part", "embed_into_store"]

Range = tuple[int, int]


def embed_into_store(
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
        kept = prepared_in(store / f"basis-{i}.safetensors", oracle, train, **chosen)
        basis, seconds = kept.prepared.basis, dict(kept.prepared.seconds)
        rows = row_set(store / f"rows-{i}", kept, count)
        say_needs(rows, oracle, train, basis, len(oracles), silent=i > 0)
        ranges = rows.ranges if part is None else rows.share(*part)
        with rows.writing(ranges):
            left = rows.missing(ranges)
            made += len(left)
            refuse_full_disk(rows, left)
            with goes_on_from(rows):
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


def prepared_in(
    path: Path, oracle: Oracle, train: Examples, *, fisher: str, sketch: str | int, seed: int
) -> Kept:
    """Basis and metric as the store has them; made and kept by the first to ask."""
    begun = None
    if not path.exists():
        begun = Preparing(oracle, train, fisher, sketch, seed)
        prepared = begun.done()
        with failing_disk(path.parent):
            keep(path, prepared, oracle, train)
    if needs_again(path):
        begun = Preparing(oracle, train, fisher, sketch, seed)
    kept = reopen(path, oracle, train, begun)
    refuse_other_scores(kept, oracle, train, path)
    return kept


def row_set(folder: Path, kept: Kept, count: int) -> RowSet:
    """The shards of this model's rows."""
    width, dtype = kept.probes.shape[1], kept.probes.dtype
    height = shard_height(count, width * dtype.itemsize)
    return RowSet(folder, count, width, dtype, height, {"basis": kept.digest})


def say_needs(
    rows: RowSet, oracle: Oracle, train: Examples, basis: Sketch, models: int, silent: bool
) -> None:
    """Memory and disk that the job will take, if that is much."""
    kept = basis.kept_bytes + train.made_bytes + oracle.pass_bytes
    size = (rows.rows, rows.width, rows.dtype.itemsize, kept, basis.built_bytes, models)
    memory, disk = forecast_stored(*size)
    if not silent:
        said = f"{rows.rows} examples, {oracle.n_parameters} parameters; {basis.note}"
        say_memory(memory, f"{said}; about {disk / 2**30:.2g} GiB of disk", at_least=disk)


def refuse_full_disk(rows: RowSet, left: list[Range]) -> None:
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


def fill(rows: RowSet, left: list[Range], oracle: Oracle, train: Examples, basis: Sketch) -> None:
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
