"""`exempla acquire`: from errors to rows to label, and back with their labels."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from exempla.cli.main import main
from exempla.review import read_review
from exempla.review.log import DecisionLog, RowDecision


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


def test_rows_are_labelled_on_the_review_page(files, capsys):
    assert ask("pool.csv") == 0
    review = read_review("next")
    assert [s.given for s in review.suspects] == [""] * 6
    assert {s.suggested for s in review.suspects} <= {"yes", "no"}
    chosen = pd.read_csv("next/acquired.csv")["row"]
    truth = files["y"].to_numpy()[60:240][chosen]
    log = DecisionLog(Path("next/decisions.sqlite"), review.key)
    for place, label in enumerate(truth[:-1]):
        log.decide(RowDecision(place, "relabel", str(label)), seen=0, once=str(place))
    assert main(["review", "next", "--export", "--quiet"]) == 0
    assert ask("pool.csv", "--labels", "next/corrected.csv") == 2
    assert "1 of the 6 chosen rows have no label" in capsys.readouterr().err
    log.decide(RowDecision(5, "relabel", str(truth[-1])), seen=0, once="last")
    log.close()
    assert main(["review", "next", "--export", "--quiet"]) == 0
    assert ask("pool.csv", "--labels", "next/corrected.csv") == 0
    assert result()["verified"]["queried"]["before"] == 0.0


@pytest.mark.parametrize("kind", ["npz", "folder"])
def test_images_without_labels(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    X, y = load_digits(return_X_y=True)
    X, y = (X.reshape(-1, 8, 8) * 15).astype(np.uint8)[y < 3], y[y < 3]
    parts = {"train": slice(0, 30), "test": slice(30, 200), "pool": slice(200, 260)}
    for name, rows in parts.items():
        if kind == "npz":
            labels = {} if name == "pool" else {"y": y[rows]}
            np.savez(f"{name}.npz", X=X[rows], **labels)
            continue
        for place, (image, label) in enumerate(zip(X[rows], y[rows], strict=True)):
            folder = Path(name) if name == "pool" else Path(name, str(label))
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(folder / f"{place}.png")
    end = ".npz" if kind == "npz" else ""
    words = ["acquire", f"train{end}", f"pool{end}", "--test", f"test{end}", "-k", "4"]
    assert main([*words, "--ask", "all", "--out", "next", "--quiet"]) == 0
    assert len(pd.read_csv("next/acquired.csv")) == 4
    assert len(list(Path("next/images").iterdir())) == 4


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
