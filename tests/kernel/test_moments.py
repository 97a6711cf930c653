"""Streamed second moments, whole and by Nyström."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import BaggingClassifier
from sklearn.linear_model import LogisticRegression

import exempla
from exempla.errors import ExemplaError
from exempla.kernel import moments
from exempla.kernel.moments import Moments
from exempla.oracles.base import Factors, Layer, ScoreRows
from exempla.oracles.torch.factors import PairFactors, Vectors


def batches(rng, d_in, d_out, sizes=(30, 20)):
    decay = 0.5 ** np.arange(d_in)
    return [
        ScoreRows(
            np.arange(s) + start,
            (Factors(rng.normal(size=(s, d_in)) * decay, rng.normal(size=(s, d_out))),),
        )
        for start, s in zip((0, sizes[0]), sizes, strict=True)
    ]


def test_streamed_moments_are_the_sums():
    rng = np.random.default_rng(0)
    parts = batches(rng, 6, 3)
    (result,) = Moments.of((Layer("only", 6, 3, np.zeros(6)),), parts)
    a = np.vstack([b.factors[0].a for b in parts])
    g = np.vstack([b.factors[0].g for b in parts])
    values, _ = np.linalg.eigh(a.T @ a)
    basis = result.inputs.eigenbasis()
    np.testing.assert_allclose(basis.values, values[::-1] / values.sum(), rtol=1e-10)
    assert result.trace == pytest.approx(((a**2).sum(1) * (g**2).sum(1)).sum())


@pytest.mark.parametrize("shared", [True, False])
def test_the_inputs_of_an_example_count_once_where_its_classes_share_them(shared):
    rng = np.random.default_rng(0)
    first, second = batches(rng, 6, 3)
    again = Factors(first.factors[0].a, rng.normal(size=(30, 3)))  # another class
    sample = np.concatenate([first.sample, second.sample])
    rows = [first, ScoreRows(sample, (again.join(list(second.factors)),))]
    if shared:
        vectors = [[Vectors(torch.from_numpy(x)[:, None]) for x in (b.factors[0].a, b.factors[0].g)]
                   for b in rows]  # fmt: skip
        given = [ScoreRows(b.sample, (PairFactors(*v),)) for b, v in zip(rows, vectors)]
    (result,) = Moments.of((Layer("only", 6, 3, np.zeros(6)),), given if shared else rows)
    a = np.vstack([first.factors[0].a, *([] if shared else [again.a]), second.factors[0].a])
    g = np.vstack([b.factors[0].g for b in rows])
    np.testing.assert_allclose(result.inputs.total, a.T @ a)
    np.testing.assert_allclose(result.outputs.total, g.T @ g)


def test_every_part_of_an_ensemble_has_a_basis_of_its_own_inputs():
    """The parts of a bagged model come one after the other, and each sees its own columns."""
    rng = np.random.default_rng(0)
    X = rng.normal(size=(200, 12))
    y = X[:, 0] + rng.normal(size=200) > 0
    model = BaggingClassifier(LogisticRegression(), 3, max_features=4, random_state=0).fit(X, y)
    exact, few = (
        exempla.Explainer(model, sketch=p, progress=False).fit((X, y)) for p in ("exact", 14)
    )
    assert few.embeddings[0].evidence.share > 0.9
    both = (x.influence((X[:10], y[:10])).ravel() for x in (exact, few))
    assert np.corrcoef(*both)[0, 1] > 0.95


def test_a_side_with_fewer_coordinates_than_random_directions_is_summed_in_full(monkeypatch):
    """Of a large model: ΩᵀΩ would be singular."""
    monkeypatch.setattr(moments, "LARGE", 1)
    monkeypatch.setattr(moments, "LARGE_WHOLE", 10)
    rng = np.random.default_rng(0)
    parts = batches(rng, 40, 400)
    (result,) = Moments.of((Layer("flat", 40, 400, np.zeros(40)),), parts)
    a = np.vstack([b.factors[0].a for b in parts])
    values = np.linalg.eigvalsh(a.T @ a)[::-1]
    np.testing.assert_allclose(result.spectra[0].values, values / values.sum(), atol=1e-12)


def test_an_overflow_is_named_for_wide_sides_too():
    rows = batches(np.random.default_rng(0), 500, 3)
    (result,) = Moments.of((Layer("wide", 500, 3, np.zeros(500)),), rows)
    result.inputs.total[0, 0] = np.inf
    with pytest.raises(ExemplaError, match="overflow"):
        result.inputs.eigenbasis()


@pytest.mark.parametrize("torch_too", [False, True])
def test_products_less_precise_than_their_type_have_a_basis_too(torch_too):
    rng = np.random.default_rng(0)
    (result,) = Moments.of((Layer("wide", 900, 3, np.zeros(900)),), batches(rng, 900, 3))
    vectors = rng.normal(size=(900, 5))
    exact = vectors @ vectors.T
    rounded = (exact * (1 + 1e-3 * rng.normal(size=(900, 900)))).astype(np.float32)
    result.inputs.total = torch.from_numpy(rounded) if torch_too else rounded
    basis = result.inputs.eigenbasis()
    values = np.linalg.eigvalsh(exact)[::-1][:5]
    np.testing.assert_allclose(basis.values[:5], values / values.sum(), rtol=0.01)


def test_the_leading_directions_of_a_wide_moment_are_those_of_all(monkeypatch):
    rng = np.random.default_rng(0)
    parts = batches(rng, 80, 3)
    layers = (Layer("wide", 80, 3, np.zeros(80)),)
    every = Moments.of(layers, parts)[0].inputs.eigenbasis()
    for name, value in (("MAX_EIGEN", 40), ("NYSTROM", (16, 16))):
        monkeypatch.setattr(moments, name, value)
    few = Moments.of(layers, parts)[0].inputs.eigenbasis()
    assert few.vectors.shape[1] <= 20
    np.testing.assert_allclose(few.values[:8], every.values[:8], rtol=1e-6)
    overlap = np.abs((few.vectors[:, :8] * every.vectors[:, :8]).sum(0))
    np.testing.assert_allclose(overlap, 1.0, atol=1e-6)


def test_nystrom_finds_the_strong_directions(monkeypatch):
    monkeypatch.setattr(moments, "WHOLE", 10)
    monkeypatch.setattr(moments, "NYSTROM", (16, 16))
    rng = np.random.default_rng(0)
    parts = batches(rng, 40, 3)
    (result,) = Moments.of((Layer("wide", 40, 3, np.zeros(40)),), parts)
    a = np.vstack([b.factors[0].a for b in parts])
    values, vectors = np.linalg.eigh(a.T @ a)
    basis = result.inputs.eigenbasis()
    assert basis.vectors.shape[1] <= 16
    np.testing.assert_allclose(
        basis.vectors.T @ basis.vectors, np.eye(basis.vectors.shape[1]), atol=1e-8
    )
    # shares of the trace, which is estimated from 16 random directions
    scale = basis.values[0] / (values[-1] / values.sum())
    assert 0.5 < scale <= 1.01
    np.testing.assert_allclose(basis.values[:4], scale * values[::-1][:4] / values.sum(), rtol=1e-2)
    overlap = np.abs(np.sum(basis.vectors[:, :4] * vectors[:, ::-1][:, :4], axis=0))
    assert (overlap > 0.99).all()


@pytest.mark.parametrize("torch_too", [False, True])
def test_a_large_model_has_its_strongest_directions_found_alone(monkeypatch, torch_too):
    rng = np.random.default_rng(0)
    parts = batches(rng, 40, 3)
    if torch_too:
        parts = [
            ScoreRows(b.sample, (Factors(*map(torch.from_numpy, (f.a, f.g))),))
            for b in parts
            for f in b.factors
        ]
    layers = (Layer("only", 40, 3, np.zeros(40)),)
    (every,) = Moments.of(layers, parts)
    for name, value in (("LARGE", 1), ("LARGE_WHOLE", 10), ("NYSTROM", (16, 16))):
        monkeypatch.setattr(moments, name, value)
    (few,) = Moments.of(layers, parts, directions=4)
    all_in, _ = every.spectra
    found, _ = few.spectra
    assert len(found.values) <= 16 < len(all_in.values) == 40
    # the strongest ones are the same directions, in the same proportion
    np.testing.assert_allclose(
        found.values[:4] / found.values[0], all_in.values[:4] / all_in.values[0], rtol=1e-2
    )
    vectors, others = np.asarray(found.vectors), np.asarray(all_in.vectors)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(vectors.shape[1]), atol=1e-8)
    assert (np.abs((vectors[:, :4] * others[:, :4]).sum(0)) > 0.99).all()
    assert few.inputs.total is None  # what it was found from makes room
