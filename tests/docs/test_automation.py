"""What others run for us: hooks, the Action's commands, the container's entry."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from exempla import __version__
from exempla.cli.main import build_parser
from tests.cli.case import run

ROOT = Path(__file__).parents[2]
ROWS = "size,colour,label\n" + "3,red,ham\n9,blue,spam\n4,red,ham\n8,green,spam\n" * 8


def hooks() -> dict[str, str]:
    text = (ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8")
    return dict(
        zip(re.findall(r"^- id: (\S+)$", text, re.M), re.findall(r"^  entry: (.+)$", text, re.M))
    )


def test_hooks_run_on_the_files_they_are_given(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mail.csv").write_text(ROWS)
    (tmp_path / "more.csv").write_text(ROWS)
    readable = shlex.split(hooks()["exempla-readable"])[1:]
    assert run(*readable, "mail.csv", "more.csv") == 0
    (tmp_path / "bad.csv").write_text("")
    assert run(*readable, "mail.csv", "bad.csv") == 2
    assert "bad.csv is empty" in capsys.readouterr().err
    labels = shlex.split(hooks()["exempla-labels"])[1:]
    words = ("--label", "label", "--quiet", "--out", tmp_path / "out")
    assert run(*labels, *words, "--fail-above", "1", "mail.csv") == 0


def test_doctor_says_what_a_file_is_taken_for(tmp_path, capsys):
    (tmp_path / "mail.csv").write_text(ROWS)
    assert run("doctor", tmp_path / "mail.csv") == 0
    said = capsys.readouterr().out
    assert "32 rows, 3 columns" in said
    assert re.search(r"size\s+\| number", said)
    assert run("doctor", "--json", tmp_path / "mail.csv") == 0
    found = json.loads(capsys.readouterr().out)
    assert found[str(tmp_path / "mail.csv")]["columns"]["colour"] == "category"


def commands() -> list[str]:
    page = (ROOT / "docs" / "automation.md").read_text(encoding="utf-8")
    return re.findall(r"- run: (exempla .+)$", page, re.M)


@pytest.mark.parametrize("line", commands())
def test_the_action_s_commands_are_understood(line):
    options = build_parser().parse_args(shlex.split(line)[1:])
    assert options.fail_above == 0.05


def test_there_is_a_command_and_a_container():
    assert commands()
    dockerfile = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert 'ENTRYPOINT ["exempla"]' in dockerfile
    for name in re.findall(r"^COPY (?!--)(.+)$", dockerfile, re.M):
        for source in name.split()[:-1]:
            assert (ROOT / source).exists(), source


def test_the_version_has_its_notes():
    changes = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## {__version__}" in changes
    assert f"rev: v{__version__}" in (ROOT / "docs" / "automation.md").read_text(encoding="utf-8")
