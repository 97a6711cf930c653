"""Rows in several parts: the same picks by exchanging leaders, or similar ones in two rounds.

In exact mode every part runs its own race, proposes its leader, and receives the winner's
direction: p numbers a pick travel, rows never do. A part is anything that implements `Rows` and
`Race`, so a part on another machine is a proxy with those methods; `BACKENDS` says how parts are
placed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

import numpy as np

from exempla.checks import check_choice, whole_number
from exempla.errors import ExemplaError
from exempla.selection.candidates.arrays import ArrayRows
from exempla.selection.candidates.base import Leaders, Race, Rows, Rule
from exempla.selection.selector import Outcome, Problem, Selector

__all__ = ["BACKENDS", "Sharded", "ShardedRows"]

BACKENDS: dict[str, Callable[[list[Rows]], list[Rows]]] = {"local": lambda parts: parts}
"""How each backend places the parts: local rows in, rows (or proxies of them) out."""


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
        best part: one exchange in all, and a residual that may be several times larger.
    backend : str
        Where the parts live; "local" is this process.

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
    backend: str = "local"

    def __post_init__(self) -> None:
        if not isinstance(self.selector, Selector):
            raise ExemplaError(f"Sharded wraps a selector such as SBQ(), not {self.selector!r}")
        if not whole_number(self.shards) or self.shards < 1:
            raise ExemplaError(f"shards is {self.shards!r}; give a whole number of at least 1")
        check_choice("mode", self.mode, ("exact", "two-round"))
        if not isinstance(self.backend, str) or self.backend not in BACKENDS:
            known = ", ".join(repr(name) for name in BACKENDS)
            raise ExemplaError(f"backend {self.backend!r} is not available here; use {known}")

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

    def choose(self, problem: Problem, k: int) -> list[Outcome]:
        t = problem.rows.t
        bounds = [int(b) for b in np.linspace(0, t, min(self.shards, t) + 1)]
        parts = BACKENDS[self.backend](problem.rows.split(bounds))
        if self.mode == "exact":
            together = ShardedRows(parts, bounds)
            return self.selector.choose(replace(problem, rows=together), k)
        return self._two_rounds(problem, parts, bounds, k)

    def _two_rounds(
        self, problem: Problem, parts: list[Rows], bounds: list[int], k: int
    ) -> list[Outcome]:
        first = []  # first[s][i]: shard s's choice for target i, in global indices
        for part, (start, stop) in zip(parts, pairwise(bounds)):
            where = np.arange(start, stop)
            first.append(self._choose_among(problem, part, where, k))
        results = []
        for i in range(len(problem.targets)):
            union = np.unique(np.concatenate([choice[i].indices for choice in first]))
            options = [choice[i] for choice in first]
            if len(union):
                pooled = ArrayRows(problem.rows.take(union), problem.rows.tolerance)
                merged = self._choose_among(problem.only(i), pooled, union, k)
                options = [*merged, *options]
            best = min(options, key=lambda outcome: outcome.variance)
            if best.stopped == "candidates" and len(best.indices) < problem.candidates[i].sum():
                # The pool ran out, not the problem: the parts had kept all that was new.
                best = replace(best, stopped="rank")
            results.append(best)
        return results

    def _choose_among(
        self, problem: Problem, rows: Rows, where: np.ndarray, k: int
    ) -> list[Outcome]:
        """The inner selector's choice among the rows `where`."""
        part = Problem(
            rows,
            problem.targets,
            problem.alignment[:, where],
            problem.candidates[:, where],
            problem.sides,
            (None,) * len(problem.targets),
        )
        outcomes = self.selector.choose(part, k)
        return [replace(o, indices=where[o.indices].astype(np.int64)) for o in outcomes]


class ShardedRows(Rows):
    """Several parts that answer as one."""

    def __init__(self, parts: list[Rows], bounds: list[int]) -> None:
        self.parts, self.bounds = parts, bounds
        self.t, self.p = bounds[-1], parts[0].p
        self.tolerance = parts[0].tolerance
        self.norms2 = np.concatenate([part.norms2 for part in parts])

    def project(self, vectors: np.ndarray) -> np.ndarray:
        return np.concatenate([part.project(vectors) for part in self.parts], axis=1)

    def energy(self, directions: np.ndarray) -> np.ndarray:
        return np.concatenate([part.energy(directions) for part in self.parts])

    def take(self, indices: np.ndarray) -> np.ndarray:
        out = np.empty((len(indices), self.p))
        owner = np.searchsorted(self.bounds, indices, side="right") - 1
        for s in np.unique(owner):
            mine = owner == s
            out[mine] = self.parts[s].take(indices[mine] - self.bounds[s])
        return out

    def split(self, bounds: list[int]) -> list[Rows]:
        raise ExemplaError("these rows are already sharded; wrap a selector in one Sharded only")

    def race(self, candidates: np.ndarray, noise: float, rule: Rule) -> Race:
        cuts = list(pairwise(self.bounds))
        races = [
            part.race(candidates[:, start:stop], noise, rule)
            for part, (start, stop) in zip(self.parts, cuts)
        ]
        return ShardedRace(races, self.bounds)


class ShardedRace(Race):
    """The parts' races; what is global is only the leader."""

    def __init__(self, races: list[Race], bounds: list[int]) -> None:
        self.races, self.bounds = races, bounds

    @property
    def error(self) -> float:  # type: ignore[override]
        return max(race.error for race in self.races)

    def refresh(self, targets: list[int], residuals: np.ndarray) -> Leaders:
        return self._overall([race.refresh(targets, residuals) for race in self.races])

    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        return self._overall([race.update(directions, coefs) for race in self.races])

    def _overall(self, proposals: list[Leaders]) -> Leaders:
        scores = np.stack([proposal.scores for proposal in proposals])
        offsets = np.array(self.bounds[:-1])[:, None]
        rows = np.stack([proposal.rows for proposal in proposals])
        rows = np.where(rows >= 0, rows + offsets, -1)
        best = np.argmax(scores, axis=0)  # the first part among equals: the lowest index
        every = np.arange(scores.shape[1])
        return Leaders(scores[best, every], rows[best, every])

    def firsts(
        self, thresholds: np.ndarray, slack_c: np.ndarray, slack_n: np.ndarray
    ) -> np.ndarray:
        found = np.full(len(thresholds), -1)
        for race, start in zip(self.races, self.bounds):
            rows = race.firsts(thresholds, slack_c, slack_n)
            found = np.where((found < 0) & (rows >= 0), rows + start, found)
        return found

    def contenders(
        self, target: int, threshold: float, slack_c: float, slack_n: float, limit: int
    ) -> np.ndarray:
        question = (target, threshold, slack_c, slack_n, limit)
        found = [race.contenders(*question) for race in self.races]
        every = np.concatenate([rows + start for rows, start in zip(found, self.bounds)])
        return every[:limit]

    def deflate(self, target: int, energy: np.ndarray) -> None:
        for race, (start, stop) in zip(self.races, pairwise(self.bounds)):
            race.deflate(target, energy[start:stop])

    def drop(self, targets: list[int], rows: list[int]) -> None:
        owners = np.searchsorted(self.bounds, rows, side="right") - 1
        for i, j, s in zip(targets, rows, owners):
            self.races[s].drop([i], [j - self.bounds[s]])

    def sharpen(self) -> None:
        for race in self.races:
            race.sharpen()
