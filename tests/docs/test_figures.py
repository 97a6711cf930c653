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
from tests.docs.runs import code_hash, runs

ROOT = Path(__file__).parents[2]
FIGURES = pd.read_csv(ROOT / "docs" / "figures.csv", keep_default_na=False)
SETTINGS = {"54", "727", "500", "300", "60,000", "100", "0.3", "0.2", "0", "1", "23", "40", "20"}
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
    table = page.partition("## The jobs")[2].partition("\n\n[docs/figures.csv]")[0]
    measured = [line.split(" | ")[3] for line in table.splitlines() if line.startswith("| **")]
    assert len(measured) == 6
    listed = " ".join(FIGURES["text"])
    for cell in measured:
        for number in re.findall(r"(?<![\w-])\d[\d.,]*\d(?: %)?|(?<![\w-])\d(?: %)?", cell):
            if number in SETTINGS or len(number) == 1:
                continue
            assert number in listed, number


def test_every_csv_of_the_readme_has_its_run():
    used = set(FIGURES.loc[FIGURES["page"] == "README.md", "csv"])
    table = runs().set_index("csv")
    assert used <= set(table.index)
    assert table["commit"].str.fullmatch(r"[0-9a-f]{7,}").all()
    assert table["date"].str.fullmatch(r"\d{4}-\d\d-\d\d").all()
    assert set(table["status"]) <= {"current", "older"}


@pytest.mark.parametrize("run", runs().to_dict("records"), ids=lambda run: run["csv"])
def test_a_figure_is_of_today_s_code_or_names_its_commit(run):
    if run["status"] == "current":
        assert code_hash(run["sources"]) == run["code"], (
            f"The code behind {run['csv']} has changed. Run `{run['command']}` again and then "
            f"`python -m tests.docs.runs {run['csv']}`, or set its status to 'older' in "
            f"docs/experiments/runs.csv and name commit {run['commit']} on the page."
        )
        return
    pages = set(FIGURES.loc[FIGURES["csv"] == run["csv"], "page"]) & {"README.md"}
    for page in pages:
        assert run["commit"] in (ROOT / page).read_text(encoding="utf-8")
