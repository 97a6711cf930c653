"""Models and data that several tests of the store use."""

import numpy as np
from sklearn.linear_model import LogisticRegression


def problem(n=900, seed=0):
    """A fitted model, and what it was fitted on."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, 5))
    y = np.argmax(X[:, :3] + rng.gumbel(size=(n, 3)), axis=1)
    return LogisticRegression(max_iter=500).fit(X, y), (X, y)


def small_shards(monkeypatch, parts=8):
    """Let even small jobs have many shards."""
    monkeypatch.setattr("exempla.store.folder._MIN_SHARD_BYTES", 1)
    monkeypatch.setattr("exempla.store.folder._MIN_SHARDS", parts)


def shards(folder, name="rows-0"):
    """Files of a set of rows, in order."""
    return sorted((folder / name).glob("*.npy"))


def without_residual(monkeypatch):
    """Compare rows on disk with rows in memory, to which alone `explain` adds the residual."""
    monkeypatch.setattr("exempla.kernel.embed.MAX_SKETCH_SHARE", 0.0)
