"""From a CSV with 5 % wrong labels to a corrected CSV, with nothing but the commands."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from exempla.cli.main import main
from tests.review.case import served, signed_in


def spoil(frame: pd.DataFrame, label: str, share: float = 0.05) -> tuple[pd.DataFrame, set[int]]:
    """Some rows, chosen by chance, get the other label."""
    rng = np.random.default_rng(1)
    wrong = np.sort(rng.choice(len(frame), round(share * len(frame)), replace=False))
    one, two = sorted(frame[label].unique())
    spoilt = frame.copy()
    spoilt.loc[wrong, label] = spoilt.loc[wrong, label].map({one: two, two: one})
    return spoilt, set(wrong.tolist())


def cells() -> pd.DataFrame:
    data = load_breast_cancer(as_frame=True)
    frame = data.frame.iloc[:, [0, 1, 4, 7, 20, 26]].copy()
    frame["diagnosis"] = np.where(data.target == 1, "benign", "malignant")
    return frame


def reviews() -> pd.DataFrame:
    rng = np.random.default_rng(0)
    common = ["the", "film", "was", "on", "a", "day", "with", "many", "people", "in", "town"]
    own = {
        "good": ["lovely", "bright", "moving", "funny", "warm"],
        "bad": ["dull", "tired", "weak", "empty", "slow"],
    }
    lines = []
    for i in range(300):
        label = ("good", "bad")[i % 2]
        words = [*rng.choice(common, 9), *rng.choice(own[label], 3)]
        lines.append((" ".join(rng.permutation(words)), label))
    return pd.DataFrame(lines, columns=["review", "verdict"])


def decide(address: str, wrong: set[int]) -> None:
    """Relabel the suspects that are wrong, keep the others: what a person who knows would do."""
    with signed_in(address) as page:
        listed = page.get("/api/review").json()
        version = 0
        for place, (row, _, given, suggested, *_) in enumerate(listed["suspects"]):
            assert given != suggested
            choice = (
                {"action": "relabel", "label": suggested} if row in wrong else {"action": "keep"}
            )
            body = {"row": row, "seen": 0, "once": f"journey-{place:04d}", **choice}
            answer = page.post("/api/decide", json=body)
            assert answer.status_code == 200, answer.text
            assert answer.json()["version"] > version
            version = answer.json()["version"]


def export(address: str) -> dict:
    with signed_in(address) as page:
        return page.post("/api/export", json={}).json()


def left_wrong(file: Path, truth: pd.DataFrame, label: str) -> int:
    corrected = pd.read_csv(file)
    pd.testing.assert_frame_equal(corrected.drop(columns=label), truth.drop(columns=label))
    return int((corrected[label] != truth[label]).sum())


def test_from_a_table_to_its_corrected_file(tmp_path, capsys):
    truth = cells()
    spoilt, wrong = spoil(truth, "diagnosis")
    source, out = tmp_path / "cells.csv", tmp_path / "out"
    spoilt.to_csv(source, index=False)
    assert main(["fix-labels", str(source), "--label", "diagnosis", "--out", str(out)]) == 0
    said = capsys.readouterr().out
    next_step = re.search(r"exempla review (\S+)", said)
    assert next_step, "the command says how to go on"
    assert next_step.group(1) == str(out)
    words = [sys.executable, "-m", "exempla.cli.main", "review", str(out), "--no-browser", "--json"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            decide(json.loads(server.stdout.readline())["address"], wrong)
        finally:
            server.kill()  # decisions are saved at once: nothing waits for a goodbye
    assert main(["review", str(out), "--export"]) == 0
    said = capsys.readouterr().out
    assert str(out / "corrected.csv") in said
    assert str(out / "patch.csv") in said
    assert left_wrong(out / "corrected.csv", truth, "diagnosis") <= len(wrong) // 4
    assert source.read_text() == spoilt.to_csv(index=False), "the input is never touched"


def test_from_texts_to_their_corrected_file_on_the_page(tmp_path):
    truth = reviews()
    spoilt, wrong = spoil(truth, "verdict")
    source, out = tmp_path / "reviews.csv", tmp_path / "out"
    spoilt.to_csv(source, index=False)
    words = ["fix-labels", str(source), "--label", "verdict", "--quiet", "--out", str(out)]
    assert main(words) == 0
    card = json.loads((out / "suspects.jsonl").read_text().splitlines()[0])
    assert card["content"]["words"], "the decisive words are marked"
    with served(out) as address:
        decide(address, wrong)
    with served(out) as address:
        answer = export(address)
    assert answer["problem"] is None
    assert answer["corrected"] == "corrected.csv"
    assert answer["changed"] == len(pd.read_csv(out / "patch.csv"))
    assert left_wrong(out / "corrected.csv", truth, "verdict") <= len(wrong) // 4


@pytest.mark.parametrize("answer", ["yes", "no"])
def test_header_can_be_said(answer, tmp_path, capsys):
    rows = "".join(f"{i % 7},{i % 3},{'ab'[i % 7 > 3]}\n" for i in range(60))
    (tmp_path / "numbers.csv").write_text(rows)
    label = "3" if answer == "no" else "a"
    words = ["explain", str(tmp_path / "numbers.csv"), "--label", label, "--header", answer]
    assert (
        main([*words, "-k", "3", "--ask", "all", "--side", "both", "--out", str(tmp_path / "out")])
        == 0
    )
    said = capsys.readouterr().out
    assert ("column_1" in said) == (answer == "no")
    assert json.loads((tmp_path / "out" / "explanation.json").read_text())["n_train"] <= 60 - 1


def test_no_row_on_the_side_asked_for_is_said(tmp_path, capsys):
    rows = "".join(f"{i % 7},{'ab'[i % 7 > 3]}\n" for i in range(60))
    (tmp_path / "easy.csv").write_text("size,y\n" + rows)
    words = ["explain", str(tmp_path / "easy.csv"), "--label", "y", "--ask", "all"]
    assert main([*words, "--side", "opponents", "--out", str(tmp_path)]) == 2
    assert "--side both" in capsys.readouterr().err


def test_clean_takes_numbers_too(tmp_path, capsys):
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 3))
    y = X @ [1.0, 2.0, -1.0] + 0.1 * rng.normal(size=200)
    y[:15] += 40  # wrong targets, all one way
    pd.DataFrame(X, columns=["a", "b", "c"]).assign(y=y).to_csv(tmp_path / "t.csv", index=False)
    words = ("--label", "y", "--task", "regression", "-k", "15", "--out", tmp_path / "out")
    assert main(["clean", *map(str, (tmp_path / "t.csv", *words))]) == 0
    assert "worst predictions; its R² on all test rows goes from" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "explanation.json").read_text())
    assert {"fixed_share", "r2_before", "r2_after"} <= found.keys()
    left = pd.read_csv(tmp_path / "out" / "cleaned.csv")
    assert len(left) == 185
