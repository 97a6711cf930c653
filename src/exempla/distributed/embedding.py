"""The training set embedded by several processes or machines, each a part, into one store.

Everybody runs what one machine alone would run for `Explainer.fit(train, part=(i, n))`: the store
keeps the basis and the Fisher of whoever was first, and everybody's rows are made with those. A
task that is lost is run again and makes what is missing of its part.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from exempla.distributed.ray_backend import OnRay, cluster, ray_module
from exempla.distributed.torch_backend import in_turn, process_group, rank_and_size, together
from exempla.errors import ExemplaError
from exempla.explainer import Explainer
from exempla.progress import Bar, counter, showing
from exempla.selection.shards.backend import cuts_of
from exempla.store import StoredRows

__all__ = ["fit_on_ray", "fit_ranks", "parts_on_ray", "rank_rows"]


def fit_ranks(explainer: Explainer, train: Any, ids: Any = None, *, group: Any = None) -> Explainer:
    """`explainer.fit` by all ranks of a torch.distributed group, each of which calls this.

    Parameters
    ----------
    explainer : Explainer
        With `store=` a folder that all ranks see; on its own device on each rank, if there are
        several.
    train, ids
        As for `Explainer.fit`, the same on every rank.
    group : process group, optional
        The default one if not given.

    Returns
    -------
    Explainer
        The same, fitted to all rows, on every rank.
    """
    group = process_group(group)
    rank, size = rank_and_size(group)
    if explainer.store is None:
        raise ExemplaError("ranks meet in a store: give the Explainer store=FOLDER.")
    # The first makes basis and Fisher while the others would only make them once more.
    together(lambda: explainer.fit(train, ids, part=(1, size)) if rank == 0 else None, group)
    together(lambda: explainer.fit(train, ids, part=(rank + 1, size)) if rank else None, group)
    in_turn(lambda: explainer.fit(train, ids), group)
    return explainer


def rank_rows(explainer: Explainer, *, group: Any = None) -> Any:
    """This rank's share of the whitened rows of a fitted explainer, for `Sharded(…, "torch")`.

    The shares are consecutive, in the order of the ranks: indices of picks are those of the
    training set.
    """
    group = process_group(group)
    rank, size = rank_and_size(group)
    rows = in_turn(lambda: explainer.features.rows, group)
    # never more ranks than rows, or a rank would have nothing to answer with
    if len(rows) < size:
        raise ExemplaError(f"{size} ranks cannot share {len(rows)} rows: start fewer.")
    start, stop = cuts_of(len(rows), size)[rank : rank + 2]
    return rows.part(start, stop) if isinstance(rows, StoredRows) else rows[start:stop]


def fit_on_ray(
    explainer: Explainer,
    train: Any,
    ids: Any = None,
    *,
    parts: int | None = None,
    on: OnRay | None = None,
) -> Explainer:
    """`explainer.fit` with its rows made by tasks of a Ray cluster.

    Parameters
    ----------
    explainer : Explainer
        With `store=` a folder that all machines see.
    train, ids
        As for `Explainer.fit`; model and data travel once to each machine.
    parts : int, optional
        Tasks; each makes about as many shards of the store. As many as the cluster can run at once,
        if not given.
    on : OnRay, optional
        Which cluster, and what a task is given.
    """
    if explainer.store is None:
        raise ExemplaError("tasks meet in a store: give the Explainer store=FOLDER.")
    store = explainer.store.absolute()

    cloudpickle = ray_module().cloudpickle
    sent = cloudpickle.dumps(explainer)
    # A store knows a model by how it is laid out in memory, which sending may change: the fit here
    # is of the model as it arrives there.
    arrived = cloudpickle.loads(sent)
    explainer.model, explainer.oracles = arrived.model, arrived.oracles

    def part(i: int, n: int, sent: bytes, train: Any) -> None:
        explainer = cloudpickle.loads(sent)
        explainer.store = store
        explainer.fit(train, ids, part=(i, n))

    parts_on_ray(part, parts, on or OnRay(), sent, train, progress=explainer.progress)
    return explainer.fit(train, ids)


def parts_on_ray(
    work: Callable[..., None], parts: int | None, on: OnRay, *shared: Any, progress: bool = False
) -> None:
    """work(i, n, *shared) for the parts 1 … n, as tasks of a Ray cluster.

    The first runs alone: it makes what all parts share. A task that is lost with its machine is run
    again, up to `on.restarts` times.
    """
    with showing(progress), cluster(on.address) as ray:
        parts = parts or room_for(on, ray)
        with counter("embedding", parts, "part") as bar:
            _run_parts(ray, work, parts, on, shared, bar)


def room_for(on: OnRay, ray: Any) -> int:
    """Tasks that the cluster can run at once, each of the kind that is asked for."""
    have = ray.cluster_resources()
    room = []
    for what, each in (("CPU", on.cpus), ("GPU", on.gpus)):
        if each > have.get(what, 0.0):
            raise ExemplaError(
                f"a task wants {each:g} {what}s and the Ray cluster has {have.get(what, 0.0):g}: "
                "ask for less."
            )
        if each:
            room.append(int(have[what] / each))
    return max(1, min(room, default=1))


def _run_parts(
    ray: Any, work: Callable[..., None], parts: int, on: OnRay, shared: tuple[Any, ...], bar: Bar
) -> None:
    from ray.exceptions import RayTaskError, WorkerCrashedError

    task = ray.remote(work).options(
        num_cpus=on.cpus, num_gpus=on.gpus, max_retries=on.restarts,
        scheduling_strategy="SPREAD",
    )  # fmt: skip
    given = [ray.put(thing) for thing in shared]
    try:
        ray.get(task.remote(1, parts, *given))
        bar.update()
        left = [task.remote(i, parts, *given) for i in range(2, parts + 1)]
        while left:
            done, left = ray.wait(left)
            ray.get(done)
            bar.update(len(done))
    except RayTaskError as problem:
        cause = getattr(problem, "cause", None)
        if isinstance(cause, ExemplaError):
            raise ExemplaError(str(cause)) from None
        raise
    except WorkerCrashedError as problem:
        raise ExemplaError(
            f"a part died more than {on.restarts} times ({problem}): see to the machines, or "
            "to their memory; what is made already is kept."
        ) from None
