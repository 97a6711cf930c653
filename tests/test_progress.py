"""Progress: silent when quick or unasked, a bar in a terminal, lines elsewhere."""

import re

import numpy as np

from exempla import progress, select
from exempla.progress import counter, say, showing, track
from exempla.selection import engine


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


def test_a_line_is_printed_once_per_job(capsys):
    with showing(True):
        say("each model says this")
        with showing(True):
            say("each model says this")
        say("and this")
    with showing(True):
        say("and this")
        say("a worker was lost", always=True)
        say("a worker was lost", always=True)  # another one
    said = capsys.readouterr().err.splitlines()
    assert said[:3] == ["exempla: each model says this", *["exempla: and this"] * 2]
    assert said[3:] == ["exempla: a worker was lost"] * 2


def test_redirected_output_gets_lines_and_a_terminal_a_bar(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0)
    with showing(True):
        list(track(range(4), "counting", 4))
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("exempla: counting: 25%, about ")
        assert len(lines) == 4
        monkeypatch.setattr("sys.stderr.isatty", lambda: True)
        list(track(range(4), "counting", 4))
        assert "\r" in capsys.readouterr().err


def test_picking_is_counted_only_where_asked(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(engine, "_MIN_PROGRESS_WORK", 0)
    rows = np.random.default_rng(0).normal(size=(50, 6))
    select(rows, rows[0], 3)
    assert capsys.readouterr().err == ""
    with showing(True):
        select(rows, rows[0], 3)
    assert "picking" in capsys.readouterr().err
    with counter("after", 1) as bar:
        bar.update()
    assert capsys.readouterr().err == ""


def test_uncountable_work_is_told_after_two_seconds(monkeypatch, capsys):
    import time

    monkeypatch.setattr(progress, "DELAY", 0.02)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0.02)
    said = ""
    with progress.showing(True), progress.waiting("reading mail.csv"):
        for _ in range(500):  # until the teller has spoken, however busy the machine is
            time.sleep(0.02)
            said += capsys.readouterr().err
            if "so far" in said:
                break
    assert re.match(r"exempla: reading mail.csv: \d+ s so far", said)
    capsys.readouterr()
    with progress.showing(False), progress.waiting("reading mail.csv"):
        time.sleep(0.1)
    assert capsys.readouterr().err == ""


def test_counted_work_shows_an_estimate(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    with progress.showing(True), counter("training", 40) as bar:
        now[0] = 1.0
        bar.update()
        assert capsys.readouterr().err == ""
        now[0] = 2.0
        bar.update()
        assert capsys.readouterr().err == "exempla: training: 5%, about 38 s left\n"
        now[0] = 13.0
        bar.update()
        assert "training: 8%, about 3 min left" in capsys.readouterr().err


def test_a_counter_inside_another_moves_the_same_line(monkeypatch, capsys):
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0)
    with showing(True):
        for _ in track(range(2), "outer", 2):
            list(track(range(2), "inner", 2))
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 6
    assert all(line.startswith("exempla: outer: ") for line in lines)


STAGES = [
    progress.Stage("reading", 1, 0),
    progress.Stage("scoring", 3),
    progress.Stage("writing", 1),
]


def test_a_command_shows_one_overall_share(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0)
    with showing(True), progress.overall("explain", STAGES):
        progress.stage()
        list(track(range(3), "scoring rows", 3))
        progress.stage("writing")
    lines = [line for line in capsys.readouterr().err.splitlines() if "scoring rows" in line]
    assert [re.match(r"exempla: scoring rows: (\d+)%", line)[1] for line in lines] == [
        "40", "60", "80",
    ]  # fmt: skip


def test_the_overall_share_never_falls_and_ends_with_the_stages(monkeypatch):
    clock = iter(np.arange(0.0, 1000.0, 10.0))
    monkeypatch.setattr(progress, "monotonic", lambda: float(next(clock)))
    monkeypatch.setattr(progress, "_print", lambda text: None)
    whole, seen = progress._Display("explain", STAGES), []
    for name in (None, "no such stage", "writing"):
        whole.enter(name)
        for _ in range(3):  # more counters than the stage announced
            with whole.counting("step", 4) as step:
                for _ in range(4):
                    step.update()
                    seen.append(whole.fraction())
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_the_time_left_follows_the_speed_so_far(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(progress, "monotonic", lambda: now[0])
    monkeypatch.setattr(progress, "_print", lambda text: None)
    whole = progress._Display("explain", STAGES)
    assert whole.line(3.0) == "reading: 3 s so far"
    whole.enter("scoring")
    with whole.counting("step", 10) as step:
        now[0] = 20.0
        step.update(5)
        assert whole.line(20.0) == "step: 50%, about 20 s left"


def test_a_terminal_gets_one_line_that_is_cleared(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "BETWEEN_LINES", 0)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    with showing(True), progress.overall("explain", STAGES):
        progress.stage("scoring")
        list(track(range(3), "scoring rows", 3))
        say("a message")
    shown = capsys.readouterr().err
    assert "[#" in shown
    assert "exempla: a message\n" in shown
    assert shown.count("\n") == 1
    assert not shown.rpartition("\n")[2].strip(), "nothing of the bar is left"


def test_quiet_commands_show_no_overall_bar(capsys, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 0)
    with showing(False), progress.overall("explain", STAGES):
        list(track(range(3), "scoring rows", 3))
    assert capsys.readouterr().err == ""
