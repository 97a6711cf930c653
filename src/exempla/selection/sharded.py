"""`Sharded`: run a selector on rows that are kept in several parts, and where the parts are placed.

In exact mode every part computes its own scores and proposes its leaders; each pick is sent to all
parts as a direction, so that p numbers per pick travel and rows do not, except for a few promising
ones. A `Backend` decides where the parts are: in this process or, by name, on other machines
(`exempla.distributed`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from exempla.checks import check_choice, whole_number
from exempla.errors import ExemplaError
from exempla.selection.rows import ArrayRows
from exempla.selection.select import as_rows
from exempla.selection.selectors import Outcome, Problem, Selector
from exempla.selection.shards import Call, LocalTransport, Part, Parts, ShardedRows


class Backend(ABC):
    """Decide where the parts of `Sharded` are placed."""

    @abstractmethod
    def opened(self, features: Any, shards: int) -> AbstractContextManager[ShardedRows]:
        """Return a context in which the rows are available in parts."""


class Local(Backend):
    """Keep the parts in this process."""

    @contextmanager
    def opened(self, features: Any, shards: int) -> Iterator[ShardedRows]:
        """Split the rows into views."""
        whole = as_rows(features)
        assert isinstance(whole, ArrayRows)  # `Sharded.placed` returns other rows as they are
        parts = whole.split(cuts_of(whole.t, shards))
        yield ShardedRows(LocalTransport(Parts([Part(part) for part in parts])))


def cuts_of(t: int, shards: int) -> list[int]:
    """Return the bounds of `shards` parts of t rows, or of t parts if there are fewer rows.

    >>> cuts_of(10, 3)
    [0, 3, 6, 10]
    """
    return [int(b) for b in np.linspace(0, t, min(shards, t) + 1)]


BACKENDS = ("local", "ray", "torch")


def resolve(backend: str | Backend) -> Backend:
    """Return the backend of this name, or the one given."""
    if isinstance(backend, Backend):
        return backend
    if not isinstance(backend, str) or backend not in BACKENDS:
        known = ", ".join(repr(name) for name in BACKENDS)
        raise ExemplaError(f"backend {backend!r} is not available; use {known}")
    if backend == "local":
        return Local()
    from exempla.distributed import OnRay, OnTorch

    return OnRay() if backend == "ray" else OnTorch()


@dataclass(frozen=True)
class Sharded(Selector):
    """Run a selector on rows that are kept in several parts.

    Parameters
    ----------
    selector : Selector
        The algorithm to run.
    shards : int, default 4
        Number of parts.
    mode : {"exact", "two-round"}, default "exact"
        "exact" returns the picks of the selector on all rows. "two-round" lets every part select k
        rows by itself, selects k among all of those, and returns the better of this and the best
        part: few messages, and a residual that may be several times larger.
    backend : {"local", "ray", "torch"} or Backend, default "local"
        Where the parts are: in this process; on the workers of a Ray cluster
        (`exempla.distributed.OnRay`), which open stored rows by path; or one with each process of a
        torch.distributed group (`exempla.distributed.OnTorch`), where every process calls with its
        own rows and gets the picks from all of them.

    Examples
    --------
    >>> import numpy as np
    >>> from exempla.selection import SBQ, Sharded, select
    >>> rows = np.random.default_rng(0).standard_normal((40, 5))
    >>> sharded = select(rows, rows.mean(axis=0), 4, Sharded(SBQ(), shards=3))
    >>> bool((sharded.indices == select(rows, rows.mean(axis=0), 4).indices).all())
    True
    """

    selector: Selector
    shards: int = 4
    mode: Literal["exact", "two-round"] = "exact"
    backend: str | Backend = "local"

    def __post_init__(self) -> None:
        if not isinstance(self.selector, Selector):
            raise ExemplaError(f"Sharded wraps a selector such as SBQ(), not {self.selector!r}")
        if isinstance(self.selector, Sharded):
            raise ExemplaError("Sharded cannot wrap another Sharded; give a selector such as SBQ()")
        if not whole_number(self.shards) or self.shards < 1:
            raise ExemplaError(f"shards is {self.shards!r}; give a whole number of at least 1")
        check_choice("mode", self.mode, ("exact", "two-round"))
        resolve(self.backend)

    @property
    def noise(self) -> float:  # type: ignore[override]
        return self.selector.noise

    @property
    def name(self) -> str:
        """Name in results; exact sharding changes no result, so it is not part of the name."""
        inner = self.selector.name
        return inner if self.mode == "exact" else f"Sharded({inner}, two-round)"

    @property
    def continues(self) -> bool:
        return self.mode == "exact" and self.selector.continues

    @contextmanager
    def placed(self, features: Any) -> Iterator[ShardedRows]:
        """Return the rows in parts, unless they are sharded already."""
        if isinstance(features, ShardedRows):
            yield features
            return
        with resolve(self.backend).opened(features, self.shards) as rows:
            yield rows

    def choose(self, problem: Problem, k: int) -> list[Outcome]:
        if self.mode == "exact":
            return self.selector.choose(problem, k)
        return self._two_rounds(problem, k)

    def _two_rounds(self, problem: Problem, k: int) -> list[Outcome]:
        rows = problem.rows
        assert isinstance(rows, ShardedRows)  # see `placed`
        both = rows.per_part(problem.alignment), rows.per_part(problem.candidates)
        per_part = [(*z, *candidates) for z, candidates in zip(*both)]
        question = Call("choose", (self.selector, problem.targets, problem.sides, k), per_part)
        first = [  # first[s][i]: the selection of part s for target i, in global indices
            [replace(o, indices=o.indices + start) for o in outcomes]
            for outcomes, start in zip(rows.transport.ask(question), rows.bounds)
        ]
        return [
            self._second_round(problem.only(i), [choice[i] for choice in first], k)
            for i in range(len(problem.targets))
        ]

    def _second_round(self, problem: Problem, options: list[Outcome], k: int) -> Outcome:
        """Return the best of the parts' selections and of a selection among all of their rows."""
        union = np.unique(np.concatenate([outcome.indices for outcome in options]))
        if len(union):
            pool = Problem(
                ArrayRows(problem.rows.take(union), problem.rows.tolerance),
                problem.targets,
                problem.alignment[:, union],
                problem.candidates[:, union],
                problem.sides,
                (None,),
            )
            merged = self.selector.choose(pool, k)[0]
            options = [replace(merged, indices=union[merged.indices].astype(np.int64)), *options]
        best = min(options, key=lambda outcome: outcome.variance)
        if best.stopped == "candidates" and len(best.indices) < problem.candidates[0].sum():
            # The pool is exhausted, not the problem: the parts had kept everything that is new.
            best = replace(best, stopped="rank")
        return best
