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
from exempla.selection.device.guess import guess_in, mark
from exempla.selection.device.recorded import Recorded
from exempla.selection.device.state import Guess, State, measure, scores
from exempla.selection.device.sweep import LIMIT, Checks, fused, sweep
from exempla.selection.run import FALL, RESIDUAL, Run, measured_bounds
from exempla.selection.ties import first_of_best, just_below

__all__ = ["MOST_PICKS", "run_ahead"]

POOL, MANY = (1024, 2048), 200_000
"""Rows to guess among, of few and of many."""
AHEAD, LONG = (16, 32), 512
"""Picks to guess at a time, of short rows and of long ones: in more directions guesses hold longer,
and reading the rows costs more beside them."""
BLOCK = 1024
"""Directions are multiplied in whole blocks: a graph has one size."""
FEW = 8
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
        self.guess = Guess(b, state.rows.p, state.room, state.kwargs)
        self.guess.residuals[0] = state.residual
        self.near = torch.full((b, LIMIT), -1, device=state.F.device)
        self.waiting = 0
        """How many guesses of the last pass were right and are not taken in yet."""
        self.said = torch.zeros(4, **state.kwargs)
        """By the host: the certain pick, how many guesses wait, directions so far, drift."""
        self.upto = torch.tril(torch.ones((b, b), **state.kwargs))
        self.heard = torch.zeros(2 * b + 6 * (b + 1) + b * (FEW + 3 * (FEW + 1)), **state.kwargs)
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
        slack_c, slack_n = state.slack(self.run.drift, state.m)
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
        rows = state.F[state.rows.here(np.array(near))].double()
        return self._bounded(measure(rows, Q, residual, state.noise))

    def _bounded(self, measured: tuple[np.ndarray, ...]) -> tuple[np.ndarray, np.ndarray]:
        """What the scores of rows measured in float64 are at least and at most."""
        state = self.state
        known = (state.noise, state.target_norm, state.rows.tolerance, state.rule)
        return measured_bounds(measured, *known)

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
            numbers = self.said.long()
            self.state.take(self.guess, numbers[1:2], numbers[2:3])
            self.state.catch_up()
            self.state.m, self.waiting = self.state.m + self.waiting, 0
            self.guess.residuals[0] = self.state.residual

    def _say(self, first: int) -> None:
        numbers = [first, self.waiting, self.state.m, self.run.drift]
        self.said.copy_(torch.tensor(numbers, dtype=torch.float64))

    def _pass(self, size: int, check: bool = True) -> None:
        """All of a pass on the device; `size` directions are multiplied."""
        state, guess = self.state, self.guess
        numbers = self.said.long()
        first, waiting, m = numbers[:1], numbers[1:2], numbers[2:3]
        state.take(guess, waiting, m)
        marks = self._guessed(first, m + waiting, size)
        parts = [marks.flatten(), guess.picks, torch.linalg.vector_norm(guess.residuals[1:], dim=1)]
        if check:
            counts, near = sweep(state, Checks(guess.directions, guess.picks, marks))
            self.near.copy_(near)
            rivals = torch.cat([guess.picks[1:, None], near[:, :FEW]], 1)
            parts += [counts, near[:, :FEW].flatten(), self._measured(rivals, size).flatten()]
        heard = torch.cat([part.double() for part in parts])
        self.heard[: len(heard)].copy_(heard)

    def _measured(self, rivals: Any, size: int) -> Any:
        """(3, b, some) c, n and ‖f‖² of rows after each step, in float64 (−1 is any row)."""
        state, guess, b = self.state, self.guess, self.state.ahead
        rows = state.F[torch.clamp(rivals, min=0).flatten()].double()
        squared, before = (rows * rows).sum(1), rows @ state.Q[:size].T
        since = torch.cumsum((rows @ guess.directions.T) ** 2, 1)
        c, since = (
            torch.diagonal(x.reshape(b, -1, b), dim1=0, dim2=2).T  # of each row after its own step
            for x in (rows @ guess.residuals[1:].T, since)
        )
        n = (squared + state.noise - (before * before).sum(1)).reshape(b, -1) - since
        return torch.stack([c, n, squared.reshape(b, -1)])

    def _checked(self, left: int) -> tuple[list[int], np.ndarray, np.ndarray, int, int | None]:
        """What was guessed, how much of it was right, and the pick after that, if known."""
        state, b = self.state, self.state.ahead
        ends = np.cumsum([5 * (b + 1), b + 1, b, b, b * FEW])
        marks, rows, norms, counts, near, known = np.split(self.heard.cpu().numpy(), ends)
        coefs, *_, valid = marks.reshape(5, b + 1)
        near, known = near.reshape(b, FEW).astype(np.int64), known.reshape(3, b, FEW + 1)
        picks = rows.astype(np.int64).tolist()
        if not valid[0]:
            return picks, coefs, norms, 0, None
        small = RESIDUAL * state.target_norm
        for s in range(b):
            matched = state.noise == 0.0 and norms[s] < small
            if s + 1 == left or matched or not valid[s + 1] or counts[s] > LIMIT:
                return picks, coefs, norms, s + 1, None
            count = int(counts[s])
            if count == 0:
                continue
            if count <= FEW:
                rivals = np.array([picks[s + 1], *near[s, :count]])
                winner = self._best(rivals, *self._bounded(tuple(known[:, s, : count + 1])))
            else:
                Q = torch.cat([state.Q[: state.m], self.guess.directions[: s + 1]])
                rivals = self.near[s, :count].tolist()
                winner = self._settle(rivals, picks[s + 1], Q, self.guess.residuals[s + 1])
            if winner != picks[s + 1]:
                return picks, coefs, norms, s + 1, winner
        return picks, coefs, norms, b, picks[b]

    # -- guessing -----------------------------------------------------------------------------

    def _guessed(self, first: Any, m: Any, size: int) -> Any:
        """Run ahead in the pool: the guess is written where it stays; the marks (`mark`).

        Numbers on the device decide where, so that nothing here depends on them.
        """
        state, guess, hope = self.state, self.guess, self.state.hope
        b, p = state.ahead, state.rows.p
        hope.index_fill_(0, first, -torch.inf)
        most = min(POOL[len(hope) > MANY], len(hope))
        others = torch.topk(hope, most - 1, sorted=False).indices
        pool = torch.cat([first, others])
        P, Q = state.F[pool].double(), state.Q[:size]
        A = P @ Q.T
        G = (P @ P.T).addmm_(A, A.T, alpha=-1)
        out = state.n[pool] == -torch.inf
        out[1:] |= others == first  # where few rows are left, it is among the others, too
        n = torch.where(out, -torch.inf, torch.diagonal(G) + state.noise)
        floor, scale = state.floor[pool], state.scale[pool]
        at, taken, V = guess_in(state, (G, P @ state.residual, n, floor, scale), b)
        chosen = at[:-1]
        torch.index_select(pool, 0, at, out=guess.picks)
        A = A[chosen]
        marks, block = mark(state, taken, V[:, chosen], guess.picks, self.said)
        U = torch.addmm(P[chosen], A, Q, alpha=-1)
        if state.noise == 0.0:
            U = torch.addmm(U, U @ Q.T, Q, alpha=-1)
        q = torch.linalg.solve_triangular(block, U, upper=False)
        coefs = marks[0, :b]
        guess.lines[:, :p] = q
        guess.lines[:, p : p + size] = A
        guess.lines.index_copy_(1, p + m + state.steps, block)
        guess.lines[:, -1] = coefs
        guess.right[0] = coefs
        guess.residuals[0] = state.residual
        torch.addmm(state.residual, self.upto * coefs, q, alpha=-1, out=guess.residuals[1:])
        return marks
