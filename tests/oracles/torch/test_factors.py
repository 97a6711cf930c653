"""Every form of torch factors does the same algebra as its scores written out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from exempla.oracles.base import Factors
from exempla.oracles.torch import factors as chunks
from exempla.oracles.torch.conv import ConvFactors, ConvShape
from exempla.oracles.torch.factors import DenseFactors, OneHot, PairFactors, SumFactors, Vectors

N = 5


def vectors(s: int, d: int, ones: bool = False) -> Vectors:
    return Vectors(torch.randn(N, s, d, dtype=torch.float64), ones)


def indices(s: int, d: int) -> OneHot:
    return OneHot(torch.randint(0, d, (N, s)), d, torch.float64)


def conv(groups: int, images: int, side: int, bias: bool = True) -> ConvFactors:
    shape = ConvShape((3, 2), (2, 1), (1, 0), (1, 2), groups, bias)
    x = torch.randn(N * images, 4, side, side, dtype=torch.float64)
    weight = torch.randn(6, 4 // groups, 3, 2, dtype=torch.float64)
    g = torch.randn_like(shape.convolve(x, weight, None))
    return ConvFactors(x, g, shape, images)


def small_images(groups: int, images: int, bias: bool) -> ConvFactors:
    """Many channels and two positions: cheaper position by position than written out."""
    shape = ConvShape((3, 3), (1, 1), (0, 0), (1, 1), groups, bias)
    x = torch.randn(N * images, 8, 3, 4, dtype=torch.float64)
    return ConvFactors(x, torch.randn(N * images, 12, 1, 2, dtype=torch.float64), shape, images)


def tied() -> SumFactors:
    return SumFactors(
        [PairFactors(indices(4, 7), vectors(4, 3)), PairFactors(vectors(2, 7), vectors(2, 3))]
    )


FORMS = {
    "linear": lambda: PairFactors(vectors(1, 6, True), vectors(1, 4)),
    "linear, few positions": lambda: PairFactors(vectors(2, 6, True), vectors(2, 4)),
    "linear, many positions": lambda: PairFactors(vectors(9, 2, True), vectors(9, 3)),
    "embedding": lambda: PairFactors(indices(4, 9), vectors(4, 3)),
    "embedding, many positions": lambda: PairFactors(indices(9, 4), vectors(9, 2)),
    "turned over": lambda: PairFactors(vectors(3, 5), indices(3, 8)),
    "convolution": lambda: conv(1, 1, 4),
    "convolution, large image": lambda: conv(1, 1, 12, bias=False),
    "convolution, groups": lambda: conv(2, 1, 5),
    "convolution, frames": lambda: conv(1, 3, 4),
    "convolution, few positions": lambda: small_images(1, 1, bias=True),
    "convolution, few positions, groups": lambda: small_images(2, 1, bias=False),
    "convolution, few positions, frames": lambda: small_images(1, 2, bias=True),
    "dense": lambda: DenseFactors(torch.randn(N, 3, 4, dtype=torch.float64)),
    "tied": tied,
}


@pytest.fixture(params=FORMS)
def pair(request: pytest.FixtureRequest) -> tuple[Factors, Factors]:
    torch.manual_seed(0)
    return FORMS[request.param](), FORMS[request.param]()


def close(got: Tensor, want: Tensor) -> None:
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)


def test_projection_is_that_of_the_written_out_matrix(pair: tuple[Factors, Factors]) -> None:
    factors, _ = pair
    matrix = factors.project(None, None)
    assert factors.dense().shape == (N, matrix.shape[1] * matrix.shape[2])
    u = torch.randn(matrix.shape[1], 3, dtype=torch.float64)
    v = torch.randn(matrix.shape[2], 2, dtype=torch.float64)
    close(factors.project(u, v), u.T @ matrix @ v)
    close(factors.project(u, None), u.T @ matrix)
    close(factors.project(None, v), matrix @ v)


def test_dot_products(pair: tuple[Factors, Factors]) -> None:
    one, other = pair
    close(one.gram(other), one.dense() @ other.dense().T)
    close(one.norm2(), one.dense().square().sum(1))


def test_the_compact_form_is_the_same_and_no_larger(pair: tuple[Factors, Factors]) -> None:
    one, other = pair
    small = one.compact()
    close(small.dense(), one.dense())
    assert small.nbytes <= one.nbytes
    close(small.gram(other), one.gram(other))
    close(other.gram(small), other.gram(one))
    close(small.gram(other.compact()), one.gram(other))
    close(small.join([other.compact()]).dense(), torch.cat([one.dense(), other.dense()]))


def test_few_positions_are_never_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    few, other = small_images(1, 1, bias=True), small_images(1, 1, bias=True)
    monkeypatch.setattr(ConvFactors, "dense", lambda _: pytest.fail("written out"))
    monkeypatch.setattr(ConvFactors, "moment", lambda *_: pytest.fail("whole moment"))
    few.gram(other)
    few.norm2()
    few.action("inputs", torch.randn(73, 2, dtype=torch.float64))


def test_a_large_image_is_compacted() -> None:
    assert isinstance(FORMS["convolution, large image"]().compact(), DenseFactors)
    assert isinstance(FORMS["linear, many positions"]().compact(), DenseFactors)
    assert isinstance(FORMS["linear"]().compact(), PairFactors)


def test_take_join_and_scale(pair: tuple[Factors, Factors]) -> None:
    one, other = pair
    rows = np.array([3, 0, 3])
    close(one.take(rows).dense(), one.dense()[torch.as_tensor(rows)])
    joined = one.join([other])
    assert len(joined) == 2 * N
    close(joined.dense(), torch.cat([one.dense(), other.dense()]))
    close(joined.norm2(), joined.dense().square().sum(1))
    matrix = one.project(None, None)
    scale = np.arange(1.0, matrix.shape[1] + 1)
    close(one.scale_inputs(scale).project(None, None), torch.as_tensor(scale)[:, None] * matrix)


def test_moments_are_those_of_the_sides() -> None:
    torch.manual_seed(1)
    linear = PairFactors(vectors(3, 6, True), vectors(3, 4))
    a, g = linear.inputs.project(None).flatten(0, 1), linear.outputs.project(None).flatten(0, 1)
    close(linear.moment("inputs"), a.T @ a)
    close(linear.moment("outputs"), g.T @ g)
    table = PairFactors(indices(4, 9), vectors(4, 3))
    hot = table.inputs.project(None).flatten(0, 1)
    close(table.moment("inputs"), hot.T @ hot)
    close(
        tied_sum := (t := tied()).moment("inputs"),
        t.parts[0].moment("inputs") + t.parts[1].moment("inputs"),
    )
    assert tied_sum.shape == (7, 7)
    c = conv(1, 2, 4)
    patches = torch.nn.functional.pad(c.shape.patches(c.a), (0, 0, 0, 1), value=1.0)[:, 0]
    flat = patches.transpose(0, 1).flatten(1)
    close(c.moment("inputs"), flat @ flat.T)
    close(c.moment("outputs"), (h := c.g.transpose(0, 1).flatten(1)) @ h.T)
    dense = DenseFactors(torch.randn(N, 3, 4, dtype=torch.float64))
    close(dense.moment("inputs"), (dense.g @ dense.g.transpose(1, 2)).sum(0))
    close(dense.moment("outputs"), (dense.g.transpose(1, 2) @ dense.g).sum(0))


def test_actions_of_the_moments(pair: tuple[Factors, Factors]) -> None:
    factors, _ = pair
    for side in ("inputs", "outputs"):
        moment = factors.moment(side)
        omega = torch.randn(len(moment), 3, dtype=torch.float64)
        close(factors.action(side, omega), moment @ omega)


def test_pieces_change_nothing(pair: tuple[Factors, Factors], monkeypatch: Any) -> None:
    one, other = pair
    gram, norm2 = one.gram(other), one.norm2()
    moment = one.moment("inputs")
    monkeypatch.setattr(chunks, "_PIECE", 16 * 150)
    close(one.gram(other), gram)
    close(one.norm2(), norm2)
    close(one.moment("inputs"), moment)


def test_rows_of_different_length_join_with_empty_positions() -> None:
    short = PairFactors(vectors(2, 3, True), vectors(2, 4))
    long = PairFactors(vectors(5, 3, True), vectors(5, 4))
    joined = short.join([long])
    close(joined.dense(), torch.cat([short.dense(), long.dense()]))
    # an empty position is no input: the moments add up
    close(joined.moment("inputs"), short.moment("inputs") + long.moment("inputs"))


def test_a_convolution_equals_autograd_with_groups_and_dilation() -> None:
    torch.manual_seed(2)
    x = torch.randn(N, 4, 7, 6, dtype=torch.float64)
    layer = torch.nn.Conv2d(4, 6, (3, 2), (2, 1), (1, 0), (1, 2), groups=2).double()
    out = layer(x)
    g = torch.randn_like(out)
    shape = ConvShape((3, 2), (2, 1), (1, 0), (1, 2), 2, True)
    matrix = ConvFactors(x, g, shape).project(None, None)
    for i in range(N):
        w, b = torch.autograd.grad(layer(x[i : i + 1]), [layer.weight, layer.bias], g[i : i + 1])
        close(matrix[i], torch.cat([w.flatten(1).T, b[None]]))
