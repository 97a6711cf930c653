"""`answer.log()` goes to the active MLflow and W&B runs, or to files."""

from __future__ import annotations

import json
import sys
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from exempla.results import Selection


@pytest.fixture
def answer() -> Selection:
    from exempla import SBQ, select

    rows = np.random.default_rng(0).standard_normal((40, 5))
    return select(rows, rows[:4].mean(0), 3, SBQ(1.0))


class Recorder:
    """A module that records its calls."""

    def __init__(self, **attributes: object) -> None:
        self.calls: list[tuple] = []
        self.__dict__.update(attributes)

    def __getattr__(self, name: str):
        return lambda *args, **options: self.calls.append((name, *args, *options.values()))


def test_without_a_run_files_are_written(answer, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "mlflow", Recorder(active_run=lambda: None))  # pyright: ignore
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))  # pyright: ignore
    places = answer.log(tmp_path / "log")
    assert [place.rsplit("/", 1)[1] for place in places] == [
        "answer.json", "answer.csv", "finding.txt",
    ]  # fmt: skip
    stored = json.loads((tmp_path / "log" / "answer.json").read_text())
    assert stored["indices"] == answer.indices.tolist()
    assert len(pd.read_csv(tmp_path / "log" / "answer.csv")) == 3
    assert (tmp_path / "log" / "finding.txt").read_text().strip() == answer.finding


def test_an_active_run_gets_the_answer(answer, tmp_path, monkeypatch):
    run = SimpleNamespace(info=SimpleNamespace(run_id="abc"))
    mlflow = Recorder(active_run=lambda: run)
    logged: list[dict] = []
    wandb = SimpleNamespace(
        run=SimpleNamespace(id="xyz", log=logged.append), Table=lambda dataframe: dataframe
    )
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)  # pyright: ignore
    monkeypatch.setitem(sys.modules, "wandb", wandb)  # pyright: ignore
    assert answer.log(tmp_path / "log") == ["MLflow run abc", "W&B run xyz"]
    assert not (tmp_path / "log").exists()
    calls = {call[0]: call[1:] for call in mlflow.calls}
    assert calls["log_metrics"][0]["exempla.explained"] == pytest.approx(answer.explained)
    assert calls["log_dict"][0]["indices"] == answer.indices.tolist()
    assert len(logged[0]["exempla.rows"]) == 3
    assert logged[0]["exempla.finding"] == answer.finding


def test_the_real_mlflow_takes_it(answer, tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"file:{tmp_path / 'runs'}")
    with mlflow.start_run() as run:
        assert answer.log() == [f"MLflow run {run.info.run_id}"]
    kept = mlflow.get_run(run.info.run_id).data.metrics
    assert kept["exempla.explained"] == pytest.approx(answer.explained)
