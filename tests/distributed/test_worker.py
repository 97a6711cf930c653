"""A worker by itself: what it does when it is asked twice, or has lost what it was told."""

from __future__ import annotations

import numpy as np
import pytest

from exempla.distributed import in_files
from exempla.distributed.ray_backend import Worker
from exempla.errors import ExemplaError
from exempla.selection.rows import Rule
from exempla.selection.shards import Call, Effect, packed, unpacked
from exempla.store import StoredRows


@pytest.fixture
def share(tmp_path) -> StoredRows:
    rows = np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32)
    return in_files(rows, tmp_path, 3)


OPEN = packed([Call("open_scores", (1.0, Rule.GAIN, 0, np.ones((1, 40), bool)))])
REFRESH = packed([Call("refresh", ([0], np.ones((1, 6))))])
LEADERS = packed([Call("leaders")])


def test_a_question_that_is_asked_twice_is_answered_once(share):
    worker = Worker(share)
    worker.answer(0, OPEN, Effect.BEGINS)
    step = packed([Call("update", (np.eye(6)[:1], np.ones(1)))])
    first = worker.answer(1, step, Effect.CHANGES)
    assert worker.answer(1, step, Effect.CHANGES) == first  # the answer was lost on its way
    assert worker.done == 2
    c = worker.parts.parts[0].scores.values(np.arange(3))[0]
    expected = -np.asarray(share[:3])[:, 0]  # taken once
    np.testing.assert_allclose(c, expected, rtol=1e-6)


def test_a_worker_that_lost_its_state_says_so_and_catches_up(share):
    messages = [OPEN, REFRESH]
    old, new = Worker(share), Worker(share)
    old.answer(0, OPEN, Effect.BEGINS)
    old.answer(1, REFRESH, Effect.CHANGES)
    assert new.answer(2, LEADERS, Effect.NONE) is None
    assert new.replay(messages)
    ahead, caught_up = (
        unpacked(w.answer(2, LEADERS, Effect.NONE))[0]
        for w in (old, new)  # type: ignore[arg-type]
    )
    assert ahead.scores == caught_up.scores
    assert ahead.rows == caught_up.rows


def test_what_was_shown_before_is_sent_again_after_a_loss(share):
    worker = Worker(share)
    messages = [OPEN, REFRESH, packed([Call("best", (5,))])]
    worker.replay(messages)
    shown = unpacked(worker.answer(3, REFRESH, Effect.CHANGES))[0][1]  # type: ignore[arg-type]
    assert len(shown.rows) == 5
    assert np.array_equal(shown.new, np.arange(5))  # all features, since nobody may have them
    again = unpacked(worker.answer(4, REFRESH, Effect.CHANGES))[0][1]  # type: ignore[arg-type]
    assert len(again.new) == 0


def test_a_new_race_forgets_the_old_one(share):
    worker = Worker(share)
    worker.replay([OPEN, REFRESH])
    assert worker.answer(0, OPEN, Effect.BEGINS) is not None
    assert worker.done == 1


def test_a_missing_file_is_named_with_its_machine(share):
    share.shards[1].path.unlink()
    with pytest.raises(ExemplaError, match=r"rows-1.npy does not exist on .* every machine"):
        Worker(share).answer(0, packed([Call("describe")]), Effect.NONE)
