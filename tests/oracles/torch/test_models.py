"""Every kind of the table on the page about kinds, as it says: found, or refused in these words."""

from __future__ import annotations

import csv
import importlib.util
import logging
import re
from pathlib import Path

import pytest
import torch

from benchmarks import kinds
from benchmarks.habits.base import ASKED, Kind, run

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "experiments" / "kinds.csv"
SLOW = {"encoder and decoder (T5)"}


def named(one: Kind) -> object:
    marks = [pytest.mark.slow] if one.name in SLOW else []
    return pytest.param(one, id=one.name, marks=marks)


@pytest.mark.parametrize("one", [named(kind) for kind in kinds.KINDS])
def test_a_kind_is_found_or_refused(one: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    if "PEFT" in one.name and importlib.util.find_spec("peft") is None:
        pytest.skip("peft is not installed")
    logging.disable(logging.WARNING)
    try:
        got = run(one)
    finally:
        logging.disable(logging.NOTSET)
        if torch.distributed.is_initialized():
            torch.distributed.destroy_process_group()
    if one.refused:
        assert got.found == -1
        assert re.search(one.refused, got.said), got.said
        return
    assert got.found >= ASKED, got.said
    assert got.slower == (one.name in {"scripted", "encoder and decoder (T5)"})
    assert "numbered otherwise" not in got.said


def test_the_table_has_every_kind_and_the_page_is_made_from_it() -> None:
    with TABLE.open(encoding="utf-8", newline="") as file:
        header, *rows = csv.reader(file)
    assert tuple(header) == kinds.HEADER
    assert [row[1] for row in rows] == [one.name for one in kinds.KINDS]
    assert len(rows) >= 25
    page = (ROOT / "docs" / "studies" / "kinds.md").read_text(encoding="utf-8")
    assert kinds.tables(rows) in page
    for row, one in zip(rows, kinds.KINDS, strict=True):
        assert row[2] == ("refused" if one.refused else "works")
        if row[2] == "works":
            assert int(row[3][0]) >= ASKED
