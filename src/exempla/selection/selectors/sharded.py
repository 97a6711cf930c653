"""Rows in several parts: the same picks by exchanging leaders, or similar ones in two rounds.

In exact mode every part runs its own race and proposes its leaders; what is picked goes to all
parts as a direction: p numbers a pick travel, rows do not but for a few that are hopeful. Where the
parts are is the backend's business (`selection.shards`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from exempla.checks import check_choice, whole_number
from exempla.errors import ExemplaError
from exempla.selection.candidates.arrays import ArrayRows
from exempla.selection.selector import Outcome, Problem, Selector
from exempla.selection.shards import Backend, Call, ShardedRows, resolve

__all__ = ["Sharded"]


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
