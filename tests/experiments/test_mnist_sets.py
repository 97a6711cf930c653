"""Intervals over sets of networks: each set counts once."""

from __future__ import annotations

import pandas as pd
import pytest

from experiments.mnist_report import CLEAN, WITHOUT, over_sets, verdict


def cells(shares: dict[str, list[float]], repeats: int = 1) -> pd.DataFrame:
    """One line per method and set of networks (4, 5, …), or several alike."""
    rows = [
        {"method": method, "networks": str(4 + i), "split": f"{4 + i}/0", "seed": seed,
         "target_fixed": share}
        for method, values in shares.items()
        for i, share in enumerate(values)
        for seed in range(repeats)
    ]  # fmt: skip
    return pd.DataFrame(rows)


def test_a_mean_and_student_s_interval_over_sets():
    mean, half, sets = over_sets(cells({CLEAN: [0.7, 0.8, 0.9]}), CLEAN)
    assert (mean, sets) == (pytest.approx(0.8), 3)
    assert half == pytest.approx(4.3027 * 0.1 / 3**0.5, rel=1e-4)


def test_more_trainings_of_the_same_networks_do_not_make_it_surer():
    shares = {CLEAN: [0.7, 0.8, 0.9]}
    assert over_sets(cells(shares, 20), CLEAN) == pytest.approx(over_sets(cells(shares), CLEAN))


def test_sets_a_choice_was_made_on_do_not_count():
    table = cells({CLEAN: [0.7, 0.8, 0.9]})
    table.loc[len(table)] = {"method": CLEAN, "networks": "0", "split": "0/0", "target_fixed": 0.0}
    assert over_sets(table, CLEAN)[0] == pytest.approx(0.8)


def test_a_difference_is_taken_set_by_set_and_told_for_what_it_shows():
    same = {CLEAN: [0.5, 0.7, 0.9], WITHOUT: [0.4, 0.6, 0.8], "random": [0.1, 0.2, 0.15]}
    mean, half, _ = over_sets(cells(same), CLEAN, WITHOUT)
    assert (mean, half) == (pytest.approx(0.1), pytest.approx(0.0, abs=1e-9))
    assert "a gain from checkpoints is shown" in verdict(cells(same))
    unsure = same | {WITHOUT: [0.6, 0.5, 0.7]}
    assert "a gain from checkpoints is not shown" in verdict(cells(unsure))
