"""Trees on the command line: a bare class of their library, and the file as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.case import CONTRACT, run
from tests.oracles.trees.cases import frame, needs

MODELS = [
    pytest.param("lightgbm:LGBMClassifier", marks=needs("lightgbm")),
    pytest.param("xgboost:XGBClassifier", marks=needs("xgboost")),
    pytest.param("catboost:CatBoostClassifier", marks=[needs("catboost"), pytest.mark.slow]),
    "sklearn.ensemble:HistGradientBoostingClassifier",
    "sklearn.ensemble:RandomForestClassifier",
]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Numbers with gaps, categories with gaps, and words for labels."""
    X, y = frame(300)
    X.assign(answer=y).to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def told(folder: Path) -> dict:
    return json.loads((folder / "explanation.json").read_text())


@pytest.mark.parametrize("model", MODELS)
def test_explain_takes_a_bare_class(model: str, table: Path, tmp_path: Path, capfd) -> None:
    words = (table, "--label", "answer", "--model", model, "--out", tmp_path / "out", "--quiet")
    assert run("explain", *words, "-k", 5) == 0
    assert set(told(tmp_path / "out")) >= CONTRACT
    assert capfd.readouterr().out == ""  # the library was kept quiet too


def test_attack_gives_wrong_labels(table: Path, tmp_path: Path, capsys) -> None:
    model = "sklearn.ensemble:HistGradientBoostingClassifier"
    words = (table, "--label", "answer", "--model", model, "--out", tmp_path / "out")
    assert run("attack", *words, "--points", 3) == 0
    assert "Wrong labels for 3 of" in capsys.readouterr().out
    assert len(told(tmp_path / "out")["rows"]) == 3
    assert "relabelled here" in (tmp_path / "out" / "report.html").read_text()


@pytest.mark.parametrize("library", ["lightgbm", "xgboost", "catboost"])
def test_a_library_that_is_missing_is_named(library: str, table: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("exempla.cli.fitted.find_spec", lambda name: None)
    monkeypatch.delitem(__import__("sys").modules, library, raising=False)
    assert run("explain", table, "--label", "answer", "--model", f"{library}:Any") == 2
    assert "pip install 'exempla[trees]'" in capsys.readouterr().err


def test_summarize_refuses_trees_by_name(table: Path, tmp_path: Path, capsys) -> None:
    model = "sklearn.ensemble:HistGradientBoostingClassifier"
    words = (table, "--label", "answer", "--model", model, "--out", tmp_path / "out", "--quiet")
    assert run("summarize", *words, "-k", 10) == 2
    assert "HistGradientBoostingClassifier cannot be summarised" in capsys.readouterr().err
