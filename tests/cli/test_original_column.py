"""--original-column: what trusted rows were once called, through the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_breast_cancer

from exempla.cli.main import main


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    """One benign row in four was called malignant; 150 rows have been put right."""
    data = load_breast_cancer(as_frame=True)
    X = np.asarray(data.data)[:, :6]
    frame = pd.DataFrame(X, columns=[f"m{i}" for i in range(X.shape[1])])
    truth = np.where(np.asarray(data.target) == 1, "benign", "malignant")
    rng = np.random.default_rng(0)
    wrong = (truth == "benign") & (rng.random(len(truth)) < 0.25)
    given = np.where(wrong, "malignant", truth)
    checked = np.isin(np.arange(len(truth)), rng.permutation(len(truth))[:150])
    frame["diagnosis"] = np.where(checked, truth, given)
    frame["once"] = np.where(checked & wrong, "malignant", "")
    frame["checked"] = np.where(checked, "yes", "")
    path = tmp_path_factory.mktemp("once") / "cells.csv"
    frame.to_csv(path, index=False)
    return path


def fix(path: Path, out: Path, *more: object, curated: bool = True) -> int:
    words = ["fix-labels", path, "--label", "diagnosis", "--out", out, *more]
    words += ["--model", "sklearn.linear_model:LogisticRegression"]
    words += ["--kind", "once=ignored", "--kind", "checked=ignored"]
    if curated:
        words += ["--curated-column", "checked"]
    return main([str(word) for word in words])


def found(out: Path) -> dict:
    return json.loads((out / "explanation.json").read_text())


def test_it_is_read_and_is_no_feature(file, tmp_path, capsys):
    assert fix(file, tmp_path / "with", "--original-column", "once") == 0
    said = capsys.readouterr()
    lines = (said.out + said.err).splitlines()
    assert any("once" in line and "ignored" in line for line in lines)
    assert any("of the 150 trusted rows had another label before." in line for line in lines)
    frame = pd.read_csv(file)
    truth = np.where(np.asarray(load_breast_cancer().target) == 1, "benign", "malignant")
    planted = int((frame["diagnosis"] != truth).sum())
    assert 0.6 * planted < found(tmp_path / "with")["expected_errors"] < 1.4 * planted


@pytest.mark.parametrize(
    ("more", "curated", "why"),
    [
        (["--original-column", "once"], False, "no row is trusted"),
        (["--original-column", "nowhere"], True, "nowhere"),
        (["--original-column", "checked"], True, "is not a label of any training row"),
        (["--original-column", "once", "--method", "sbq"], True, "has no effect with --method sbq"),
        (["--original-column", "once", "--label", "diagnosis,checked"], False, "one label per row"),
    ],
)
def test_what_makes_no_sense_is_said(file, tmp_path, capsys, more, curated, why):
    assert fix(file, tmp_path / "out", *more, curated=curated) == 2
    assert why in capsys.readouterr().err
