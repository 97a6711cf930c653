"""Answers of other libraries: asked once, kept as ranks, scored with intervals."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np
import pytest
from torch import nn

import exempla
from benchmarks.peers import answers, scripts, suite
from benchmarks.peers.answers import Asked, Kept, Question, answer_all, keep, ranks
from benchmarks.peers.intervals import correlations, interval
from benchmarks.peers.job import Method, fresh_network
from benchmarks.peers.scripts import Answer
from benchmarks.truths.settings import SETTINGS
from benchmarks.truths.table import MASKS, ONE, RUN, Truth

SCRIPT = """
import json, sys
import numpy as np
job, out = sys.argv[1:3]
with np.load(job) as given:
    matrix = given["effects"]
np.savez(out, dampings=[0.0, np.nan], matrices=np.stack([matrix, -matrix]))
report = dict(cpu_seconds=2.0, job_seconds=1.0, first_seconds=0.5, peak_mb=3.0, machine="made")
open(out.replace(".npz", ".json"), "w").write(json.dumps(report))
"""


@pytest.fixture
def effects() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(40, 6))


@pytest.fixture
def question(effects) -> Question:
    mask = np.random.default_rng(1).random((30, 40)) < 0.5
    return Question("made", lambda: {"effects": effects}, {"half": mask.astype(float)})


def options(folder: Path) -> argparse.Namespace:
    return argparse.Namespace(
        answers=folder, envs=folder, python=Path(sys.executable), workers=1, limit=0.0
    )


def test_ranks_are_all_that_lds_asks_for(effects, question):
    mask = question.subsets["half"]
    outcomes = mask @ effects + np.random.default_rng(2).normal(size=(30, 6))
    by_ranks = exempla.metrics.lds(ranks(mask @ effects).astype(float), np.eye(30), outcomes)
    assert by_ranks == pytest.approx(exempla.metrics.lds(effects, mask.astype(bool), outcomes))


def test_what_is_no_number_scores_nothing():
    broken = np.full((5, 2), np.nan)
    assert (ranks(broken) == 0).all()
    assert exempla.metrics.lds(ranks(broken).astype(float), np.eye(5), np.eye(5)[:, :2]) == 0.0


def test_an_answer_is_kept_and_not_asked_for_again(tmp_path, monkeypatch, question):
    (tmp_path / "run_made.py").write_text(SCRIPT)
    monkeypatch.setattr(scripts, "SCRIPTS", tmp_path)
    asked = Asked("made", "TRAK, half", "run", ("default", "none"))
    answer_all([(question, asked)], options(tmp_path))
    (file,) = tmp_path.glob("*.npz")
    assert file.name == "made-made-TRAK_half-run-default-none.npz"
    kept = Kept.load(file)
    assert (kept.first_seconds, kept.machine) == (0.5, "made")
    assert np.isnan(kept.dampings[1])
    assert (kept.ranks["half"][0] + kept.ranks["half"][1] == 29).all()
    (tmp_path / "run_made.py").write_text("raise SystemExit('asked again')")
    answer_all([(question, asked)], options(tmp_path))


def test_a_script_that_fails_is_named_and_left_out(tmp_path, monkeypatch, question, capsys):
    (tmp_path / "run_made.py").write_text("raise SystemExit('no such layer')")
    monkeypatch.setattr(scripts, "SCRIPTS", tmp_path)
    answer_all([(question, Asked("made", "TRAK"))], options(tmp_path))
    assert "no such layer" in capsys.readouterr().out
    assert not list(tmp_path.glob("*.npz"))


def test_dampings_by_name():
    method = Method(lambda: iter(()), 1e-8, (0.1, 1.0))
    assert method.dampings(["default", "none", "sweep", "3"]) == [1e-8, None, 0.1, 1.0, 3.0]


def test_a_job_of_the_suite_makes_the_suite_s_network(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    job = {"kind": np.array("logistic"), "words": np.array(0),
           "X": np.zeros((4, 3), np.float32), "y": np.array([0, 1, 2, 1])}  # fmt: skip
    (layer,) = [m for m in fresh_network(job).modules() if isinstance(m, nn.Linear)]
    assert (layer.in_features, layer.out_features) == (3, 3)


def test_one_draw_of_each_subset_is_the_lds_itself(effects, question):
    mask = question.subsets["half"]
    outcomes = mask @ effects + np.random.default_rng(3).normal(size=(30, 6))
    found = correlations(mask @ effects, outcomes, np.full((1, 30), 1 / 30))[0]
    assert found == pytest.approx(
        exempla.metrics.lds_per_test(effects, mask.astype(bool), outcomes)
    )


def test_an_interval_holds_its_score_and_a_lead_on_oneself_is_nothing(effects, question):
    mask = question.subsets["half"]
    predicted = mask @ effects
    outcomes = predicted + 3 * np.random.default_rng(3).normal(size=predicted.shape)
    low, high = interval(predicted, outcomes, draws=60)
    assert low < exempla.metrics.lds(effects, mask.astype(bool), outcomes) < high
    assert interval(predicted, outcomes, predicted, draws=20) == (0.0, 0.0)
    assert interval(predicted, outcomes, -predicted, draws=60)[0] > 0


@pytest.fixture
def truth(effects) -> Truth:
    rng = np.random.default_rng(4)
    removed = {kind: (rng.random((30, 40)) < 0.5).astype(float) for kind in MASKS}
    made = Truth(SETTINGS[0], {}, {"y": np.zeros(40)})
    made.__dict__["removals"] = {k: (m, -m @ effects) for k, m in removed.items()}
    return made


def test_the_suite_tells_defaults_choices_and_the_best_apart(tmp_path, truth, effects):
    question = suite.question_of(truth)
    noise = np.random.default_rng(5).normal(size=effects.shape)
    for asked in (ONE, RUN):
        keep(question, answer_of([effects]), tmp_path / f"{question.name}-{asked.name}.npz")
    (peer,) = [a for a in suite.ASKED if a.library == "kronfluence" and a.models == "run"]
    dampings = [1e-8, np.nan, 0.1, 1.0]
    matrices = [-effects, noise, noise, effects]
    keep(question, answer_of(matrices, dampings), tmp_path / f"{question.name}-{peer.name}.npz")
    lines = [x for x in suite.lines(truth, tmp_path) if x["outcome"] == MASKS[0]]
    found = {(x["method"], x["checkpoints"], x["damping"]): x for x in lines}
    assert found["exempla, recorded run", "8", "automatic"]["LDS"] == "1.000"
    theirs = {d: x for (m, _, d), x in found.items() if m.startswith("kronfluence")}
    assert list(theirs) == ["default", "its own choice from data", "best of 4 (1)"]
    assert (theirs["default"]["LDS"], theirs["default"]["lead"]) == ("-1.000", "2.000")
    assert theirs["best of 4 (1)"]["lead"] == "0.000"


def answer_of(matrices: list[np.ndarray], dampings: list[float] | None = None) -> Answer:
    return Answer(np.array(dampings or [0.0]), np.stack(matrices), 1.0, 1.0, 1.0, 1.0, "made")


def test_the_table_of_truths_reads_kept_ranks(tmp_path, truth, effects):
    file = tmp_path / "a.npz"
    keep(suite.question_of(truth), answer_of([effects]), file)
    for outcome in MASKS:
        assert truth.lds_of_ranks(Kept.load(file), outcome) == pytest.approx(1.0)


def test_ours_is_the_library_that_needs_no_environment():
    assert answers.OURS not in answers.PEERS
