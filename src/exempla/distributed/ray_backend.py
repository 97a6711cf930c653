"""Selection and embedding on a Ray cluster.

`OnRay` places the parts of a selection in actors, one for each share of the files.

Ray restarts a lost actor wherever there is room. It has lost its scores, so that the greedy loop
opens the scores of all parts again and continues from the picks made so far (`StateLostError`).

`fit_on_ray` embeds a training set into one store with tasks. Each runs
`Explainer.fit(train, part=(i, n))` with the basis and the Fisher matrix that the first one stored.
A lost task is repeated and computes what is missing.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from exempla.arrays import to_numpy
from exempla.checks import is_real, whole_number
from exempla.errors import ExemplaError
from exempla.explainer import Explainer
from exempla.io import os_errors
from exempla.progress import counter, say, showing
from exempla.selection.rows import StateLostError
from exempla.selection.select import as_features, refuse_unusable, wrap
from exempla.selection.sharded import (
    Backend,
    Part,
    ShardedRows,
    Transport,
    cuts_of,
    packed,
    unpacked,
)
from exempla.store import StoredRows


def in_files(array: np.ndarray, folder: str | Path, parts: int) -> StoredRows:
    """Write the rows of an array to a folder, in `parts` new files.

    Raises `ExemplaError` if a file cannot be written or already exists: nothing is overwritten.
    """
    folder, cuts = Path(folder).absolute(), cuts_of(len(array), parts)
    paths = [folder / f"rows-{i}.npy" for i in range(len(cuts) - 1)]
    for path in paths:
        if path.exists():
            raise ExemplaError(
                f"{path} already exists and is not overwritten: give an empty folder."
            )
    with os_errors(f"rows cannot be written to {folder}"):
        folder.mkdir(parents=True, exist_ok=True)
        for path, (start, stop) in zip(paths, pairwise(cuts), strict=True):
            with open(path, "xb") as file:
                np.save(file, np.ascontiguousarray(array[start:stop]), allow_pickle=False)
    return StoredRows.of(paths)


class Worker:
    """Hold a share of stored rows: in the files, or on a GPU."""

    def __init__(self, share: StoredRows, gpu: bool = False) -> None:
        self.share, self.gpu = share, gpu

    @cached_property
    def part(self) -> Part:
        """The share, opened on first use, so that an error reaches the caller."""
        here = socket.gethostname()
        for shard in self.share.shards:
            if not shard.path.exists():
                raise ExemplaError(
                    f"{shard.path} does not exist on {here}: keep the rows in a folder that every "
                    "machine of the cluster sees under the same path."
                )
            if len(shard.rows) < shard.stop - shard.start:
                raise ExemplaError(
                    f"{shard.path} has fewer rows on {here} than expected: it is a different or "
                    "incomplete file."
                )
        return Part(wrap(_on_gpu(self.share) if self.gpu else self.share))

    def answer(self, message: bytes) -> bytes | None:
        """Return the packed answers to packed calls; None if the scores they need are lost."""
        try:
            return packed(self.part.answer(unpacked(message)))
        except StateLostError:
            return None


def _on_gpu(share: StoredRows) -> Any:
    """Copy the rows to the GPU of this worker, piece by piece."""
    import torch

    if not torch.cuda.is_available():
        raise ExemplaError(
            "a worker has a GPU that torch cannot use: install torch with CUDA on every machine, "
            "or set gpus=0."
        )
    kind = {"float32": torch.float32, "float64": torch.float64}[share.dtype.name]
    try:
        out = torch.empty(share.shape, dtype=kind, device="cuda")
    except torch.cuda.OutOfMemoryError:
        size = share.nbytes / 2**30
        raise ExemplaError(
            f"{size:.1f} GiB of rows do not fit on the GPU of a worker: use more shards."
        ) from None
    for here, rows in share.stream():
        out[here] = torch.from_numpy(rows).cuda()
    return out


_note = partial(say, always=True)
"""Print a message: `select` has no `progress=`."""
_OUT_OF_MEMORY = "ran out of memory: use more shards, or machines with more memory."
_MAX_INLINE_BYTES = 100 * 1024
"""Larger messages are put into Ray's object store once instead of being sent to each actor."""
_POLL_SECONDS = 0.5
"""Interval between two checks for a lost actor."""
_MIN_CPUS = 0.1
"""Smallest fraction of a processor that an actor gets if there are more shards than processors."""
_CONNECT_SECONDS = 10.0
"""Time limit for connecting to the address of a cluster, and for its answer."""
_SETTINGS = b"\x04"
_HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0" + _SETTINGS + bytes(5)
"""The first bytes that an HTTP/2 client sends, with an empty SETTINGS frame."""


def _raised_by_task(problem: Any) -> Exception:
    """Return an error in an actor or a task as if it had happened here."""
    if isinstance(problem.cause, ExemplaError):
        return ExemplaError(str(problem.cause))
    memory = isinstance(problem.cause, MemoryError)
    return ExemplaError(f"a worker {_OUT_OF_MEMORY}") if memory else problem


def _no_room(who: str, patience: float) -> ExemplaError:
    return ExemplaError(
        f"{who} did not start within {patience:g} s: the cluster has no room. Wait for other jobs "
        "to end, add a machine, or give OnRay(cpus=…) less."
    )


class RayTransport(Transport):
    """Each place is an actor."""

    def __init__(self, ray: Any, shares: list[StoredRows], cpus: float, on: OnRay) -> None:
        super().__init__(len(shares))
        self.ray, self.patience = ray, on.patience
        self.names = [share.shards[0].path for share in shares]
        """The first file of each actor, which names it in messages."""
        actor = ray.remote(Worker).options(
            num_cpus=cpus, num_gpus=on.gpus, max_restarts=on.restarts, max_task_retries=0,
            scheduling_strategy="SPREAD",
        )  # fmt: skip
        self.actors = [actor.remote(share, on.gpus > 0) for share in shares]

    def _deliver(self, messages: dict[int, bytes], stateless: bool) -> dict[int, bytes]:
        refs, answers = self._send(messages), {}
        for place, ref in refs.items():
            answers[place] = self._answer(place, ref)
            while answers[place] is None and stateless:
                again = self._send({place: messages[place]})
                answers[place] = self._answer(place, again[place])
        if None in answers.values():
            raise StateLostError
        return answers

    def _send(self, messages: dict[int, bytes]) -> dict[int, Any]:
        """Send messages; return references to the answers. Identical messages are stored once."""
        large = {m for m in messages.values() if len(m) > _MAX_INLINE_BYTES}
        stored = {message: self.ray.put(message) for message in large}
        return {
            place: self.actors[place].answer.remote(stored.get(message, message))
            for place, message in messages.items()
        }

    def _answer(self, place: int, ref: Any) -> Any:
        """Return the answer of an actor; None if it was restarted and has lost its scores."""
        from ray.exceptions import ActorDiedError, RayActorError, RayTaskError

        try:
            return self.ray.get(ref)
        except RayTaskError as problem:
            raise _raised_by_task(problem) from None
        except ActorDiedError as problem:
            raise self._died(place, str(problem)) from None
        except RayActorError:
            self.traffic.restarts += 1
            _note(f"the worker of {self.names[place]} was lost; restoring its state in a new one")
            self.wait_for(place)
            return None

    def wait_for(self, place: int) -> None:
        """Wait until an actor runs; raise if the cluster has no room for it."""
        from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError

        deadline = monotonic() + self.patience
        while True:
            try:
                self.ray.get(self.actors[place].__ray_ready__.remote(), timeout=self.patience)
                return
            except ActorDiedError as problem:
                raise self._died(place, str(problem)) from None
            except (RayActorError, GetTimeoutError):
                if monotonic() >= deadline:
                    raise _no_room(f"the worker of {self.names[place]}", self.patience) from None
                sleep(_POLL_SECONDS)

    def _died(self, place: int, why: str) -> ExemplaError:
        if "memory" in why.lower():
            return ExemplaError(f"the worker of {self.names[place]} {_OUT_OF_MEMORY}")
        reason = why.strip().partition("\n")[0] or "unknown reason"
        return ExemplaError(
            f"the worker of {self.names[place]} died and may not be restarted ({reason}): "
            "check the machine, or allow more restarts with OnRay(restarts=…)."
        )

    def close(self) -> None:
        for actor in self.actors:
            self.ray.kill(actor, no_restart=True)


@dataclass(frozen=True)
class OnRay(Backend):
    """Place the parts of `Sharded` in actors of a Ray cluster.

    Stored rows are sent to the actors as paths, which every machine must see. Rows in memory are
    first written to a new subfolder of `folder`, which is removed at the end. An actor that dies,
    alone or with its machine, is restarted elsewhere, reads its files again and repeats what was
    done so far: the picks are the same.

    Parameters
    ----------
    address : str, optional
        Address of the cluster. Default: the cluster this program is connected to, then the one
        named by RAY_ADDRESS or running on this machine, then a new one on this machine, started for
        the job.
    cpus, gpus : float, default 1.0 and 0.0
        Resources of each actor. If fewer processors are free than there are shards, each actor
        gets a fraction of one, and a note says so. With a GPU, its rows are kept there.
    restarts : int, default 5
        How often each actor may be restarted.
    folder : path, optional
        Folder for rows in memory, which all machines must see. Default: a temporary folder, which
        suffices on one machine.
    patience : float, default 300.0
        Seconds to wait for an actor to start, at the beginning or after it was lost.

    Examples
    --------
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
        """Keep the rows in `shards` actors, for one or several selections:

        `with OnRay().opened(rows, 8) as parts: exempla.select(parts, target, k, SBQ(10))`.
        """
        with ExitStack() as stack:
            ray = stack.enter_context(_cluster(self.address))
            stored = self._stored(features, shards, ray, stack)
            cuts = pairwise(cuts_of(len(stored), shards))
            shares = [stored.part(start, stop).absolute() for start, stop in cuts]
            cpus = self._cpus_per_actor(len(shares), ray)
            transport = RayTransport(ray, shares, cpus, self)
            stack.callback(transport.close)
            for place in range(len(shares)):
                transport.wait_for(place)
            rows = ShardedRows(transport)
            refuse_unusable(rows)
            yield rows

    def _stored(self, features: Any, shards: int, ray: Any, stack: ExitStack) -> StoredRows:
        if isinstance(features, StoredRows):
            return features
        array = to_numpy(as_features(getattr(features, "array", features)))
        nodes = ray.nodes() if self.folder is None else ()
        machines = {node["NodeManagerHostname"] for node in nodes if node["Alive"]}
        if len(machines) > 1:
            raise ExemplaError(
                f"rows in memory must be written where all {len(machines)} machines of the "
                "cluster can read them: give OnRay(folder=…) on a file system they share."
            )
        with os_errors(f"rows cannot be written to {self.folder}"):
            if self.folder is not None:
                Path(self.folder).mkdir(parents=True, exist_ok=True)
            made = tempfile.TemporaryDirectory(prefix="exempla-rows-", dir=self.folder)
        folder = stack.enter_context(made)
        _note(f"writing {len(array)} rows ({array.nbytes / 2**20:.0f} MiB) to {folder} for Ray")
        return in_files(array, folder, shards)

    def _cpus_per_actor(self, actors: int, ray: Any) -> float:
        """Return the processors of each actor: `cpus`, or a fraction if there are too few."""
        have = ray.cluster_resources()
        for name, each in (("GPU", self.gpus), ("CPU", min(self.cpus, _MIN_CPUS))):
            if actors * each > have.get(name, 0.0) + 1e-9:
                raise ExemplaError(
                    f"{actors} shards need at least {actors * each:g} {name}s and the Ray cluster "
                    f"has {have.get(name, 0.0):g}: give fewer shards, or OnRay({name.lower()}s=…) "
                    "less."
                )
        least, deadline = actors * min(self.cpus, _MIN_CPUS), monotonic() + self.patience
        while (free := ray.available_resources().get("CPU", 0.0)) < least:
            if monotonic() >= deadline:
                raise _no_room("the workers", self.patience)
            sleep(_POLL_SECONDS)
        if actors * self.cpus <= free:
            return self.cpus
        # With 1/m of a CPU each, m actors fit on every free CPU of every machine. Ray counts 1e-4.
        share = 1 / -(-actors // int(free)) if free >= 1 else _MIN_CPUS
        cpus = min(self.cpus, int(1e4 * share) / 1e4)
        shared = f"{free:g} {'free ' * (free < have['CPU'])}CPU{'s' * (free != 1)}"
        _note(
            f"{actors} shards share {shared}: each worker gets {cpus:g} CPUs instead of "
            f"{self.cpus:g}. The result is the same; the workers run slower."
        )
        return cpus


def _ray_module() -> Any:
    """Import Ray, or raise with the command that installs it."""
    try:
        import ray
    except ImportError:
        raise ExemplaError(
            "backend 'ray' needs the package ray: pip install 'exempla[ray]'."
        ) from None
    return ray


@contextmanager
def _cluster(address: str | None) -> Iterator[Any]:
    """Connect to Ray; disconnect at the end if the connection was made here."""
    ray = _ray_module()
    if ray.is_initialized():
        yield ray
        return
    # Ray reports usage statistics by default; a job on private data does not, unless asked to.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    quiet = {"logging_level": "ERROR", "log_to_driver": False}
    named = address or os.environ.get("RAY_ADDRESS")
    try:
        if named:
            _check_reachable(named)
        ray.init(address=named or "auto", **quiet)
    except (OSError, RuntimeError, ValueError) as problem:
        if isinstance(problem, ExemplaError):
            raise
        if named:
            why = str(problem).splitlines()[0] if str(problem) else type(problem).__name__
            raise ExemplaError(
                f"no Ray cluster answers at {named!r} ({why}): start one with `ray start --head`, "
                "or omit the address."
            ) from None
        _note("no Ray cluster is running; starting one on this machine for the job")
        ray.init(include_dashboard=False, **quiet)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise OSError if no Ray server answers at host:port; Ray itself would retry for minutes.

    Ray's servers speak gRPC, so each answers the HTTP/2 preface with a SETTINGS frame.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    where = (host.strip("[]"), int(port))
    with socket.create_connection(where, timeout=_CONNECT_SECONDS) as connection:
        if os.environ.get("RAY_USE_TLS", "0") == "0":
            connection.sendall(_HTTP2_PREFACE)
            if connection.recv(9)[3:4] != _SETTINGS:
                raise OSError("what listens there is not Ray")


def fit_on_ray(
    explainer: Explainer,
    train: Any,
    ids: Any = None,
    *,
    parts: int | None = None,
    on: OnRay | None = None,
) -> Explainer:
    """Fit an explainer with tasks of a Ray cluster.

    Parameters
    ----------
    explainer : Explainer
        With `store=` a folder that all machines see.
    train, ids
        As for `Explainer.fit`; model and data are sent once to each machine.
    parts : int, optional
        Number of tasks. Default: as many as the cluster can run at once.
    on : OnRay, optional
        The cluster and the resources of each task.
    """
    if explainer.store is None:
        raise ExemplaError("tasks share their rows in a store: give the Explainer store=FOLDER.")
    store = explainer.store.absolute()
    cloudpickle = _ray_module().cloudpickle
    sent = cloudpickle.dumps(explainer)
    # A store identifies a model by its layout in memory, which pickling may change, so the fit here
    # uses the model as the tasks receive it.
    arrived = cloudpickle.loads(sent)
    explainer.model, explainer.oracles = arrived.model, arrived.oracles

    def part(i: int, n: int, sent: bytes, train: Any) -> None:
        explainer = cloudpickle.loads(sent)
        explainer.store = store
        explainer.fit(train, ids, part=(i, n))

    on = on or OnRay()
    with showing(explainer.progress), _cluster(on.address) as ray:
        from ray.exceptions import RayTaskError, WorkerCrashedError

        room = _max_tasks(on, ray)  # first: a task that fits on no machine would wait forever
        parts = parts or room
        task = ray.remote(part).options(
            num_cpus=on.cpus, num_gpus=on.gpus, max_retries=on.restarts,
            scheduling_strategy="SPREAD",
        )  # fmt: skip
        given = ray.put(sent), ray.put(train)
        try:
            with counter("embedding", parts) as bar:
                # The first runs alone, because it computes what all parts share.
                for some in (range(1, 2), range(2, parts + 1)):
                    for done in [task.remote(i, parts, *given) for i in some]:
                        ray.get(done)
                        bar.update()
        except RayTaskError as problem:
            raise _raised_by_task(problem) from None
        except WorkerCrashedError as problem:
            raise ExemplaError(
                f"a part died more than {on.restarts} times ({problem}): check the machines and "
                "their memory. The finished parts are kept."
            ) from None
    return explainer.fit(train, ids)


def _max_tasks(on: OnRay, ray: Any) -> int:
    """Return how many tasks the cluster can run at once; raise if no machine can run one."""
    wanted = {name: each for name, each in (("CPU", on.cpus), ("GPU", on.gpus)) if each}
    room = sum(
        min((int(node["Resources"].get(name, 0.0) / wanted[name]) for name in wanted), default=1)
        for node in ray.nodes()
        if node["Alive"]
    )
    if not room:
        raise ExemplaError(
            f"a task needs {on.cpus:g} CPUs and {on.gpus:g} GPUs, and no machine of the Ray "
            "cluster has that: give OnRay(cpus=…, gpus=…) less."
        )
    return room
