"""`python -m experiments`, behind `exempla reproduce`: what is run, skipped and said."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path

import pytest

from experiments.__main__ import main
from experiments.catalogue import EXPERIMENTS

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

    for name in EXPERIMENTS:
        monkeypatch.setitem(sys.modules, f"experiments.{name}", stub(name))
    monkeypatch.delenv("EXEMPLA_DATA", raising=False)
    return calls


@pytest.fixture
def data(tmp_path):
    """A folder with every file that an experiment needs, all empty."""
    for experiment in EXPERIMENTS.values():
        for need in experiment.needs:
            (tmp_path / "data" / need).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "data" / need).touch()
    return tmp_path / "data"


def test_every_experiment_exists_and_is_listed(capsys):
    assert run("list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)
    assert all(len(line.split()) > 3 for line in lines)
    for name in EXPERIMENTS:
        source = (ROOT / "experiments" / f"{name}.py").read_text()
        assert "def run(" in source or " as run" in source, name


def test_all_skips_what_has_no_data(stubs, tmp_path, capsys):
    assert run("all", "--fast", "--out", tmp_path, "--json") == 0
    said = capsys.readouterr()
    outcome = {o["name"]: o for o in json.loads(said.out)["experiments"]}
    assert list(outcome) == list(EXPERIMENTS)
    for name, experiment in EXPERIMENTS.items():
        assert outcome[name]["status"] == ("skipped" if experiment.needs else "done")
    assert "EXEMPLA_DATA" in outcome["enron"]["reason"]
    assert (tmp_path / "toy" / "toy.md").read_text() == "a page"
    assert all(fast for _, fast, _ in stubs)
    assert "toy talks" in said.err


def test_a_failure_does_not_stop_the_others(stubs, data, tmp_path, capsys):
    assert run("attack", "toy", "enron", "--data", data, "--out", tmp_path / "o") == 2
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
    assert run("covtype", "--out", tmp_path / "o", "--quiet") == 0
    assert stubs == [("covtype", False, data)]
    assert capsys.readouterr().out == ""


def test_what_is_missing_is_said_in_one_sentence(stubs, data, tmp_path, monkeypatch, capsys):
    (data / "covtype" / "covtype.npz").unlink()
    monkeypatch.chdir(tmp_path)
    assert run("covtype", "--data", data) == 2
    error = capsys.readouterr().err
    assert error.startswith("exempla: error: covtype cannot run: ")
    assert "covtype/covtype.npz" in error
    assert run("toy", "--data", tmp_path / "nowhere") == 2
    assert "is not there" in capsys.readouterr().err
    assert not stubs
