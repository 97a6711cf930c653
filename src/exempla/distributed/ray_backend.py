"""Parts on a Ray cluster: an actor for each share of the files.

Messages to actors and back, and what to do when one of them is lost.

The driver keeps every message that changed the state of an actor since the race began. Ray starts a
lost actor again, wherever there is room; it is then told all of them once more. Messages are the
directions of the picks, so this log is about as large as the basis of the selection.

What runs on the other machine: parts opened from files, and a count of what was done to them.

A worker that is started again has lost its race. The count tells: whoever asks says how many
changes it has seen answered, and a worker that has made another number of them answers None. It is
then given all messages of the race again and stands where it stood.

Rows as files that every machine can open.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import numpy as np

from exempla.arrays import is_tensor, to_numpy
from exempla.checks import is_real, whole_number
from exempla.errors import ExemplaError
from exempla.io import replacing
from exempla.progress import say
from exempla.selection.rows import ArrayRows
from exempla.selection.select import refuse_unusable, wrap
from exempla.selection.sharded import Backend, cuts_of
from exempla.selection.shards import Effect, Part, Parts, ShardedRows, Transport, packed, unpacked
from exempla.store import StoredRows


def absolute(rows: StoredRows) -> StoredRows:
    """The same rows, under names that mean the same in any folder."""
    return StoredRows(tuple(replace(s, path=s.path.absolute()) for s in rows.shards))


def _check_visible(rows: StoredRows) -> None:
    """Refuse files that cannot be read on this machine, by its name."""
    here = socket.gethostname()
    for shard in rows.shards:
        if not shard.path.exists():
            raise ExemplaError(
                f"{shard.path} is not there on {here}: keep the rows in a folder that every "
                "machine of the cluster sees under this name."
            )
        if len(shard.rows) < shard.stop - shard.start:
            raise ExemplaError(
                f"{shard.path} has fewer rows on {here} than it should: it is another file, or "
                "not whole."
            )


def in_files(array: np.ndarray, folder: str | Path, parts: int) -> StoredRows:
    """The rows of an array, written to the folder in as many files.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     [path.path.name for path in in_files(np.eye(4), folder, 2).shards]
    ['rows-0.npy', 'rows-1.npy']
    """
    folder = Path(folder).absolute()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for i, (start, stop) in enumerate(pairwise(cuts_of(len(array), parts))):
            paths.append(folder / f"rows-{i}.npy")
            with replacing(paths[-1]) as file:
                np.save(file, np.ascontiguousarray(array[start:stop]), allow_pickle=False)
    except OSError as problem:
        why = problem.strerror or problem
        raise ExemplaError(f"rows cannot be written to {folder}: {why}.") from None
    return StoredRows.of(paths)


class Worker:
    """Holds a share of stored rows: in the files, or on a GPU."""

    def __init__(self, share: StoredRows, gpu: bool = False) -> None:
        self.share, self.gpu = share, gpu
        self.done = 0
        """Messages that changed something, since the race began."""
        self.last: bytes | None = None

    @cached_property
    def parts(self) -> Parts:
        """The share, opened when it is first needed: so that an error reaches who asks."""
        _check_visible(self.share)
        return Parts([Part(wrap(_on_gpu(self.share) if self.gpu else self.share))])

    def answer(self, done: int, message: bytes, effect: Effect) -> bytes | None:
        """The packed answers to packed calls; None if the state is not the one that is meant."""
        if effect is Effect.BEGINS:
            self.done = done = 0
        if effect is Effect.CHANGES and self.done == done + 1 and self.last is not None:
            return self.last  # it was asked before, and the answer was lost on its way
        if self.done != done:
            return None
        answer = packed(self.parts.answer(unpacked(message)))
        if effect is not Effect.NONE:
            self.done, self.last = done + 1, answer
        return answer

    def replay(self, messages: Sequence[bytes]) -> bool:
        """Stand where a worker stands that has answered all of these; True when it does."""
        for message in messages:
            self.parts.answer(unpacked(message))
        for part in self.parts.parts:
            part.resend()
        self.done, self.last = len(messages), None
        return True


def _on_gpu(share: StoredRows) -> Any:
    """The rows in the memory of this worker's GPU, brought there a piece at a time."""
    import torch

    if not torch.cuda.is_available():
        raise ExemplaError(
            "a worker was given a GPU that torch cannot use: install torch with CUDA on every "
            "machine, or leave gpus at 0."
        )
    try:
        kind = {"float32": torch.float32, "float64": torch.float64}[share.dtype.name]
        out = torch.empty(share.shape, dtype=kind, device="cuda")
        for here, rows in share.stream():
            out[here] = torch.from_numpy(np.array(rows)).cuda()
        return out
    except torch.cuda.OutOfMemoryError:
        size = share.nbytes / 2**30
        raise ExemplaError(
            f"{size:.1f} GiB of rows do not fit on a worker's GPU: give more shards."
        ) from None


_INLINE = 100 * 1024
"""Bytes from which on a message is put into Ray's store once, instead of being sent to each."""
_PAUSE = 0.2, 5.0
"""Seconds between two looks for a lost actor, at first and at most."""


class RayTransport(Transport):
    """A place is an actor."""

    def __init__(
        self,
        ray: Any,
        shares: list[StoredRows],
        *,
        cpus: float,
        gpus: float,
        restarts: int,
        patience: float,
    ) -> None:
        super().__init__(list(range(len(shares) + 1)))
        self.shares = shares
        self.ray, self.patience = ray, patience
        actor = ray.remote(Worker).options(
            num_cpus=cpus, num_gpus=gpus, max_restarts=restarts, max_task_retries=0,
            scheduling_strategy="SPREAD",
        )  # fmt: skip
        self.actors = [actor.remote(share, gpus > 0) for share in shares]
        self.logs: list[list[bytes]] = [[] for _ in shares]

    def _deliver(self, messages: dict[int, bytes], effect: Effect) -> dict[int, bytes]:
        if effect is Effect.BEGINS:
            for place in messages:
                self.logs[place] = []
        refs, answers = self._sent(messages, effect), {}
        for place, ref in refs.items():
            answer = self._answer(place, ref)
            while answer is None:
                self._replay(place)
                again = self._sent({place: messages[place]}, effect)
                answer = self._answer(place, again[place])
            answers[place] = answer
            if effect is not Effect.NONE:
                self.logs[place].append(messages[place])
        return answers

    def _sent(self, messages: dict[int, bytes], effect: Effect) -> dict[int, Any]:
        """The answers to come. A message that is the same for all is stored once."""
        stored: dict[int, Any] = {}
        refs = {}
        for place, message in messages.items():
            carried: Any = message
            if len(message) > _INLINE:
                if id(message) not in stored:
                    stored[id(message)] = self.ray.put(message)
                carried = stored[id(message)]
            done = len(self.logs[place])
            refs[place] = self.actors[place].answer.remote(done, carried, effect)
        return refs

    def _answer(self, place: int, ref: Any) -> Any:
        """What the actor answers; None if it has been lost, and runs again without its state."""
        from ray.exceptions import ActorDiedError, RayActorError, RayTaskError

        try:
            return self.ray.get(ref)
        except RayTaskError as problem:
            raise self._explained(place, problem) from None
        except ActorDiedError as problem:
            raise ExemplaError(self._died(place, str(problem))) from None
        except RayActorError:
            self._wait_for(place)
            return None

    def _replay(self, place: int) -> None:
        """Bring an actor that lost its state back to where it was."""
        self.traffic.restarts += 1
        say(f"the worker of {self._named(place)} was lost: another one catches up")
        while self._answer(place, self.actors[place].replay.remote(self.logs[place])) is None:
            pass

    def _wait_for(self, place: int) -> None:
        """Until the actor runs again, wherever Ray finds room for it."""
        from ray.exceptions import ActorDiedError, GetTimeoutError, RayActorError

        deadline, pause = monotonic() + self.patience, _PAUSE[0]
        while True:
            try:
                self.ray.get(self.actors[place].__ray_ready__.remote(), timeout=self.patience)
                return
            except ActorDiedError as problem:
                raise ExemplaError(self._died(place, str(problem))) from None
            except (RayActorError, GetTimeoutError):
                if monotonic() > deadline:
                    raise ExemplaError(
                        f"the worker of {self._named(place)} did not come back within "
                        f"{self.patience:g} s: the cluster has no room for it; add a machine and "
                        "run again."
                    ) from None
                sleep(pause)
                pause = min(1.5 * pause, _PAUSE[1])

    def _named(self, place: int) -> Path:
        """What an actor is called by: the first of its files."""
        return self.shares[place].shards[0].path

    def _explained(self, place: int, problem: Any) -> Exception:
        """What went wrong in an actor, as if it had happened here."""
        cause = getattr(problem, "cause", None)
        if isinstance(cause, ExemplaError):
            return ExemplaError(str(cause))
        if isinstance(cause, MemoryError):
            return ExemplaError(self._died(place, "out of memory"))
        return problem

    def _died(self, place: int, why: str) -> str:
        first = self._named(place)
        if "memory" in why.lower():
            return (
                f"the worker of {first} ran out of memory: give more shards, or machines with "
                "more memory."
            )
        said = next((line for line in why.splitlines() if line.strip()), "no reason is known")
        return (
            f"the worker of {first} died and may not be started again ({said}): see to the "
            "machine, or allow more with OnRay(restarts=…)."
        )

    def close(self) -> None:
        """End the actors."""
        for actor in self.actors:
            self.ray.kill(actor, no_restart=True)
        self.actors = []


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
            exchange = RayTransport(
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
