"""The memory that `fix_labels` says it will take is what it takes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.linear_model import LogisticRegression

import exempla
from exempla import memory
from exempla.tasks.labels.fix_labels import row_bytes

MEASURE = """
import re, sys
import numpy as np
from sklearn.linear_model import LogisticRegression
from exempla.tasks.labels.fix_labels import fix_labels_from, gather
from exempla.tasks.labels.fix_labels import expected_peak

columns, curated, method = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
rng = np.random.default_rng(0)
X = rng.normal(size=(60_000 + curated, columns))
y = (X[:, 0] + rng.normal(size=len(X)) > 0).astype(int)
model = LogisticRegression(max_iter=5)

def job(n):
    trusted = (X[-curated:], y[-curated:]) if curated else None
    evidence = gather(model, (X[:n], y[:n]), trusted)
    return evidence, fix_labels_from(evidence, method=method)

def resident(which):  # getrusage would count what the parent process held when it forked
    with open("/proc/self/status") as told:
        return 1024 * int(re.search(which + r":\\s+(\\d+) kB", told.read())[1])

job(600)  # what is loaded and compiled once
before = resident("VmRSS")
evidence, _ = job(60_000)
print((resident("VmHWM") - before) / expected_peak(evidence, method, None))
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    ("columns", "curated", "method"), [(20, 500, "calibrated"), (50, 0, "sbq")]
)
def test_the_expected_peak_is_the_measured_one(columns: int, curated: int, method: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", MEASURE, str(columns), str(curated), method]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert 1 / 1.3 < float(found) < 1.3


def test_fix_labels_speaks_for_itself(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(memory, "MIN_ANNOUNCED_BYTES", 0)
    X = np.random.default_rng(0).normal(size=(60, 3))
    y = (X[:, 0] > 0).astype(int)
    for method in ("calibrated", "sbq"):
        exempla.fix_labels(LogisticRegression(), (X[:40], y[:40]), (X[40:], y[40:]), method=method)
        said = capsys.readouterr().err
        assert "60 labels, 20 to calibrate on; about " in said
        assert said.count("GiB of memory") == 1
    exempla.Explainer(LogisticRegression().fit(X, y)).fit((X, y))
    assert "60 examples, 4 parameters" in capsys.readouterr().err
    exempla.fix_labels(LogisticRegression(), (X, y), progress=False)
    assert not capsys.readouterr().err


def test_bytes_a_row() -> None:
    X = np.ones((10, 4))
    assert row_bytes(X) == row_bytes(pd.DataFrame(X)) == 32
    assert row_bytes(sp.csr_array(X)) == pytest.approx(4 * (8 + 4), abs=10)
    assert row_bytes(["a", "b"]) == 0
