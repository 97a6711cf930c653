"""Every table of the documentation with a measured figure is what its CSV makes of it."""

from __future__ import annotations

import re

import pytest

from benchmarks.peers.pages import MARK
from tests.docs.csv_lines import ROOT
from tests.docs.csv_tables import PAGES
from tests.docs.test_figures import FIGURES

MEASURED = re.compile(r"\d\.\d|(?<!\w)\.\d|\d ?%|\d s\b|\d [GM]iB|\d / \d")
"""What looks like a measurement: decimals, shares, seconds, memory."""
FENCED = re.compile(r"^```.*?^```", re.DOTALL | re.MULTILINE)
EXAMPLES = {
    "docs/evidence.md": "what a number means",
    "docs/how-do-i.md": "settings",
    "docs/glossary.md": "what a word means, by an example",
    "docs/limits.md": "what a user may see, by an example",
    "docs/notebooks.md": "versions",
    "docs/options.md": "settings",
    "docs/security.md": "an address",
}
"""Pages whose tables hold numbers that nobody measured."""
NO_FILE = {
    "docs/studies/scaling.md": 3,
    "docs/studies/faithfulness_tried.md": 34,
}
"""How many lines are of runs that left no file (a borrowed GPU, trials of an afternoon): their
number may fall, and no new one is let in."""


def plain(line: str) -> str:
    return re.sub(r"\s+", " ", line.replace("**", "")).strip()


def figure_lines(page: str) -> list[str]:
    """Lines of tables with measurements, outside code and outside what is generated."""
    text = FENCED.sub("", MARK.sub("", (ROOT / page).read_text(encoding="utf-8")))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    # the line above the rule is the heading
    heads = {lines[i - 1] for i, line in enumerate(lines) if set(line) <= set("|-: ")}
    return [plain(x) for x in lines if x not in heads and MEASURED.search(x)]


def uncovered(page: str) -> list[str]:
    """Lines that no CSV makes."""
    made = {plain(line) for line in PAGES[page]()} if page in PAGES else set()
    listed = list(FIGURES[FIGURES["page"] == page]["text"])
    out = []
    for line in figure_lines(page):
        if line in made or any(plain(text) in line for text in listed):
            continue
        out.append(line)
    return out


def pages() -> list[str]:
    found = (path.relative_to(ROOT).as_posix() for path in sorted((ROOT / "docs").rglob("*.md")))
    return [page for page in found if page not in EXAMPLES]


@pytest.mark.parametrize("page", [page for page in pages() if figure_lines(page)])
def test_every_measured_line_has_its_csv(page):
    left = uncovered(page)
    assert len(left) <= NO_FILE.get(page, 0), left


def test_most_lines_are_walked():
    assert sum(len(figure_lines(page)) for page in pages()) > 400


def test_a_changed_figure_would_be_seen(monkeypatch):
    page = "docs/studies/trees.md"
    line = figure_lines(page)[0]
    changed = re.sub(r"0\.\d{3}", "0.999", line, count=1)
    monkeypatch.setattr("tests.docs.test_tables.figure_lines", lambda _: [changed])
    assert uncovered(page) == [changed]


@pytest.mark.parametrize("page", EXAMPLES)
def test_pages_of_examples_exist(page):
    assert (ROOT / page).is_file()
