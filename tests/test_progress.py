"""Progress bars: silent when quick or unasked, there when slow."""

import numpy as np

from exempla import progress, select
from exempla.progress import counter, showing, track


def test_slow_work_shows_and_quick_work_does_not(capsys, monkeypatch):
    assert list(track(range(3), "quick", enabled=True)) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress, "DELAY", 0)
    assert list(track(range(3), "slow", enabled=True)) == [0, 1, 2]
    assert "slow" in capsys.readouterr().err
    assert list(track(range(3), "unasked", enabled=False)) == [0, 1, 2]
    assert capsys.readouterr().err == ""


def test_picking_is_counted_only_where_asked(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    rows = np.random.default_rng(0).normal(size=(50, 6))
    select(rows, rows[0], 3)
    assert capsys.readouterr().err == ""
    with showing(True):
        select(rows, rows[0], 3)
    assert "picking" in capsys.readouterr().err
    with counter("after", 1) as bar:
        bar.update()
    assert capsys.readouterr().err == ""
