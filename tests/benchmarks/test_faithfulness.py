"""Our side of the comparison with peers: counting lines, scoring, and running a script."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.faithfulness import METHODS, asked_of
from benchmarks.peers import scripts
from benchmarks.peers.environments import PEERS, torch_pin
from benchmarks.peers.scripts import SCRIPTS, run_script, user_lines
from benchmarks.peers.truths import CHOOSE, REPORT, Truth


@pytest.fixture
def truth() -> Truth:
    """100 half-subsets of 40 examples; the outcome is the sum of known effects."""
    rng = np.random.default_rng(0)
    effects = rng.normal(size=(40, 3))
    subsets = np.stack([rng.choice(40, 20, replace=False) for _ in range(100)])
    return Truth("made", 1, subsets, effects[subsets].sum(1), {"effects": effects})


def test_lds_is_one_for_the_true_effects_and_minus_one_for_their_opposite(truth):
    effects = truth.job["effects"]
    assert truth.lds(effects, REPORT) == pytest.approx(1.0)
    assert truth.lds(-effects, CHOOSE) == pytest.approx(-1.0)


def test_a_matrix_that_is_not_finite_scores_nothing(truth):
    broken = truth.job["effects"].copy()
    broken[0, 0] = np.nan
    assert truth.lds(broken, REPORT) == 0.0


def test_the_sweep_chooses_without_the_subsets_it_is_reported_on(truth):
    effects = truth.job["effects"]
    noise = np.random.default_rng(1).normal(size=effects.shape)
    hidden = truth.outcomes.copy()
    hidden[REPORT] = -hidden[REPORT]  # on the reported half the opposite would win
    other = Truth("made", 1, truth.subsets, hidden, truth.job)
    assert other.best(np.stack([noise, -effects, effects])) == 2


def test_user_lines_counts_code_between_the_marks(tmp_path: Path):
    script = tmp_path / "run_made.py"
    script.write_text(
        "import os\n# user code\nimport made\n\n# a comment\n\n"
        "def f(x):\n    made.again(x)  # sweep\n    return made.call(\n        x,\n    )\n\n"
        "# end of user code\nprint(os)\n"
    )
    assert user_lines(script) == 5


@pytest.mark.parametrize("library", METHODS)
def test_every_library_has_a_script_with_marked_user_code(library):
    assert library == "exempla" or library in PEERS
    assert user_lines(SCRIPTS / f"run_{library}.py") > 3


def test_a_script_that_fails_says_why(tmp_path, monkeypatch):
    monkeypatch.setattr(scripts, "SCRIPTS", tmp_path)
    (tmp_path / "run_made.py").write_text("raise SystemExit('no such layer')")
    with pytest.raises(RuntimeError, match="no such layer"):
        run_script(Path(sys.executable), "made", tmp_path / "job", tmp_path / "out.npz", [])


def test_kronfluence_is_asked_for_its_own_damping_and_given_checkpoints():
    asked = list(asked_of("kronfluence", "EK-FAC", 10, checkpoints=True))
    assert {a.models for a in asked} == {"one", "10", "run"}
    for a in asked[1:]:  # the first is the one that is timed
        assert {"none", "sweep"} <= set(a.dampings)
    assert asked[-1].options[-1] == "--checkpoints"


def test_trak_is_given_models_and_moments_at_both_widths():
    for method in ("TRAK", "TRAK, 512 dimensions"):
        assert method in METHODS["traker"]
        assert {a.models for a in asked_of("traker", method, 5, checkpoints=True)} == {
            "one", "5", "run"}  # fmt: skip


def test_exempla_is_asked_about_a_run_as_a_run():
    (*_, run) = asked_of("exempla", "automatic", 5, checkpoints=True)
    assert (run.method, run.models) == ("recorded run", "run")


def test_a_peer_s_environment_pins_torch_alone():
    assert torch_pin().startswith("torch==")
    assert torch_pin().count("==") == 1
