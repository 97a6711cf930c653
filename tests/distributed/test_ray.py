"""Parts on a Ray cluster of two nodes: the same picks, whoever dies on the way.

One cluster serves the whole file: starting it is what takes the time.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from time import monotonic, sleep
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

import exempla
from exempla.cli.main import main
from exempla.distributed import OnRay, in_files
from exempla.distributed.ray_backend import (
    RayTransport,
    _check_reachable,
    _max_tasks,
)
from exempla.errors import ExemplaError
from exempla.progress import showing
from exempla.selection import SBQ, Herding, Sharded, select
from exempla.store import RowSet, StoredRows

os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = pytest.mark.xdist_group("ray")
STORE = 80 * 2**20
KILLS = int(os.environ.get("EXEMPLA_RAY_KILLS", "2"))
"""How many workers are killed, besides a node; `make fuzz` sets 12."""
LITTLE = 0.25  # processors of an actor, so that those of a lost node find room
QUICK = {  # a lost node is noticed within seconds, a slow one is not taken for lost
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 200,
    "health_check_failure_threshold": 10,
    "worker_niceness": 0,  # by default workers give way to everything else on the machine
}


@pytest.fixture(scope="module")
def cluster():
    from ray.cluster_utils import Cluster

    handled = signal.getsignal(signal.SIGTERM)  # Ray takes it, and does not give it back
    made = Cluster(
        initialize_head=True,
        head_node_args={
            "num_cpus": 1,
            "object_store_memory": STORE,
            "include_dashboard": False,
            "_system_config": QUICK,
        },
    )
    made.add_node(num_cpus=1, object_store_memory=STORE)
    ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()
    signal.signal(signal.SIGTERM, handled)


@pytest.fixture(scope="module")
def problem():
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((3000, 24)).astype(np.float32)
    rows[2000:2100] = rows[:100]  # copies in another part
    return rows, rows[:60].astype(np.float64).mean(axis=0)


def test_these_tests_stay_in_one_process(request):
    """pytest-xdist 3.8 ignores groups with pytest 9.2: two clusters would starve each other."""
    if getattr(request.config.option, "loadgroup", False):
        assert request.node.nodeid.endswith("@ray")


def _home(worker):
    """Of the actor it is sent to: its node and its process."""
    return ray.get_runtime_context().get_node_id(), os.getpid()


def test_the_picks_are_those_of_one_process(cluster, problem, tmp_path, capfd):
    rows, target = problem
    whole = select(rows, target, 12, SBQ(10))
    parts = select(rows, target, 12, Sharded(SBQ(10), 3, backend="ray"))
    assert "3 shards share 2 CPUs: each worker gets 0.5 CPUs" in capfd.readouterr().err
    assert np.array_equal(whole.indices, parts.indices)
    np.testing.assert_allclose(whole.weights, parts.weights, rtol=1e-9)

    # Stored rows, in files of other sizes than the shares; several questions of one placement.
    paths = [tmp_path / f"{i}.npy" for i in range(3)]
    for path, some in zip(paths, np.split(rows, [500, 2900])):
        np.save(path, some)
    both = np.stack([target, -target])
    with OnRay(cpus=LITTLE).opened(StoredRows.of(paths), 2) as placed:
        assert len(placed.transport.actors) == 2
        assert placed.bounds == [0, 1500, 3000]
        before = replace(placed.transport.traffic)
        assert np.array_equal(select(placed, target, 12, SBQ(10)).indices, whole.indices)
        traffic = placed.transport.traffic.since(before)
        assert traffic.exchanges < 12  # fewer than one a pick
        assert traffic.sent > 0
        assert traffic.received > 0
        assert traffic.restarts == 0
        herded = select(placed, target, 6, Herding())
        assert np.array_equal(herded.indices, select(rows, target, 6, Herding()).indices)
        for found, sought in zip(select(placed, both, 5), select(rows, both, 5)):
            assert np.array_equal(found.indices, sought.indices)
    two = Sharded(SBQ(1.0), 2, "two-round")
    away = Sharded(SBQ(1.0), 2, "two-round", backend=OnRay(cpus=LITTLE))
    found, sought = select(rows, target, 6, away), select(rows, target, 6, two)
    assert np.array_equal(found.indices, sought.indices)


def _wait_for_a_processor():
    """Wait until Ray has noticed that the workers of the last selection have gone."""
    deadline = monotonic() + 60
    while (found := ray.available_resources()).get("CPU", 0) < 1:
        assert monotonic() < deadline, (found, ray.nodes())
        sleep(0.1)


def test_another_job_that_holds_a_processor_is_not_waited_for(cluster, problem, capfd):
    rows, target = problem
    busy = ray.remote(SimpleNamespace).options(num_cpus=1).remote()
    ray.get(busy.__ray_ready__.remote())
    _wait_for_a_processor()
    try:
        away = Sharded(SBQ(10), 4, backend=OnRay(patience=60))
        with showing(False):  # as Explainer(progress=False) does
            found = select(rows, target, 12, away)
        assert "exempla:" not in capfd.readouterr().err
        _wait_for_a_processor()
        again = select(rows, target, 12, replace(away, shards=3))
    finally:
        ray.kill(busy)
    assert "3 shards share 1 free CPU: each worker gets 0.3333" in capfd.readouterr().err
    expected = select(rows, target, 12, SBQ(10)).indices
    assert np.array_equal(found.indices, expected)
    assert np.array_equal(again.indices, expected)


def test_what_a_user_can_do_wrong_is_said(cluster, problem, tmp_path):
    rows, target = problem
    stored = in_files(rows, tmp_path, 2)
    for shard in stored.shards[1:]:
        _ = stored.shape  # known before the file is gone
        shard.path.unlink()
    with pytest.raises(ExemplaError, match="every machine of the cluster sees"):
        select(stored, target, 3, Sharded(SBQ(10), 2, backend="ray"))
    with pytest.raises(ExemplaError, match="give fewer shards"):
        select(rows, target, 3, Sharded(SBQ(10), 50, backend="ray"))
    with pytest.raises(ExemplaError, match="give fewer shards"):
        select(rows, target, 3, Sharded(SBQ(10), 2, backend=OnRay(gpus=1)))
    with pytest.raises(ExemplaError, match="NaN"):
        select(rows * np.nan, target, 3, Sharded(SBQ(10), 2, backend="ray"))
    with pytest.raises(ExemplaError, match="restarts is -1"):
        OnRay(restarts=-1)


def test_embedding_by_tasks_is_embedding(cluster, tmp_path, monkeypatch):
    X, y = load_breast_cancer(return_X_y=True)
    frame = pd.DataFrame(X).assign(y=y)
    frame.to_csv(tmp_path / "cells.csv", index=False)
    words = ["embed", str(tmp_path / "cells.csv"), "--label", "y", "--quiet"]
    assert main([*words, "--out", str(tmp_path / "alone")]) == 0
    away = ["--store", str(tmp_path / "store"), "--ray", "--out", str(tmp_path / "away")]
    written, write = [], RowSet.write
    monkeypatch.setattr(RowSet, "write", lambda *a: (written.append(a), write(*a)))
    assert main([*words, *away]) == 0
    assert all("white" in str(rows.folder) for rows, *_ in written)  # the rows were made elsewhere
    said = json.loads((tmp_path / "away" / "explanation.json").read_text())
    rows = StoredRows.of(sorted(Path(said["store"]).glob("*.npy")))[:]
    np.testing.assert_allclose(rows, np.load(tmp_path / "alone" / "rows.npy"), rtol=1e-6)
    assert main([*words, "--ray", "--out", str(tmp_path / "none")]) != 0  # without a store


def _kill(actor, by_signal):
    """End its process with SIGKILL, or through Ray, which also works while it is restarted."""
    if by_signal:
        with suppress(ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            os.kill(ray.get(actor.__ray_call__.remote(_home), timeout=30)[1], signal.SIGKILL)
            return
    ray.kill(actor, no_restart=False)


def test_killed_workers_come_back_and_the_picks_are_the_same(
    cluster, problem, monkeypatch, record_property
):
    """Actors are killed by Ray or by SIGKILL, at other messages each time."""
    rows, target = problem
    expected = select(rows, target, 40, SBQ(10)).indices
    sent, killed, deliver = [], [], RayTransport._send
    rng, moments = np.random.default_rng(0), set()

    def killing(self, messages):
        sent.append(len(messages))
        if len(sent) in moments and len(killed) < KILLS:
            place = int(rng.integers(len(self.actors)))
            _kill(self.actors[place], by_signal=len(killed) % 2 == 1)
            killed.append(place)
        return deliver(self, messages)

    monkeypatch.setattr(RayTransport, "_send", killing)
    with OnRay(cpus=LITTLE, restarts=KILLS, patience=120).opened(rows, 2) as placed:
        while len(killed) < KILLS:
            sent.clear()
            moments.clear()
            moments.update(rng.integers(2, 12, 3).tolist())
            found = select(placed, target, 40, SBQ(10))
            assert np.array_equal(found.indices, expected), moments
        assert placed.transport.traffic.restarts >= 1  # kills close together count as one
    record_property("Ray kills", len(killed))


def test_a_cluster_without_room_is_not_waited_for_and_a_dead_worker_is_named(
    cluster, problem, monkeypatch
):
    """Another job has all processors; no machine is as large as one worker; a worker may not be
    restarted."""
    rows, target = problem
    with OnRay(restarts=0).opened(rows, 2) as placed:
        with pytest.raises(ExemplaError, match=r"did not start within 1 s"):
            select(rows, target, 3, Sharded(SBQ(10), 2, backend=OnRay(patience=1)))
        ray.kill(placed.transport.actors[1])
        with pytest.raises(ExemplaError, match=r"rows-1.npy died and may not be restarted"):
            select(placed, target, 5, SBQ(10))
    # Ray may need a while to notice that the workers have gone.
    monkeypatch.setattr(ray, "available_resources", ray.cluster_resources)
    with pytest.raises(ExemplaError, match=r"did not start within 1 s.*OnRay\(cpus=…\) less"):
        select(rows, target, 3, Sharded(SBQ(10), 1, backend=OnRay(cpus=2, patience=1)))
    with pytest.raises(ExemplaError, match="no machine of the Ray cluster has that"):
        _max_tasks(OnRay(cpus=2), ray)
    assert _max_tasks(OnRay(cpus=0.5), ray) == 4
    _check_reachable(cluster.address)  # a running cluster answers


def test_a_lost_node_changes_no_pick(cluster, problem, monkeypatch, record_property):
    rows, target = problem
    sent, deliver = [], RayTransport._send
    fresh = cluster.add_node(num_cpus=1, object_store_memory=STORE)  # the others may count as full
    with OnRay(cpus=LITTLE, patience=300).opened(rows, 3) as placed:
        homes = ray.get([a.__ray_call__.remote(_home) for a in placed.transport.actors])
        lost = [process for node, process in homes if node == fresh.node_id]
        assert lost  # three workers on three nodes

        def losing(self, messages):
            sent.append(len(messages))
            if len(sent) == 7:
                cluster.remove_node(fresh, allow_graceful=False)
                for process in lost:  # a machine takes its processes along; Ray alone dawdles
                    with suppress(ProcessLookupError):
                        os.kill(process, signal.SIGKILL)
            return deliver(self, messages)

        monkeypatch.setattr(RayTransport, "_send", losing)
        found = select(placed, target, 40, SBQ(10))
        assert placed.transport.traffic.restarts >= len(lost)
    record_property("Ray kills", 1)
    assert np.array_equal(found.indices, select(rows, target, 40, SBQ(10)).indices)


def test_without_ray_or_a_cluster_it_is_said(monkeypatch):
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    rows, start = np.eye(4), monotonic()
    with pytest.raises(ExemplaError, match=r"no Ray cluster answers at '127\.0\.0\.1:1'"):
        select(rows, np.ones(4), 2, Sharded(SBQ(), 2, backend=OnRay("127.0.0.1:1")))
    assert monotonic() - start < 30
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(ExemplaError, match=r"exempla\[ray\]"):
        exempla.select(rows, np.ones(4), 2, Sharded(SBQ(), 2, backend="ray"))


@pytest.mark.parametrize("said", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_what_is_not_ray_is_not_waited_for(monkeypatch, said):
    """A port that accepts connections and says nothing, or something else."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr("exempla.distributed.ray_backend._CONNECT_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"

        def answer():
            connection, _ = server.accept()
            connection.sendall(said)
            connection.recv(100)
            sleep(2)

        threading.Thread(target=answer, daemon=True).start()
        with pytest.raises(ExemplaError, match=f"no Ray cluster answers at '{address}'"):
            select(np.eye(4), np.ones(4), 2, Sharded(SBQ(), 2, backend=OnRay(address)))


def test_jobs_that_share_a_folder_keep_their_rows_apart(tmp_path):
    """Each job has a folder of its own, which is gone at the end; files that exist stay."""
    mine = tmp_path / "rows-0.npy"
    mine.write_bytes(b"the user's own file")
    first, second = np.full((4, 2), 1.0), np.full((6, 2), 2.0)
    with ExitStack() as stack:
        jobs = [OnRay(folder=tmp_path)._stored(rows, 2, ray, stack) for rows in (first, second)]
        for stored, rows in zip(jobs, (first, second)):
            np.testing.assert_array_equal(stored[:], rows)
        assert len({shard.path for stored in jobs for shard in stored.shards}) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["rows-0.npy"]
    assert mine.read_bytes() == b"the user's own file"
    with pytest.raises(ExemplaError, match=r"rows-0.npy already exists and is not overwritten"):
        in_files(first, tmp_path, 2)
    assert mine.read_bytes() == b"the user's own file"
    assert not (tmp_path / "rows-1.npy").exists()


@pytest.mark.parametrize(
    ("nodes", "busy", "actors", "cpus"),
    [
        ([2], 0, 3, 0.5),
        ([2, 2], 0, 3, 1),
        ([1] * 3, 0, 4, 0.5),
        ([2], 0, 14, 0.1428),  # rounded down to what Ray can count
        ([2], 1, 3, 0.3333),
        ([2], 1.5, 2, 0.1),
        ([2], 1, 1, 1),
    ],
)
def test_processors_are_divided_so_that_every_actor_fits_on_a_node(nodes, busy, actors, cpus):
    have = float(sum(nodes))
    cluster = SimpleNamespace(
        cluster_resources=lambda: {"CPU": have},
        available_resources=lambda: {"CPU": have - busy} if have > busy else {},
    )
    assert OnRay()._cpus_per_actor(actors, cluster) == cpus
    assert sum(int(node / cpus) for node in nodes) >= actors
