"""Faithfulness metrics against SciPy and by hand."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from exempla import ExemplaError, metrics


def test_lds_is_the_mean_spearman_correlation():
    rng = np.random.default_rng(0)
    A, outcomes = rng.normal(size=(30, 4)), rng.normal(size=(25, 4))
    subsets = np.stack([rng.choice(30, 15, replace=False) for _ in range(25)])
    by_hand = [
        spearmanr([A[s, j].sum() for s in subsets], outcomes[:, j]).statistic for j in range(4)
    ]
    np.testing.assert_allclose(metrics.lds_per_test(A, subsets, outcomes), by_hand)
    assert metrics.lds(A, subsets, outcomes) == pytest.approx(np.mean(by_hand))
    mask = metrics.subset_mask(subsets, 30).astype(bool)
    assert metrics.lds(A, mask, outcomes) == pytest.approx(np.mean(by_hand))


def test_constant_predictions_score_zero():
    outcomes = np.arange(4.0)[:, None]
    assert metrics.lds(np.ones((5, 1)), np.array([[0, 1], [1, 2], [2, 3], [3, 4]]), outcomes) == 0.0


def test_wrong_shapes_are_refused():
    A = np.ones((5, 2))
    with pytest.raises(ExemplaError, match="outcomes"):
        metrics.lds(A, np.array([[0, 1]]), np.ones((3, 2)))
    with pytest.raises(ExemplaError, match="indices"):
        metrics.lds(A, np.array([[0, 9]]), np.ones((1, 2)))
    with pytest.raises(ExemplaError, match="2-D"):
        metrics.lds(A, np.array([0, 1]), np.ones((1, 2)))
    with pytest.raises(ExemplaError, match="n_train"):
        metrics.lds(np.ones(5), np.array([[0, 1]]), np.ones((1, 2)))


def test_mislabel_metrics():
    wrong = np.array([True, False, False, True])
    assert metrics.mislabel_auc([0.9, 0.5, 0.1, 0.3], wrong) == 0.75
    assert metrics.found_share([0, 1, 3, 2], wrong, 3) == pytest.approx(2 / 3)
    with pytest.raises(ExemplaError, match="both"):
        metrics.mislabel_auc([1, 2], [True, True])
    with pytest.raises(ExemplaError, match="k is 0"):
        metrics.found_share([0, 1], wrong, 0)
    for ranking in ([0, 4], [-1, 0], [0.0, 1.0]):
        with pytest.raises(ExemplaError, match="between 0 and 3"):
            metrics.found_share(ranking, wrong, 1)


def test_complex_and_hidden_numbers_are_refused():
    A, subsets, outcomes = np.ones((5, 1)), np.array([[0, 1], [1, 2]]), np.ones((2, 1))
    hidden = np.ma.masked_array(outcomes, mask=[[True], [False]])
    with pytest.raises(ExemplaError, match="outcomes is a masked array"):
        metrics.lds(A, subsets, hidden)
    with pytest.raises(ExemplaError, match="attribution is complex"):
        metrics.lds(A + 1j, subsets, outcomes)
