"""Votes of several annotators, and checks of a random sample."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression

import exempla
from exempla.errors import ExemplaError
from exempla.tasks.labels.annotators import estimate_annotators
from exempla.tasks.labels.wrong import count_by_sample


def votes(n: int = 500, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rows, truth, and five annotators: two good, two average, one who calls every third 1 a 0."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, n)
    X = rng.normal(size=(n, 4)) + truth[:, None]
    flip = rng.random((n, 5)) < [0.05, 0.05, 0.2, 0.2, 0.0]
    table = np.where(flip, 1 - truth[:, None], truth[:, None]).astype(float)
    table[(truth == 1) & (rng.random(n) < 0.33), 4] = 0
    table[rng.random((n, 5)) < 0.4] = np.nan
    table[np.isnan(table).all(axis=1), 0] = truth[np.isnan(table).all(axis=1)]
    return X, truth, table


def test_annotators_and_truth_are_estimated_together() -> None:
    X, truth, table = votes()
    fixes = exempla.fix_labels(LogisticRegression(), (X, table), progress=False)
    assert fixes.method == "votes"
    found = fixes.annotators
    assert found.accuracy[:2].min() > found.accuracy[2:4].max()
    assert found.confusion[4, 1, 0] > 3 * found.confusion[4, 0, 1]
    majority = np.nanmean(table, axis=1) > 0.5
    right = [np.mean(guess == truth) for guess in (found.consensus, majority)]
    assert right[0] > right[1]
    plain = estimate_annotators(table)
    assert np.mean(plain.consensus == truth) > right[1]
    assert fixes.n_ambiguous > 0
    assert set(fixes.verdict) <= {"wrong", "ambiguous", "right"}
    assert len(found.to_frame()) == 5


def test_long_and_wide_votes_are_the_same_job() -> None:
    X, _, table = votes(120)
    wide = exempla.fix_labels(LogisticRegression(), (X, table), k=10, progress=False)
    at, who = np.nonzero(~np.isnan(table))
    long = pd.DataFrame({"row": at, "annotator": who, "label": table[at, who]})
    same = exempla.fix_labels(LogisticRegression(), (X, long), k=10, task="votes", progress=False)
    np.testing.assert_array_equal(wide.indices, same.indices)


def test_votes_that_do_not_fit_are_refused() -> None:
    X, _, table = votes(60)
    table[3] = np.nan
    with pytest.raises(ExemplaError, match="row 3 has no vote"):
        exempla.fix_labels(LogisticRegression(), (X, table), progress=False)
    with pytest.raises(ExemplaError, match="60 rows but there are votes on 59"):
        exempla.fix_labels(LogisticRegression(), (X, table[:59]), task="votes", progress=False)


def test_fifty_random_checks_hold_the_count_and_narrow_it() -> None:
    held = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        p = rng.beta(0.3, 3.0, 2000)
        wrong = rng.random(2000) < np.minimum(2.0 * p, 1.0)
        wrong = wrong[rng.permutation(2000)]
        few, more = (count_by_sample(2000 - m, m, wrong[:m].sum())[1] for m in (20, 50))
        assert np.ptp(more) < np.ptp(few)
        held += more[0] <= wrong[50:].sum() <= more[1]
    assert held >= 15  # 90 % intervals: fewer than 15 of 20 has a probability of 1 %
