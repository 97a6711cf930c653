"""Conjugate gradients against a plain solve."""

from __future__ import annotations

import numpy as np
import pytest

from exempla.kernel.solve import conjugate_gradients


def problem(seed: int, size: int = 40) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    A = rng.normal(size=(size, size))
    return A @ A.T / size + 0.05 * np.eye(size), rng.normal(size=size)


@pytest.mark.parametrize("seed", range(5))
def test_it_solves(seed):
    M, b = problem(seed)
    *_, (x, residual) = conjugate_gradients(lambda v: M @ v, b, lambda v: v, 1e-10, 200)
    np.testing.assert_allclose(x, np.linalg.solve(M, b), rtol=1e-7)
    assert residual == pytest.approx(np.linalg.norm(b - M @ x) / np.linalg.norm(b), abs=1e-9)


def test_a_good_guess_of_the_inverse_saves_steps():
    M, b = problem(0)
    inverse = np.linalg.inv(M + 0.01 * np.eye(len(M)))
    plain = list(conjugate_gradients(lambda v: M @ v, b, lambda v: v, 1e-6, 200))
    fast = list(conjugate_gradients(lambda v: M @ v, b, lambda v: inverse @ v, 1e-6, 200))
    assert len(fast) < len(plain) / 3


def test_the_limit_holds_and_zero_is_zero():
    M, b = problem(0)
    assert len(list(conjugate_gradients(lambda v: M @ v, b, lambda v: v, 1e-12, 3))) == 3
    ((x, residual),) = conjugate_gradients(lambda v: M @ v, 0 * b, lambda v: v, 1e-12, 3)
    assert residual == 0.0
    assert not x.any()
