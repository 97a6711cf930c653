"""The training set in sketch space: what is forecast of its memory is what it takes."""

import re
import subprocess
import sys

import numpy as np
import pytest

from exempla.kernel.fisher import TrainingRows
from exempla.memory import explain_bytes

JOB = """
import sys
import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
import exempla, exempla.memory

rows, columns, how = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(0)
X = rng.normal(size=(rows, columns))
y = (X[:, 0] + rng.normal(size=rows) > 0).astype(int)
model = LogisticRegression(max_iter=20)
if how == "scaled":
    model = make_pipeline(StandardScaler(), model)
model = model.fit(X[:2000], y[:2000])
if how == "several":
    model = [model, *(LogisticRegression(C=C).fit(X[:2000], y[:2000]) for C in (0.1, 0.01))]
exempla.memory.MIN_ANNOUNCED_BYTES = 0

def kilobytes(name):  # not getrusage, whose peak begins with that of the process that started this
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))

before = kilobytes("VmRSS")
exempla.explain(model, (X, y), (X[:50], y[:50]), k=20)
print((kilobytes("VmHWM") - before) / 2**20)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize(
    "size",
    [
        pytest.param((40_000, 100, "plain"), marks=pytest.mark.slow),
        pytest.param((80_000, 50, "scaled"), marks=pytest.mark.slow),
        (60_000, 40, "several"),
    ],
)
def test_the_memory_said_is_the_memory_taken(size):
    done = subprocess.run(
        [sys.executable, "-c", JOB, *map(str, size)], capture_output=True, text=True, check=True
    )
    (said,) = re.findall(r"about ([\d.]+) GiB of memory", done.stderr)
    assert 1 / 1.3 < float(said) / float(done.stdout) < 1.3


def test_the_forecast_follows_what_the_rows_are_made_of():
    whole = explain_bytes(10**6, 1000)
    assert whole == pytest.approx(2 * 8 * 10**9, rel=0.03)
    assert explain_bytes(10**6, 1000, itemsize=4) == pytest.approx(whole / 2, rel=0.03)
    assert explain_bytes(10**6, 1000, kept=10**9) == whole + 10**9
    assert explain_bytes(10**6, 1000, inputs=10**9) == pytest.approx(whole + 10**9, rel=0.03)
    assert explain_bytes(10, 10, built=10**10) == pytest.approx(10**10, rel=0.03)


def test_rows_that_need_no_transfer_do_not_wait_for_one():
    made = []

    def batches():
        for i in range(4):
            batch = np.full((5, 3), float(i))
            made.append(batch)
            if i:  # the one before has been put in its place, and may be written over
                made[i - 1][:] = -1.0
            yield batch

    found = TrainingRows(20, np.arange(20))
    for i, batch in enumerate(batches()):
        found.put(np.arange(5 * i, 5 * i + 5), batch)
    assert len(found.missing) == 0
    np.testing.assert_array_equal(found.rows[:, 0], np.repeat(np.arange(4.0), 5))
