"""A command shows one overall progress: its stages, the running step and the time left."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest

from exempla import progress
from exempla.cli import main as door
from exempla.cli.console import Console
from exempla.cli.main import main
from exempla.selection import engine
from tests.cli.case import pictures, run


@pytest.fixture
def told(monkeypatch, capsys):
    """Return the steps printed on standard error, with nothing too quick to be printed."""
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0)
    monkeypatch.setattr(engine, "_MIN_PROGRESS_WORK", 0)

    def steps() -> set[str]:
        lines = capsys.readouterr().err.splitlines()
        shares = [int(share) for share in re.findall(r"^exempla: (\d+) %", "\n".join(lines), re.M)]
        assert shares == sorted(shares), "the overall share never falls"
        return {found[1] for line in lines if (found := re.match(r"exempla: \d+ %, ([^,]+)", line))}

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


def test_networks_tell_their_training(told, tmp_path):
    pytest.importorskip("torch")
    pictures(tmp_path / "pictures", 20, side=8)
    assert run("attack", tmp_path / "pictures", "--out", tmp_path / "out") == 0
    assert told() >= {"cross-validating the model", "training the network"}


def test_the_time_told_begins_with_the_process(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(door, "_process_age", lambda: 100.0)
    monkeypatch.setattr(door.sys, "argv", ["exempla", "demo", "-k", "3", "--out", str(tmp_path)])
    assert main() == 0
    assert re.search(r"Done in 1\d\d s", capsys.readouterr().out)
    assert run("demo", "-k", 3, "--out", tmp_path) == 0
    assert re.search(r"Done in \d\d? s", capsys.readouterr().out)
    assert Console().seconds() < 10


def test_a_process_is_as_old_as_the_clock_says():
    code = (
        "import time; time.sleep(0.6); from exempla.cli.main import _process_age;"
        "print(_process_age())"
    )
    before = time.perf_counter()
    said = float(subprocess.run([sys.executable, "-c", code], capture_output=True).stdout)
    assert said < time.perf_counter() - before + 0.1
    if sys.platform == "linux":
        assert said > 0.5
