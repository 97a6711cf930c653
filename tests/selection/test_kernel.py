"""SBQ from kernel values alone."""

from __future__ import annotations

import numpy as np
import pytest

from exempla.errors import ExemplaError, ExemplaWarning
from exempla.selection import SBQ, select, select_from_kernel

RNG = np.random.default_rng(0)
ROWS, TARGET = RNG.standard_normal((40, 6)), RNG.standard_normal(6)
NORM2 = float(TARGET @ TARGET)


def linear(i, J):
    return ROWS[J] @ ROWS[i]


@pytest.mark.parametrize("noise", [0.0, 0.3, 20.0])
@pytest.mark.parametrize("side", ["both", "opponents", "proponents"])
@pytest.mark.parametrize("diagonal", [None, (ROWS**2).sum(axis=1)])
def test_a_linear_kernel_gives_what_features_give(noise, side, diagonal):
    by_rows = select(ROWS, TARGET, 5, SBQ(noise), side)
    by_kernel = select_from_kernel(
        linear, ROWS @ TARGET, 5, target_norm2=NORM2, diagonal=diagonal, noise=noise, side=side
    )
    assert np.array_equal(by_rows.indices, by_kernel.indices)
    np.testing.assert_allclose(by_kernel.weights, by_rows.weights, rtol=1e-8)
    np.testing.assert_allclose(by_kernel.gains, by_rows.gains, rtol=1e-8)
    for name in ("explained", "variance", "mmd2"):
        assert getattr(by_kernel, name) == pytest.approx(getattr(by_rows, name), rel=1e-7)
    for name in ("candidates", "noise", "side", "rank", "stopped"):
        assert getattr(by_kernel, name) == getattr(by_rows, name)


def test_a_kernel_without_features():
    """A Gaussian kernel: each pick is the best of all, by the definition of the objective."""
    points, asked = RNG.standard_normal((30, 2)), RNG.standard_normal((10, 2))

    def k(a, b):
        return np.exp(-((a[:, None] - b[None]) ** 2).sum(-1))

    K, z, norm2 = k(points, points), k(points, asked).mean(axis=1), k(asked, asked).mean()
    calls = []

    def kernel(i, J):
        calls.append(len(J))
        return K[i, J]

    result = select_from_kernel(kernel, z, 6, target_norm2=norm2, diagonal=np.ones(30))
    assert calls == [30] * 6  # a row per pick, never the matrix

    def g(S):
        return z[S] @ np.linalg.solve(K[np.ix_(S, S)], z[S])

    S: list[int] = []
    for j in result.indices:
        assert j == max((i for i in range(30) if i not in S), key=lambda i: g([*S, i]))
        S.append(int(j))
    assert result.variance == pytest.approx(norm2 - g(S))
    np.testing.assert_allclose(result.weights, np.linalg.solve(K[np.ix_(S, S)], z[S]))


def test_copies_are_dead_and_the_rank_is_reported():
    rows = np.repeat(RNG.standard_normal((3, 5)), 4, axis=0)
    with pytest.warns(ExemplaWarning, match="3 of 9"):
        result = select_from_kernel(
            lambda i, J: rows[J] @ rows[i], rows @ np.ones(5), 9, target_norm2=5.0
        )
    assert result.rank == 3
    assert result.stopped == "rank"
    assert (result.indices % 4 == 0).all()


def test_stops():
    with pytest.warns(ExemplaWarning, match="residual"):
        result = select_from_kernel(
            lambda i, J: np.eye(3)[i, J], [1.0, 0.0, 0.0], 2, target_norm2=1.0
        )
    assert result.indices.tolist() == [0]
    with pytest.warns(ExemplaWarning, match="candidates"):
        select_from_kernel(
            lambda i, J: np.eye(3)[i, J], [1.0, 0, 0], 2, target_norm2=2.0, side="proponents"
        )


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kernel": 3}, "function"),
        ({"z": [[1.0]]}, "one number per row"),
        ({"z": ["a"]}, "not an array of numbers"),
        ({"z": [np.nan] * 40}, "NaN"),
        ({"z": ROWS @ TARGET + 0j}, "z is complex"),
        ({"z": np.ma.masked_array(ROWS @ TARGET, np.arange(40) < 3)}, "z is a masked array"),
        ({"diagonal": np.full(40, 1j)}, "diagonal is complex"),
        ({"kernel": lambda i, J: linear(i, J) + 1j}, "complex"),
        ({"target_norm2": np.complex128(NORM2)}, "above 0"),
        ({"diagonal": np.full(40, 1e-300)}, "longest row is shorter"),
        ({"k": 0}, "at least one"),
        ({"k": 41}, "only 40"),
        ({"side": "up"}, "use one of both"),
        ({"noise": -1.0}, "variance"),
        ({"target_norm2": 0.0}, "above 0"),
        ({"target_norm2": np.nan}, "above 0"),
        ({"target_norm2": 1e-3 * NORM2}, "more than target_norm2"),
        ({"diagonal": np.ones(3)}, "40 numbers"),
        ({"diagonal": -np.ones(40)}, "below 0"),
        ({"kernel": lambda i, J: 1.0}, "one value per entry"),
        ({"kernel": lambda i, J: J * np.nan}, "NaN"),
    ],
)
def test_mistakes_are_named(change, words):
    given = {"kernel": linear, "z": ROWS @ TARGET, "k": 3, "target_norm2": NORM2, **change}
    with pytest.raises(ExemplaError, match=words):
        select_from_kernel(**given)


def test_features_of_several_models_average_their_kernels():
    from exempla.kernel.embed import concatenate_models

    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((5, width)) for width in (3, 2, 4)]
    mean = sum(part @ part.T for part in parts) / 3
    both = concatenate_models(parts)
    np.testing.assert_allclose(both @ both.T, mean)
