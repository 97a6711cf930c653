"""Every figure in the tables on faithfulness stands in a CSV beside them; so do the verdict's."""

from __future__ import annotations

import re
from statistics import median

import pandas as pd
import pytest

from benchmarks.peers.environments import ROOT
from benchmarks.peers.pages import DATA, FEW, HALF, MARK, PAGES, leads, lines_of, rewritten
from experiments.mnist_report import CLEAN, FRESH, WITHOUT, sets_text, verdict

PAGE, APPENDIX = PAGES
TABLE_LINE = re.compile(r"^\|.*\|$", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_tables_are_what_the_csvs_make(page):
    assert rewritten(page.read_text(encoding="utf-8")) == page.read_text(encoding="utf-8")


def test_the_main_page_has_no_table_without_a_csv():
    rest = MARK.sub("", PAGE.read_text(encoding="utf-8"))
    assert not TABLE_LINE.findall(rest)


def test_a_changed_figure_would_be_seen():
    text = PAGE.read_text(encoding="utf-8")
    line = next(line for line in TABLE_LINE.findall(text) if re.search(r"\d\.\d{3}", line))
    changed = text.replace(line, re.sub(r"\d\.\d{3}", "9.999", line, count=1))
    assert changed != text
    assert rewritten(changed) == text


@pytest.mark.parametrize(("outcome", "words"), [(HALF, "Half of the rows"), (FEW, "5 % left out")])
def test_the_page_on_peers_states_the_leads(outcome, words):
    text = " ".join((ROOT / "docs" / "peers.md").read_text(encoding="utf-8").split())
    said = text.partition(f"**{words}")[2].partition(" - **")[0]
    for looked_up, verb in ((False, "ahead"), (True, "level or ahead in")):
        found = [mean for mean, *_ in leads("8", looked_up, outcome).values()]
        count = sum(mean <= 0 if looked_up else mean > 0 for mean in found)
        assert re.search(rf"{verb} \D*{count} ", said), count
        assert f"{median(found):.3f}" in said


def test_every_csv_of_the_page_is_named_on_it():
    text = PAGE.read_text(encoding="utf-8")
    names = "truths", "truths_left_out", "truths_removal_test", "truths_choices", "peers_truths"
    for name in (*names, "peers_removal", "peers_digits", "peers_mnist", "peers_earlier"):
        assert (DATA / f"{name}.csv").exists()
        assert f"experiments/{name}.csv" in text


def test_mnist_removal_is_told_by_sets_of_networks():
    cells = pd.read_csv(DATA / "mnist_seeds.csv", dtype={"networks": str})
    text = (PAGE.parent / "mnist.md").read_text(encoding="utf-8")
    assert verdict(cells) in text
    mean = next(line for line in text.splitlines() if line.startswith(f"| {FRESH} |"))
    assert mean.split(" | ")[1:3] == [sets_text(cells, CLEAN), sets_text(cells, WITHOUT)]


def test_the_appendix_is_in_the_site():
    assert "studies/faithfulness_tried.md" in (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert lines_of("truths_rules")
