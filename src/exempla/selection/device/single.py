"""Running ahead on the device, for one target: `ahead.Scout` with its pool as matrices.

The products of all pool rows with each other are one matrix, so that guessing b picks is b small
steps on vectors, with nothing asked of the host. A pass is one graph: it takes in what was right of
the last one, guesses on and checks all in one reading of the rows. The host says four numbers,
hears which guesses may have been beaten and settles those in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from exempla.selection.candidates.base import Rule
from exempla.selection.device.guess import guess_in
from exempla.selection.device.recorded import Recorded
from exempla.selection.device.state import SPARE, Guess, State, scores
from exempla.selection.device.sweep import LIMIT, Checks, error_of, fused, sweep
from exempla.selection.run import FALL, RESIDUAL, Run
from exempla.selection.ties import ROUNDING, TIE, first_of_best, just_below

__all__ = ["MOST_PICKS", "run_ahead"]

POOL, MANY = (1024, 2048), 200_000
"""Rows to guess among, of few and of many."""
AHEAD, LONG = (16, 32), 512
"""Picks to guess at a time, of short rows and of long ones: in more directions guesses hold longer,
and reading the rows costs more beside them."""
BLOCK = 1024
"""Directions are multiplied in whole blocks: a graph has one size."""
FEW = 16
"""Rows that may beat a guess and are measured within the pass; of more the host asks by itself."""
MOST_PICKS = 4096
"""Picks whose directions are kept on the device."""


def run_ahead(
    rows: Any, candidates: np.ndarray, run: Run, k: int, noise: float, rule: Rule
) -> None:
    """Pick until k, or until a step that only the loop on the host can take."""
    b = AHEAD[rows.p >= LONG]
    state = State(rows, candidates, run, k, noise, rule, b, 2 if fused(rows.array) else 0)
    ahead = Ahead(state, k)
    winner = ahead.lead()
    while winner is not None and len(run.indices) < k:
        winner = ahead.advance(winner)
    ahead.catch_up()
    state.finished()


class Ahead:
    """One run's way, pass by pass."""

    def __init__(self, state: State, k: int) -> None:
        self.state, self.k, self.run = state, k, state.run
        b = state.ahead
        self.guess = Guess.none(b, state.rows.p, state.room, state.kwargs)
        self.waiting = 0
        """How many guesses of the last pass were right and are not taken in yet."""
        self.said = torch.zeros(4, **state.kwargs)
        """By the host: the certain pick, how many guesses wait, directions so far, drift."""
        self.heard = torch.zeros(b * (LIMIT + 3 * FEW + 6) + 2 * (b + 1), **state.kwargs)
        """By the host: all it needs to know of a pass."""
        self.recorded = Recorded(state.F.device)

    # -- deciding -----------------------------------------------------------------------------

    def lead(self) -> int | None:
        """The next pick from c and n as they are; None if the host must look."""
        self.catch_up()
        state = self.state
        found = state.alive_scores()
        best = int(torch.argmax(found))
        if not float(found[best]) > -np.inf:
            return None
        state.hope.copy_(found)
        lowest, _ = self._bounds([best], state.Q[: state.m], state.residual)
        slack_c, slack_n = self._slack(self.run.drift, state.m)
        most = state.c.abs() + slack_c * state.lengths
        error = slack_n * state.norms2
        score = scores(state.rule, most, torch.clamp(state.n - error, min=1e-300), state.scale)
        reach = (score >= float(just_below(lowest[0]))) & (state.n + error > state.floor)
        near = torch.nonzero(reach)[: LIMIT + 1, 0].tolist()
        if len(near) > LIMIT and state.parts == 2:
            state.sharpen()
            self.recorded = Recorded(state.F.device)
            return self.lead()
        if len(near) > LIMIT or lowest[0] == -np.inf:
            return None
        return self._settle(near, best, state.Q[: state.m], state.residual)

    def _settle(self, near: list[int], guess: int, Q: Any, residual: Any) -> int | None:
        """The best of the rows that may be, the lowest among equals."""
        near = sorted({*near, guess})
        if len(near) == 1:
            return guess
        return self._best(np.array(near), *self._bounds(near, Q, residual))

    def _best(self, near: np.ndarray, lowest: np.ndarray, highest: np.ndarray) -> int | None:
        order = np.argsort(near)
        best = first_of_best(lowest[order], highest[order])
        return int(near[order[best]]) if best >= 0 else None

    def _bounds(self, near: list[int], Q: Any, residual: Any) -> tuple[np.ndarray, np.ndarray]:
        state = self.state
        return self._bounded(*state.measure(state.rows.here(np.array(near)), Q, residual))

    def _bounded(
        self, c: np.ndarray, n: np.ndarray, norms2: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What the scores of rows measured in float64 are at least and at most."""
        state = self.state
        alive = n > state.rows.tolerance * norms2
        lengths = ROUNDING * state.target_norm
        found = state.rule.bounds(c, n, norms2, state.noise, lengths, ROUNDING)
        return np.where(alive, found[0], -np.inf), np.where(alive, found[1], -np.inf)

    def _slack(self, drift: Any, m: Any) -> tuple[Any, Any]:
        error = error_of(self.state)
        slack_c = error * drift + SPARE * self.state.target_norm
        return slack_c, 2.0 * error * m**0.5 + SPARE

    # -- a pass -------------------------------------------------------------------------------

    def advance(self, first: int) -> int | None:
        """Take the certain pick, guess on, check all in one pass; the next pick, if known."""
        state, run = self.state, self.run
        left = self.k - len(run.indices)
        self._say(first)
        size = min(state.room, -(-(state.m + self.waiting + state.ahead) // BLOCK) * BLOCK)
        if left == 1:  # nothing comes after it that could be checked
            self._pass(size, check=False)
        else:
            self.recorded(self._pass, size, worth=left > 3 * state.ahead)
        state.m, self.waiting = state.m + self.waiting, 0
        picks, coefs, norms, right, winner = self._checked(left)
        if right == 0:
            return None
        run.indices.extend(picks[:right])
        run.drift += float(np.abs(coefs[:right]).sum())
        self.waiting = right
        norm = norms[right - 1]
        if right == left or (state.noise == 0.0 and norm < RESIDUAL * state.target_norm):
            return None
        if norm <= FALL * run.fresh_norm:
            self.catch_up()
            state.refresh()
            return self.lead()
        return self.lead() if winner is None else winner

    def catch_up(self) -> None:
        """Take in what waits, without a pass."""
        if self.waiting:
            self._say(0)
            self.state.take(self.guess, self.said[1:2].long(), self.said[2:3].long())
            self.state.catch_up()
            self.state.m, self.waiting = self.state.m + self.waiting, 0

    def _say(self, first: int) -> None:
        numbers = [first, self.waiting, self.state.m, self.run.drift]
        self.said.copy_(torch.tensor(numbers, dtype=torch.float64))

    def _pass(self, size: int, check: bool = True) -> None:
        """All of a pass on the device; `size` directions are multiplied."""
        state = self.state
        first, waiting, m = (self.said[i : i + 1].long() for i in range(3))
        state.take(self.guess, waiting, m)
        guess, checks, after, valid = self._guessed(first, m + waiting, self.said[3], size)
        counts, near = sweep(state, checks) if check else (guess.picks, None)
        self.guess.copy_(guess)
        norms = torch.linalg.vector_norm(guess.residuals, dim=1)
        picks = torch.cat([guess.picks, after])
        parts = [guess.coefs, norms, valid, picks, counts]
        if check:
            rivals = torch.cat([picks[1:, None], near[:, :FEW]], 1)
            parts += [near.flatten(), self._measured(rivals, guess, size).flatten()]
        heard = torch.cat([part.double() for part in parts])
        self.heard[: len(heard)].copy_(heard)

    def _measured(self, rivals: Any, guess: Guess, size: int) -> Any:
        """(3, b, some) c, n and ‖f‖² of rows after each step, in float64 (−1 is any row)."""
        state, b = self.state, self.state.ahead
        rows = state.F[torch.clamp(rivals, min=0).flatten()].double()
        squared, before = (rows * rows).sum(1), rows @ state.Q[:size].T
        since = torch.cumsum((rows @ guess.directions.T) ** 2, 1)
        c, since = (
            torch.diagonal(x.reshape(b, -1, b), dim1=0, dim2=2).T  # of each row after its own step
            for x in (rows @ guess.residuals.T, since)
        )
        n = (squared + state.noise - (before * before).sum(1)).reshape(b, -1) - since
        return torch.stack([c, n, squared.reshape(b, -1)])

    def _checked(self, left: int) -> tuple[list[int], np.ndarray, np.ndarray, int, int | None]:
        """What was guessed, how much of it was right, and the pick after that, if known."""
        state, b = self.state, self.state.ahead
        ends = np.cumsum([b, b, b + 1, b + 1, b, b * LIMIT])
        coefs, norms, valid, rows, counts, near, known = np.split(self.heard.cpu().numpy(), ends)
        near, known = near.reshape(b, LIMIT).astype(np.int64), known.reshape(3, b, FEW + 1)
        picks = rows.astype(np.int64).tolist()
        if not valid[0]:
            return picks, coefs, norms, 0, None
        small = RESIDUAL * state.target_norm
        for s in range(b):
            matched = state.noise == 0.0 and norms[s] < small
            if s + 1 == left or matched or not valid[s + 1] or counts[s] > LIMIT:
                return picks, coefs, norms, s + 1, None
            reached = near[s, : int(counts[s])]
            others = np.flatnonzero(~np.isin(reached, picks[: s + 2]))
            if len(others) == 0:
                continue
            if len(reached) <= FEW:
                rivals = np.array([picks[s + 1], *reached[others]])
                winner = self._best(rivals, *self._bounded(*known[:, s, [0, *(1 + others)]]))
            else:
                Q = torch.cat([state.Q[: state.m], self.guess.directions[: s + 1]])
                rivals = reached[others].tolist()
                winner = self._settle(rivals, picks[s + 1], Q, self.guess.residuals[s])
            if winner != picks[s + 1]:
                return picks, coefs, norms, s + 1, winner
        return picks, coefs, norms, b, picks[b]

    # -- guessing -----------------------------------------------------------------------------

    def _guessed(self, first: Any, m: Any, drift: Any, size: int) -> tuple[Guess, Checks, Any, Any]:
        """Run ahead in the pool: steps, what to look for, the pick after them, how far all is new.

        Numbers on the device decide where, so that nothing here depends on them.
        """
        state, hope = self.state, self.state.hope
        hope.index_fill_(0, first, -torch.inf)
        most = min(POOL[len(hope) > MANY], len(hope))
        others = torch.topk(hope, most - 1, sorted=False).indices
        pool = torch.cat([first, others])
        P = state.F[pool].double()
        A = P @ state.Q[:size].T
        G = P @ P.T - A @ A.T
        c = P @ state.residual
        out = state.n[pool] == -torch.inf
        out[1:] |= others == first  # where few rows are left, it is among the others, too
        n = torch.where(out, -torch.inf, torch.diagonal(G) + state.noise)
        at, taken, V = guess_in(state, (G, c, n, state.floor[pool], state.scale[pool]), state.ahead)
        return self._steps(pool[at], taken, P[at[:-1]], A[at[:-1]], V[:, at[:-1]], m, drift)

    def _steps(
        self, picks: Any, taken: Any, rows: Any, A: Any, V: Any, m: Any, drift: Any
    ) -> tuple[Guess, Checks, Any, Any]:
        """Directions, and what the pass has to look for, from the guessed rows."""
        state, b = self.state, self.state.ahead
        c, n, fresh = taken.T
        valid = torch.cumprod(fresh, 0)
        ok = valid[:b]
        root = torch.sqrt(torch.where(ok > 0, n[:b], 1.0))
        coefs = torch.where(ok > 0, c[:b] / root, 0.0)
        block = torch.tril(V.T, -1) * ok[:, None] + torch.diag(root)
        Q = state.Q[: A.shape[1]]
        U = rows - A @ Q
        if state.noise == 0.0:
            U = U - (U @ Q.T) @ Q
        q = torch.linalg.solve_triangular(block, U, upper=False) * ok[:, None]
        residuals = state.residual - torch.cumsum(coefs[:, None] * q, 0)
        lower = torch.zeros_like(self.guess.lower)
        lower[:, : A.shape[1]] = A
        steps = torch.arange(b, device=state.F.device)
        lower.index_copy_(1, m + steps, block)
        norms2 = state.norms2[picks]
        sizes = c.abs() - SPARE * state.target_norm * torch.sqrt(norms2)
        least = scores(
            state.rule, torch.clamp(sizes, min=0.0), n + SPARE * norms2, state.scale[picks]
        )
        bars = torch.where(valid > 0, least * (1 - TIE), torch.inf)[1:]
        counts = (m + 1 + steps).double()
        slack_c, slack_n = self._slack(drift + torch.cumsum(coefs.abs(), 0), counts)
        guess = Guess(picks[:b], coefs, q, lower, residuals)
        return guess, Checks(q, coefs, bars, slack_c, slack_n), picks[b:], valid
