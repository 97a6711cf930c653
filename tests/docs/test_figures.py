"""Every measured figure of the README and the docs has its data and its command, and is what they
say."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import numpy
import pandas as pd
import pytest

from experiments.catalogue import EXPERIMENTS

ROOT = Path(__file__).parents[2]
FIGURES = pd.read_csv(ROOT / "docs" / "figures.csv", keep_default_na=False)
SETTINGS = {"54", "727", "500", "300", "60,000", "100", "0.3", "0.2", "0", "1"}
"""Numbers of the job table that say how something was done, not what came out."""


@pytest.mark.parametrize("row", FIGURES.to_dict("records"), ids=lambda row: row["text"])
def test_a_figure_is_what_its_data_say(row):
    page = (ROOT / row["page"]).read_text(encoding="utf-8")
    assert " ".join(row["text"].split()) in " ".join(page.split())  # wherever a line is broken
    t = pd.read_csv(ROOT / row["csv"])
    t = t.query(row["where"]) if row["where"] else t
    assert len(t)
    value = eval(row["value"], {"t": t, "numpy": numpy, "len": len})
    shown = format(int(value) if row["form"] == "d" else value, row["form"])
    assert re.search(rf"(?<![\d.]){re.escape(shown)}(?![\d]|\.\d)", row["text"]), shown


@pytest.mark.parametrize("command", sorted(set(FIGURES["command"])))
def test_its_command_exists(command):
    words = shlex.split(command)
    if words[:2] == ["exempla", "reproduce"]:
        assert words[2] in EXPERIMENTS
    elif words[:2] == ["python", "-m"]:
        assert find_spec(words[2]) is not None
    else:
        assert words[0] == "python"
        assert (ROOT / words[1]).is_file()


def test_every_figure_of_the_job_table_is_listed():
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    table = page.partition("## The jobs")[2].partition("\n\nWhere each")[0]
    measured = [line.split("|")[4] for line in table.splitlines() if line.startswith("| **")]
    assert len(measured) == 6
    listed = " ".join(FIGURES["text"])
    for cell in measured:
        for number in re.findall(r"(?<![\w-])\d[\d.,]*\d(?: %)?|(?<![\w-])\d(?: %)?", cell):
            if number in SETTINGS or len(number) == 1:
                continue
            assert number in listed, number
