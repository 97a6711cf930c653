"""Validation of options that several public functions share."""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from exempla.errors import ExemplaError

_LARGEST_SEED = 2**32 - 1
"""The largest seed that NumPy, torch and scikit-learn all accept."""
_MAX_TIMES = 1_000_000
"""Most steps, rounds or trainings that can be asked for."""


def whole_number(value: Any) -> bool:
    """Return True for a whole number; booleans are not numbers."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool | np.bool_)


def is_real(value: Any) -> bool:
    """Return True for one real number; booleans are not numbers."""
    real = isinstance(value, int | float | np.integer | np.floating)
    return real and not isinstance(value, bool)


def check_number(name: str, value: Any) -> float:
    """Return a positive, finite number as a float."""
    if not is_real(value) or not 0 < value < np.inf:
        raise ExemplaError(f"{name}={value!r} is not usable: give a positive number.")
    return float(value)


def check_times(name: str, value: Any) -> int:
    """Return how often something is done: at least once."""
    if not whole_number(value) or not 1 <= value <= _MAX_TIMES:
        raise ExemplaError(
            f"{name} is {value!r}: give a whole number of at least 1 and at most {_MAX_TIMES}."
        )
    return int(value)


def check_k(k: Any, n: int, what: str = "rows") -> int:
    """Return k as an int from 1 to n."""
    if not whole_number(k):
        raise ExemplaError(f"k is {k!r}, which is not a whole number; ask for 1 to {n} {what}")
    if k < 1:
        raise ExemplaError(f"k is {k}; ask for at least one of the {n} {what}")
    if k > n:
        raise ExemplaError(f"k is {k}, but there are only {n} {what}; ask for at most {n}")
    return int(k)


def check_seed(seed: Any) -> int:
    """Return a seed that every library accepts."""
    if not whole_number(seed) or not 0 <= seed <= _LARGEST_SEED:
        raise ExemplaError(
            f"seed is {seed!r}; give a whole number of at least 0 and at most {_LARGEST_SEED}"
        )
    return int(seed)


def check_choice(name: str, value: Any, choices: Sequence[str]) -> str:
    """Return the value if it is one of a few words."""
    if not isinstance(value, str) or value not in choices:
        raise ExemplaError(f"{name}={value!r} is not known: use one of {', '.join(choices)}.")
    return value


def check_flag(name: str, value: Any) -> bool:
    """Return True or False; nothing else is accepted, not even 0 or 1."""
    if not isinstance(value, bool | np.bool_):
        raise ExemplaError(f"{name} is {value!r}: give True or False.")
    return bool(value)


def check_folder(name: str, value: Any) -> Path | None:
    """Return a path, or None."""
    if value is None:
        return None
    path = str(value) if isinstance(value, str | PathLike) else ""
    try:
        nameable = bool(path) and b"\0" not in os.fsencode(path)
    except UnicodeEncodeError:  # half of a surrogate pair
        nameable = False
    if not nameable:
        raise ExemplaError(f"{name} is {value!r:.60}: give the path of a folder.")
    return Path(path)


def check_ids(ids: Any, n: int) -> np.ndarray | None:
    """Return the user's names of the rows as an array, one per row."""
    if ids is None:
        return None
    try:
        names = np.asarray(ids)
    except ValueError:
        raise ExemplaError(f"ids is nested: give one for each of the {n} rows.") from None
    if names.shape != (n,):
        raise ExemplaError(f"ids has shape {names.shape}: give one for each of the {n} rows.")
    return names


def check_rows(rows: Any, n: int, name: str, what: str = "examples") -> np.ndarray:
    """Return row positions, given as positions or as a boolean mask."""
    try:
        found = np.asarray(rows)
    except ValueError:
        found = np.empty(0, dtype=object)
    if found.dtype == bool:
        if found.shape != (n,):
            raise ExemplaError(f"{name} is a mask of {found.shape} for {n} {what}.")
        found = np.flatnonzero(found)
    if found.ndim != 1 or len(found) == 0 or found.dtype.kind not in "iu":
        raise ExemplaError(f"{name} must name at least one of the {n} {what}: positions or a mask.")
    if found.min() < 0 or found.max() >= n:
        raise ExemplaError(f"{name} names row {int(found.max())}, but there are {n} {what}.")
    return found.astype(np.int64)
