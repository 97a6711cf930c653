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


def test_a_folder_is_filled_with_figures(tmp_path, capsys):
    import numpy as np

    from benchmarks import speed
    from benchmarks.jobs import page

    picks = [
        {"t": 10, "p": 2, "k": 3, "loop": name, "threads": 1, "readings_a_pick": 0.5}
        for name in ("exempla", "plain")
    ]
    grown = [{"varied": "rows", "size": s, "seconds": s / 10, "exponent": 1.0} for s in (1, 2, 4)]
    fakes = {"a_pick": picks, "whole_calls": [{"call": "one", "seconds": 1.0}], "growth": grown}
    with pytest.MonkeyPatch.context() as patch:
        for name, rows in fakes.items():
            patch.setattr(speed, name, lambda *_, rows=rows: rows)
        patch.setattr(page, "measure_jobs", lambda *_: [])
        assert main(["--quick", "--out", str(tmp_path)]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "bench.html", "bench.json", "bench.svg", "bench_jobs.csv",
        "speed.csv", "speed.json", "speed.svg", "speed_growth.csv", "speed_whole.csv",
    ]  # fmt: skip
    assert json.loads((tmp_path / "speed.json").read_text())["growth"] == grown
    assert np.isfinite(speed.fastest({"nothing": lambda: None}, 1, lambda: 0.0)["nothing"])


def test_no_rounds_are_refused(capsys):
    assert main(["--rounds", "0"]) == 2
    assert "give at least 1" in capsys.readouterr().err
