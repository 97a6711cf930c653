"""`exempla reproduce` and `exempla bench`: what is run, what is skipped, what is said."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from exempla.cli.commands import reproduce
from exempla.cli.main import main
from exempla.cli.shared import checkout
from exempla.cli.shared.checkout import find_checkout
from exempla.errors import ExemplaError

ROOT = Path(__file__).parents[2]


def run(*words: object) -> int:
    return main([str(word) for word in words])


@pytest.fixture
def stubs(monkeypatch):
    """Every experiment replaced by one that writes its page at once; attack fails."""
    calls: list[tuple[str, bool, Path]] = []

    def stub(name: str) -> types.ModuleType:
        module = types.ModuleType(f"experiments.{name}")

        def work(out: Path, fast: bool, data: Path) -> Path:
            calls.append((name, fast, data))
            print(f"{name} talks")
            if name == "attack":
                raise RuntimeError("the network exploded")
            out.mkdir(parents=True)
            (out / f"{name}.md").write_text("a page")
            return out / f"{name}.md"

        module.run = work  # type: ignore[attr-defined]
        return module

    for name in reproduce.EXPERIMENTS:
        monkeypatch.setitem(sys.modules, f"experiments.{name}", stub(name))
    monkeypatch.delenv("EXEMPLA_DATA", raising=False)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return calls


@pytest.fixture
def data(tmp_path):
    """A folder with every file that an experiment needs, all empty."""
    for experiment in reproduce.EXPERIMENTS.values():
        for need in experiment.needs:
            (tmp_path / "data" / need).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "data" / need).touch()
    return tmp_path / "data"


def test_every_experiment_exists_and_is_listed(capsys):
    assert run("reproduce", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(reproduce.EXPERIMENTS)
    assert all(len(line.split()) > 3 for line in lines)
    for name in reproduce.EXPERIMENTS:
        source = (ROOT / "experiments" / f"{name}.py").read_text()
        assert "def run(" in source or " as run" in source, name


def test_all_skips_what_has_no_data(stubs, tmp_path, capsys):
    assert run("reproduce", "all", "--fast", "--out", tmp_path, "--json") == 0
    said = capsys.readouterr()
    outcome = {o["name"]: o for o in json.loads(said.out)["experiments"]}
    assert list(outcome) == list(reproduce.EXPERIMENTS)
    for name, experiment in reproduce.EXPERIMENTS.items():
        assert outcome[name]["status"] == ("skipped" if experiment.needs else "done")
    assert "EXEMPLA_DATA" in outcome["enron"]["reason"]
    assert (tmp_path / "toy" / "toy.md").read_text() == "a page"
    assert all(fast for _, fast, _ in stubs)
    assert "toy talks" in said.err


def test_a_failure_does_not_stop_the_others(stubs, data, tmp_path, capsys):
    assert run("reproduce", "attack", "toy", "enron", "--data", data, "--out", tmp_path / "o") == 2
    said = capsys.readouterr()
    table = said.out[said.out.index("experiment ") :].splitlines()
    assert [line.split()[:2] for line in table[1:4]] == [
        ["attack", "failed"], ["toy", "done"], ["enron", "done"],
    ]  # fmt: skip
    assert "the network exploded" in table[1]
    assert table[4].startswith("2 of 3 experiments done in ")
    assert [name for name, _, _ in stubs] == ["attack", "toy", "enron"]
    assert stubs[0][2] == data


def test_data_may_come_from_the_environment(stubs, data, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("EXEMPLA_DATA", str(data))
    assert run("reproduce", "covtype", "--out", tmp_path / "o", "--quiet") == 0
    assert stubs == [("covtype", False, data)]
    assert capsys.readouterr().out == ""


def test_what_is_missing_is_said_in_one_sentence(stubs, data, tmp_path, monkeypatch, capsys):
    (data / "covtype" / "covtype.npz").unlink()
    monkeypatch.chdir(tmp_path)
    assert run("reproduce", "covtype", "--data", data) == 2
    error = capsys.readouterr().err
    assert error.startswith("exempla: error: covtype cannot run: ")
    assert "covtype/covtype.npz" in error
    assert run("reproduce", "toy", "--data", tmp_path / "nowhere") == 2
    assert "is not there" in capsys.readouterr().err
    assert not stubs


@pytest.mark.parametrize("command", [["reproduce", "toy"], ["bench"]])
def test_without_a_checkout_one_sentence_says_so(command, tmp_path, monkeypatch, capsys):
    fake = types.SimpleNamespace(__file__=str(tmp_path / "lib" / "site" / "exempla" / "x.py"))
    monkeypatch.setattr(checkout, "exempla", fake)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "experiments").mkdir()  # somebody else's
    assert run(*command) == 2
    error = capsys.readouterr().err
    assert "inside a checkout of the repository" in error
    assert error.count("\n") == 1


def test_checkout_is_found_from_an_editable_install_or_the_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert find_checkout("experiments", [tmp_path, ROOT]) == ROOT
    assert str(ROOT) in sys.path
    with pytest.raises(ExemplaError, match="no-such-folder"):
        find_checkout("no-such-folder", [ROOT])


def test_bench_passes_on_what_it_measures(tmp_path, monkeypatch, capsys):
    (tmp_path / "benchmarks").mkdir()
    (tmp_path / "src" / "exempla").mkdir(parents=True)
    (tmp_path / "benchmarks" / "selection.py").write_text("import sys; print(sys.argv[1:])\n")
    fake = types.SimpleNamespace(__file__=str(tmp_path / "src" / "exempla" / "__init__.py"))
    monkeypatch.setattr(checkout, "exempla", fake)
    monkeypatch.setattr(sys, "path", list(sys.path))
    assert run("bench", "--quick", "--rounds", 2, "--json") == 0
    assert json.loads(capsys.readouterr().out)["lines"] == ["['--rounds', '2', '--quick']"]
    (tmp_path / "benchmarks" / "selection.py").write_text("raise SystemExit(3)\n")
    assert run("bench", "--quiet") == 2
    assert run("bench", "--rounds", 0) == 2


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
    assert len(found["rows"]) == 3
    assert not set(found["rows"]) & set(found["target"])
    assert found["expected"] < 0
    assert found["flipped"] >= found["flipped_by_chance"]
    table = pd.read_csv(tmp_path / "explanation.csv")
    assert table["label"].tolist() == frame["diagnosis"].iloc[table["index"]].tolist()
    assert set(table["index"][:3]) == set(found["rows"]), "those with the most reach are moved"
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
    assert "200 rows are now vectors" in capsys.readouterr().out
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
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    cosines = unit[0] @ unit.T
    nearest = np.argsort(-cosines)[1]
    first = (tmp_path / "report.html").read_text().split("<article")[1]
    assert "#0<" in first
    assert f"#{nearest}<" in first
    assert f"cosine {cosines[nearest]:+.2f}" in first
