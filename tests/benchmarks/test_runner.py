"""`python -m benchmarks`, behind `exempla bench`: what it says, and how."""

from __future__ import annotations

import json

import pytest

from benchmarks import selection
from benchmarks.__main__ import main


@pytest.fixture(autouse=True)
def measured(monkeypatch):
    def measure(rounds: int, quick: bool) -> None:
        print(f"{rounds} rounds, quick {quick}")

    monkeypatch.setattr(selection, "measure", measure)


def test_bench_says_what_it_measures(capsys):
    assert main(["--quick", "--rounds", "2"]) == 0
    assert capsys.readouterr().out == "2 rounds, quick True\n"
    assert main(["--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lines"] == ["7 rounds, quick False"]
    assert main(["--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_no_rounds_are_refused(capsys):
    assert main(["--rounds", "0"]) == 2
    assert "give at least 1" in capsys.readouterr().err
