"""Progress: silent when quick or unasked, a bar in a terminal, lines elsewhere."""

import numpy as np

from exempla import progress, select
from exempla.progress import counter, say, showing, track


def test_slow_work_shows_and_quick_work_does_not(capsys, monkeypatch):
    with showing(True):
        assert list(track(range(3), "quick")) == [0, 1, 2]
        assert capsys.readouterr().err == ""
        monkeypatch.setattr(progress, "DELAY", 0)
        assert list(track(range(3), "slow", 3)) == [0, 1, 2]
        assert "slow" in capsys.readouterr().err
    assert list(track(range(3), "unasked")) == [0, 1, 2]
    say("unasked")
    assert capsys.readouterr().err == ""


def test_redirected_output_gets_lines_and_a_terminal_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0)
    with showing(True):
        list(track(range(4), "counting", 4))
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("exempla: counting: 1 of 4 (25%), ")
        assert len(lines) == 4
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        list(track(range(4), "counting", 4))
        assert "\r" in capsys.readouterr().err


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
