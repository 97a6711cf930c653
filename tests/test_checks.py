"""The checks of plain options, at the edges of what they accept."""

from __future__ import annotations

import numpy as np
import pytest

from exempla.checks import check_k, check_number, check_rows, whole_number
from exempla.errors import ExemplaError


def test_k_is_at_least_one_and_at_most_all():
    assert check_k(1, 3) == 1
    assert check_k(np.int32(3), 3) == 3
    for k in (0, 4, 2.0, True, "2"):
        with pytest.raises(ExemplaError, match=r"^k is"):
            check_k(k, 3)


def test_true_and_false_are_no_numbers():
    assert whole_number(2)
    assert not whole_number(True)
    assert not whole_number(np.bool_(False))


def test_positions_are_inside():
    assert check_rows([0, 2], 3, "ask").tolist() == [0, 2]
    for rows in ([3], [-1], [], [[0]], [0.5], [True, False]):
        with pytest.raises(ExemplaError, match=r"^ask"):
            check_rows(rows, 3, "ask")


def test_a_positive_number_is_above_zero():
    assert check_number("budget", 1) == 1.0
    for value in (0, -1.0, np.inf, np.nan, True, "1"):
        with pytest.raises(ExemplaError, match=r"^budget"):
            check_number("budget", value)
