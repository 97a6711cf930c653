"""Who places the parts: in this process, or, by name, on other machines (`exempla.distributed`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy as np

from exempla.errors import ExemplaError
from exempla.selection.candidates.base import Rows
from exempla.selection.inputs import as_rows
from exempla.selection.shards.exchange import LocalExchange
from exempla.selection.shards.part import Part, Parts
from exempla.selection.shards.rows import ShardedRows

__all__ = ["BACKENDS", "Backend", "Local", "cuts_of", "resolve"]


class Backend(ABC):
    """A way to place rows in parts."""

    @abstractmethod
    def opened(self, features: Any, shards: int) -> AbstractContextManager[ShardedRows]:
        """The rows in parts, until the end of the `with` block."""


class Local(Backend):
    """Parts in this process."""

    @contextmanager
    def opened(self, features: Any, shards: int) -> Iterator[ShardedRows]:
        """Views of the rows, in as many parts."""
        whole: Rows = as_rows(features)
        parts = whole.split(cuts_of(whole.t, shards))
        yield ShardedRows(LocalExchange(Parts([Part(part) for part in parts])))


def cuts_of(t: int, shards: int) -> list[int]:
    """Where t rows are cut into as many parts, or fewer if there are not so many rows.

    >>> cuts_of(10, 3)
    [0, 3, 6, 10]
    """
    return [int(b) for b in np.linspace(0, t, min(shards, t) + 1)]


def _on_ray() -> Backend:
    from exempla.distributed import OnRay

    return OnRay()


def _on_torch() -> Backend:
    from exempla.distributed import OnTorch

    return OnTorch()


BACKENDS: dict[str, Callable[[], Backend]] = {
    "local": Local,
    "ray": _on_ray,
    "torch": _on_torch,
}


def resolve(backend: str | Backend) -> Backend:
    """The backend of this name, or the one given."""
    if isinstance(backend, Backend):
        return backend
    if not isinstance(backend, str) or backend not in BACKENDS:
        known = ", ".join(repr(name) for name in BACKENDS)
        raise ExemplaError(f"backend {backend!r} is not available here; use {known}")
    return BACKENDS[backend]()
