"""What a job says it will take of memory is what it takes, and it says so once."""

from __future__ import annotations

import sys

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import exempla
from benchmarks.memory import JOBS, measured
from exempla import progress
from exempla.kernel import sketch


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize(
    "job", [job if job == "clean" else pytest.param(job, marks=pytest.mark.slow) for job in JOBS]
)
def test_the_memory_said_is_the_memory_taken(job):
    assert 1 / 1.3 < measured(job, 60_000, 40).ratio < 1.3


@pytest.fixture
def data(monkeypatch):
    monkeypatch.setattr(progress, "MIN_ANNOUNCED_BYTES", 0)
    monkeypatch.setattr(sketch, "IMPORT_BYTES", 0)  # it would hide what so few rows take
    X = np.random.default_rng(0).normal(size=(300, 4))
    return X, (X[:, 0] + 0.5 * X[:, 1] > 0).astype(int)


@pytest.mark.parametrize("job", JOBS)
def test_every_job_says_it_once(job, data, capsys):
    X, y = data
    JOBS[job](LogisticRegression().fit(X, y), (X[:250], y[:250]), (X[250:], y[250:]))
    assert capsys.readouterr().err.count("GiB of memory") == 1


def test_cleaning_by_sbq_takes_what_an_explanation_does(data, capsys):
    X, y = data
    model = LogisticRegression().fit(X, y)
    said = {}
    for name, selector in (("influence", None), ("sbq", exempla.SBQ(noise=10))):
        exempla.clean(model, (X, y), (X[:9], y[:9]), 3, ask="all", selector=selector)
        said[name] = capsys.readouterr().err
    exempla.explain(model, (X, y), (X[:9], y[:9]), 3)
    assert said["sbq"] == capsys.readouterr().err != said["influence"]


def test_a_summary_says_it_for_weighted_rows_and_pipelines(data, capsys):
    X, y = data
    model = make_pipeline(StandardScaler(), LogisticRegression()).fit(X, y)
    exempla.summarize(model, (X, y, np.ones(300)), 20)
    assert "300 examples to choose 20 of; about " in capsys.readouterr().err


def test_what_cannot_be_told_yet_is_told_where_it_is_wrong(data, capsys):
    X, y = data
    model = LogisticRegression().fit(X, y)
    with pytest.raises(exempla.ExemplaError, match="k is 'a'"):
        exempla.summarize(model, (X, y), "a")
    with pytest.raises(exempla.ExemplaError, match="X has 300 rows but y has 20"):
        exempla.summarize(model, (X, y[:20]), 5, total="k")
    assert "GiB" not in capsys.readouterr().err
