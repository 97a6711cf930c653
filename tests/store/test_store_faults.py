"""A store never gives stale rows, never deletes a file of the user's, and never waits or grows."""

import os

import numpy as np
import pytest

from exempla import ExemplaError, ExemplaWarning, Explainer
from exempla.store import RowSet, claim, write_object
from exempla.store.folder import _data_fingerprint, delete_rows
from tests.store.case import problem, shards, small_shards


@pytest.fixture(autouse=True)
def many_shards(monkeypatch):
    small_shards(monkeypatch)


def explainer(model, store, **options):
    return Explainer(model, store=store, progress=False, **options)


class Items:
    """Items by position, with or without faults."""

    def __init__(self, X, y, fault=""):
        self.X, self.y, self.fault, self.reads = X, y, fault, 0

    def __len__(self):
        return len(self.X)

    def __getitem__(self, i):
        self.reads += 1
        if self.fault == "random":
            return self.X[i] + self.reads, self.y[i]
        if self.fault == "raises" and i == 7:
            raise OSError("no such file")
        if self.fault == "unpicklable":
            return [self.X[i], lambda: 0], self.y[i]
        return self.X[i], self.y[i]


# ---- stale rows


def test_a_data_set_with_other_inputs_and_the_same_labels_is_another_one(tmp_path):
    torch = pytest.importorskip("torch")
    from torch.utils.data import DataLoader, Dataset

    class Images(Dataset):
        def __init__(self, X, y):
            self.X, self.y = X, y

        def __len__(self):
            return len(self.X)

        def __getitem__(self, i):
            return self.X[i], self.y[i]

    torch.manual_seed(0)
    model = torch.nn.Linear(4, 2)
    X, y = torch.randn(600, 4), torch.arange(600) % 2
    changed = X.clone()
    changed[[5, 100, 333]] += 1.0  # none of the probes whose scores are compared
    explainer(model, tmp_path).fit(Images(X, y))
    for data in (Images(changed, y), DataLoader(Images(changed, y), batch_size=32, shuffle=True)):
        with pytest.raises(ExemplaError, match="differs in the training data"):
            explainer(model, tmp_path).fit(data)
    explainer(model, tmp_path).fit(DataLoader(Images(X, y), batch_size=32, shuffle=True))


@pytest.mark.parametrize("fault", ["random", "raises", "unpicklable"])
def test_inputs_that_cannot_be_fingerprinted_are_named_at_fit_time(fault):
    X, y = np.arange(40.0)[:, None], np.zeros(40)
    with pytest.warns(ExemplaWarning, match="inputs of this data set cannot be fingerprinted"):
        _data_fingerprint(Items(X, y, fault), y, 40)


def test_every_single_value_is_in_the_fingerprint():
    import pandas as pd
    from scipy.sparse import csr_array

    X, y = np.random.default_rng(0).standard_normal((30, 3)), np.zeros(30)
    for dress in (np.asarray, csr_array, pd.DataFrame, np.ndarray.tolist, lambda X: Items(X, y)):
        seen = set()
        for row in (None, 0, 13, 29):
            values = X.copy()
            if row is not None:
                values[row, 1] += 1e-9
            data = dress(values)
            data = data if isinstance(data, Items) else (data, y)
            seen.add(_data_fingerprint(data, y, 30))
        assert len(seen) == 4


@pytest.mark.parametrize("query", ["influence", "explain", "self_influence"])
def test_a_loaded_explainer_verifies_a_shard_the_first_time_it_is_read(tmp_path, query):
    model, (X, y) = problem(200)
    path = explainer(model, tmp_path / "store").fit((X, y)).save(tmp_path / "kept")
    shard = shards(tmp_path / "store")[3]
    content = bytearray(shard.read_bytes())
    content[300] ^= 1  # one bit of one number
    shard.write_bytes(content)
    loaded = Explainer.load(path)  # reads no rows, and therefore says nothing yet
    arguments = {"self_influence": ()}.get(query, ((X[:3], y[:3]),))
    with pytest.raises(ExemplaError, match=f"{shard.name} has changed since it was written"):
        getattr(loaded, query)(*arguments)


# ---- files of the user


@pytest.mark.parametrize("name", ["basis-0.npz", "rows-0/notes.txt", "white-1/a.txt", "mine.npy"])
def test_a_folder_with_names_of_a_store_and_no_store_is_left_alone(tmp_path, name):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(ExemplaError, match=r"holds .* and no store\.json"):
        claim(tmp_path, {"format": "x"})
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == [tmp_path / name]
    assert (tmp_path / name).read_text() == "mine"


def test_old_whitened_rows_are_deleted_and_nothing_else(tmp_path):
    model, (X, y) = problem(200)
    kept = explainer(model, tmp_path).fit((X, y))
    (tmp_path / "white-papers").mkdir()
    (tmp_path / "white-papers" / "a.txt").write_text("mine")
    for number, damping in enumerate((0.5, 0.4, 0.3, 0.2, 0.1)):
        kept.set_damping(damping).explain((X[:3], y[:3]), k=2)
        if number == 0:
            first = next(tmp_path.glob("white-????????????????"))
            (first / "notes.txt").write_text("mine")
    assert (tmp_path / "white-papers" / "a.txt").read_text() == "mine"
    assert [path.name for path in first.iterdir()] == ["notes.txt"]
    assert len([p for p in tmp_path.glob("white-*") if shards(tmp_path, p.name)]) == 3
    delete_rows(next(p for p in tmp_path.glob("white-*") if shards(tmp_path, p.name)))
    assert len([p for p in tmp_path.glob("white-*") if shards(tmp_path, p.name)]) == 2


def test_a_lock_file_with_another_name_does_not_stop_writing(tmp_path):
    rows = RowSet(tmp_path, 20, 3, np.dtype(float), 10, {})
    (tmp_path / ".writing-notes-of-mine").write_text("mine")
    with rows.writing(rows.ranges):
        pass
    assert (tmp_path / ".writing-notes-of-mine").read_text() == "mine"


# ---- memory, depth, pipes


@pytest.mark.parametrize("part", [(1, 10**9), (1, 10**30), (0, 2), (3, 2), (1.0, 2), [1, 2], 1])
def test_a_part_that_is_none_is_refused_before_anything_is_made(tmp_path, part):
    model, data = problem(60)
    with pytest.raises(ExemplaError, match=r"part is .*: give \(i, n\)"):
        explainer(model, tmp_path / "store").fit(data, part=part)
    assert not (tmp_path / "store").exists()
    with pytest.raises(ExemplaError, match="only 60 training examples"):
        explainer(model, tmp_path / "store").fit(data, part=(1, 1000))


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[1, 2]", "null", "\xff", ""])
def test_a_store_json_that_is_no_such_thing_gets_a_sentence(tmp_path, text):
    model, data = problem(60)
    (tmp_path / "store.json").write_text(text, encoding="latin-1")
    with pytest.raises(ExemplaError, match=r"store\.json was not written by exempla or is damaged"):
        explainer(model, tmp_path).fit(data)
    assert (tmp_path / "store.json").read_text(encoding="latin-1") == text


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_pipes_are_not_waited_for(tmp_path):
    model, data = problem(60)
    os.mkfifo(tmp_path / "kept")
    with pytest.raises(ExemplaError, match="was not written by"):
        Explainer.load(tmp_path / "kept")
    (tmp_path / "store").mkdir()
    os.mkfifo(tmp_path / "store" / "store.json")
    with pytest.raises(ExemplaError, match=r"store\.json was not written by exempla"):
        explainer(model, tmp_path / "store").fit(data)
    rows = RowSet(tmp_path / "rows", 20, 3, np.dtype(float), 10, {})
    rows.folder.mkdir()
    os.mkfifo(rows.path(0, 10))
    with pytest.warns(ExemplaWarning, match="made again"):
        assert rows.missing() == rows.ranges


def test_a_seal_nested_too_deeply_is_a_damaged_file(tmp_path):
    from exempla.io import _MARK, read_seal

    path = write_object({"a": 1}, tmp_path / "thing")
    text = b'{"a":' * 100_000
    tail = text + f"{len(text):08d}".encode() + _MARK + b"0" * 64
    path.write_bytes(b"content" + tail)
    assert read_seal(path) is None
