"""How questions reach the parts, and what travels.

An exchange is one round trip to all places at once: the orders that have gathered since the last
one (`tell`), then a question (`ask`). Whatever carries it implements `_deliver`; what it carries
are bytes, so that they can be counted, kept, and sent again to a place that lost its state.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from itertools import pairwise
from typing import Any, NamedTuple

from exempla.selection.shards.part import Parts

__all__ = ["Call", "Effect", "Exchange", "LocalExchange", "Traffic", "packed", "unpacked"]


class Call(NamedTuple):
    """A method of `Part` with its arguments."""

    name: str
    args: tuple = ()
    own: Sequence[tuple] | None = None
    """Further arguments of each part, if they differ."""

    def at(self, first: int, last: int) -> Call:
        """The call as the parts first … last − 1 get it."""
        return self if self.own is None else Call(self.name, self.args, self.own[first:last])


LOOKING = {
    "describe", "project", "align", "energy", "take", "choose", "firsts", "contenders", "leaders"
}  # fmt: skip
"""Calls that leave a part as it is."""


class Effect(Enum):
    """What a message does to the state of a place."""

    NONE = "none"
    CHANGES = "changes"
    BEGINS = "begins"
    """What was before no longer counts."""

    @staticmethod
    def of(calls: Sequence[Call]) -> Effect:
        """The effect of these calls in turn."""
        names = {call.name for call in calls}
        if "open_race" in names:
            return Effect.BEGINS
        return Effect.NONE if names <= LOOKING else Effect.CHANGES


@dataclass
class Traffic:
    """What has travelled so far."""

    exchanges: int = 0
    """Round trips, one after the other; each goes to all places at once."""
    sent: int = 0
    """Bytes to all places together."""
    received: int = 0
    restarts: int = 0
    """Places that were lost and brought back to where they had been."""

    def since(self, earlier: Traffic) -> Traffic:
        """What travelled after another moment.

        >>> Traffic(5, 80, 60).since(Traffic(3, 50, 50))
        Traffic(exchanges=2, sent=30, received=10, restarts=0)
        """
        before = asdict(earlier)
        return Traffic(**{name: value - before[name] for name, value in asdict(self).items()})

    def copy(self) -> Traffic:
        """This moment, to compare with a later one."""
        return Traffic(**asdict(self))


def packed(thing: Any) -> bytes:
    """As it travels."""
    return pickle.dumps(thing, protocol=5)


def unpacked(data: bytes) -> Any:
    """What was packed: only ever by this program, for itself."""
    return pickle.loads(data)


class Exchange(ABC):
    """Parts in places: place i holds the parts places[i] … places[i + 1] − 1."""

    def __init__(self, places: list[int]) -> None:
        self.places = places
        self.traffic = Traffic()
        self._orders: list[Call] = []

    def tell(self, call: Call) -> None:
        """Let all parts do this before the next question; nobody waits for it."""
        self._orders.append(call)

    def ask(self, call: Call, *, of: Sequence[int] | None = None) -> list[Any]:
        """Every part's answer, after the orders; or that of some places alone, whose answer must
        not depend on orders."""
        orders = [] if of is not None else self._orders
        if of is None:
            self._orders = []
        cuts = list(pairwise(self.places))
        wanted = range(len(cuts)) if of is None else of
        calls = [*orders, call]
        if all(one.own is None for one in calls):
            message = packed(calls)
            messages = dict.fromkeys(wanted, message)
        else:
            messages = {i: packed([one.at(*cuts[i]) for one in calls]) for i in wanted}
        answers = self._deliver(messages, Effect.of(calls))
        self.traffic.exchanges += 1
        self.traffic.sent += sum(map(len, messages.values()))
        self.traffic.received += sum(map(len, answers.values()))
        # each is let go as it is unpacked: some have a number for every row
        return [answer for place in wanted for answer in unpacked(answers.pop(place))]

    @abstractmethod
    def _deliver(self, messages: dict[int, bytes], effect: Effect) -> dict[int, bytes]:
        """Carry messages to places and bring their answers."""

    def close(self) -> None:
        """Let the places go."""
        return


class LocalExchange(Exchange):
    """All parts in this process: nothing travels."""

    def __init__(self, parts: Parts) -> None:
        super().__init__([0, len(parts.parts)])
        self.parts = parts

    def ask(self, call: Call, *, of: Sequence[int] | None = None) -> list[Any]:
        if of is not None:
            return self.parts.answer([call])
        orders, self._orders = self._orders, []
        self.traffic.exchanges += 1
        return self.parts.answer([*orders, call])

    def _deliver(self, messages: dict[int, bytes], effect: Effect) -> dict[int, bytes]:
        return {place: packed(self.parts.answer(unpacked(m))) for place, m in messages.items()}
