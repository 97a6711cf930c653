"""Replace one argument of a public call: a right answer or one of our errors, nothing else."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.fuzz.cases import answer_of, cases, problem_of
from tests.fuzz.doors import DOORS

SHARE = float(os.environ.get("EXEMPLA_FUZZ", "0.04"))
"""Share of all cases that is tried; `make fuzz` tries all."""
ALL = list(cases())


@pytest.mark.parametrize("door", DOORS)
def test_the_plain_call_answers(door):
    call, arguments = DOORS[door]
    assert np.isfinite(answer_of(call(**arguments))).all()


@pytest.mark.parametrize("door", DOORS)
def test_every_door_answers_or_refuses(door, tmp_path, monkeypatch, record_property):
    monkeypatch.chdir(tmp_path)  # some name a folder to write to
    mine = [case for case in ALL if case.door == door]
    count = max(5, round(SHARE * len(mine)))
    some = np.random.default_rng(len(mine)).permutation(len(mine))[:count]
    record_property("API cases", len(some))
    problems = {mine[i]: problem_of(mine[i]) for i in some}
    assert not {case: said for case, said in problems.items() if said}
