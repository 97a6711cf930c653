"""Messages to actors and back, and what to do when one of them is lost.

The driver keeps every message that changed the state of an actor since the race began. Ray starts a
lost actor again, wherever there is room; it is then told all of them once more. Messages are the
directions of the picks, so this log is about as large as the basis of the selection.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic, sleep
from typing import Any

from exempla.distributed.worker import Worker
from exempla.errors import ExemplaError
from exempla.progress import say
from exempla.selection.shards import Exchange
from exempla.selection.shards.exchange import Effect
from exempla.store import StoredRows

__all__ = ["RayExchange"]

INLINE = 100 * 1024
"""Bytes from which on a message is put into Ray's store once, instead of being sent to each."""
PAUSE = 0.2, 5.0
"""Seconds between two looks for a lost actor, at first and at most."""


class RayExchange(Exchange):
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
            if len(message) > INLINE:
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

        deadline, pause = monotonic() + self.patience, PAUSE[0]
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
                pause = min(1.5 * pause, PAUSE[1])

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
