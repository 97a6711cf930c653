"""Replace one argument of a public call: a right answer or one of our errors, nothing else."""

from __future__ import annotations

import os

import numpy as np
import pytest

from tests.fuzz.corpus import CORPUS
from tests.fuzz.doors import DOORS, Case, cases, problem_of

SHARE = float(os.environ.get("EXEMPLA_FUZZ", "0.1"))
"""Share of all cases that is tried; `make fuzz` tries all."""
ALL = list(cases())


@pytest.mark.parametrize("door", DOORS)
def test_every_door_answers_or_refuses(door):
    mine = [case for case in ALL if case.door == door]
    count = max(5, round(SHARE * len(mine)))
    some = np.random.default_rng(len(mine)).permutation(len(mine))[:count]
    problems = {mine[i]: problem_of(mine[i]) for i in some}
    assert not {case: said for case, said in problems.items() if said}


@pytest.mark.parametrize("case", CORPUS, ids=lambda c: f"{c.door}-{c.argument}-{c.value}")
def test_what_failed_once_does_not_again(case: Case):
    assert problem_of(case) == ""
