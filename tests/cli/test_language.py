"""`exempla explain --completion`: from two files and a model's folder to marked tokens."""

from __future__ import annotations

import json
import sys
from copy import deepcopy

import pandas as pd
import pytest
import torch

import exempla
from exempla.cli.main import main

pytest.importorskip("transformers")

from tests.language.sums import WRONG, lines, model, tokenizer


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("language")
    model().save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    rows = [{"question": p, "answer": c} for p, c in lines()]
    (folder / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "asked.csv").write_text("question,answer\n1+7=,9\n")
    return folder


def asked(place, *more: str) -> list[str]:
    return [
        "explain", str(place / "train.jsonl"), "--test", str(place / "asked.csv"),
        "--completion", "answer", "--out", str(place / "out"), *more,
    ]  # fmt: skip


@pytest.mark.parametrize("own", [False, True])
def test_a_folder_or_ones_own_code(place, own, monkeypatch, capsys):
    named = str(place / "model")
    if own:
        (place / "speaking.py").write_text(
            "from tests.language.sums import model, tokenizer\n"
            "def pair(): return model(), tokenizer()\n"
        )
        monkeypatch.chdir(place)
        named = "speaking:pair"
    words = ("--prompt", "question", "--model", named, "-k", "3")
    assert main(asked(place, *words)) == 0
    found = json.loads((place / "out" / "explanation.json").read_text())
    assert found["indices"][0] == WRONG
    table = pd.read_csv(place / "out" / "explanation.csv", dtype=str)
    assert table.loc[0, ["prompt", "completion"]].tolist() == ["1+7=", "9"]
    page = (place / "out" / "report.html").read_text()
    assert '<mark class="for3">9</mark>' in page
    assert "Which training texts are behind these completions?" in page
    out = capsys.readouterr().out
    assert "report.html" in out
    assert "the completion should become" in out
    sys.modules.pop("speaking", None)


def test_snapshots_of_the_training_count(place, capsys):
    early = deepcopy(model())
    with exempla.Recorder(early, place / "run", keep=2, steps=1) as record:
        with torch.no_grad():
            for parameter in early.parameters():
                parameter *= 0.9
        record.step()
    words = ("--prompt", "question", "--model", str(place / "model"), "--snapshots")
    assert main(asked(place, *words, str(place / "run"), "-k", "3")) == 0
    found = json.loads((place / "out" / "explanation.json").read_text())
    train, test = (exempla.Completions(tokenizer(), x) for x in (lines(), [("1+7=", "9")]))
    same = exempla.Explainer([model(), str(place / "run")], progress=False).fit(train)
    expected = same.explain(test, 3, side="proponents")
    assert found["indices"] == expected.indices.tolist()
    assert found["explained"] == pytest.approx(expected.explained, rel=1e-6)
    capsys.readouterr()
    assert main(asked(place, *words, str(place / "absent"))) == 2
    assert "absent" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--completion", "answer"), "needs a language model: give --model"),
        (("--completion", "answer", "--model", "nowhere/at/all"), "give them with --test"),
        (("--prompt", "question"), "name the column of completions too"),
        (("--snapshots", "run"), "--snapshots needs --completion"),
    ],
)
def test_what_is_missing_is_said(place, words, why, capsys):
    assert main(["explain", str(place / "train.jsonl"), *words, "--out", str(place / "no")]) == 2
    assert why in capsys.readouterr().err
    assert not (place / "no").exists()


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (("--model", "nowhere/at/all"), "cannot load a language model"),
        (("--model", "sys:path"), "return (model, tokenizer)"),
        (("--prompt", "quest", "--model", "x"), "did you mean 'question'"),
    ],
)
def test_what_cannot_be_used_is_said(place, words, why, capsys, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(asked(place, *words)) == 2
    assert why in capsys.readouterr().err


def test_an_empty_completion_is_named_by_its_row(place, capsys):
    (place / "holes.csv").write_text("question,answer\n1+7=,8\n1+8=,\n")
    words = ["--test", str(place / "holes.csv"), "--model", str(place / "model")]
    assert main([*asked(place), *words]) == 2
    assert "Row 1 of holes.csv has no answer" in capsys.readouterr().err
