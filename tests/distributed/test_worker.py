"""A worker by itself: what it answers when it has lost its scores, or its files."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

from exempla import SBQ, select
from exempla.distributed import OnRay, in_files
from exempla.distributed.ray_backend import RayTransport, Worker
from exempla.errors import ExemplaError
from exempla.selection.rows import Rule, StateLostError
from exempla.selection.sharded import (
    Call,
    LocalTransport,
    Part,
    ShardedRows,
    packed,
    unpacked,
)
from exempla.store import StoredRows


@pytest.fixture
def share(tmp_path) -> StoredRows:
    rows = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    return in_files(rows, tmp_path, 3)


OPEN = packed([Call("open_scores", (np.ones(1), 1.0, Rule.GAIN, 0, np.ones((1, 40), bool)))])
REFRESH = packed([Call("refresh", ([0], np.ones((1, 6))))])


def test_a_restarted_worker_says_that_its_scores_are_lost(share):
    worker = Worker(share)
    for call in ("leaders", "to_float64"):
        assert worker.answer(packed([Call(call)])) is None
    assert worker.answer(packed([Call("drop", ([0], [3])), Call("leaders")])) is None
    assert unpacked(worker.answer(packed([Call("describe")])))[0] == 40  # needs no scores
    worker.answer(OPEN)
    assert unpacked(worker.answer(REFRESH)).rows[0] >= 0


@pytest.mark.parametrize("noise", [0.0, 10.0])
@pytest.mark.parametrize("count", [1, 2])
def test_scores_lost_at_any_message_change_no_pick(noise, count):
    """Each run loses the scores of the second part at another message."""
    rng = np.random.default_rng(1)
    rows, targets = rng.standard_normal((300, 12)), rng.standard_normal((count, 12))
    expected = [one.indices.tolist() for one in select(rows, targets, 10, SBQ(noise))]

    class Losing(LocalTransport):
        asked, lose_at = 0, 0

        def ask(self, name, *args, **options):
            self.asked += 1
            if self.asked == self.lose_at:
                self.parts[1].scores = None
            return super().ask(name, *args, **options)

    lost = 0
    for moment in range(2, 40):
        transport = Losing([Part(part) for part in as_parts(rows)])
        transport.lose_at = moment
        sharded = ShardedRows(transport)
        found = select(sharded, targets[0] if count == 1 else targets, 10, SBQ(noise))
        found = [found] if count == 1 else found
        assert [one.indices.tolist() for one in found] == expected, moment
        lost += transport.asked >= moment
    assert lost > 5


def as_parts(rows):
    from exempla.selection.select import wrap

    return [wrap(rows[:130]), wrap(rows[130:])]


def test_scores_that_were_never_opened_are_not_made_up():
    part = Part(as_parts(np.eye(300, 12))[0])
    with pytest.raises(StateLostError):
        part.answer([Call("leaders")])


class OneProcessRay:
    """Actors in this process; the one that gets message number `kill_at` dies before it answers."""

    def __init__(self, kill_at):
        self.kill_at, self.sent, self.stored = kill_at, 0, 0

    def remote(self, cls):
        return SimpleNamespace(
            options=lambda **_: SimpleNamespace(remote=partial(_Actor, self, cls))
        )

    def put(self, thing):
        self.stored += 1
        return SimpleNamespace(stored=thing)

    def get(self, ref, timeout=None):
        return ref()


class _Actor:
    def __init__(self, ray, cls, *args):
        self.ray, self.restart, self.worker = ray, lambda: cls(*args), cls(*args)
        self.answer = SimpleNamespace(remote=self._answer)
        self.__ray_ready__ = SimpleNamespace(remote=lambda: lambda: True)

    def _answer(self, message):
        self.ray.sent += 1
        if self.ray.sent == self.ray.kill_at:
            self.worker = self.restart()
            return self._lost
        found = self.worker.answer(getattr(message, "stored", message))
        return lambda: found

    def _lost(self):
        raise pytest.importorskip("ray").exceptions.RayActorError


@pytest.mark.parametrize("noise", [0.0, 10.0])
def test_an_actor_that_dies_at_any_message_changes_no_pick(share, noise, monkeypatch):
    monkeypatch.setattr("exempla.distributed.ray_backend._MAX_INLINE_BYTES", 300)
    rows, target = share[:], np.random.default_rng(2).standard_normal(6)
    expected = select(rows, target, 6, SBQ(noise)).indices
    halves, restarts, stored = [share.part(0, 17), share.part(17, 40)], 0, 0
    for kill_at in range(1, 40):
        ray = OneProcessRay(kill_at)
        transport = RayTransport(ray, halves, 1.0, OnRay())
        found = select(ShardedRows(transport), target, 6, SBQ(noise))
        assert np.array_equal(found.indices, expected), kill_at
        restarts, stored = restarts + transport.traffic.restarts, stored + ray.stored
    assert restarts > 10
    assert stored > 10


def test_a_missing_file_is_named_with_its_machine(share):
    share.shards[1].path.unlink()
    with pytest.raises(ExemplaError, match=r"rows-1.npy does not exist on .* every machine"):
        Worker(share).answer(packed([Call("describe")]))
