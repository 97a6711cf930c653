"""Two analyses in one folder, through the command line: no decision changes the other column."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from exempla.cli.main import main
from exempla.review import read_review
from tests.review.case import served, signed_in


@pytest.fixture
def patients(tmp_path: Path) -> Path:
    """A file with two columns of the same classes, either of which may be the label."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 3))
    frame = pd.DataFrame(x, columns=["age", "weight", "pressure"]).round(3)
    for column, name in enumerate(["smoker", "diabetic"]):
        frame[name] = np.where(x[:, column] + 0.3 * rng.normal(size=160) > 0, "yes", "no")
    frame.to_csv(tmp_path / "patients.csv", index=False)
    return tmp_path / "patients.csv"


def analyse(source: Path, out: Path, label: str, *more: str) -> None:
    words = ["fix-labels", str(source), "--label", label, "-k", "12", "--out", str(out)]
    assert main([*words, "--quiet", *more]) == 0


def relabel_five(out: Path) -> dict[int, str]:
    """Give the first five suspects their suggested label, over HTTP as the page does."""
    wanted = {}
    with served(out) as address, signed_in(address) as page:
        for suspect in read_review(out).suspects[:5]:
            body = {"row": suspect.row, "action": "relabel", "label": suspect.suggested, "seen": 0}
            answer = page.post("/api/decide", json=body | {"once": f"decide-{suspect.row}"})
            assert answer.status_code == 200, answer.text
            wanted[suspect.row] = suspect.suggested
    return wanted


def export(out: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict, str]:
    capsys.readouterr()
    assert main(["review", str(out), "--export", "--json"]) == 0
    said = capsys.readouterr()
    return json.loads(said.out), said.err


def test_decisions_about_one_column_do_not_change_another(patients, tmp_path, capsys):
    out, original = tmp_path / "out", patients.read_bytes()
    analyse(patients, out, "smoker")
    wanted = relabel_five(out)

    capsys.readouterr()
    analyse(patients, out, "diabetic")
    told = capsys.readouterr().err
    found, said = export(out, capsys)
    assert (found["decisions"], found["changed"]) == (0, 0)
    assert (out / "corrected.csv").read_bytes() == original
    sentence = "5 decisions about column 'smoker' of 'patients.csv'"
    assert sentence in said
    assert sentence in told, "the analysis itself says so, even when quiet"
    with served(out) as address, signed_in(address) as page:
        assert page.get("/api/state").json()["changes"] == []
        assert sentence in page.get("/api/review").json()["elsewhere"]

    capsys.readouterr()
    analyse(patients, out, "smoker")
    assert "decisions" not in capsys.readouterr().err
    found, said = export(out, capsys)
    assert (found["decisions"], found["changed"], found["elsewhere"]) == (5, 5, "")
    before, after = pd.read_csv(patients), pd.read_csv(out / "corrected.csv")
    assert after["diabetic"].tolist() == before["diabetic"].tolist()
    changed = before.index[before["smoker"] != after["smoker"]]
    assert {row: after["smoker"][row] for row in changed} == wanted
    with open(out / "patch.csv", encoding="utf-8", newline="") as file:
        assert {line["column"] for line in csv.DictReader(file)} == {"smoker"}


def test_another_reading_of_the_file_has_its_own_decisions(patients, tmp_path, capsys):
    out = tmp_path / "out"
    analyse(patients, out, "smoker")
    relabel_five(out)
    # Without a header the first line is a row, and every row number means another row.
    analyse(patients, out, "4", "--header", "no")
    found, said = export(out, capsys)
    assert found["decisions"] == 0
    assert "5 decisions about column 'smoker'" in said
    analyse(patients, out, "smoker")
    assert export(out, capsys)[0]["decisions"] == 5


def test_a_file_of_trusted_rows_is_never_written_over(patients, tmp_path, capsys):
    out = tmp_path / "out"
    out.mkdir()
    frame = pd.read_csv(patients)
    trusted = out / "suspects.jsonl"
    frame[:60].to_json(trusted, orient="records", lines=True)
    frame[60:].to_csv(tmp_path / "rest.csv", index=False)
    before = trusted.read_bytes()
    words = ["fix-labels", str(tmp_path / "rest.csv"), "--label", "smoker", "--out", str(out)]
    assert main([*words, "--curated", str(trusted), "-k", "5", "--quiet"]) == 2
    assert "would be written over it" in capsys.readouterr().err
    assert trusted.read_bytes() == before


def test_column_names_taken_from_the_test_file_still_hold_at_export(patients, tmp_path, capsys):
    lines = patients.read_text().splitlines(keepends=True)
    (tmp_path / "p.data").write_text("".join(lines[1:120]))
    (tmp_path / "p.test").write_text("".join([lines[0], *lines[120:]]))
    analyse(tmp_path / "p.data", tmp_path / "out", "smoker", "--test", str(tmp_path / "p.test"))
    wanted = relabel_five(tmp_path / "out")
    found, _ = export(tmp_path / "out", capsys)
    assert found["changed"] == 5
    after = pd.read_csv(tmp_path / "out" / "corrected.data", header=None)
    assert {row: after[3][row] for row in wanted} == wanted
