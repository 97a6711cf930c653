"""What a store belongs to: model, data and every choice that its rows depend on.

Kept in store.json by the first who writes there. Everybody later is held against it, and told what
differs: rows of two models in one folder would answer nobody's question.
"""

from __future__ import annotations

import hashlib
import json
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from exempla.arrays import is_sparse, is_tensor, to_numpy
from exempla.atomic import make_folder
from exempla.errors import ExemplaError
from exempla.store.sealed import publish_first
from exempla.version import __version__

__all__ = ["claim", "data_fingerprint", "identity_of", "model_hash"]

FORMAT = "exempla-store-1"
FILE = "store.json"
NAMES = {
    "format": "the form of the store", "version": "the version of exempla", "models": "the model",
    "data": "the training data", "rows": "the number of training examples",
    "fisher": "fisher=", "sketch": "sketch=", "seed": "seed=", "likelihood": "likelihood=",
    "parameters": "parameters=",
}  # fmt: skip
"""Words for what may differ."""


def identity_of(models: Iterable[Any], data: Any, labels: Any, rows: int, **options: Any) -> dict:
    """Everything that rows depend on, as plain data."""
    return {
        "format": FORMAT,
        "version": __version__,
        "models": [model_hash(model) for model in models],
        "data": data_fingerprint(data, labels, rows),
        "rows": rows,
        **{name: _plain(value) for name, value in options.items()},
    }


def claim(folder: Path, mine: dict[str, Any]) -> None:
    """Make this folder the store of this identity, or refuse it as that of another."""
    make_folder(folder)
    path = folder / FILE
    if not path.exists() and any(folder.glob("*.npy")):
        raise ExemplaError(
            f"{folder} holds .npy files and no {FILE}: give an empty folder as the store."
        )
    found = _read(publish_first(path, (json.dumps(mine, indent=1) + "\n").encode()))
    wanted = json.loads(json.dumps(mine))
    other = [name for name in {**wanted, **found} if wanted.get(name) != found.get(name)]
    if other:
        said = "; ".join(
            f"{NAMES.get(name, name)} ({_short(found.get(name))} there, "
            f"{_short(wanted.get(name))} here)"
            for name in other
        )
        raise ExemplaError(
            f"the store in {folder} is of another job, and differs in {said}: give another folder, "
            "or delete that one if it is no longer wanted."
        )


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(found, dict):
            return found
    except ValueError:
        pass
    raise ExemplaError(
        f"{path} is not what exempla wrote: delete the store and fit again, or give another folder."
    )


def _short(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_short, value))
    return str(value)[:12]


def _plain(value: Any) -> Any:
    """An option as JSON can hold it: a name, or a hash of what has none."""
    if value is None or isinstance(value, str | int | float | bool):
        return value
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return model_hash(value)


# ---- hashes


def model_hash(model: Any) -> str:
    """A hash of the model's weights and settings.

    A torch module: the values of its state. Anything else: what pickling it would write, in which
    joblib makes arrays and dictionaries count by their content. What cannot be pickled counts by
    its type alone; its scores are compared as well (see `exempla.embedding`).

    >>> from sklearn.linear_model import Ridge
    >>> one, two = Ridge().fit([[0.0], [1.0]], [0, 1]), Ridge().fit([[0.0], [1.0]], [0, 2])
    >>> model_hash(one) == model_hash(one), model_hash(one) == model_hash(two)
    (True, False)
    """
    if isinstance(model, str | Path) and Path(model).is_file():
        with open(model, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    state = getattr(model, "state_dict", None)
    if callable(state) and hasattr(model, "named_parameters"):
        model = state()
    digest = hashlib.sha256()
    if isinstance(model, Mapping) and model and any(map(is_tensor, model.values())):
        for name in sorted(model):
            _add_value(digest, str(name))
            _add_value(digest, model[name])
        return digest.hexdigest()
    import joblib

    try:
        return str(joblib.hash(model, hash_name="sha1"))
    except (TypeError, AttributeError, pickle.PicklingError, ValueError):
        return f"{type(model).__module__}.{type(model).__qualname__}"


def data_fingerprint(data: Any, labels: Any, rows: int) -> str:
    """A hash of the training data: every number of arrays, tables and lists; of a torch Dataset or
    anything else that is read item by item, how many there are and their labels.

    >>> X = np.eye(3)
    >>> data_fingerprint((X, [0, 1, 0]), None, 3) == data_fingerprint((X, [0, 1, 1]), None, 3)
    False
    """
    digest = hashlib.sha256()
    parts = data if isinstance(data, tuple) else (data,)
    if all(_is_values(part) for part in parts):
        for part in parts:
            _add_value(digest, part)
    else:
        _add_value(digest, labels)
    digest.update(str(rows).encode())
    return digest.hexdigest()


def _is_values(part: Any) -> bool:
    simple = part is None or isinstance(part, np.ndarray | list | dict) or is_tensor(part)
    return simple or is_sparse(part) or hasattr(part, "iloc")


def _add_value(digest: Any, value: Any) -> None:
    """Feed a value's type and content to the hash."""
    if is_tensor(value):
        value = to_numpy(value)
    if is_sparse(value):
        value = value.tocsr()
        for part in (value.data, value.indices, value.indptr, np.array(value.shape)):
            _add_value(digest, part)
    elif hasattr(value, "iloc"):
        import pandas as pd

        for name in [*value.columns] if hasattr(value, "columns") else [value.name]:
            digest.update(repr(name).encode())
        _add_value(digest, pd.util.hash_pandas_object(value, index=False).to_numpy())
    elif isinstance(value, np.ndarray) and value.dtype != object:
        digest.update(f"{value.dtype.str}{value.shape}".encode())
        step = max(1, 2**24 // max(1, value[:1].nbytes)) if value.ndim else 1
        for start in range(0, len(value), step) if value.ndim else ():
            digest.update(value[start : start + step].tobytes())
        if not value.ndim:
            digest.update(value.tobytes())
    elif isinstance(value, Mapping):
        for name in value:
            _add_value(digest, str(name))
            _add_value(digest, value[name])
    elif isinstance(value, list | tuple | np.ndarray):
        digest.update(f"{len(value)}:".encode())
        for item in value:
            _add_value(digest, item)
    else:
        known = value is None or isinstance(value, str | bytes | int | float | np.generic)
        text = (repr(value) if known else model_hash(value)).encode("utf-8", "backslashreplace")
        digest.update(f"{len(text)}:".encode() + text)
