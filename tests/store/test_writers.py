"""Several writers, and writers that are stopped."""

import os
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

from exempla import ExemplaError, Explainer
from exempla.cli.main import main
from exempla.store import RowSet
from tests.store.case import problem, shards, small_shards


@pytest.fixture(autouse=True)
def many_shards(monkeypatch):
    small_shards(monkeypatch)


def rows_in(folder, count=100):
    return RowSet(folder, count, 3, np.dtype(float), 10, {"basis": "b"})


def test_two_writers_of_the_same_rows_are_noticed(tmp_path):
    one = rows_in(tmp_path)
    with one.writing(one.share(1, 2)):
        for other in (one.ranges, one.share(1, 2), one.share(2, 3)):
            with pytest.raises(ExemplaError, match="another process"), one.writing(other):
                pass
        with one.writing(one.share(2, 2)):  # the other half is nobody's
            pass
    with one.writing(one.ranges):  # and all is free again
        pass
    assert not list(tmp_path.iterdir())


def test_parts_are_all_rows_once():
    for parts in (1, 2, 3, 7, 10, 25):
        made = [rows_in("x").share(i + 1, parts) for i in range(parts)]
        assert [one for some in made for one in some] == rows_in("x").ranges


def test_many_threads_fill_one_store(tmp_path):
    model, data = problem()
    errors = []

    def work(i):
        try:
            Explainer(model, store=tmp_path, progress=False).fit(data, part=(i, 4))
        except ExemplaError as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in (1, 2, 3, 4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    assert len(shards(tmp_path)) == 8
    plain = Explainer(model, progress=False).fit(data)
    kept = Explainer(model, store=tmp_path, progress=False).fit(data)
    np.testing.assert_allclose(kept.embeddings[0].rows[:], plain.embeddings[0].rows, rtol=1e-12)


def test_a_stopped_fit_says_how_to_go_on(tmp_path, monkeypatch, capsys):
    model, data = problem()
    write, made = RowSet.write, []

    def slow(self, start, rows):
        write(self, start, rows)
        made.append(start)
        if len(made) == 3:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(5)  # the signal comes before the end of this

    monkeypatch.setattr(RowSet, "write", slow)
    with pytest.raises(KeyboardInterrupt) as stopped:
        Explainer(model, store=tmp_path).fit(data)
    assert "3 of 8 shards are saved" in stopped.value.__notes__[0]
    assert "continues from there" in capsys.readouterr().err
    monkeypatch.undo()
    small_shards(monkeypatch)
    kept = {path: path.stat().st_mtime_ns for path in shards(tmp_path)}
    assert len(kept) == 3
    Explainer(model, store=tmp_path, progress=False).fit(data)
    assert all(path.stat().st_mtime_ns == when for path, when in kept.items())


def test_a_command_that_is_terminated_goes_on(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    lines = [f"{a:.3f},{b:.3f},{int(a + b > 0)}\n" for a, b in rng.standard_normal((300, 2))]
    (tmp_path / "a.csv").write_text("a,b,y\n" + "".join(lines))
    script = (
        "import sys, time\n"
        "from exempla.store import folder\n"
        "from exempla.cli.main import main\n"
        "folder._MIN_SHARD_BYTES, folder._MIN_SHARDS = 1, 10\n"
        "write = folder.RowSet.write\n"
        "def slow(self, start, rows):\n"
        "    write(self, start, rows)\n"
        "    print('made', flush=True)\n"
        "    time.sleep(30)\n"
        "folder.RowSet.write = slow\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    words = ["embed", "a.csv", "--label", "y", "--store", "store", "--quiet"]
    pipes = {"stdout": subprocess.PIPE, "text": True}
    job = subprocess.Popen([sys.executable, "-c", script, *words], cwd=tmp_path, env=env, **pipes)
    assert job.stdout is not None
    assert job.stdout.readline() == "made\n"
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=60)
    assert job.returncode == -signal.SIGTERM
    small_shards(monkeypatch, 10)
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    assert len(shards(tmp_path / "store")) == 10
