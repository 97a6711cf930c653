"""`exempla acquire`: from errors to rows to label, and back with their labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from exempla.cli.main import main


@pytest.fixture
def files(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(420, 3)).round(3)
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    frame["y"] = np.where(X[:, 0] + X[:, 1] > 0, "yes", "no")
    frame[:60].to_csv(tmp_path / "train.csv", index=False)
    frame[60:240].drop(columns="y").to_csv(tmp_path / "pool.csv", index=False)
    frame[60:240].assign(price=1.0).to_csv(tmp_path / "labelled.csv", index=False)
    noisy = frame[240:].assign(y=np.where(X[240:, 0] + 1.5 * X[240:, 1] > 0, "yes", "no"))
    noisy.to_csv(tmp_path / "test.csv", index=False)
    monkeypatch.chdir(tmp_path)
    return frame


def result():
    return json.loads(Path("next/explanation.json").read_text())


def ask(*more):
    words = ["acquire", "train.csv", *more, "--test", "test.csv", "--label", "y", "-k", "6"]
    return main([*words, "--out", "next", "--quiet"])


def test_rows_to_label_and_back(files, capsys):
    assert ask("pool.csv") == 0
    chosen = pd.read_csv("next/acquired.csv")
    assert chosen["y"].isna().all()
    told = result()
    assert told["indices"] == chosen["row"].tolist()
    assert not told["labelled"]
    tasks = json.loads(Path("next/tasks.json").read_text())
    assert [task["data"]["row"] for task in tasks] == [str(row) for row in told["indices"]]
    assert "Rows to label" in Path("next/report.html").read_text()
    chosen["y"] = files["y"].to_numpy()[60:240][chosen["row"]]
    chosen.to_csv("filled.csv", index=False)
    assert ask("pool.csv", "--labels", "filled.csv") == 0
    verified = result()["verified"]
    assert verified["queried"]["before"] == 0.0
    assert set(verified["queried"]) == {"before", "with"}


def test_a_labelled_pool_is_data_selection(files):
    assert ask("labelled.csv", "--costs", "price") == 0
    told = result()
    assert told["labelled"]
    assert "Rows to add" in Path("next/report.html").read_text()


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("missing.csv",), "missing.csv"),
        (("labelled.csv", "--costs", "y"), "numbers"),
        (("pool.csv", "--labels", "pool.csv"), "row"),
    ],
)
def test_mistakes_are_one_sentence(files, capsys, more, message):
    assert ask(*more) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "Traceback" not in said
