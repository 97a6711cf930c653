"""A class of one or two rows stops no command; where it truly must, one sentence says so."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
from PIL import Image
from sklearn.linear_model import LogisticRegression

from exempla import fix_labels
from exempla.cli.main import main

COMMANDS = ["explain", "fix-labels", "clean", "summarize", "attack", "embed"]


def write_rows(path, **counts: int) -> None:
    rng = np.random.default_rng(0)
    y = [name for name, count in counts.items() for _ in range(count)]
    centre = np.unique(y, return_inverse=True)[1][:, None]
    frame = pd.DataFrame(rng.normal(centre, 1.5, (len(y), 3)).round(3), columns=["a", "b", "c"])
    frame.assign(y=y).to_csv(path, index=False)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("counts", [{"p": 40, "q": 30, "once": 1}, {"p": 40, "once": 1}])
def test_a_class_of_one_row(command, counts, tmp_path, capsys):
    write_rows(tmp_path / "a.csv", **counts)
    few = ["-k", "3"] if command not in ("attack", "embed") else []
    words = [command, str(tmp_path / "a.csv"), "--label", "y", "--out", str(tmp_path / "out")]
    code = main([*words, *few])
    said = capsys.readouterr()
    if command == "clean" and len(counts) == 2:  # one class alone is never predicted wrongly
        assert "no error on the test rows: there is nothing to clean" in said.err
        return
    assert code == 0
    if command not in ("fix-labels", "embed"):  # which have no test rows
        assert "1 class(es) have too few rows to be tested and stay in training: 'once'" in said.out
    assert (tmp_path / "out" / "explanation.json").exists()


def test_a_class_of_one_image(tmp_path, capsys):
    rng = np.random.default_rng(0)
    for name, count, level in (("dark", 20, 60), ("light", 20, 190), ("once", 1, 128)):
        (tmp_path / "pictures" / name).mkdir(parents=True)
        for i in range(count):
            pixels = np.clip(rng.normal(level, 60, (6, 6)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / name / f"{i}.png")
    words = ["explain", str(tmp_path / "pictures"), "-k", "3", "--ask", "all"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 0
    assert "too few rows to be tested and stay in training: 'once'" in capsys.readouterr().out
    found = json.loads((tmp_path / "out" / "explanation.json").read_text())
    assert 40 not in found["questioned"], "row 40 is the only one of its class"


def test_images_of_a_test_folder_are_made_like_those_of_training(tmp_path, capsys):
    rng = np.random.default_rng(0)

    def folder(name: str, *labels: str, mode: str, size: int) -> None:
        for label in labels:
            (tmp_path / name / label).mkdir(parents=True)
            for i in range(12):
                pixels = rng.integers(0, 256, (size, size), dtype=np.uint8)
                image = Image.fromarray(pixels).convert(mode)
                image.save(tmp_path / name / label / f"{i}.png")

    folder("grey", "a", "b", mode="L", size=6)
    folder("colours", "a", "b", "new", mode="RGB", size=9)
    for train, test in (("grey", "colours"), ("colours", "grey")):
        words = ["explain", str(tmp_path / train), "--test", str(tmp_path / test), "-k", "2"]
        assert main([*words, "--ask", "all", "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert (
        "12 row(s) of colours have labels that do not occur in training ('new'): left out." in said
    )


def test_what_truly_cannot_be_done_is_one_sentence(tmp_path, capsys):
    (tmp_path / "a.csv").write_text(
        "a,b,c,y\n-0.279,0.281,1.282,p\n0.282,0.806,-1.226,p\n-0.023,0.124,0.862,p\n"
        "1.116,1.804,0.496,q\n1.358,1.415,-0.25,q\n1.176,0.68,-0.904,q\n"
    )
    words = ["clean", str(tmp_path / "a.csv"), "--label", "y", "--quiet", "-k", "50"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    said = capsys.readouterr().err
    assert "is left to train on; choose a smaller -k" in said
    # a fold that leaves one class is judged by the classes' shares: listed, and sure of nothing
    rows = (np.arange(3.0)[:, None], list("aab"))
    fixes = fix_labels(LogisticRegression(), rows, progress=False)
    assert len(fixes) == 3
    assert np.isfinite(fixes.probabilities).all()
