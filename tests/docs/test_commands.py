"""Every `exempla` line of README and docs runs on a small file that fits it."""

from __future__ import annotations

from pathlib import Path

import pytest

from exempla.cli.main import build_parser, main
from tests.docs.commands import (
    by_file,
    shell_lines,
    write_cells,
    write_files,
    write_language_model,
)

GROUPS = by_file()
FIRST = {
    "completion": "# AUTOMATICALLY GENERATED",
    "review": (
        "Review",
        "0 decisions",
        "decisions.sqlite is not damaged",
        "Your decisions are saved in",
    ),
}
"""How the first printed line begins, where it does not name the file that was read."""


@pytest.fixture
def served(monkeypatch):
    """Count the pages that are opened, without opening them."""
    opened: list[object] = []
    monkeypatch.setattr("exempla.review.serve", lambda *options: opened.append(options))
    return opened


def reads_what_others_wrote(words: tuple[str, ...]) -> int:
    """Lines on data come first, then the review of their results, then what it exported."""
    return 2 if words[1:2] == ("suspects/corrected.csv",) else int(words[0] == "review")


@pytest.mark.parametrize("group", [name for name in GROUPS if name != "demo"])
def test_lines_run(group, tmp_path, monkeypatch, capsys, served):
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    write_cells(tmp_path)
    if group == "train.jsonl":
        pytest.importorskip("transformers")
        write_language_model(tmp_path)
    for words in sorted(GROUPS[group], key=reads_what_others_wrote):
        assert main(list(words)) == 0, words
        printed = capsys.readouterr().out.strip()
        if "--quiet" in words:
            assert printed == ""
            continue
        wanted = FIRST.get(words[0], f"Read {Path(words[1]).name}" if len(words) > 1 else "")
        assert printed.splitlines()[0].startswith(wanted), (words, printed.splitlines()[0])
    if group == "mails.csv":
        corrected = (tmp_path / "suspects" / "corrected.csv").read_bytes()
        assert corrected == (tmp_path / "mails.csv").read_bytes(), "nothing was decided"
    pages = [words for words in GROUPS[group] if words[0] == "review" and len(words) in (2, 4)]
    assert len(served) == len(pages)


@pytest.mark.parametrize("words", shell_lines(), ids=" ".join)
def test_lines_are_understood(words):
    assert build_parser().parse_args(list(words)).command == words[0]


def test_no_line_is_left_out():
    assert sum(map(len, GROUPS.values())) == len(shell_lines()) > 40
    assert GROUPS["demo"] == [("demo",)], "tests/docs/test_readme.py runs it"
