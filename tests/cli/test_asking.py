"""--ask: any row of the file, one confusion, rows that contain a text, a file of new rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

import exempla
from tests.cli.case import pictures, run


@pytest.fixture(scope="module")
def cells(tmp_path_factory) -> Path:
    data = load_breast_cancer(as_frame=True)
    frame = data.frame.iloc[:240, [0, 1, 4, 7]].round(4)
    frame.insert(0, "note", [f"seen by doctor {i % 12} today in room {i}" for i in range(240)])
    frame["diagnosis"] = np.where(data.target[:240] == 1, "benign", "malignant")
    path = tmp_path_factory.mktemp("asking") / "cells.csv"
    frame.to_csv(path, index=False)
    return path


def asked(cells: Path, out: Path, *words: object) -> dict:
    done = run("explain", cells, "--label", "diagnosis", "--kind", "note=ignored", "-k", 4,
               "--quiet", "--out", out, *words)  # fmt: skip
    assert done == 0
    return json.loads((out / "explanation.json").read_text())


@pytest.mark.parametrize("row", [0, 17, 101, 239])
def test_any_row_is_held_out_and_explained(cells, tmp_path, row):
    found = asked(cells, tmp_path, "--ask", row)
    assert found["questioned"] == [row]
    assert row not in found["indices"]
    # the row itself is gone from the training; the share of test rows stays what it was
    assert found["n_train"] in (191, 192)


def test_several_rows_and_ranges(cells, tmp_path):
    assert asked(cells, tmp_path, "--ask", "5-7, 17")["questioned"] == [5, 6, 7, 17]


def test_rows_that_contain_a_text(cells, tmp_path):
    found = asked(cells, tmp_path, "--ask", "note contains DOCTOR 7")
    assert found["questioned"] == list(range(7, 240, 12))
    assert not set(found["indices"]) & set(found["questioned"])


def test_text_means_any_column_where_none_is_called_so(cells, tmp_path):
    found = asked(cells, tmp_path, "--ask", "text contains doctor 7")
    assert found["questioned"] == list(range(7, 240, 12))


@pytest.mark.parametrize("arrow", ["->", "→"])
def test_one_confusion(cells, tmp_path, arrow):
    words = ("explain", cells, "--label", "diagnosis", "--kind", "note=ignored", "--quiet")
    assert run(*words, "--out", tmp_path / "all") == 0
    whole = json.loads((tmp_path / "all" / "explanation.json").read_text())["questioned"]
    found = asked(cells, tmp_path / "one", "--ask", f"errors:malignant{arrow}benign")["questioned"]
    labels = pd.read_csv(cells)["diagnosis"]
    assert found
    assert found == [row for row in whole if labels[row] == "malignant"]


def test_a_file_of_new_rows(cells, tmp_path):
    new = tmp_path / "new.csv"
    pd.read_csv(cells).drop(columns="diagnosis").iloc[[3, 9]].to_csv(new, index=False)
    found = asked(cells, tmp_path / "out", "--ask", new)
    assert found["questioned"] == [0, 1]
    assert found["labels"] == "predicted"
    assert found["n_train"] == 240


def test_any_picture_of_a_folder(tmp_path):
    root = pictures(tmp_path / "pictures", each=12)
    out = tmp_path / "out"
    words = ("--ask", 13, "--side", "both", "-k", 3, "--quiet", "--out", out)
    assert run("explain", root, *words) == 0
    assert json.loads((out / "explanation.json").read_text())["questioned"] == [13]


@pytest.mark.parametrize(
    ("ask", "why"),
    [
        ("240", "Row 240 does not exist: cells.csv has rows 0 to 239"),
        ("9-5", "names no row"),
        ("some", "errors, all, errors:TRUE->SAID, row numbers"),
        ("note contains nobody", "No row of cells.csv has 'nobody' in column 'note'"),
        ("remark contains room", "has no column 'remark'"),
        ("note contains doctor", "You asked about 240 of 240 rows"),
        ("errors:malignant", "does not name a confusion; write errors:TRUE->PREDICTED"),
        ("errors:benign->benign", "does not name a confusion"),
        ("errors:maligne->benign", "There is no class 'maligne' among the test rows"),
        ("absent.csv", "There is no file 'absent.csv'"),
    ],
)
def test_questions_that_mean_nothing_are_refused(cells, tmp_path, capsys, ask, why):
    out = tmp_path / "out"
    words = ("explain", cells, "--label", "diagnosis", "--quiet", "--out", out)
    assert run(*words, "--ask", ask) == 2
    error = capsys.readouterr().err
    assert why in error
    assert error.count("\n") == 1
    assert not out.exists()


def test_a_test_file_and_a_file_of_new_rows_are_one_too_many(cells, tmp_path, capsys):
    words = ("explain", cells, "--label", "diagnosis", "--out", tmp_path / "out", "--test", cells)
    assert run(*words, "--ask", cells) == 2
    assert "name a file; give one of them" in capsys.readouterr().err


def test_rows_without_a_label_or_whose_class_would_vanish(cells, tmp_path, capsys):
    frame = pd.read_csv(cells)
    frame.loc[17, "diagnosis"] = None
    frame.loc[18, "diagnosis"] = "rare"
    path = tmp_path / "gaps.csv"
    frame.to_csv(path, index=False)
    words = ("explain", path, "--label", "diagnosis", "--quiet", "--out", tmp_path / "out")
    assert run(*words, "--ask", 17) == 2
    assert "Row 17 has no label" in capsys.readouterr().err
    assert run(*words, "--ask", 18) == 2
    assert "You asked about all rows labelled rare" in capsys.readouterr().err


def test_verify_shows_predicted_beside_retrained(cells, tmp_path):
    asked(cells, tmp_path, "--ask", "all", "--side", "both", "--verify")
    page = (tmp_path / "report.html").read_text()
    assert "removing these, retrained" in page
    assert "random rows, retrained" in page


def test_what_to_do_next_can_be_typed(cells, tmp_path, monkeypatch):
    import html
    import re
    import shlex

    from exempla.cli.main import build_parser

    asked(cells, tmp_path)
    page = (tmp_path / "report.html").read_text()
    typed = re.findall(r"<pre>(.*?)</pre>", page.partition("What to do next")[2], re.DOTALL)
    commands = [text for one in typed if (text := re.sub("<[^>]*>", "", one)).startswith("exempla")]
    assert len(commands) >= 2
    for command in commands:
        words = shlex.split(html.unescape(command))[1:]
        options = build_parser().parse_args(words)
        assert options.file == str(cells)
        assert options.label == "diagnosis"


def test_the_same_question_in_python():
    X, y = load_breast_cancer(return_X_y=True)
    names = np.where(y == 1, "benign", "malignant")
    model = LogisticRegression(max_iter=5000).fit(X[:200] / 100, names[:200])
    test = (X[200:] / 100, names[200:])
    answer = exempla.explain_errors(
        model, (X[:200] / 100, names[:200]), test, k=3, ask="errors:malignant->benign",
        progress=False,
    )  # fmt: skip
    said = model.predict(test[0])
    wanted = np.flatnonzero((names[200:] == "malignant") & (said == "benign"))
    assert answer.question.rows.tolist() == wanted.tolist()
    with pytest.raises(exempla.ExemplaError, match="There is no class 'x'"):
        exempla.explain_errors(model, test, test, ask="errors:x->benign", progress=False)


def test_the_table_holds_the_rows_as_the_file_has_them(cells, tmp_path):
    found = asked(cells, tmp_path)
    table, frame = pd.read_csv(tmp_path / "explanation.csv"), pd.read_csv(cells)
    assert table["index"].tolist() == found["indices"]
    for name in frame.columns:
        assert table[name].tolist() == frame[name].iloc[found["indices"]].tolist()


def test_columns_called_like_ours_are_told_apart(tmp_path):
    frame = pd.DataFrame({"weight": [1.5, 2.5, 8.0, 9.0] * 15, "label": ["a", "a", "b", "b"] * 15})
    frame.to_csv(tmp_path / "a.csv", index=False)
    words = ("--label", "label", "-k", 3, "--ask", "all", "--side", "both", "--quiet")
    assert run("explain", tmp_path / "a.csv", *words, "--out", tmp_path / "out") == 0
    table = pd.read_csv(tmp_path / "out" / "explanation.csv")
    assert table["file:weight"].tolist() == frame["weight"].iloc[table["index"]].tolist()


def test_image_files_are_named_in_table_and_report(tmp_path):
    root = pictures(tmp_path / "pictures", each=12)
    words = ("--ask", "all", "--side", "both", "-k", 3, "--quiet", "--out", tmp_path / "out")
    assert run("explain", root, *words) == 0
    table = pd.read_csv(tmp_path / "out" / "explanation.csv")
    page = (tmp_path / "out" / "report.html").read_text()
    for name in table["file"]:
        assert (root / name).is_file()
        assert name in page
