"""Picks from rows on disk are those from the same rows in memory, ties included."""

import numpy as np
import pytest

from exempla import (
    SBQ,
    ExemplaError,
    Herding,
    MatchingPursuit,
    NonNegative,
    Random,
    Sharded,
    StochasticGreedy,
    TopInfluence,
    select,
)  # fmt: skip
from exempla.selection.certificate import certificate
from exempla.selection.rows import ArrayRows
from exempla.selection.select import as_rows
from exempla.store import StoredRows, shards
from tests.selection.test_engine import inputs

SELECTORS = [
    SBQ(), SBQ(noise=4.0), MatchingPursuit(), Herding(), NonNegative(), TopInfluence(),
    StochasticGreedy(), Random(), Sharded(SBQ(), 3), Sharded(SBQ(), 3, mode="two-round"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def no_copies(monkeypatch):
    """Nothing is small enough to be read into memory, and pieces are many."""
    monkeypatch.setattr(inputs, "MAX_FLOAT64_ENTRIES", 1000)
    monkeypatch.setattr(shards, "PIECE_BYTES", 2**15)


def stored(folder, rows, cuts=(0, 700, 701, 1900)):
    paths = []
    for start, stop in zip(cuts, (*cuts[1:], len(rows)), strict=True):
        paths.append(folder / f"{start:06d}.npy")
        np.save(paths[-1], rows[start:stop])
    return StoredRows.of(paths)


def cases(dtype):
    rng = np.random.default_rng(0)
    plain = rng.standard_normal((3000, 21)).astype(dtype)
    yield "gaussian", plain
    ties = np.repeat(plain[:300], 10, axis=0)[rng.permutation(3000)]
    yield "ten copies of each row", ties
    whole = rng.integers(-1, 2, (3000, 21)).astype(dtype)
    yield "small whole numbers", whole
    low = (rng.standard_normal((3000, 5)) @ rng.standard_normal((5, 21))).astype(dtype)
    low[::7] = 0
    yield "rank five and zeros", low
    yield "wide range", plain * np.logspace(-6, 6, 3000)[:, None].astype(dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.filterwarnings("ignore::exempla.ExemplaWarning")
def test_picks_are_those_from_memory(tmp_path, dtype):
    for name, rows in cases(dtype):
        folder = tmp_path / name
        folder.mkdir()
        disk = stored(folder, rows)
        one = rows[5:60].mean(0)
        several = np.stack([one, rows[100:180].mean(0)])
        for i, selector in enumerate(SELECTORS):
            side = ("both", "opponents", "proponents")[i % 3]
            for target in (one, several):
                a = select(rows, target, 12, selector, side)
                b = select(disk, target, 12, selector, side)
                for x, y in zip(*([a], [b]) if target is one else (a, b), strict=True):
                    assert x.indices.tolist() == y.indices.tolist(), (name, selector, side)
                    np.testing.assert_allclose(x.weights, y.weights, rtol=1e-9)


def test_few_readings_make_many_picks(tmp_path):
    rows = np.random.default_rng(0).standard_normal((20_000, 16)).astype(np.float32)
    disk = as_rows(stored(tmp_path, rows))
    assert isinstance(disk, ArrayRows)
    found = select(disk, rows[:50].mean(0), 50, SBQ(noise=10.0))
    assert (
        found.indices.tolist()
        == select(rows, rows[:50].mean(0), 50, SBQ(noise=10.0)).indices.tolist()
    )
    assert disk.readings <= 10  # norms, z, and several picks in each of the others
    before = disk.readings
    certificate(disk, found, rows[:50].mean(0))
    assert disk.readings == before  # z is still known


def test_going_on_and_certificates(tmp_path):
    rows = np.random.default_rng(2).standard_normal((3000, 9))
    disk, target = stored(tmp_path, rows), rows[:30].mean(0)
    few = select(disk, target, 3, SBQ(noise=1.0))
    more = select(disk, target, 7, SBQ(noise=1.0), start=few)
    assert more.indices.tolist() == select(rows, target, 7, SBQ(noise=1.0)).indices.tolist()
    for level in ("cheap", "full"):
        a = certificate(disk, more, target, level=level)
        b = certificate(rows, more, target, level=level)
        assert a["best_set"].value == pytest.approx(b["best_set"].value)


def test_rows_that_cannot_be_used_are_named(tmp_path):
    rows = np.random.default_rng(3).standard_normal((3000, 9))
    rows[2345, 1] = np.nan
    with pytest.raises(ExemplaError, match=r"row 2345"):
        select(stored(tmp_path, rows), np.ones(9), 3)
    with pytest.raises(ExemplaError, match="float16; store float32"):
        select(stored(tmp_path, rows.astype(np.float16)), np.ones(9), 3)
    with pytest.raises(ExemplaError, match="shorter than"):
        select(stored(tmp_path, np.full((3000, 9), 1e-200)), np.ones(9), 3)
