"""What the tables of the page say of what was and was not asked."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks.peers.pages import COMPARED, Line, best_peer, lead, markdown, rewritten
from benchmarks.truths import table
from benchmarks.truths.exact import DAMPINGS
from benchmarks.truths.table import MASKS, climbed, read, updated, write


def line(method: str, damping: str, lds: str, ahead: str = "0.100") -> Line:
    return {"method": method, "damping": damping, "LDS": lds, "lead": ahead,
            "lead low": "0.050", "lead high": "0.150"}  # fmt: skip


def test_a_lead_is_on_the_best_of_all_peers_or_not_told():
    own = [line(*key, f"0.{i + 1}00") for i, key in enumerate(COMPARED.values())]
    best = best_peer(own, looked_up=False)
    assert best is own[-1]
    assert lead(best) == "+0.100 (0.050 … 0.150)"
    assert best_peer(own[1:], looked_up=False) is None
    assert best_peer(own, looked_up=True) is None


def test_a_looked_up_damping_counts_for_all_widths_of_a_peer():
    own = [line(method, "best of 7 (1)", "0.2") for method, _ in COMPARED.values()]
    own.append(line("traker, TRAK", "best of 7 (10)", "0.4"))
    assert best_peer(own, looked_up=True) is own[-1]


def test_what_was_not_measured_is_a_dash():
    assert markdown(("a", "b"), [("1", "")]) == "| a | b |\n| --- | --- |\n| 1 | – |\n"


def test_words_around_a_table_stay():
    text = "before\n<!-- table: rules -->\nold\n<!-- end -->\nafter\n"
    made = rewritten(text)
    assert made.startswith("before\n<!-- table: rules -->\n| truth |")
    assert made.endswith("<!-- end -->\nafter\n")
    assert "old" not in made


class Asked:
    """An explainer whose influence is the damping it was set to."""

    def __init__(self, damping: float) -> None:
        self.features, self.damping = SimpleNamespace(damping=damping), damping

    def set_damping(self, damping: float) -> Asked:
        self.damping = damping
        return self

    def influence(self, test: object) -> np.ndarray:
        return np.array([self.damping])


@pytest.mark.parametrize(("best", "tried"), [(0.01, 3), (0.3, 5), (1e-4, 6)])
def test_the_best_damping_is_climbed_to_from_the_automatic_one(best, tried):
    truth = SimpleNamespace(lds=lambda m, outcome: -abs(float(np.log(m[0] / best))))
    found = [float(m[0]) for m in climbed(Asked(0.012), truth, ())]  # pyright: ignore
    assert len(found) == tried
    assert best in found
    assert set(found) <= set(DAMPINGS)


def test_lines_of_other_settings_stay(tmp_path, monkeypatch):
    base = dict.fromkeys(table.COLUMNS, "")
    known = base | {"setting": "digits-mlp-sgd", "outcome": MASKS[0], "best": "0.5"}
    other = base | {"setting": "mnist-cnn-adam", "outcome": MASKS[0]}
    file = tmp_path / "truths.csv"
    write([other, known], file)
    assert read(file) == [known, other]
    truth = SimpleNamespace(setting=SimpleNamespace(name="digits-mlp-sgd"))
    assert updated([known], truth, tmp_path) == [known]  # pyright: ignore
    monkeypatch.setattr(table, "told", lambda *_: [known | {"best": "", "run": "0.6"}])
    (tmp_path / "digits-mlp-sgd-exempla-automatic-one-default.npz").touch()
    assert updated([known], truth, tmp_path) == [known | {"run": "0.6"}]  # pyright: ignore
