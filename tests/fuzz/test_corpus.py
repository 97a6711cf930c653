"""Calls and commands that failed once: none of them fails again."""

from __future__ import annotations

import hashlib
import re

import pytest

from exempla.cli.main import main
from tests.fuzz.cases import problem_of
from tests.fuzz.corpus import CORPUS, PAIRS
from tests.fuzz.corpus_runs import RUNS
from tests.fuzz.doors import DOORS
from tests.fuzz.test_api import SHARE

CALL_STEP, COMMAND_STEP = (1, 1) if SHARE >= 1 else (3, 2)
"""`make test` tries every third call and every second command, `make fuzz` all of them."""


@pytest.mark.parametrize("door", sorted({case.door for case in CORPUS}))
def test_calls_that_failed_once(door, tmp_path, monkeypatch, record_property):
    monkeypatch.chdir(tmp_path)  # some name a folder to write to
    mine = [case for case in CORPUS if case.door == door][::CALL_STEP]
    record_property("API cases", len(mine))
    problems = {case: problem_of(case) for case in mine}
    assert not {case: said for case, said in problems.items() if said}


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: f"{pair[0].door}: {pair[0].value}")
def test_pairs_that_failed_once(pair):
    assert problem_of(*pair) == ""


def test_the_corpus_names_what_there_is():
    for case in CORPUS:
        assert case.argument in DOORS[case.door][1], case


@pytest.mark.parametrize("name", list(RUNS)[::COMMAND_STEP])
def test_commands_that_failed_once(name, tmp_path, monkeypatch, capsys, record_property):
    record_property("command runs", 1)
    monkeypatch.chdir(tmp_path)
    make, codes = RUNS[name]
    words = make(tmp_path)
    before = _contents(tmp_path)
    try:
        code = main([*words, "--quiet"])
    except SystemExit as stopped:  # the parser's own way to refuse a word
        code = stopped.code
    said = capsys.readouterr()
    assert code in codes, said.err
    assert "Traceback" not in said.err + said.out
    if code == 2:
        assert re.search(r"^exempla( \w+)?: error: ", said.err, re.MULTILINE)
    now = _contents(tmp_path)
    assert {path: now.get(path) for path in before} == before


def _contents(folder) -> dict[str, str]:
    """Every file and what is in it."""
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }
