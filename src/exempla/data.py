"""What a user hands over as data: split it into its parts, count its rows, take some, join two.

Data are `(X, y)`, `(X, y, sample_weight)`, or X alone; a tuple always means this, so rows of X
that are themselves in a tuple must be a list.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from exempla.arrays import (
    Array,
    is_sparse,
    is_tensor,
    native,
    real_numbers,
    refuse_masked,
    to_numpy,
)
from exempla.errors import ExemplaError

__all__ = [
    "Unpacked",
    "absent_labels",
    "arrays_of",
    "as_matrix",
    "from_arrow",
    "index_of",
    "is_polars",
    "listing",
    "n_rows",
    "plain_labels",
    "refuse_data",
    "stack_rows",
    "take_examples",
    "take_rows",
    "unpack",
]


LARGEST_WEIGHT = 1e100


class Unpacked(NamedTuple):
    """The user's data as given, in its three parts."""

    X: Any
    y: Any
    weights: np.ndarray | None
    ids: np.ndarray | None


def from_arrow(part: Any) -> Any:
    """An Arrow table or array as pandas has it; anything else as it is.

    >>> import pyarrow as pa
    >>> from_arrow(pa.table({"a": [1, 2]})).shape, from_arrow([1, 2])
    ((2, 1), [1, 2])
    """
    pa = sys.modules.get("pyarrow")
    kinds = () if pa is None else (pa.Table, pa.RecordBatch, pa.ChunkedArray, pa.Array)
    return part.to_pandas() if isinstance(part, kinds) else part


def is_polars(part: Any) -> bool:
    """Whether this is a frame or a series of polars, without importing it."""
    pl = sys.modules.get("polars")
    return pl is not None and isinstance(part, pl.DataFrame | pl.Series)


def refuse_data(problems: list[str], role: str) -> None:
    """One error that names all that is wrong with the training or test data, if anything is."""
    if problems:
        whose = "training" if role == "train" else "test"
        raise ExemplaError(f"The {whose} data cannot be used: {'; '.join(problems)}.")


def unpack(data: Any, problems: list[str]) -> Unpacked:
    """Split the data into X, y and weights; lengths and weights are checked here."""
    parts = tuple(map(from_arrow, data if isinstance(data, tuple) else (data,)))
    if not 1 <= len(parts) <= 3:
        raise ExemplaError(
            f"Data must be X, (X, y) or (X, y, sample_weight), not a tuple of {len(parts)}."
        )
    X, y, weights = (*parts, None, None)[:3]
    for what, part in (("X", X), ("y", y)):
        refuse_masked(part, what)
    if not (hasattr(X, "shape") or isinstance(X, Sequence)) or isinstance(X, str | bytes):
        raise ExemplaError(
            f"X must be an array, a data frame, a sparse matrix or a list of rows, not {X!r:.60}."
        )
    if isinstance(X, np.ndarray):
        X = np.asarray(X)  # a matrix, or an array with a mask of nothing, as a plain array
    n = n_rows(X)
    if n == 0:
        raise ExemplaError("The data has no rows: give at least one example.")
    if y is not None:
        y = y if hasattr(y, "iloc") else _label_array(y)
        if n_rows(y) != n:
            problems.append(f"X has {n} rows but y has {n_rows(y)}")
            y = None
    if weights is not None:
        weights = _check_weights(weights, n, problems)
    return Unpacked(X, y, weights, index_of(X, y))


def _label_array(y: Any) -> np.ndarray:
    try:
        return native(to_numpy(y))
    except ValueError:
        raise ExemplaError("y must hold one label, or as many numbers, for every row.") from None


def plain_labels(y: Any) -> np.ndarray:
    """Labels as a NumPy array, one dimension if there is one per row.

    >>> plain_labels([["yes"], ["no"]])
    array(['yes', 'no'], dtype='<U3')
    """
    values = y.to_numpy() if hasattr(y, "to_numpy") else to_numpy(y)
    return values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values


def absent_labels(y: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The classes of y that are not among the kept labels.

    >>> absent_labels(np.array(["a", "b", "a"]), np.array(["a"]))
    array(['b'], dtype='<U1')
    """
    classes = np.unique(y)
    # by sorting: the other way overflows at labels of 2**63 in NumPy 2.0
    return classes[~np.isin(classes, kept, kind="sort")]


def _check_weights(weights: Any, n: int, problems: list[str]) -> np.ndarray | None:
    try:
        w = real_numbers(weights, "sample_weight")
    except ExemplaError as error:
        problems.append(str(error).rstrip("."))
        return None
    if w.shape != (n,):
        problems.append(f"X has {n} rows but sample_weight has shape {w.shape}")
    elif not np.all(np.isfinite(w)) or np.any(w < 0):
        bad = np.flatnonzero(~(np.isfinite(w) & (w >= 0)))
        problems.append(f"sample_weight is negative, NaN or infinite in {listing(bad)}")
    elif not np.any(w > 0):
        problems.append("every sample_weight is zero")
    elif w.max() > LARGEST_WEIGHT:
        problems.append(f"sample_weight is above {LARGEST_WEIGHT:g}, and sums of it overflow")
    else:
        return w
    return None


def index_of(*frames: Any) -> np.ndarray | None:
    """A pandas index that says more than 0, 1, 2, …"""
    if "pandas" not in sys.modules:  # who has no pandas loaded has no frame
        return None
    import pandas as pd

    for frame in frames:
        index = getattr(frame, "index", None)
        if isinstance(index, pd.Index):
            default = isinstance(index, pd.RangeIndex) and index.equals(pd.RangeIndex(len(index)))
            return None if default else index.to_numpy()
    return None


def as_matrix(X: Any) -> Array:
    """X as a numeric NumPy array, or CSR if it is sparse. Raises ValueError if it is neither."""
    refuse_masked(X, "X")
    if is_sparse(X):
        X = sp.csr_array(X)
    elif is_polars(X) or hasattr(from_arrow(X), "iloc"):
        X = _from_frame(X.to_pandas() if is_polars(X) else from_arrow(X))
    else:
        X = to_numpy(X)
    if X.dtype.kind == "O":
        X = X.astype(np.float64)
    if X.dtype.kind not in "biuf":
        raise ValueError(f"its values are {X.dtype}")
    return X


def _from_frame(X: Any) -> np.ndarray:
    import pandas as pd

    kinds = dict(pd.DataFrame(X).dtypes)
    # columns of Python objects may hold numbers: they are tried below
    wrong = [c for c, kind in kinds.items() if kind.kind not in "biufcO"]
    if wrong:
        raise ValueError(f"columns {wrong[:5]} are not numeric: encode them first")
    if any(kind.kind == "c" for kind in kinds.values()):
        raise ValueError("its values are complex")
    try:
        return X.to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError):
        tried = [c for c, kind in kinds.items() if kind.kind == "O"]
        raise ValueError(f"columns {tried[:5]} are not numeric: encode them first") from None


def n_rows(X: Any) -> int:
    """Number of rows of whatever X is."""
    if hasattr(X, "shape"):
        return int(X.shape[0]) if len(X.shape) else 0
    return len(X)


def take_rows(X: Any, rows: np.ndarray) -> Any:
    """Some rows of one array, frame, tensor, sparse matrix or list, in this order."""
    rows, X = np.asarray(rows), from_arrow(X)
    if is_polars(X):
        return X[rows.astype(np.int64)]
    if is_tensor(X):
        import torch

        return X[torch.as_tensor(rows, device=X.device)]
    if hasattr(X, "iloc"):
        return X.iloc[rows]
    if is_sparse(X):
        return X.tocsr()[rows]
    if isinstance(X, np.ndarray) and len(rows):
        # a slice where possible: it copies nothing
        contiguous = np.array_equal(rows, np.arange(rows[0], rows[0] + len(rows)))
        return X[rows[0] : rows[-1] + 1] if contiguous else X[rows]
    if hasattr(X, "shape"):
        return X[rows]
    return [X[i] for i in rows]


def take_examples(data: Any, positions: np.ndarray) -> Any:
    """The examples at these positions of (X, y), X alone, a dictionary of columns, or a data set,
    as the same kind of data.

    >>> import numpy as np
    >>> take_examples((np.arange(4), np.array(list("abcd"))), np.array([2, 0]))
    (array([2, 0]), array(['c', 'a'], dtype='<U1'))
    """
    if isinstance(data, tuple):
        return tuple(None if part is None else take_examples(part, positions) for part in data)
    if isinstance(data, dict):
        return {name: take_examples(part, positions) for name, part in data.items()}
    torch = sys.modules.get("torch")
    if torch is not None:
        loader = getattr(data, "dataset", None)
        data = loader if isinstance(data, torch.utils.data.DataLoader) else data
        if isinstance(data, torch.utils.data.Dataset):
            return torch.utils.data.Subset(data, [int(i) for i in positions])
    if hasattr(data, "select") and hasattr(data, "features"):
        return data.select([int(i) for i in positions])  # a Hugging Face data set
    return take_rows(data, positions)


def stack_rows(first: Any, second: Any) -> Any:
    """The rows of `first`, then those of `second`, as the kind of thing that `first` is.

    >>> stack_rows(["a", "b"], ("c",))
    ['a', 'b', 'c']
    """
    first, second = from_arrow(first), from_arrow(second)
    if is_polars(first):
        return _stack_polars(first, second)
    if is_tensor(first):
        import torch

        return torch.cat([first, torch.as_tensor(second, dtype=first.dtype, device=first.device)])
    try:
        if is_sparse(first) or is_sparse(second):
            parts = [sp.csr_matrix(as_matrix(rows)) for rows in (first, second)]
            return sp.vstack(parts).tocsr()
        if hasattr(first, "iloc"):
            return _stack_frames(first, second)
        if isinstance(first, np.ndarray):
            return np.concatenate([first, np.asarray(second)])
        # a frame would give the names of its columns
        return [*first, *(np.asarray(second).tolist() if hasattr(second, "iloc") else second)]
    except (TypeError, ValueError):
        raise ExemplaError(
            "the two sets of rows cannot be put together: give both the same kind of values and "
            "the same columns."
        ) from None


def _stack_frames(first: Any, second: Any) -> Any:
    import pandas as pd

    if not isinstance(second, type(first)):
        if isinstance(first, pd.DataFrame):
            second = pd.DataFrame(np.asarray(second), columns=first.columns)
        else:
            second = pd.Series(list(second), name=first.name)
    parts: list[Any] = [first, second]
    return pd.concat(parts, ignore_index=True)


def _stack_polars(first: Any, second: Any) -> Any:
    pl = sys.modules["polars"]  # loaded by whoever made the frame
    if isinstance(first, pl.Series):
        return pl.concat([first, pl.Series(first.name, list(second), dtype=first.dtype)])
    if not is_polars(second):
        given = second.to_dict("list") if hasattr(second, "iloc") else np.asarray(second)
        second = pl.DataFrame(given, schema=first.schema)
    return pl.concat([first, second])


def arrays_of(data: Any, whose: str) -> tuple[Any, Any, np.ndarray | None]:
    """X, y and weights of data given as arrays, which is what a refit needs."""
    if not isinstance(data, tuple) or not 2 <= len(data) <= 3 or data[1] is None:
        raise ExemplaError(
            f"a refit needs the {whose} as arrays: give (X, y) or (X, y, sample_weight)."
        )
    X, y, weights = map(from_arrow, (*data, None)[:3])
    problems: list[str] = []
    checked = unpack((X, to_numpy(y) if is_tensor(y) else y, weights), problems)
    if problems:
        raise ExemplaError(f"the {whose} cannot be used: {'; '.join(problems)}.")
    return X, y if is_tensor(y) else checked.y, checked.weights


def listing(rows: np.ndarray, show: int = 5) -> str:
    """Row numbers in words.

    >>> import numpy as np
    >>> listing(np.array([3])), listing(np.arange(7))
    ('row 3', 'rows 0, 1, 2, 3, 4 and 2 more')
    """
    names = ", ".join(map(str, rows[:show]))
    more = f" and {len(rows) - show} more" if len(rows) > show else ""
    return f"row{'s' if len(rows) > 1 else ''} {names}{more}"
