"""Parts on a Ray cluster: an actor for each share of the files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from exempla.arrays import is_tensor, to_numpy
from exempla.checks import is_real, whole_number
from exempla.distributed.files import absolute, in_files
from exempla.distributed.ray_exchange import RayExchange
from exempla.errors import ExemplaError
from exempla.progress import say
from exempla.selection.candidates.arrays import ArrayRows
from exempla.selection.inputs import refuse_unusable
from exempla.selection.shards import Backend, ShardedRows
from exempla.selection.shards.backend import cuts_of
from exempla.store import StoredRows

__all__ = ["OnRay", "cluster", "ray_module"]


@dataclass(frozen=True)
class OnRay(Backend):
    """The parts of `Sharded` as actors of a Ray cluster.

    Stored rows go to the actors as paths, which every machine must see. Rows in memory are written
    to `folder` first. An actor that dies, alone or with its machine, is started elsewhere, reads
    its files again and repeats what was done so far: the picks are the same.

    Parameters
    ----------
    address : str, optional
        Of the cluster. If not given: the one this program is connected to, else the one that
        RAY_ADDRESS or this machine's Ray names, else a cluster of this machine alone, started for
        the job.
    cpus, gpus : float
        What each actor is given. With a GPU its rows are kept there.
    restarts : int
        How often each actor may be lost.
    folder : path, optional
        Where rows in memory are written: a folder that all machines see. On one machine a temporary
        one will do.
    patience : float
        Seconds to wait for a lost actor to come back.

    >>> from exempla import SBQ, Sharded
    >>> Sharded(SBQ(10), shards=8, backend=OnRay(gpus=1)).backend.restarts
    5
    """

    address: str | None = None
    cpus: float = 1.0
    gpus: float = 0.0
    restarts: int = 5
    folder: str | Path | None = None
    patience: float = 300.0

    def __post_init__(self) -> None:
        for name in ("cpus", "gpus", "patience"):
            value = getattr(self, name)
            if not is_real(value) or not 0 <= value < np.inf:
                raise ExemplaError(f"{name} is {value!r}; give a number of at least 0")
        if not whole_number(self.restarts) or self.restarts < 0:
            raise ExemplaError(f"restarts is {self.restarts!r}; give a whole number of at least 0")

    @contextmanager
    def opened(self, features: Any, shards: int) -> Iterator[ShardedRows]:
        """The rows with so many actors, for one question or several:

        `with OnRay().opened(rows, 8) as parts: exempla.select(parts, target, k, SBQ(10))`.
        """
        with ExitStack() as stack:
            ray = stack.enter_context(cluster(self.address))
            stored = self._stored(features, shards, ray, stack)
            cuts = pairwise(cuts_of(len(stored), shards))
            shares = [absolute(stored.part(start, stop)) for start, stop in cuts]
            self._refuse_too_many(len(shares), ray)
            exchange = RayExchange(
                ray, shares, cpus=self.cpus, gpus=self.gpus, restarts=self.restarts,
                patience=self.patience,
            )  # fmt: skip
            stack.callback(exchange.close)
            rows = ShardedRows(exchange)
            refuse_unusable(rows)
            yield rows

    def _stored(self, features: Any, shards: int, ray: Any, stack: ExitStack) -> StoredRows:
        if isinstance(features, StoredRows):
            return features
        if isinstance(features, ArrayRows):
            features = features.array
        array = to_numpy(features) if is_tensor(features) else np.asarray(features)
        if array.ndim != 2 or 0 in array.shape or array.dtype.kind not in "fiub":
            raise ExemplaError(
                f"features of shape {array.shape} and type {array.dtype} cannot be shared out: "
                "give one row of real numbers per training example"
            )
        if array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float32 if array.dtype == np.float16 else np.float64)
        folder = self.folder
        if folder is None:
            machines = {node["NodeManagerHostname"] for node in ray.nodes() if node["Alive"]}
            if len(machines) > 1:
                raise ExemplaError(
                    f"rows in memory must be written where all {len(machines)} machines of the "
                    "cluster can read them: give OnRay(folder=…) on a file system they share."
                )
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="exempla-rows-"))
        say(f"writing {len(array)} rows ({array.nbytes / 2**20:.0f} MiB) to {folder} for Ray")
        return in_files(array, folder, shards)

    def _refuse_too_many(self, actors: int, ray: Any) -> None:
        have = ray.cluster_resources()
        for what, each in (("CPU", self.cpus), ("GPU", self.gpus)):
            if actors * each > have.get(what, 0.0) + 1e-9:
                raise ExemplaError(
                    f"{actors} shards want {actors * each:g} {what}s and the Ray cluster has "
                    f"{have.get(what, 0.0):g}: give fewer shards, or OnRay({what.lower()}s=…) less."
                )


def ray_module() -> Any:
    """Ray, or what to do."""
    try:
        import ray
    except ImportError:
        raise ExemplaError(
            "backend 'ray' needs the package ray: pip install 'exempla[ray]'."
        ) from None
    return ray


@contextmanager
def cluster(address: str | None) -> Iterator[Any]:
    """Ray, connected; what was connected here is let go at the end."""
    ray = ray_module()
    if ray.is_initialized():
        yield ray
        return
    # A job on somebody's data tells nobody that it runs, unless they have said so themselves.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    try:
        ray.init(address=address or os.environ.get("RAY_ADDRESS") or "auto", **quiet)
    except (ConnectionError, RuntimeError, ValueError) as problem:
        if address or os.environ.get("RAY_ADDRESS"):
            named = address or os.environ["RAY_ADDRESS"]
            why = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
            raise ExemplaError(
                f"no Ray cluster answers at {named!r} ({why}): start one (`ray start --head`), or "
                "leave the address out."
            ) from None
        say("no Ray cluster is running: one of this machine alone is started for the job")
        ray.init(include_dashboard=False, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()
