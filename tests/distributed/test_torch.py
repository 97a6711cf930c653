"""Parts with the ranks of a torch.distributed group: two processes on this machine, over gloo."""

from __future__ import annotations

import os
import traceback
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

import exempla
from exempla.distributed import OnTorch, fit_ranks, in_files, rank_rows
from exempla.errors import ExemplaError
from exempla.selection import SBQ, NonNegative, Sharded, select
from exempla.store import RowSet

torch = pytest.importorskip("torch", reason="the extra 'torch' is not installed")
CUTS = [0, 350, 900]


def made() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((900, 16)).astype(np.float32)
    rows[400:420] = rows[10:30]
    return rows, rows[:40].astype(np.float64).mean(axis=0)


def fitted(**options) -> tuple[exempla.Explainer, tuple]:
    X, y = load_iris(return_X_y=True)
    model = LogisticRegression(max_iter=500).fit(X, y)
    return exempla.Explainer(model, progress=False, **options), (X, y)


def embedded(rank: int, folder: str) -> np.ndarray:
    """Shares the embedding with the other ranks, then the selection."""
    explainer, train = fitted(store=f"{folder}/store")
    made, write = [], RowSet.write

    def noting(self, start, rows):
        made.append(len(rows))
        write(self, start, rows)

    height = mock.patch("exempla.store.folder._shard_height", return_value=20)
    with height, mock.patch.object(RowSet, "write", noting):
        fit_ranks(explainer, train)
    assert 70 <= sum(made) <= 80, made  # its share of 150, in files of 20 rows
    mine = rank_rows(explainer)
    target = np.asarray(explainer.features.rows[:7]).mean(axis=0)
    return select(mine, target, 8, Sharded(SBQ(10), backend="torch")).indices


def answers(rank: int, rows, target, folder) -> dict[str, object]:
    """What each rank does, and finds."""
    away = Sharded(SBQ(10), backend="torch")
    found: dict[str, object] = {"sbq": select(rows, target, 15, away).indices}
    found["nonnegative"] = select(rows, target, 6, Sharded(NonNegative(), backend="torch")).weights
    found["tensor"] = select(torch.from_numpy(np.array(rows[:])), target, 15, away).indices
    with OnTorch().opened(rows, 1) as placed:
        before = replace(placed.transport.traffic)
        select(placed, target, 15, SBQ(10))
        found["traffic"] = placed.transport.traffic.since(before).exchanges
    found["embedded"] = embedded(rank, folder)
    for name, turn in {
        "ways": lambda: select(rows, target * (1 + rank), 3, away),
        "bad": lambda: select(rows[:] * (np.nan if rank == 1 else 1), target, 3, away),
    }.items():
        try:
            turn()
        except ExemplaError as problem:
            found[name] = str(problem)
    return found


def rank_main(rank: int, folder: str) -> None:
    """A process of the group; what it finds goes to a file."""
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2
    )
    try:
        rows, target = made()
        mine = rows[CUTS[rank] : CUTS[rank + 1]]
        if rank == 1:  # one of them from files
            mine = in_files(mine, f"{folder}/rows", 2)
        torch.save(answers(rank, mine, target, folder), f"{folder}/{rank}.pt")
        torch.distributed.barrier()
        if rank == 0:  # the other one is gone without a word
            with pytest.raises(ExemplaError) as error:
                select(mine, target, 2, Sharded(SBQ(), backend="torch"))
            Path(folder, "said").write_text(str(error.value))
        os._exit(0)
    except BaseException:
        torch.save({"failed": traceback.format_exc()}, f"{folder}/{rank}.pt")
        raise


def test_every_rank_gets_the_picks_of_one_process_and_a_lost_rank_is_named(tmp_path):
    torch.multiprocessing.spawn(rank_main, (str(tmp_path),), nprocs=2)
    rows, target = made()
    whole = select(rows, target, 15, SBQ(10)).indices
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=False)
        assert "failed" not in found, found
        assert np.array_equal(found["sbq"], whole)
        assert np.array_equal(found["tensor"], whole)
        expected = select(rows, target, 6, NonNegative()).weights
        np.testing.assert_allclose(found["nonnegative"], expected, rtol=1e-9)
        assert found["traffic"] < 15
        features = fitted()[0].fit(fitted()[1]).features.rows
        alone = select(features, features[:7].mean(axis=0), 8, SBQ(10)).indices
        assert np.array_equal(found["embedded"], alone)
        assert "same target, k and selector" in found["ways"]
        assert found["bad"].startswith("rank 1: ")
        assert "NaN" in found["bad"]
    said = (tmp_path / "said").read_text()
    assert said.startswith("lost the connection to another rank")
    assert "start all of them again" in said


def test_without_a_group_it_is_said():
    with pytest.raises(ExemplaError, match="torchrun"):
        select(np.eye(4), np.ones(4), 2, Sharded(SBQ(), backend="torch"))
