"""Several parts that answer as one: what the greedy loop sees of rows that are elsewhere."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from exempla.selection.candidates.base import Leaders, Pool, Race, Rows, Rule, Steps, Swept
from exempla.selection.shards.exchange import Call, Exchange
from exempla.selection.shards.part import Shown, joined

__all__ = ["ShardedRace", "ShardedRows"]


class ShardedRows(Rows):
    """The rows of all parts, in the order of the parts."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        about = exchange.ask(Call("describe"))
        self.bounds = np.concatenate([[0], np.cumsum([t for t, *_ in about])]).tolist()
        self.t, self.p = self.bounds[-1], about[0][1]
        # parts of one array have one tolerance; of several types, the coarsest counts
        self.tolerance = max(tolerance for _, _, tolerance, _ in about)
        self.norms2 = np.concatenate([norms2 for *_, norms2 in about])
        self.shown: Shown | None = None
        """Rows that are at hand: nobody need be asked for them."""

    @property
    def places(self) -> list[int]:
        """The place of each part."""
        cuts = pairwise(self.exchange.places)
        return [place for place, (a, b) in enumerate(cuts) for _ in range(a, b)]

    def project(self, vectors: np.ndarray) -> np.ndarray:
        return np.concatenate(self.exchange.ask(Call("project", (vectors,))), axis=1)

    def align(self, targets: np.ndarray) -> np.ndarray:
        return np.concatenate(self.exchange.ask(Call("align", (targets,))), axis=1)

    def energy(self, directions: np.ndarray) -> np.ndarray:
        return np.concatenate(self.exchange.ask(Call("energy", (directions,))))

    def take(self, indices: np.ndarray) -> np.ndarray:
        indices = np.asarray(indices, np.int64)
        out = np.empty((len(indices), self.p))
        missing = np.ones(len(indices), bool)
        if self.shown is not None and len(self.shown.rows):
            at = np.searchsorted(self.shown.rows, indices).clip(max=len(self.shown.rows) - 1)
            missing = self.shown.rows[at] != indices
            out[~missing] = self.shown.features[at[~missing]]
        if missing.any():
            out[missing] = self._fetched(indices[missing])
        return out

    def _fetched(self, indices: np.ndarray) -> np.ndarray:
        """Rows from those who have them."""
        owner = np.searchsorted(self.bounds, indices, side="right") - 1
        places = self.places
        asked = sorted({places[s] for s in owner.tolist()})
        parts = [s for s in range(len(places)) if places[s] in asked]
        own = [(indices[owner == s] - start,) for s, start in enumerate(self.bounds[:-1])]
        answers = self.exchange.ask(Call("take", (), own), of=asked)
        out = np.empty((len(indices), self.p))
        for s, rows in zip(parts, answers):
            out[owner == s] = rows
        return out

    def split(self, bounds: list[int]) -> list[Rows]:
        raise NotImplementedError("rows that are elsewhere stay in the parts they are in")

    def race(self, candidates: np.ndarray, noise: float, rule: Rule) -> Race:
        return ShardedRace(self, candidates, noise, rule)

    # -- a part at a time ---------------------------------------------------------------------

    def of_parts(self, values: np.ndarray) -> list[tuple[np.ndarray]]:
        """Values of all rows along the last axis, cut into those of each part."""
        return [(values[..., start:stop],) for start, stop in pairwise(self.bounds)]

    def close(self) -> None:
        """Let the parts go."""
        self.exchange.close()


class ShardedRace(Race):
    """The parts' races; what is global is only the leader, and the few rows that are shown."""

    most_ahead, panel = 32, 16
    pools = 256, 1024

    def __init__(self, rows: ShardedRows, candidates: np.ndarray, noise: float, rule: Rule) -> None:
        self.rows, self.bounds, self.fair = rows, rows.bounds, 1
        self.noise, self.rule = noise, rule
        self.steps: Steps
        """Those of the last sweep."""
        rows.shown = None
        own = [(start, *mine) for start, mine in zip(rows.bounds, rows.of_parts(candidates))]
        errors = self._ask("open_race", noise, rule, own=own)
        self.error = max(errors)

    def _ask(self, name: str, *args: Any, own: list[tuple] | None = None) -> list[Any]:
        return self.rows.exchange.ask(Call(name, args, own))

    def _tell(self, name: str, *args: Any, own: list[tuple] | None = None) -> None:
        self.rows.exchange.tell(Call(name, args, own))

    # -- a pick a pass ------------------------------------------------------------------------

    def refresh(self, targets: list[int], residuals: np.ndarray) -> Leaders:
        answers = self._ask("refresh", targets, residuals)
        if answers[0][1] is not None:
            self._show([shown for _, shown in answers])
        return self._overall([leaders for leaders, _ in answers])

    def update(self, directions: np.ndarray, coefs: np.ndarray) -> Leaders:
        return self._overall(self._ask("update", directions, coefs))

    def leaders(self) -> Leaders:
        return self._overall(self._ask("leaders"))

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
        answers = self._ask("firsts", thresholds, slack_c, slack_n)
        for rows, start in zip(answers, self.bounds):
            found = np.where((found < 0) & (rows >= 0), rows + start, found)
        return found

    def contenders(
        self, target: int, threshold: float, slack_c: float, slack_n: float, limit: int
    ) -> np.ndarray:
        found = self._ask("contenders", target, threshold, slack_c, slack_n, limit)
        return self._global(found)[:limit]

    def _global(self, found: list[np.ndarray]) -> np.ndarray:
        return np.concatenate([rows + start for rows, start in zip(found, self.bounds)])

    def deflate(self, target: int, energy: np.ndarray) -> None:
        self._tell("deflate", target, own=self.rows.of_parts(energy))

    def drop(self, targets: list[int], rows: list[int]) -> None:
        # the same message to all: at a thousand parts, one of its own for each would cost more
        self._tell("drop", targets, rows)
        if self.rows.shown is not None:
            self.rows.shown.n[np.isin(self.rows.shown.rows, rows)] = -np.inf

    def sharpen(self) -> None:
        self.error = max(self._ask("sharpen"))

    # -- several picks a pass -----------------------------------------------------------------

    def best(self, count: int) -> np.ndarray:
        """About so many: each part gives its fair share, or all it has. Guessing asks for no more,
        and no part need know what the others have."""
        self.fair = -(-count // (len(self.bounds) - 1))
        answers = self._ask("best", self.fair)
        self._show([shown for _, shown in answers])
        return self._global([best for best, _ in answers])

    def sweep(self, steps: Steps, limit: int, share: float) -> Swept:
        self.steps = steps
        answers = self._ask("sweep", steps, limit, share, self.fair)
        self._show([answer.shown for answer in answers])
        near: list[np.ndarray | None] = []
        for step in range(len(steps)):
            found = [answer.near[step] for answer in answers]
            known = [rows for rows in found if rows is not None]
            full = len(known) < len(found) or sum(map(len, known)) > limit
            near.append(None if full else self._global(known))
        assert self.rows.shown is not None
        return Swept(near, self.rows.shown.rows)

    def keep(self, count: int) -> None:
        """The parts hear of it with the next question; the rows at hand go along."""
        self._tell("keep", count)
        shown = self.rows.shown
        assert shown is not None
        directions = self.steps.directions[:count].astype(shown.features.dtype)
        V = (shown.features @ directions.T).astype(np.float64)
        c, n = shown.c - V @ self.steps.coefs[:count], shown.n - np.vecdot(V, V)
        self.rows.shown = replace(shown, c=c, n=n)

    def pool(self, rows: np.ndarray) -> Pool:
        if self.rows.shown is None or not np.isin(rows, self.rows.shown.rows).all():
            cuts = np.searchsorted(rows, self.bounds)
            every = zip(pairwise(cuts), self.bounds)
            self._show(self._ask("show", own=[(rows[a:b] - start,) for (a, b), start in every]))
        shown = self.rows.shown
        assert shown is not None
        at = np.searchsorted(shown.rows, rows)
        features = shown.features if len(rows) == len(shown.rows) else shown.features[at]
        norms2 = self.rows.norms2[rows]
        floor, scale = self.rows.tolerance * norms2, self.rule.scale(norms2, self.noise)
        return Pool(rows, features, shown.c[at], shown.n[at], floor, scale, self.rule)

    def _show(self, parts: list[Shown]) -> None:
        self.rows.shown = joined(parts, self.bounds, self.rows.shown)
