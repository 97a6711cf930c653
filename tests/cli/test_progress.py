"""A command shows one overall progress: its stages, the running step and the time left."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest

from exempla import progress
from exempla.selection import engine
from tests.cli.case import run


@pytest.fixture
def told(monkeypatch, capsys):
    """Return the steps printed on standard error, with nothing too quick to be printed."""
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0)
    monkeypatch.setattr(engine, "_MIN_PROGRESS_WORK", 0)

    def steps() -> set[str]:
        lines = capsys.readouterr().err.splitlines()
        found = [re.match(r"exempla: (.+): (?:(\d+)%, about|\d+ s so far)", line) for line in lines]
        shown = [line for line in found if line]
        shares = [int(line[2]) for line in shown if line[2]]
        assert shares == sorted(shares), "the overall share never falls"
        return {line[1] for line in shown}

    return steps


def table(folder) -> str:
    rng = np.random.default_rng(0)
    X = rng.normal(size=(120, 3))
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["y"] = np.where(X[:, 0] + rng.normal(size=120) > 0, "yes", "no")
    frame.to_csv(folder / "a.csv", index=False)
    return str(folder / "a.csv")


COMPARED = {
    "cross-validating logistic regression",
    "cross-validating histogram gradient boosting",
}


@pytest.mark.parametrize(
    ("command", "steps"),
    [
        ("explain", {"scoring the training set", "picking", *COMPARED}),
        ("clean", {"scoring the training set", *COMPARED}),
        ("embed", {"scoring the training set", *COMPARED}),
        ("attack", {"cross-validating the model"}),
    ],
)
def test_long_steps_are_told(command, steps, told, tmp_path):
    words = (command, table(tmp_path), "--label", "y", "--out", tmp_path / "out")
    assert run(*words) == 0
    assert told() >= {"tuning regularisation"} | steps
    assert run(*words, "--quiet") == 0
    assert told() == set()
