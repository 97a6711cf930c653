"""Rows and fitted objects on disk: whole or not at all, and never somebody else's."""

import errno
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from exempla import ExemplaError, Explainer
from exempla.store import objects as store
from exempla.store import on_disk, open_rows, read_object, write_object


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return LogisticRegression(max_iter=500).fit(X, y), (X, y)


def test_rows_on_disk_give_the_same_answers(tmp_path, iris):
    model, data = iris
    plain = Explainer(model, progress=False).fit(data)
    stored = Explainer(model, store=tmp_path / "rows", progress=False).fit(data)
    assert isinstance(stored.embeddings[0].rows, np.memmap)
    np.testing.assert_array_equal(stored.influence(data), plain.influence(data))
    np.testing.assert_array_equal(
        np.load(tmp_path / "rows" / "rows-0.npy"), plain.embeddings[0].rows
    )
    names = sorted(p.name for p in (tmp_path / "rows").iterdir())
    assert names == ["rows-0.json", "rows-0.npy"]


def test_a_network_with_rows_on_disk(tmp_path):
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    X, y = torch.randn(40, 5), torch.randint(0, 3, (40,))
    model = torch.nn.Sequential(torch.nn.Linear(5, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    options = {"sketch": 20, "damping": 0.1, "progress": False}
    plain = Explainer(model, **options).fit((X, y)).influence((X, y))
    stored = Explainer(model, store=tmp_path, **options).fit((X, y)).influence((X, y))
    np.testing.assert_allclose(stored, plain, rtol=1e-4, atol=1e-7)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    with pytest.raises(ExemplaError, match="cannot be stored"):
        on_disk(np.eye(2), blocked, "rows")


# ---- the manifest


def test_the_manifest_says_what_the_rows_are(tmp_path):
    rows = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    on_disk(rows, tmp_path, "rows", about={"model": "iris"})
    said = json.loads((tmp_path / "rows.json").read_text())
    assert (said["shape"], said["dtype"], said["model"]) == ([4, 3], "<f4", "iris")
    assert said["bytes"] == (tmp_path / "rows.npy").stat().st_size
    np.testing.assert_array_equal(open_rows(tmp_path, "rows"), rows)


def cut_short(path):
    path.write_bytes(path.read_bytes()[:-8])


def one_bit(path):
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def of_another_fit(path):
    np.save(path, np.ones((4, 3)))


@pytest.mark.parametrize("spoil", [cut_short, one_bit, of_another_fit])
def test_rows_that_are_not_those_written_are_refused(tmp_path, spoil):
    on_disk(np.zeros((4, 3)), tmp_path, "rows")
    spoil(tmp_path / "rows.npy")
    with pytest.raises(ExemplaError, match="not what its manifest says"):
        open_rows(tmp_path, "rows")


@pytest.mark.parametrize("text", ["", "{}", "[1]", '{"bytes": 1, "sha256": 2, "shape": 3}'])
def test_a_manifest_that_is_none_is_said(tmp_path, text):
    on_disk(np.zeros((4, 3)), tmp_path, "rows")
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(ExemplaError, match="not a manifest"):
        open_rows(tmp_path, "rows")


def test_rows_that_are_not_there_are_said(tmp_path):
    with pytest.raises(ExemplaError, match="cannot be read: No such file"):
        open_rows(tmp_path, "rows")


# ---- several writers


def test_a_second_writer_is_told(tmp_path, monkeypatch):
    inside, go_on, found = threading.Event(), threading.Event(), []
    plain = np.save

    def slow(*args, **options):
        inside.set()
        go_on.wait(10)
        plain(*args, **options)

    monkeypatch.setattr(store.np, "save", slow)
    first = threading.Thread(target=lambda: found.append(on_disk(np.ones((3, 2)), tmp_path, "r")))
    first.start()
    assert inside.wait(10)
    with pytest.raises(ExemplaError, match="another Explainer is writing"):
        on_disk(np.zeros((3, 2)), tmp_path, "r")
    go_on.set()
    first.join()
    np.testing.assert_array_equal(found[0], np.ones((3, 2)))
    on_disk(np.zeros((3, 2)), tmp_path, "r")  # and is free again afterwards


def test_many_writers_at_once_keep_their_own_rows(tmp_path):
    wrong, told = [], []

    def write(i):
        for _ in range(8):
            rows = np.full((2000, 10), float(i))
            try:
                kept = on_disk(rows, tmp_path, "rows")
            except ExemplaError as error:
                told.append(str(error))
                continue
            if not (kept == i).all():
                wrong.append(i)

    threads = [threading.Thread(target=write, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert all("another Explainer is writing" in text for text in told)
    assert len(set(open_rows(tmp_path, "rows").ravel())) == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["rows.json", "rows.npy"]


def test_a_lock_ends_with_its_process(tmp_path):
    script = (
        "import os, time; from exempla import atomic; from pathlib import Path\n"
        f"with atomic.alone_in(Path({str(tmp_path)!r})):\n"
        "    print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(ExemplaError, match="another Explainer is writing"):
            on_disk(np.eye(2), tmp_path, "rows")
    finally:
        holder.kill()
        holder.wait()
        holder.stdout.close()
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            on_disk(np.eye(2), tmp_path, "rows")
            break
        except ExemplaError:
            time.sleep(0.01)
    np.testing.assert_array_equal(open_rows(tmp_path, "rows"), np.eye(2))


# ---- whole objects


class KilledError(Exception):
    pass


def disk_full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def killed(*_):
    raise KilledError


@pytest.mark.parametrize(("how", "error"), [(disk_full, ExemplaError), (killed, KilledError)])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_save_that_fails_leaves_the_good_file(tmp_path, monkeypatch, iris, how, error, step):
    model, data = iris
    path = Explainer(model, progress=False).fit(data).save(tmp_path / "kept.joblib")
    good = path.read_bytes()
    other = Explainer(model, fisher="identity", progress=False).fit(data)
    with monkeypatch.context() as patch:
        patch.setattr(f"exempla.atomic.os.{step}", how)
        with pytest.raises(error):
            other.save(path)
    assert path.read_bytes() == good
    assert [p.name for p in tmp_path.iterdir()] == ["kept.joblib"]
    assert Explainer.load(path).fisher == "true"


def test_a_model_that_cannot_be_pickled_leaves_the_good_file(tmp_path):
    path = write_object({"a": 1}, tmp_path / "thing")
    with pytest.raises(ExemplaError, match="cannot be stored"):
        write_object(lambda: 0, path)
    assert read_object(path, dict) == {"a": 1}


def test_a_folder_that_is_not_there_is_said(tmp_path):
    with pytest.raises(ExemplaError, match=r"cannot be written: No such file .* untouched"):
        write_object({}, tmp_path / "nowhere" / "thing")


def test_a_file_cut_anywhere_is_said(tmp_path):
    thing = {"rows": np.arange(40.0), "words": ["a", "b"]}
    path = write_object(thing, tmp_path / "thing")
    whole = path.read_bytes()
    end = whole.rindex(store.SEAL)
    for size in range(0, end, 7):
        path.write_bytes(whole[:size])
        with pytest.raises(ExemplaError, match="not whole, or was not written"):
            read_object(path, dict)
    path.write_bytes(whole[:end])  # as written before there were checksums
    assert read_object(path, dict)["words"] == ["a", "b"]


def test_a_changed_file_is_said(tmp_path):
    path = write_object({"rows": np.arange(40.0)}, tmp_path / "thing")
    content = bytearray(path.read_bytes())
    content[-150] ^= 4  # in the middle of the rows
    path.write_bytes(content)
    with pytest.raises(ExemplaError, match="changed since it was saved"):
        read_object(path, dict)


def test_a_foreign_file_and_a_folder_are_said(tmp_path):
    with pytest.raises(ExemplaError, match=r"not written by Explainer\.save"):
        Explainer.load(write_object({"a": 1}, tmp_path / "thing"))
    with pytest.raises(ExemplaError, match="cannot be read: Is a directory"):
        read_object(tmp_path, dict)
    with pytest.raises(ExemplaError, match="no file"):
        read_object(Path(tmp_path) / "nothing", dict)
