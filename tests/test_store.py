"""Rows on disk."""

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from exempla import ExemplaError, Explainer
from exempla.store import on_disk


def test_rows_on_disk_give_the_same_answers(tmp_path):
    X, y = load_iris(return_X_y=True)
    model = LogisticRegression(max_iter=500).fit(X, y)
    plain = Explainer(model, progress=False).fit((X, y))
    stored = Explainer(model, store=tmp_path / "rows", progress=False).fit((X, y))
    assert isinstance(stored.embeddings[0].rows, np.memmap)
    np.testing.assert_array_equal(stored.influence((X, y)), plain.influence((X, y)))
    np.testing.assert_array_equal(
        np.load(tmp_path / "rows" / "rows-0.npy"), plain.embeddings[0].rows
    )
    assert [p.name for p in (tmp_path / "rows").iterdir()] == ["rows-0.npy"]


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
