"""A worker by itself: what it answers when it has lost its scores, or its files."""

from __future__ import annotations

import numpy as np
import pytest

from exempla import SBQ, select
from exempla.distributed import in_files
from exempla.distributed.ray_backend import Worker
from exempla.errors import ExemplaError
from exempla.selection.rows import Rule, StateLostError
from exempla.selection.shards import (
    Call,
    LocalTransport,
    Part,
    Parts,
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
    assert unpacked(worker.answer(packed([Call("describe")])))[0][0] == 40  # needs no scores
    worker.answer(OPEN)
    assert unpacked(worker.answer(REFRESH))[0].rows[0] >= 0


@pytest.mark.parametrize("noise", [0.0, 10.0])
@pytest.mark.parametrize("count", [1, 2])
def test_scores_lost_at_any_message_change_no_pick(noise, count):
    """Each run loses the scores of the second part at another message."""
    rng = np.random.default_rng(1)
    rows, targets = rng.standard_normal((300, 12)), rng.standard_normal((count, 12))
    expected = [one.indices.tolist() for one in select(rows, targets, 10, SBQ(noise))]

    class Losing(LocalTransport):
        asked, lose_at = 0, 0

        def ask(self, call, *, of=None):
            self.asked += 1
            if self.asked == self.lose_at:
                self.parts.parts[1].scores = None
            return super().ask(call, of=of)

    lost = 0
    for moment in range(2, 40):
        parts = Parts([Part(select_rows) for select_rows in as_parts(rows)])
        transport = Losing(parts)
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
        part.call("leaders")


def test_a_missing_file_is_named_with_its_machine(share):
    share.shards[1].path.unlink()
    with pytest.raises(ExemplaError, match=r"rows-1.npy does not exist on .* every machine"):
        Worker(share).answer(packed([Call("describe")]))
