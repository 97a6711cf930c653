"""Eight public tables for trees: two classes, several classes, and a number to predict.

Four ship with scikit-learn; the others are read from the folder that EXEMPLA_DATA names.
"""

from __future__ import annotations

import bz2
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine

__all__ = ["CATEGORIES", "TABLES", "adult", "folder"]

CATEGORIES = [1, 3, 5, 6, 7, 8, 9, 13]
"""Columns of Adult that are categories."""


def folder() -> Path:
    """The folder with the data files."""
    if "EXEMPLA_DATA" not in os.environ:
        raise SystemExit("Set EXEMPLA_DATA to the folder with tabular/, covtype/ and chemreact/.")
    return Path(os.environ["EXEMPLA_DATA"])


def adult() -> tuple[np.ndarray, np.ndarray]:
    """Census income; categories as numbers, which trees split as well as any."""
    table = pd.read_csv(folder() / "tabular/adult.data.gz", header=None, skipinitialspace=True)
    y = (table.iloc[:, -1] == ">50K").to_numpy(dtype=np.int64)
    columns = [
        column if column.dtype.kind in "if" else pd.Series(pd.factorize(column, sort=True)[0])
        for _, column in table.iloc[:, :-1].items()
    ]
    return np.column_stack(columns).astype(np.float64), y


def hours() -> tuple[np.ndarray, np.ndarray]:
    """The same table, to predict the hours a person works in a week."""
    X, y = adult()
    return np.column_stack([np.delete(X, 12, axis=1), y]), X[:, 12]


def covtype() -> tuple[np.ndarray, np.ndarray]:
    with np.load(folder() / "covtype/covtype.npz", allow_pickle=False) as data:
        return data["X"].astype(np.float64), (data["y"] == 2).astype(np.int64)


def chemreact() -> tuple[np.ndarray, np.ndarray]:
    with bz2.open(folder() / "chemreact/ds1.10.csv.bz2", "rt") as stream:
        table = np.loadtxt(stream, delimiter=",")
    return table[:, :-1], table[:, -1].astype(np.int64)


TABLES: dict[str, Callable[[], tuple[np.ndarray, np.ndarray]]] = {
    "breast cancer": lambda: load_breast_cancer(return_X_y=True),
    "adult": adult,
    "covtype": covtype,
    "chemreact": chemreact,
    "digits": lambda: load_digits(return_X_y=True),
    "wine": lambda: load_wine(return_X_y=True),
    "diabetes": lambda: load_diabetes(return_X_y=True),
    "hours": hours,
}
