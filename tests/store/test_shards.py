"""Rows in several files, read as one array."""

import pickle

import numpy as np
import pytest

from exempla import ExemplaError
from exempla.store import StoredRows, shards


@pytest.fixture
def stored(tmp_path):
    rows = np.random.default_rng(0).standard_normal((1000, 7)).astype(np.float32)
    paths = []
    for start, stop in ((0, 1), (1, 400), (400, 401), (401, 1000)):
        paths.append(tmp_path / f"{start}.npy")
        np.save(paths[-1], rows[start:stop])
    return StoredRows.of(paths), rows


@pytest.mark.parametrize(
    "which",
    [0, -1, 400, slice(None), slice(3, 900), slice(10, 2), slice(0, 1000, 7), slice(5, -5),
     [3, 3, 999, 0, 400], [], np.array([-1, 5])],
)  # fmt: skip
def test_indexing_is_that_of_an_array(stored, which):
    some, rows = stored
    wanted = np.asarray(which, int) if isinstance(which, list) else which
    np.testing.assert_array_equal(some[which], rows[wanted])


def test_a_mask_and_wrong_indices(stored):
    some, rows = stored
    mask = rows[:, 0] > 0
    np.testing.assert_array_equal(some[mask], rows[mask])
    for wrong in (1000, [-1001], np.ones(5, bool)):
        with pytest.raises(IndexError):
            some[wrong]


@pytest.mark.parametrize("piece", [28, 28 * 64, 2**24])
def test_a_stream_is_all_rows_in_order(stored, monkeypatch, piece):
    some, rows = stored
    monkeypatch.setattr(shards, "PIECE_BYTES", piece)
    places, parts = zip(*((here, part.copy()) for here, part in some.stream()), strict=True)
    np.testing.assert_array_equal(np.concatenate(parts), rows)
    assert [p.start for p in places[1:]] == [p.stop for p in places[:-1]]
    assert all(p.stop - p.start == len(part) for p, part in zip(places, parts, strict=True))


def test_a_stream_left_in_the_middle_leaves_no_thread(stored, monkeypatch):
    import threading

    some, _ = stored
    monkeypatch.setattr(shards, "PIECE_BYTES", 280)
    stream = some.stream()
    next(stream)
    stream.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("exempla-read")]


def test_scattered_rows_are_those_of_an_array(stored):
    some, rows = stored
    far = [950, 405, 399, 2, 700]
    np.testing.assert_array_equal(some[far], rows[far])
    np.testing.assert_array_equal(some.part(300, 1000)[[0, 650]], rows[[300, 950]])
    np.testing.assert_array_equal(some[400:], rows[400:])


def test_products_squares_and_parts(stored):
    some, rows = stored
    columns = np.random.default_rng(1).standard_normal((7, 3)).astype(np.float32)
    np.testing.assert_allclose(some @ columns, rows @ columns, rtol=1e-5)
    np.testing.assert_allclose(some @ columns[:, 0], rows @ columns[:, 0], rtol=1e-5)
    np.testing.assert_allclose(some.squares(), (rows.astype(float) ** 2).sum(1))
    part = some.part(200, 700)
    np.testing.assert_array_equal(part[:], rows[200:700])
    np.testing.assert_array_equal(part.part(100, 300)[:], rows[300:500])
    np.testing.assert_array_equal(part.squares(), some.squares()[200:700])


def test_a_pickle_holds_paths_and_no_rows(stored):
    some, rows = stored
    kept = pickle.dumps(some)
    assert len(kept) < 2000
    np.testing.assert_array_equal(pickle.loads(kept)[:], rows)


def test_files_that_cannot_be_used_are_named(tmp_path, stored):
    with pytest.raises(ExemplaError, match="at least one file"):
        StoredRows.of([])
    with pytest.raises(ExemplaError, match=r"nothing\.npy cannot be read: No such file"):
        StoredRows.of([tmp_path / "nothing.npy"])
    (tmp_path / "text.npy").write_text("no rows")
    with pytest.raises(ExemplaError, match=r"text\.npy cannot be read"):
        StoredRows.of([tmp_path / "text.npy"])
    np.save(tmp_path / "turned.npy", np.asfortranarray(np.ones((4, 3))))
    with pytest.raises(ExemplaError, match="C order"):
        StoredRows.of([tmp_path / "turned.npy"])


def test_a_file_cut_short_while_it_is_read_is_named(tmp_path):
    np.save(tmp_path / "a.npy", np.zeros((100, 4)))
    rows = StoredRows.of([tmp_path / "a.npy"])
    assert rows.shape == (100, 4)
    (tmp_path / "a.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-8])
    with pytest.raises(ExemplaError, match=r"a\.npy is cut short"):
        list(rows.stream())
    with pytest.raises(ExemplaError, match=r"a\.npy is cut short"):
        rows[[0, 99]]
