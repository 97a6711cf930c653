"""Numbers, several labels and tokens on the command line, from the file to the corrected file."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_diabetes, make_multilabel_classification

from exempla.review import read_review
from exempla.review.log import DecisionLog, RowDecision
from tests.cli.case import CONTRACT, run

NAMES = ("sun", "rain", "wind")


def numbers(folder: Path) -> Path:
    table = load_diabetes(as_frame=True).frame[:200].round(4)
    table["target"] = table["target"].astype(int)
    table.loc[[7, 50], "target"] *= 10
    path = folder / "numbers.csv"
    table.to_csv(path, index=False)
    return path


def several(folder: Path, *, delimited: bool) -> Path:
    X, Y = make_multilabel_classification(200, 6, n_classes=3, n_labels=2, random_state=0)
    table = pd.DataFrame(X, columns=[f"x{i}" for i in range(6)])
    if delimited:
        table["tags"] = ["; ".join(n for n, y in zip(NAMES, row) if y) for row in Y]
    else:
        for name, values in zip(NAMES, Y.T, strict=True):
            table[name] = np.where(values, "yes", "no")
    path = folder / "several.csv"
    table.to_csv(path, index=False)
    return path


def sentences() -> list[tuple[list[str], list[str]]]:
    rng = np.random.default_rng(0)
    rows = []
    for _ in range(80):
        person, place = rng.choice(["Ada", "Bo", "Cy"]), rng.choice(["Rome", "Oslo"])
        words = [str(person), "went", "to", str(place), "."]
        rows.append((words, ["PER", "O", "O", "LOC", "O"]))
    rows[5][1][0] = "LOC"
    return rows


def told(folder: Path) -> dict:
    return json.loads((folder / "explanation.json").read_text())


def decide(folder: Path, item: int, action: str, label: str | None = None) -> None:
    log = DecisionLog(folder / "decisions.sqlite", read_review(folder).key)
    log.decide(RowDecision(item, action, label), seen=log.state(item).version, once=f"t-{item:09}")
    log.close()


def test_numbers_from_file_to_corrected_file(tmp_path: Path, capsys) -> None:
    path, out = numbers(tmp_path), tmp_path / "out"
    words = ("--label", "target", "--task", "regression", "--out", out)
    assert run("fix-labels", path, *words, "--export", "label-studio,cleanlab") == 0
    said = capsys.readouterr().out
    assert "numbers are expected to be wrong" in said
    found = told(out)
    assert set(found["indices"][:2]) == {7, 50}
    assert found["kind"][0] == "×10"
    assert set(found) >= CONTRACT
    page = (out / "report.html").read_text()
    assert "Which numbers are wrong?" in page
    assert "630 → 63 · expected" in page
    suspect = read_review(out).suspects[0]
    assert suspect.kind == "number"
    assert suspect.expected is not None
    tasks = json.loads((out / "label-studio.json").read_text())
    assert tasks[0]["data"]["given"] == suspect.given
    decide(out, 7, "relabel", "63")
    assert run("review", out, "--export") == 0
    before, after = path.read_text().splitlines(), (out / "corrected.csv").read_text().splitlines()
    assert [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b] == [8]
    assert after[8].endswith(",63")


def test_a_column_for_each_label(tmp_path: Path, capsys) -> None:
    path, out = several(tmp_path, delimited=False), tmp_path / "out"
    assert run("fix-labels", path, "--label", "sun,rain,wind", "--out", out, "-k", 30) == 0
    assert "600 labels (sun, rain, wind)" in capsys.readouterr().out
    review = read_review(out)
    assert {s.kind for s in review.suspects} == {"part"}
    assert review.classes == ("absent", "present")
    first = review.suspects[0]
    decide(out, first.item, "relabel", first.suggested)
    removed = next(s for s in review.suspects if s.row != first.row)
    decide(out, removed.item, "remove")
    assert run("review", out, "--export") == 0
    before, after = pd.read_csv(path), pd.read_csv(out / "corrected.csv")
    wanted = before.copy()
    wanted.loc[first.row, first.part] = "yes" if first.suggested == "present" else "no"
    wanted = wanted.drop(index=removed.row).reset_index(drop=True)
    pd.testing.assert_frame_equal(after, wanted)


def test_one_column_that_lists_labels(tmp_path: Path) -> None:
    path, out = several(tmp_path, delimited=True), tmp_path / "out"
    words = ("--label", "tags", "--label-separator", ";", "--out", out, "-k", 10)
    assert run("fix-labels", path, *words) == 0
    first = read_review(out).suspects[0]
    decide(out, first.item, "relabel", first.suggested)
    assert run("review", out, "--export") == 0
    before, after = path.read_text().splitlines(), (out / "corrected.csv").read_text().splitlines()
    changed = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    assert changed == [first.row + 1]
    tags = next(csv.reader([after[first.row + 1]]))[-1].split("; ")
    assert (first.part in tags) == (first.suggested == "present")


def test_a_separator_that_matches_nothing_is_refused(tmp_path: Path, capsys) -> None:
    words = ("--label", "tags", "--label-separator", "|", "--out", tmp_path / "out")
    assert run("fix-labels", several(tmp_path, delimited=True), *words) == 2
    assert "contains the separator '|'" in capsys.readouterr().err


def test_the_table_of_several_labels_shows_the_row(tmp_path: Path) -> None:
    path = several(tmp_path, delimited=True)
    frame = pd.read_csv(path)
    frame.insert(0, "text", [f"the weather of day {i} was like that" for i in range(len(frame))])
    frame.to_csv(path, index=False)
    words = ("--label", "tags", "--label-separator", ";", "--quiet", "--out", tmp_path / "out")
    assert run("fix-labels", path, *words) == 0
    table = pd.read_csv(tmp_path / "out" / "explanation.csv")
    assert table["text"].tolist() == frame["text"][table["index"]].tolist()


@pytest.mark.parametrize("name", ["tokens.jsonl", "tokens.conll"])
def test_tokens_from_file_to_corrected_file(tmp_path: Path, name: str, capsys) -> None:
    rows, path, out = sentences(), tmp_path / name, tmp_path / "out"
    if name.endswith(".jsonl"):
        lines = [json.dumps({"id": i, "tokens": w, "labels": c}) for i, (w, c) in enumerate(rows)]
        path.write_text("\n".join(lines) + "\n")
    else:
        path.write_text("-DOCSTART- -X- O\n\n" + "\n".join(
            "".join(f"{a}\tX\t{b}\n" for a, b in zip(w, c)) for w, c in rows))  # fmt: skip
    assert run("fix-labels", path, "--out", out) == 0
    assert "400 tokens in 80 rows, 3 labels (LOC, O, PER)" in capsys.readouterr().out
    first = read_review(out).suspects[0]
    assert (first.row, first.part, first.suggested) == (5, rows[5][0][0], "PER")
    card = read_review(out).card(first.item)
    start, end = card["span"]
    assert card["content"]["text"][start:end] == rows[5][0][0]
    decide(out, first.item, "relabel", "PER")
    assert run("review", out, "--export") == 0
    before, after = path.read_text(), (out / f"corrected{path.suffix}").read_text()
    pairs = zip(before.splitlines(), after.splitlines(), strict=True)
    ((old, new),) = [(a, b) for a, b in pairs if a != b]
    assert new == old.replace("LOC", "PER", 1)


def test_decisions_come_back_by_import(tmp_path: Path, capsys) -> None:
    path, out = numbers(tmp_path), tmp_path / "out"
    words = ("--label", "target", "--task", "regression", "--out", out, "--export", "fiftyone")
    assert run("fix-labels", path, *words, "--quiet") == 0
    back = tmp_path / "back.csv"
    back.write_text("exempla_item,label,tags\n7,63,\n50,,keep\n")
    assert run("review", out, "--import", back) == 0
    assert "Imported 2 decisions" in capsys.readouterr().out
    back.write_text("exempla_item,label,tags\n7,many,\n")
    assert run("review", out, "--import", back) == 2
    assert "'many' of row 7 is not one of the labels" in capsys.readouterr().err


def test_fail_above_follows_the_numbers(tmp_path: Path) -> None:
    path = numbers(tmp_path)
    words = ("--label", "target", "--task", "regression", "--out", tmp_path / "out", "--quiet")
    assert run("fix-labels", path, *words, "--fail-above", 0.001) == 1
    assert run("fix-labels", path, *words, "--fail-above", 0.5) == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--label", "sun,rian"), "no column 'rian'"),
        (("--label", "x0,sun"), "values must be 0 or 1"),
        (("--label", "sun", "--label-separator", "|"), "contains the separator '|'"),
    ],
)
def test_what_is_no_label_is_refused(tmp_path: Path, words: tuple, said: str, capsys) -> None:
    path = several(tmp_path, delimited=False)
    if "|" in words:
        path.write_text("x,sun\n1,a\n2,a\n")
    assert run("fix-labels", path, *words, "--out", tmp_path / "out") == 2
    assert said in capsys.readouterr().err


def test_a_tool_that_is_not_known_is_refused(tmp_path: Path, capsys) -> None:
    with pytest.raises(SystemExit):
        run("fix-labels", numbers(tmp_path), "--label", "target", "--export", "excel")
    assert "'excel' is not a known tool; choose from label-studio" in capsys.readouterr().err
