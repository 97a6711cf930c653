"""Whole jobs beside peers: every contestant does its job, and the page says what was found."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.jobs import measure, page
from benchmarks.jobs.alone import alone
from benchmarks.jobs.contests import JOBS, MISSING
from benchmarks.peers import environments

OURS = [(j.name, c.name) for j in JOBS for c in j.contestants if c.library is None]


@pytest.mark.parametrize(("job", "who"), OURS)
@pytest.mark.filterwarnings("ignore")
def test_every_contestant_that_needs_no_environment_does_its_job(job: str, who: str) -> None:
    found = alone(job, who, quick=True)
    assert found["seconds"] > 0
    plain = who.startswith("plain")  # these loops return nothing to be judged
    assert np.isnan(found["quality"]) == plain
    least = {"selection": 0.5, "influence": 0.9, "labels": 0.6, "summary": -1.0}[job]
    assert plain or least < found["quality"] <= 1 + 1e-9


def test_peers_named_in_a_contest_have_environments() -> None:
    named = {c.library for j in JOBS for c in j.contestants if c.library is not None}
    assert named == {"kronfluence", "traker", "cleanlab"} == set(environments.SHARED)
    assert named <= set(environments.PEERS | environments.LABEL_PEERS)
    assert all(j.contestants[0].name == "exempla" for j in JOBS)


def fake(seconds: dict[str, list[float]]) -> Any:
    def run(job: Any, contestant: Any, envs: Path, quick: bool) -> dict[str, Any]:
        left = seconds[contestant.name]
        if not left:
            raise RuntimeError("No matching distribution found for <it>")
        return {"seconds": left.pop(0), "bytes": 2**20, "quality": 0.5}

    return run


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    job = replace(JOBS[2], contestants=JOBS[2].contestants)
    monkeypatch.setattr(measure, "JOBS", (job,))
    monkeypatch.setattr(measure, "run", fake({"exempla": [3.0, 2.0], "cleanlab": []}))
    return measure.measure(Path("nowhere"), rounds=2, quick=True)


def test_the_fastest_round_counts_and_who_cannot_run_is_named(
    rows: list[dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    ours, theirs = rows
    assert (ours["seconds"], ours["times"], ours["mib"]) == (2.0, 1.0, 1.0)
    assert theirs["problem"] == "No matching distribution found for <it>"
    assert "seconds" not in theirs


def test_ratios_are_to_exempla_in_the_same_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "JOBS", (JOBS[2],))
    monkeypatch.setattr(measure, "run", fake({"exempla": [2.0], "cleanlab": [5.0]}))
    assert [row["times"] for row in measure.measure(Path(), rounds=1, quick=True)] == [1.0, 2.5]


def test_the_page_shows_everything(rows: list[dict[str, Any]], tmp_path: Path, monkeypatch) -> None:
    grown = {"growth": [{"varied": "targets", "exponent": 0.77}]}
    (tmp_path / "speed.json").write_text(json.dumps(grown))
    monkeypatch.setattr(page, "measure_jobs", lambda *_: rows)
    page.measure(tmp_path, tmp_path, rounds=7, quick=True)
    written = json.loads((tmp_path / "bench.json").read_text(encoding="utf-8"))
    assert written["jobs"] == rows
    assert written["growth"] == {"targets": 0.77}
    text = (tmp_path / "bench.html").read_text(encoding="utf-8")
    assert "does not run: No matching distribution found for &lt;it&gt;" in text
    assert "<svg" in text
    assert "<?xml" not in text
    assert "<td>targets</td><td>0.77</td>" in text
    assert all(name in text for name in MISSING)
    with (tmp_path / "bench_jobs.csv").open(newline="", encoding="utf-8") as file:
        assert [line["who"] for line in csv.DictReader(file)] == ["exempla", "cleanlab"]


def test_an_environment_sees_this_projects_packages(tmp_path: Path, monkeypatch) -> None:
    calls: list[list[str]] = []

    def call(command: list[str]) -> str:
        calls.append(command)
        if "venv" in command:
            version = f"python{environments.sys.version_info.major}"
            version += f".{environments.sys.version_info.minor}"
            (Path(command[-1]) / "lib" / version / "site-packages").mkdir(parents=True)
        return "said\n"

    monkeypatch.setattr(environments, "_call", call)
    python = environments.make_environment("cleanlab", tmp_path)
    assert python == tmp_path / "cleanlab" / "bin" / "python"
    (shared,) = tmp_path.rglob("shared.pth")
    assert Path(shared.read_text().strip()).is_dir()
    assert calls[1][-1] == "cleanlab==2.9.0"
    assert "second torch" in calls[2][-1]
    environments.make_environment("cleanlab", tmp_path)
    assert len(calls) == 3  # it is there
