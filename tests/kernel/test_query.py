"""The question as one vector."""

import numpy as np
import pytest

from exempla import ExemplaError
from exempla.kernel.embed import unit_rows
from exempla.kernel.kernel import mean_embedding

ROWS = np.array([[3.0, 4.0], [0.0, 2.0], [0.0, 0.0]])


def test_unit_rows_leave_zero_rows_zero():
    np.testing.assert_allclose(unit_rows(ROWS), [[0.6, 0.8], [0, 1], [0, 0]])


def test_unit_rows_count_what_lies_outside():
    np.testing.assert_allclose(unit_rows(ROWS[:1], np.array([75.0])), [[0.3, 0.4]])


def test_means():
    np.testing.assert_allclose(mean_embedding(ROWS), [1, 2])
    np.testing.assert_allclose(mean_embedding(ROWS, [1, 0, 1]), [1.5, 2])
    several = mean_embedding(ROWS, [[1, 0, 0], [0, 1, 0]])
    np.testing.assert_allclose(several, ROWS[:2])


def test_weights_of_both_signs_are_shares_of_their_total_size():
    np.testing.assert_allclose(mean_embedding(ROWS, [1, -3, 0]), [0.75, -0.5])
    np.testing.assert_allclose(mean_embedding(ROWS, [1, -1, 0]), [1.5, 1.0])


@pytest.mark.parametrize("weights", [[1, 2], [0, 0, 0], [np.nan, 1, 1], np.ones((1, 1, 3))])
def test_bad_weights_are_refused(weights):
    with pytest.raises(ExemplaError, match="weights"):
        mean_embedding(ROWS, weights)


@pytest.mark.parametrize("weights", [[1j, 1, 1], np.ma.masked_array([1.0, 2, 3], [1, 0, 0])])
def test_complex_and_hidden_weights_are_refused(weights):
    with pytest.raises(ExemplaError, match=r"complex|masked"):
        mean_embedding(ROWS, weights)


def test_an_empty_target_is_refused():
    with pytest.raises(ExemplaError, match="empty"):
        mean_embedding(ROWS[:0])
