"""`Sharded`: run a selector on rows that are kept in several parts, and where the parts are placed.

In exact mode every part computes its own scores and proposes its leaders; each pick is sent to all
parts as a direction, so that p numbers per pick travel and rows do not, except for a few promising
ones. A `Backend` decides where the parts are: in this process or, by name, on other machines
(`exempla.distributed`).
"""

from __future__ import annotations

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
from exempla.selection.shards import Call, LocalTransport, Part, ShardedRows


class Backend:
    """Decide where the parts of `Sharded` are placed."""

    def opened(self, features: Any, shards: int) -> AbstractContextManager[ShardedRows]:
        """Return a context in which the rows are available in parts."""
        raise NotImplementedError


class Local(Backend):
    """Keep the parts in this process."""

    @contextmanager
    def opened(self, features: Any, shards: int) -> Iterator[ShardedRows]:
        """Split the rows into views."""
        whole = as_rows(features)
        assert isinstance(whole, ArrayRows)  # `Sharded.placed` returns other rows as they are
        parts = whole.split(cuts_of(whole.t, shards))
        yield ShardedRows(LocalTransport([Part(part) for part in parts]))


def cuts_of(t: int, shards: int) -> list[int]:
    """Return the bounds of `shards` parts of t rows, or of t parts if there are fewer rows."""
    return [int(b) for b in np.linspace(0, t, min(shards, t) + 1)]


BACKENDS = ("local", "ray", "torch")


def resolve(backend: str | Backend) -> Backend:
    """Return the backend of this name, or the one given."""
    if isinstance(backend, Backend):
        return backend
    if check_choice("backend", backend, BACKENDS) == "local":
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
        question = Call("choose", (self.selector, k, problem.targets, problem.sides), per_part)
        first = rows.transport.ask(question)  # first[s][i]: rows and variance of part s, target i
        outcomes = []
        for i in range(len(problem.targets)):
            found = [(part[i][0] + start, part[i][1]) for part, start in zip(first, rows.bounds)]
            best, _ = min(found, key=lambda one: one[1])
            union = np.unique(np.concatenate([indices for indices, _ in found]))
            outcomes.append(self._second_round(problem.only(i), [union, np.sort(best)], k))
        return outcomes

    def _second_round(self, problem: Problem, pools: list[np.ndarray], k: int) -> Outcome:
        """Return the best selection within one of these pools of rows."""
        options = []
        for pool in pools:
            pool = pool if len(pool) else np.zeros(1, np.int64)  # any row: none is a candidate
            some = replace(
                problem,
                rows=ArrayRows(problem.rows.take(pool), problem.rows.tolerance),
                alignment=problem.alignment[:, pool],
                candidates=problem.candidates[:, pool],
            )
            found = self.selector.choose(some, k)[0]
            options.append(replace(found, indices=pool[found.indices].astype(np.int64)))
        best = min(options, key=lambda outcome: outcome.variance)
        if best.stopped == "candidates" and len(best.indices) < problem.candidates[0].sum():
            # The pool is exhausted, not the problem: the parts had kept everything that is new.
            best = replace(best, stopped="rank")
        return best
