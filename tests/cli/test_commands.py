"""`attack` and `embed` on a file; the doors to a checkout, `reproduce` and `bench`."""

from __future__ import annotations

import json
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from exempla.cli.commands import installation
from exempla.cli.commands.installation import _find_checkout
from exempla.errors import ExemplaError
from tests.cli.case import CONTRACT, run

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("command", [["reproduce", "toy"], ["bench"]])
def test_without_a_checkout_one_sentence_says_so(command, tmp_path, monkeypatch, capsys):
    fake = types.SimpleNamespace(__file__=str(tmp_path / "lib" / "site" / "exempla" / "x.py"))
    monkeypatch.setattr(installation, "exempla", fake)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()  # somebody else's
    assert run(*command) == 2
    error = capsys.readouterr().err
    assert "inside a checkout of the repository" in error
    assert error.count("\n") == 1
    assert run(command[0], "--help") == 0
    assert "needs a checkout" in capsys.readouterr().out


def test_checkout_is_found_from_an_editable_install_or_the_folder(tmp_path):
    assert _find_checkout("experiments", [tmp_path, ROOT]) == ROOT
    with pytest.raises(ExemplaError, match="no-such-folder"):
        _find_checkout("no-such-folder", [ROOT])


def test_words_are_handed_to_the_checkout(tmp_path, monkeypatch, capfd):
    (tmp_path / "src" / "exempla").mkdir(parents=True)
    fake = types.SimpleNamespace(__file__=str(tmp_path / "src" / "exempla" / "__init__.py"))
    monkeypatch.setattr(installation, "exempla", fake)
    here = tmp_path / "here"
    (here / "benchmarks").mkdir(parents=True)
    (here / "benchmarks" / "__main__.py").write_text("raise SystemExit('not ours')")
    monkeypatch.chdir(here)
    for command, folder in (("bench", "benchmarks"), ("reproduce", "experiments")):
        (tmp_path / folder).mkdir()
        code = "import os, sys; print(sys.argv[1:], os.getcwd()); sys.exit(7)"
        (tmp_path / folder / "__main__.py").write_text(code)
        assert run(command, "--quick", "-k", 2, "all", "--help") == 7
        assert capfd.readouterr().out == f"['--quick', '-k', '2', 'all', '--help'] {here}\n"


def test_the_checkout_has_both_runners(capfd):
    assert run("reproduce", "list") == 0
    assert "enron" in capfd.readouterr().out
    assert run("bench", "--rounds", 0) == 2
    assert capfd.readouterr().err == (
        "exempla: error: --rounds 0 is not usable; give at least 1.\n"
    )


@pytest.fixture(scope="module")
def numbers(tmp_path_factory):
    data = load_breast_cancer(as_frame=True)
    frame = data.frame.iloc[:200, [0, 1, 4, 7, 20]].copy()
    frame["diagnosis"] = np.where(data.target[:200] == 1, "benign", "malignant")
    path = tmp_path_factory.mktemp("numbers") / "cells.csv"
    frame.to_csv(path, index=False)
    return path, frame


def test_attack_moves_rows_of_the_file(numbers, tmp_path, capsys):
    path, frame = numbers
    words = ("attack", path, "--label", "diagnosis", "--budget", 3, "--out", tmp_path)
    assert run(*words, "--points", 3) == 0
    assert "Rows moved: " in capsys.readouterr().out
    found = json.loads((tmp_path / "explanation.json").read_text())
    assert found.keys() >= CONTRACT
    assert len(found["rows"]) == 3
    assert sum(found["weights"]) == pytest.approx(found["expected"])
    assert not set(found["rows"]) & set(found["target"])
    assert found["expected"] < 0
    assert found["flipped"] >= found["flipped_by_chance"]
    table = pd.read_csv(tmp_path / "explanation.csv")
    assert table["label"].tolist() == frame["diagnosis"].iloc[table["index"]].tolist()
    assert table["index"][:3].tolist() == found["rows"], "those with the most reach are moved"
    assert found["indices"] == found["rows"]
    page = (tmp_path / "report.html").read_text()
    assert page.count("moved here") == 3
    assert all(f"#{row}<" in page for row in table["index"][:50])
    assert run(*words, "--quiet", "--fail-above", 1) == 0


def test_attack_refuses_what_cannot_be_moved(numbers, tmp_path, capsys):
    _, frame = numbers
    frame = frame.assign(ward=[("north", "south", "east")[i % 3] for i in range(len(frame))])
    frame.to_csv(tmp_path / "words.csv", index=False)
    words = ("attack", tmp_path / "words.csv", "--label", "diagnosis", "--out", tmp_path / "o")
    assert run(*words, "--quiet") == 2
    assert "--kind ward=ignored" in capsys.readouterr().err
    assert run(*words, "--quiet", "--kind", "ward=ignored") == 0


def test_embed_writes_the_vectors_behind_influence(numbers, tmp_path, capsys):
    path, frame = numbers
    assert run("embed", path, "--label", "diagnosis", "--out", tmp_path) == 0
    assert "Embedded 200 rows as vectors" in capsys.readouterr().out
    rows, manifest = (
        np.load(tmp_path / "rows.npy"),
        json.loads((tmp_path / "explanation.json").read_text()),
    )
    assert rows.shape == (manifest["rows"], manifest["dimensions"]) == (200, rows.shape[1])
    assert 1 <= rows.shape[1] <= 6, "five columns and an intercept"
    assert np.isfinite(rows).all()
    table = pd.read_csv(tmp_path / "explanation.csv")
    assert table["label"].tolist() == frame["diagnosis"].iloc[table["index"]].tolist()
    assert manifest["damping"] >= 0
    assert manifest.keys() >= CONTRACT
    assert manifest["indices"] == table["index"].tolist()
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit[0] @ unit.T
    nearest = np.argsort(-cosines)[1]
    first = (tmp_path / "report.html").read_text().split("<article")[1]
    assert "#0<" in first
    assert f"#{nearest}<" in first
    assert f"cosine {cosines[nearest]:+.2f}" in first
