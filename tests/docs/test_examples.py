"""The example scripts run from top to bottom and write what their docstrings promise."""

from __future__ import annotations

import ast
import runpy
import sys
from pathlib import Path

import pandas as pd
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("0*.py"))


def run(name: str, out: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    path = EXAMPLES / name
    monkeypatch.setattr(sys, "argv", [str(path), str(out)])
    return runpy.run_path(str(path), run_name="__main__")


def test_there_are_five():
    assert [path.name[:2] for path in SCRIPTS] == ["01", "02", "03", "04", "05"]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_the_docstring_is_the_run_book(path):
    book = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    assert f"python examples/{path.name}" in book
    for part in ("It takes:", "It writes:", "It shows:"):
        assert part in book


def test_explain_errors(tmp_path, monkeypatch, capsys):
    space = run("01_explain_errors.py", tmp_path, monkeypatch)
    assert (tmp_path / "report.html").stat().st_size > 10_000
    rows = pd.read_csv(tmp_path / "answer.csv")
    assert rows["index"].tolist() == space["answer"].indices.tolist()  # pyright: ignore
    assert "selected removed" in capsys.readouterr().out


def test_fix_labels(tmp_path, monkeypatch, capsys):
    space = run("02_fix_labels.py", tmp_path, monkeypatch)
    assert len(pd.read_csv(tmp_path / "suspects.csv")) == 60
    assert space["found"][:30].sum() >= 20  # pyright: ignore[reportIndexIssue]
    assert "accuracy on other rows, labels mended" in capsys.readouterr().out


def test_summarize(tmp_path, monkeypatch):
    space = run("03_summarize.py", tmp_path, monkeypatch)
    assert pd.read_csv(tmp_path / "summary.csv").columns.tolist() == ["row", "weight"]
    likelihood = space["log_likelihood"]
    by_chance = sum(space["chance"]) / 10  # pyright: ignore
    assert likelihood(space["small"]) > by_chance  # pyright: ignore


def test_torch_cnn(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    space = run("04_torch_cnn.py", tmp_path, monkeypatch)
    assert (tmp_path / "cnn.png").stat().st_size > 5000
    assert (space["answer"].alignment < 0).all()  # pyright: ignore
    assert "The last layer alone names" in capsys.readouterr().out


def test_trees(tmp_path, monkeypatch, capsys):
    space = run("05_trees.py", tmp_path, monkeypatch)
    assert len(pd.read_csv(tmp_path / "answer.csv")) == 40
    assert space["share"] > 0.5  # pyright: ignore[reportOperatorIssue]
    checked = space["checked"]
    better = checked.mean("queried", "selected removed", "log_likelihood")  # pyright: ignore
    assert better > checked.mean("queried", "random removed", "log_likelihood")  # pyright: ignore
    assert "wrong labels" in capsys.readouterr().out
