"""Rows in several parts: the same picks by exchanging leaders, or similar ones in two rounds.

In exact mode every part runs its own race and proposes its leaders; what is picked goes to all
parts as a direction: p numbers a pick travel, rows do not but for a few that are hopeful. Where the
parts are is the backend's business (`selection.shards`).

Rows in several parts that answer as one, wherever the parts are.

`part` is what stands where the rows are, `exchange` how questions reach the parts, `rows` and
`race` what the greedy loop sees, `backend` who places the parts. Rows never travel but for the few
that are hopeful; what travels is counted (`Traffic`).

Imports: selection's candidates, inputs and selector; store.

Who places the parts: in this process, or, by name, on other machines (`exempla.distributed`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from exempla.checks import check_choice, whole_number
from exempla.errors import ExemplaError
from exempla.selection.rows import ArrayRows, Rows
from exempla.selection.select import as_rows
from exempla.selection.selectors import Outcome, Problem, Selector
from exempla.selection.shards import Call, LocalExchange, Part, Parts, ShardedRows


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


@dataclass(frozen=True)
class Sharded(Selector):
    """Run a selector on rows that are kept in several parts.

    Parameters
    ----------
    selector : Selector
        What to run.
    shards : int
        Number of parts.
    mode : "exact" or "two-round"
        Exact gives the picks of the selector on all rows. Two-round lets every part choose k
        rows by itself, chooses k among all of those, and returns the better of this and the
        best part: few exchanges in all, and a residual that may be several times larger.
    backend : "local", "ray", "torch", or one of them with options
        Where the parts live: in this process; with the workers of a Ray cluster
        (`exempla.distributed.OnRay`), to which stored rows go as paths; or one with each process
        of a torch.distributed group (`exempla.distributed.OnTorch`), each of which calls with its
        own rows and gets the picks from all of them.

    >>> import numpy as np
    >>> from exempla.selection import SBQ, Sharded, select
    >>> rows = np.random.default_rng(0).standard_normal((40, 5))
    >>> parted = select(rows, rows.mean(axis=0), 4, Sharded(SBQ(), shards=3))
    >>> bool((parted.indices == select(rows, rows.mean(axis=0), 4).indices).all())
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
            raise ExemplaError("these rows are already sharded; wrap a selector in one Sharded")
        if not whole_number(self.shards) or self.shards < 1:
            raise ExemplaError(f"shards is {self.shards!r}; give a whole number of at least 1")
        check_choice("mode", self.mode, ("exact", "two-round"))
        resolve(self.backend)

    @property
    def noise(self) -> float:  # type: ignore[override]
        return self.selector.noise

    @property
    def name(self) -> str:
        """Exact sharding changes nothing about a result, so it does not show in its name."""
        inner = self.selector.name
        return inner if self.mode == "exact" else f"Sharded({inner}, two-round)"

    @property
    def continues(self) -> bool:
        return self.mode == "exact" and self.selector.continues

    @contextmanager
    def placed(self, features: Any) -> Iterator[ShardedRows]:
        """In parts, unless they are already."""
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
        assert isinstance(rows, ShardedRows)  # as they were placed
        both = rows.of_parts(problem.alignment), rows.of_parts(problem.candidates)
        own = [(*z, *candidates) for z, candidates in zip(*both)]
        question = Call("choose", (self.selector, problem.targets, problem.sides, k), own)
        first = [  # first[s][i]: shard s's choice for target i, in global indices
            [replace(o, indices=o.indices + start) for o in outcomes]
            for outcomes, start in zip(rows.exchange.ask(question), rows.bounds)
        ]
        return [
            self._second_round(problem.only(i), [choice[i] for choice in first], k)
            for i in range(len(problem.targets))
        ]

    def _second_round(self, problem: Problem, options: list[Outcome], k: int) -> Outcome:
        """The best of the parts' choices and of what is chosen among all of them."""
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
            # The pool ran out, not the problem: the parts had kept all that was new.
            best = replace(best, stopped="rank")
        return best
