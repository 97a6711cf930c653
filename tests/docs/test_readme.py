"""Every code block of the README does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from exempla.cli.main import main

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
MAX_LINES = 150
NUMBER = re.compile(r"[-−+]?\d[\d,]*(?:\.\d+)?")
TOLERANCE = 0.05
"""Printed numbers may differ from the README by 5 %, or by 1, on other machines and versions."""
SECONDS = re.compile(r"Done in [\d.]+ s")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.DOTALL | re.MULTILINE)


def numbers(line: str) -> list[float]:
    return [float(n.replace("−", "-").replace(",", "")) for n in NUMBER.findall(line)]


def differences(printed: str, shown: str) -> list[str]:
    """Return the shown lines that were not printed, with numbers to the stated tolerance.

    A printed line may be shown on several lines.
    """
    told = [_plain(line) for line in printed.splitlines()]
    rest, missing = shown.splitlines(), []
    while rest:
        ends = range(len(rest), 0, -1)
        end = next((n for n in ends if _was_printed(_plain(" ".join(rest[:n])), told)), 0)
        if not end:
            missing.append(rest[0])
        rest = rest[end or 1 :]
    return missing


def _plain(line: str) -> str:
    return " ".join(SECONDS.sub("Done", line).split())


def _was_printed(line: str, told: list[str]) -> bool:
    same = [x for x in told if NUMBER.sub("#", x) == NUMBER.sub("#", line)]
    return any(_close(numbers(x), numbers(line)) for x in same)


def _close(ones: list[float], others: list[float]) -> bool:
    pairs = zip(ones, others, strict=True)
    return all(abs(a - b) <= max(1.0, TOLERANCE * abs(b)) for a, b in pairs)


def test_python_blocks_run_in_order(tmp_path, monkeypatch, capsys):
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {}
    found = blocks("python")
    assert len(found) >= 3
    for block in found:
        exec(compile(block, "README.md", "exec"), space)
    assert differences(capsys.readouterr().out, blocks("text")[1]) == []
    assert len(space["answer"]) == 10  # pyright: ignore[reportArgumentType]


def test_the_demo_prints_what_is_shown(tmp_path, monkeypatch, capsys):
    assert blocks("sh")[0].startswith("make demo ")
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    assert differences(capsys.readouterr().out, blocks("text")[0]) == []


def test_a_changed_number_would_be_seen():
    shown = "Without these 50 of 898 rows, 27 % more likely. Done in 5 s"
    assert differences(shown.replace("5 s", "9 s"), shown) == []
    assert differences(shown.replace("27", "28"), shown) == []
    assert differences(shown.replace("27", "30"), shown) == [shown]
    assert differences(shown.replace("more", "less"), shown) == [shown]
    wrapped = shown.replace("rows, ", "rows,\n")
    assert differences(shown, wrapped) == []
    assert differences(shown.replace("898", "598"), wrapped) == wrapped.splitlines()


def test_it_is_short():
    assert len(README.splitlines()) <= MAX_LINES
    lines = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(lines) == 6


def test_no_term_stands_before_its_place():
    opening = README.partition("## The jobs")[0]
    for term in ("LDS", "damping", "certificate", "Fisher", "SBQ", "sketch", "quadrature"):
        assert term not in opening
    for command in ("make demo", "make test", "pip install", "exempla demo"):
        assert command in opening


def test_links_and_pictures_exist():
    targets = [t for t in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in t]
    assert "docs/images/mistakes.png" in targets
    missing = [target for target in targets if not (ROOT / target).exists()]
    assert not missing
    assert (ROOT / "docs/images/mistakes.png").stat().st_size < 150_000
