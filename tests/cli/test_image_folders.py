"""Folders of images through every command: labels stay the names of the folders."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from exempla.cli.main import main
from exempla.tables import read_table

EACH = 24


def write_digits(root: Path, names: list[str], wrong: int = 0, extra: int = 0) -> set[str]:
    """Digit c in folder names[c]; the first `wrong` of each stand in the next class's folder."""
    digits, planted = load_digits(), set()
    for code, name in enumerate(names):
        for number, image in enumerate(digits.images[digits.target == code][: EACH + extra]):
            folder = names[(code + 1) % len(names)] if number < wrong else name
            file = f"{folder}/{name}-{number}.png"
            (root / folder).mkdir(parents=True, exist_ok=True)
            Image.fromarray((image * 15.9).astype(np.uint8)).save(root / file)
            planted |= {file} if number < wrong else set()
    return planted


def run(*words: object) -> int:
    return main([str(word) for word in words])


def folders_of(root: Path, rows: list[int]) -> list[str]:
    files = read_table(root).strings("file")
    return [str(files[row]).split("/")[0] for row in rows]


@pytest.mark.parametrize("names", [["dog", "cat"], ["10", "1", "0"]])
def test_fix_labels_speaks_the_names_of_the_folders(names, tmp_path):
    root, out = tmp_path / "pictures", tmp_path / "out"
    planted = write_digits(root, names, wrong=3)
    assert run("fix-labels", root, "--quiet", "--out", out) == 0
    cards = [json.loads(line) for line in (out / "suspects.jsonl").read_text().splitlines()]
    assert [card["given"] for card in cards] == folders_of(root, [card["row"] for card in cards])
    assert all(card["suggested"] in names and card["suggested"] != card["given"] for card in cards)
    for card in cards:
        accusers = [row["row"] for row in card["contradicting"]]
        labels = [row["label"] for row in card["contradicting"]]
        assert labels == folders_of(root, accusers)
        assert card["given"] not in labels
    table = pd.read_csv(out / "explanation.csv", dtype=str)
    result = json.loads((out / "explanation.json").read_text())
    truth = folders_of(root, result["indices"])
    assert table["given"].tolist() == table["label"].tolist() == result["given"] == truth
    assert set(table["suggested"]) | set(result["suggested"]) <= set(names)
    files = read_table(root).strings("file")
    found = [files[row] in planted for row in result["indices"][: len(planted)]]
    assert np.mean(found) > 0.5, "the misplaced images lead the list"
    # What the model says they are is where they came from.
    right = [
        card["suggested"] == str(files[card["row"]]).split("/")[1].split("-")[0]
        for card in cards[: len(planted)]
        if files[card["row"]] in planted
    ]
    assert np.mean(right) > 0.8


def test_curated_images_are_named_too(tmp_path):
    names = ["1", "0"]
    write_digits(tmp_path / "data", names, wrong=3)
    write_digits(tmp_path / "good", names)
    out = tmp_path / "out"
    words = ("--curated", tmp_path / "good", "-k", 8, "--quiet", "--out", out)
    assert run("fix-labels", tmp_path / "data", *words) == 0
    cards = [json.loads(line) for line in (out / "suspects.jsonl").read_text().splitlines()]
    assert [c["given"] for c in cards] == folders_of(tmp_path / "data", [c["row"] for c in cards])
    accusers = [row for card in cards for row in card["contradicting"]]
    assert accusers
    assert {row["source"] for row in accusers} == {"curated"}
    assert [a["label"] for a in accusers] == folders_of(
        tmp_path / "good", [a["row"] for a in accusers]
    )


@pytest.mark.parametrize(
    ("command", "more"),
    [
        ("explain", ["--ask", "all", "--side", "both", "-k", "5"]),
        ("summarize", ["-k", "6"]),
        ("clean", ["-k", "4"]),
        ("attack", ["--points", "1"]),
        ("embed", []),
    ],
)
def test_every_table_has_the_names_of_the_folders(command, more, tmp_path):
    root, out = tmp_path / "pictures", tmp_path / "out"
    write_digits(root, ["0", "1", "10"], wrong=4)
    assert run(command, root, "--quiet", "--out", out, *more) == 0
    table = pd.read_csv(out / "explanation.csv", dtype={"label": str})
    assert len(table) > 0
    assert table["label"].tolist() == folders_of(root, table["index"].tolist())
    if command == "summarize":
        rows = pd.read_csv(out / "summary.csv", dtype={"label": str})
        assert rows["label"].tolist() == folders_of(root, rows["row"].tolist())


def test_labels_of_an_npz_of_images_stay_what_they_are(tmp_path):
    digits = load_digits()
    some = np.flatnonzero(digits.target < 2)[:50]
    y = np.where(digits.target[some] == 0, 7, 3)
    np.savez(tmp_path / "d.npz", X=digits.images[some].astype(np.uint8) * 15, y=y)
    assert run("fix-labels", tmp_path / "d.npz", "--quiet", "--out", tmp_path / "out") == 0
    result = json.loads((tmp_path / "out" / "explanation.json").read_text())
    assert result["given"] == y[result["indices"]].tolist()
    assert set(result["suggested"]) <= {3, 7}


def test_pure_noise_is_not_predicted_by_models_that_have_not_seen_it(tmp_path, monkeypatch):
    from exempla.tasks.labels.crossfit import Learner

    rng = np.random.default_rng(0)
    for row in range(240):
        folder = tmp_path / "data" / ("left", "right")[rng.integers(2)]
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (8, 8), dtype=np.uint8)).save(folder / f"{row}.png")
    right: list[float] = []
    cross_fit = Learner.out_of_fold

    def watched_folds(self, problem, *more, **named):
        beliefs = cross_fit(self, problem, *more, **named)
        right.append(float(np.mean(beliefs[0].argmax(1) == problem.codes)))
        return beliefs

    monkeypatch.setattr(Learner, "out_of_fold", watched_folds)
    assert run("fix-labels", tmp_path / "data", "--quiet", "--out", tmp_path / "out") == 0
    assert right
    assert np.mean(right) < 0.62, "models that have seen the labels reach 0.7 and more"


def test_images_need_no_torch(tmp_path):
    root = tmp_path / "pictures"
    write_digits(root, ["dog", "cat"], wrong=3)
    words = ["explain", str(root), "--quiet", "--out", str(tmp_path / "out"), "--ask", "all"]
    # Not sys.modules["torch"] = None: SciPy reads attributes of whatever it finds there.
    code = (
        "import sys\n"
        "class NoTorch:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] == 'torch':\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, NoTorch())\n"
        "from exempla.cli.main import main\n"
        f"sys.exit(main({words!r}))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
