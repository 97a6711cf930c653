"""Fitted objects on disk: whole or not at all."""

import errno
import os
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from exempla import ExemplaError, Explainer
from exempla.store import read_object, write_object


@pytest.fixture(scope="module")
def iris():
    X, y = load_iris(return_X_y=True)
    return LogisticRegression(max_iter=500).fit(X, y), (X, y)


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
        patch.setattr(f"exempla.io.os.{step}", how)
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
    with pytest.raises(ExemplaError, match=r"cannot be written: No such file .* unchanged"):
        write_object({}, tmp_path / "nowhere" / "thing")


def test_a_file_cut_anywhere_is_said(tmp_path):
    thing = {"rows": np.arange(40.0), "words": ["a", "b"]}
    path = write_object(thing, tmp_path / "thing")
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(ExemplaError, match="cut short or was not written"):
            read_object(path, dict)


def test_a_changed_file_is_said(tmp_path):
    path = write_object({"rows": np.arange(40.0)}, tmp_path / "thing")
    content = bytearray(path.read_bytes())
    content[-400] ^= 4  # in the middle of the rows
    path.write_bytes(content)
    with pytest.raises(ExemplaError, match="changed since it was written"):
        read_object(path, dict)


def test_a_foreign_file_and_a_folder_are_said(tmp_path):
    with pytest.raises(ExemplaError, match=r"not written by Explainer\.save"):
        Explainer.load(write_object({"a": 1}, tmp_path / "thing"))
    with pytest.raises(ExemplaError, match="cannot be read: Is a directory"):
        read_object(tmp_path, dict)
    with pytest.raises(ExemplaError, match="no file"):
        read_object(Path(tmp_path) / "nothing", dict)
