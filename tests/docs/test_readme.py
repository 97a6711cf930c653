"""Every code block of the README does what it says."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from exempla.cli.main import build_parser, main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def test_python_blocks_run_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    found = blocks("python")
    assert len(found) >= 3
    for block in found:
        exec(compile(block, "README.md", "exec"), space)
    printed = capsys.readouterr().out
    assert same_words(printed, blocks("text")[0])
    assert (tmp_path / "report.html").stat().st_size > 10_000
    assert space["influence"].shape == (900, 10)  # pyright: ignore[reportAttributeAccessIssue]


def same_words(printed: str, shown: str) -> bool:
    """Whether a block shows what was printed, but for the last digits, which machines disagree on,
    and the folder and seconds of a command."""
    bare = [re.sub(r"[-−+]?[\d.,]+", "#", line).split() for line in shown.splitlines()]
    said = [re.sub(r"[-−+]?[\d.,]+", "#", line).split() for line in printed.splitlines()]
    return all(line in said for line in bare) and len(bare) > 5


def test_first_example_is_six_lines():
    lines = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(lines) == 6


def test_the_command_prints_what_is_shown(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    line = blocks("sh")[0].strip()
    assert main(shlex.split(line)[1:]) == 0
    assert same_words(capsys.readouterr().out, blocks("text")[1])


def test_no_term_stands_before_its_place():
    opening = README.partition("## The jobs")[0]
    prose = re.sub(r"^```.*?^```", "", opening, flags=re.DOTALL | re.MULTILINE)
    for term in ("LDS", "damping", "certificate", "Fisher", "SBQ", "sketch", "quadrature"):
        assert term not in prose
    assert "make demo" in opening
    assert "make test" in opening
    assert "pip install" in opening


def commands() -> list[str]:
    lines = [line for block in blocks("sh") for line in block.splitlines()]
    return [line for line in lines if line.startswith("exempla ")]


@pytest.mark.parametrize("line", commands())
def test_shell_lines_are_understood(line):
    words = shlex.split(line, comments=True)[1:]
    assert build_parser().parse_args(words).command == words[0]


def test_there_are_shell_lines():
    assert len(commands()) >= 4


def test_links_and_pictures_exist():
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in t]
    assert "docs/images/mistakes.png" in targets
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert not missing
    assert (ROOT / "docs/images/mistakes.png").stat().st_size < 150_000
