"""What may be put where an argument stands: bad values, and equal data in another dress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp

ANYTHING: dict[str, Any] = {
    "none": None,
    "empty string": "",
    "word": "a",
    "negative": -1,
    "zero": 0,
    "fraction": 1.5,
    "huge": 10**12,
    "nan": float("nan"),
    "infinite": float("inf"),
    "true": True,
    "empty list": [],
    "nested": [[1], [2, 3]],
    "dict": {"a": 1},
    "set": {1, 2},
    "object": object(),
    "bytes": b"bytes",
    "complex": 1j,
    "lambda": lambda *_: None,
    "class": dict,
    "array": np.arange(3),
    "numpy string": np.str_("true"),
    "int8": np.int8(3),
    "negative fraction": -0.5,
    "numpy bool": np.bool_(True),
    "masked": np.ma.masked_array([0.0, 1.0, 2.0], mask=[False, True, False]),
    "complex array": np.arange(3) * 1j,
    "missing": pd.NA,
    "date": np.datetime64("2024-01-01"),
    "tuple": (1, 2),
    "frame": pd.DataFrame({"a": [1.0, 2.0]}),
    "surrogate": "\ud800",
    "zero byte": "a\0b",
}
"""In place of any option."""


def _with(array: np.ndarray, value: Any) -> np.ndarray:
    out = np.array(array, dtype=float)
    out.flat[0] = value
    return out


BAD_ROWS: dict[str, Callable[[np.ndarray], Any]] = {
    "nan": lambda X: _with(X, np.nan),
    "infinite": lambda X: _with(X, -np.inf),
    "huge": lambda X: _with(X, 1e308),
    "masked": lambda X: np.ma.masked_array(X, mask=np.eye(*X.shape, dtype=bool)),
    "complex": lambda X: X + 1j,
    "strings": lambda X: X.astype(str),
    "words": lambda X: np.full(X.shape, "word"),
    "objects": lambda X: np.array([[object()] * X.shape[1]] * len(X)),
    "dates": lambda X: np.full(X.shape, np.datetime64("2024-01-01")),
    "one number": lambda X: 3.0,
    "one row": lambda X: X[0],
    "cube": lambda X: X[:, :, None],
    "no rows": lambda X: X[:0],
    "no columns": lambda X: X[:, :0],
    "a row less": lambda X: X[:-1],
    "a column less": lambda X: X[:, :-1],
    "ragged": lambda X: [list(row[: 1 + i % 3]) for i, row in enumerate(X)],
    "a string": lambda X: "rows",
    "a dict": lambda X: {"X": X},
    "a generator": lambda X: (row for row in X),
    "structured": lambda X: np.zeros(len(X), dtype=[("a", float), ("b", float)]),
    "none": lambda X: None,
    "bytes": lambda X: X.tobytes(),
    "masked list": lambda X: [np.ma.masked_array(row, mask=row == row.max()) for row in X],
    "complex list": lambda X: (X + 1j).tolist(),
    "complex objects": lambda X: (X + 1j).astype(object),
    "complex frame": lambda X: pd.DataFrame(X + 1j),
    "complex sparse": lambda X: sp.csr_array(X + 1j),
    "missing frame": lambda X: pd.DataFrame(_with(X, np.nan)).convert_dtypes(),
    "missing sparse": lambda X: sp.csr_array(_with(X, np.nan)),
    "word frame": lambda X: pd.DataFrame(np.full(X.shape, "word")),
    "date frame": lambda X: pd.DataFrame(np.full(X.shape, np.datetime64("2024-01-01", "ns"))),
    "tiny": lambda X: X * 1e-160,
    "large": lambda X: X * 1e160,
    "zeros": np.zeros_like,
    "a set": lambda X: {1.0, 2.0},
}
"""In place of X: must be refused, or answered with finite numbers."""

SAME_ROWS: dict[str, Callable[[np.ndarray], Any]] = {
    "list": lambda X: X.tolist(),
    "frame": pd.DataFrame,
    "fortran": np.asfortranarray,
    "strided": lambda X: np.repeat(X, 2, axis=0)[::2],
    "big-endian": lambda X: X.astype(">f8"),
    "long double": lambda X: X.astype(np.longdouble),
    "read-only": lambda X: _read_only(X),
    "objects": lambda X: X.astype(object),
    "sparse": lambda X: sp.csr_matrix(X),
    "sparse array": lambda X: sp.csc_array(X),
    "mask of nothing": lambda X: np.ma.masked_array(X, mask=False),
    "subclass": lambda X: X.view(np.matrix),
    "nullable frame": lambda X: pd.DataFrame(X).convert_dtypes(),
    "named frame": lambda X: pd.DataFrame(X, columns=[f"c{i}" for i in range(X.shape[1])]),
}
"""The same numbers: must be answered alike, or refused."""

BAD_LABELS: dict[str, Callable[[np.ndarray], Any]] = {
    "none": lambda y: None,
    "two columns": lambda y: np.stack([y, y], 1),
    "a label less": lambda y: y[:-1],
    "nan": lambda y: _with(y, np.nan),
    "missing": lambda y: np.array([None, *y[1:]], dtype=object),
    "one class": lambda y: np.zeros_like(y),
    "all different": lambda y: np.arange(len(y)),
    "one of a kind": lambda y: np.array([7, *y[1:]]),
    "mixed": lambda y: np.array(["a", *y[1:]], dtype=object),
    "complex": lambda y: y + 1j,
    "masked": lambda y: np.ma.masked_array(y, mask=np.arange(len(y)) % 2 == 0),
    "nested": lambda y: [[v, [v]] for v in y],
    "dates": lambda y: np.full(len(y), np.datetime64("2024-01-01")) + y,
    "a string": lambda y: "labels",
    "empty": lambda y: y[:0],
    "fractions": lambda y: y + 0.25,
    "infinite": lambda y: _with(y, np.inf),
    "masked list": lambda y: [np.ma.masked if i % 2 else v for i, v in enumerate(y.tolist())],
    "masked parts": lambda y: list(np.ma.masked_array(y, mask=np.arange(len(y)) % 2 == 0)),
    "missing series": lambda y: pd.Series([None, *y[1:]], dtype="Int64"),
    "missing category": lambda y: pd.Series([None, *y[1:]]).astype("category"),
    "complex objects": lambda y: (y + 1j).astype(object),
    "bytes": lambda y: y.tobytes(),
    "a dict": lambda y: dict(enumerate(y.tolist())),
    "a generator": lambda y: (v for v in y),
    "cube": lambda y: y[:, None, None],
    "a number": lambda y: 1,
}

SAME_LABELS: dict[str, Callable[[np.ndarray], Any]] = {
    "list": lambda y: y.tolist(),
    "series": pd.Series,
    "floats": lambda y: y.astype(float),
    "int8": lambda y: y.astype(np.int8),
    "unsigned": lambda y: y.astype(np.uint64),
    "column": lambda y: y[:, None],
    "objects": lambda y: y.astype(object),
    "category": lambda y: pd.Series(y).astype("category"),
    "big-endian": lambda y: y.astype(">i8"),
}

BAD_WEIGHTS: dict[str, Callable[[np.ndarray], Any]] = {
    "negative": lambda y: -np.ones(len(y)),
    "nan": lambda y: np.full(len(y), np.nan),
    "zero": lambda y: np.zeros(len(y)),
    "short": lambda y: np.ones(len(y) - 1),
    "words": lambda y: np.full(len(y), "a"),
    "two columns": lambda y: np.ones((len(y), 2)),
    "a number": lambda y: 1.0,
    "complex": lambda y: np.ones(len(y)) * 1j,
    "tiny": lambda y: np.full(len(y), 1e-300),
    "huge": lambda y: np.full(len(y), 1e300),
    "infinite": lambda y: np.full(len(y), np.inf),
    "nested": lambda y: [[1.0], [1.0, 2.0]] * (len(y) // 2),
    "masked": lambda y: np.ma.masked_array(np.ones(len(y)), mask=np.arange(len(y)) == 1),
    "masked list": lambda y: [np.ma.masked, *[1.0] * (len(y) - 1)],
    "dates": lambda y: np.full(len(y), np.datetime64("2024-01-01")),
    "a dict": lambda y: dict.fromkeys(range(len(y)), 1.0),
    "missing": lambda y: pd.Series([None, *[1.0] * (len(y) - 1)]),
    "complex objects": lambda y: (np.ones(len(y)) + 1j).astype(object),
}


def _read_only(X: np.ndarray) -> np.ndarray:
    out = X.copy()
    out.flags.writeable = False
    return out
