"""Metrics and damping rules."""

import pickle
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.covariance import ledoit_wolf_shrinkage

from exempla import ExemplaError
from exempla.kernel.damping import (
    FisherEvidence,
    check_damping,
    per_effective_row,
    per_row,
    resolve_damping,
    shrinkage,
)
from exempla.kernel.fisher import DiagonalMetric, FullMetric
from tests.threads import hammered


def evidence_of(rows, parameters=None):
    """Evidence for one row an example."""
    F = rows.T @ rows / len(rows)
    energy = (rows**2).sum(1)
    return FisherEvidence(
        trace=float(np.trace(F)),
        rows=len(rows),
        energy2=float((energy**2).sum()),
        squared_norm=float((F**2).sum()),
        examples=len(rows),
        parameters=parameters or rows.shape[1],
    )


def test_shrinkage_is_ledoit_wolf():
    rows = np.random.default_rng(0).normal(size=(40, 12)) * np.linspace(1, 3, 12)
    share = ledoit_wolf_shrinkage(rows, assume_centered=True)
    mean = np.trace(rows.T @ rows / 40) / 12
    assert shrinkage(evidence_of(rows)).value == pytest.approx(share / (1 - share) * mean)


def test_effective_rows_are_the_rows_when_all_weigh_alike():
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(30, 8))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    evidence = evidence_of(rows)
    assert per_effective_row(evidence).value == pytest.approx(per_row(evidence).value)
    rows[0] *= 100
    evidence = evidence_of(rows)
    assert per_effective_row(evidence).value == pytest.approx(evidence.trace, rel=0.01)


def test_rules_scale_with_the_scores():
    rows = np.random.default_rng(0).normal(size=(30, 8))
    for rule in (per_row, per_effective_row, shrinkage):
        small, large = rule(evidence_of(rows)).value, rule(evidence_of(10 * rows)).value
        assert large == pytest.approx(100 * small)


def test_auto_is_named_with_its_reason():
    evidence = evidence_of(np.random.default_rng(0).normal(size=(30, 8)))
    assert resolve_damping("auto", evidence, "full", "influence").rule.startswith("per-row")
    known = replace(evidence, gradient_gap=0.125)
    assert resolve_damping("auto", known, "full", "influence").value == 0.125
    assert resolve_damping("auto", replace(evidence, gradient_gap=0.0), "full").value > 0
    assert resolve_damping("auto", evidence, "full", "selection").rule.startswith("per-effective")
    assert resolve_damping(0.25, evidence, "full").value == 0.25
    assert resolve_damping("auto", evidence, "identity").value == 0.0


@pytest.mark.parametrize("metric", ["full", "diagonal"])
def test_whitening_gives_the_damped_inverse(metric):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(9, 6))
    F, rows = A.T @ A, rng.normal(size=(4, 6))
    if metric == "full":
        M, fisher = F + 0.3 * np.eye(6), FullMetric(F)
    else:
        M, fisher = np.diag(np.diag(F) + 0.3), DiagonalMetric(np.diag(F))
    white = fisher.whiten(rows, 0.3)
    np.testing.assert_allclose(white @ white.T, rows @ np.linalg.solve(M, rows.T), rtol=1e-10)


def test_a_singular_metric_asks_for_damping():
    with pytest.raises(ExemplaError, match="damping"):
        FullMetric(np.diag([1.0, 0.0])).whiten(np.ones((2, 2)), 0.0)
    with pytest.raises(ExemplaError, match="damping"):
        DiagonalMetric(np.array([1.0, 0.0])).whiten(np.ones((2, 2)), 0.0)


def test_check_damping_accepts_numbers_of_any_kind():
    assert check_damping(np.float32(0.5)) == 0.5
    assert check_damping(0) == 0.0
    assert check_damping("shrinkage") == "shrinkage"


def test_a_full_metric_goes_from_damping_to_damping_and_back():
    rng = np.random.default_rng(0)
    rows, square = rng.standard_normal((5, 7)), rng.standard_normal((40, 7))
    F = square.T @ square / 40
    metric = FullMetric(F.copy())
    for damping in (0.3, 0.0, 2.0, 0.3):
        inverse = np.linalg.inv(F + damping * np.eye(7))
        white, solved = metric.whiten(rows, damping), metric.solve(rows, damping)
        np.testing.assert_allclose(white @ white.T, rows @ inverse @ rows.T, rtol=1e-10)
        np.testing.assert_allclose(solved, rows @ inverse, rtol=1e-9)
        on_torch = torch.from_numpy(rows)
        np.testing.assert_allclose(metric.whiten(on_torch, damping).numpy(), white, rtol=1e-9)
        np.testing.assert_allclose(metric.solve(on_torch, damping).numpy(), solved, rtol=1e-9)
    single = metric.whiten(rows.astype(np.float32), 0.3)
    assert single.dtype == np.float32
    np.testing.assert_allclose(single, metric.whiten(rows, 0.3), rtol=1e-4, atol=1e-6)


# ---- several threads


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor])
def test_threads_at_different_dampings_get_their_own_answers(kind):
    rng = np.random.default_rng(0)
    A = rng.normal(size=(400, 120))
    metric, rows = FullMetric(A.T @ A / 400), kind(rng.normal(size=(50, 120)))
    jobs = [
        partial(method, rows, damping)
        for method in (metric.whiten, metric.solve)
        for damping in (0.01, 1.0)
    ]
    alone = [job() for job in jobs]
    for expected, got in zip(alone, hammered(jobs, times=25), strict=True):
        for one in got:
            np.testing.assert_array_equal(one, expected)


def test_a_stored_metric_gives_the_same_and_has_a_lock_of_its_own():
    rng = np.random.default_rng(0)
    A = rng.normal(size=(40, 6))
    metric, rows = FullMetric(A.T @ A / 40), rng.normal(size=(5, 6))
    expected = metric.solve(rows, 0.3)
    again = pickle.loads(pickle.dumps(metric))
    np.testing.assert_array_equal(again.solve(rows, 0.3), expected)
    np.testing.assert_array_equal(again.whiten(rows, 2.0), metric.whiten(rows, 2.0))
