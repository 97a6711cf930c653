"""Running ahead on the device, for one target: `ahead.Scout` with its pool as matrices.

The products of all pool rows with each other are one matrix, so that guessing b picks is b small
steps on vectors, with nothing asked of the host. The host hears once a pass which guesses may have
been beaten and settles those in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from exempla.selection.candidates.base import Rule
from exempla.selection.device.guess import guess_in
from exempla.selection.device.state import SPARE, State, scores
from exempla.selection.device.sweep import LIMIT, Checks, error_of, sweep
from exempla.selection.run import FALL, RESIDUAL, Run
from exempla.selection.ties import ROUNDING, TIE, first_of_best, just_below

__all__ = ["MOST_PICKS", "run_ahead"]

POOL, MANY = (1024, 2048), 200_000
"""Rows to guess among, of few and of many."""
MOST_AHEAD, FIRST, FEWEST = 32, 16, 4
PANEL = 16
MOST_PICKS = 4096
"""Picks whose directions are kept on the device."""


@dataclass(frozen=True)
class Guess:
    """b guessed steps and the guess after them, on the device."""

    picks: Any
    """(b + 1,) rows."""
    valid: Any
    """(b + 1,) whether the guess has anything new, and all before it."""
    checks: Checks
    lower: Any
    """(b, m + b) rows of L."""
    residuals: Any
    """(b, p) after each step."""


def run_ahead(
    rows: Any, candidates: np.ndarray, run: Run, k: int, noise: float, rule: Rule
) -> None:
    """Pick until k, or until a step that only the loop on the host can take."""
    ahead = Ahead(State(rows, candidates, run, k, noise, rule), k)
    winner = ahead.lead()
    while winner is not None and len(run.indices) < k:
        winner = ahead.advance(winner)
    ahead.state.finished()


class Ahead:
    """One run's way, pass by pass."""

    def __init__(self, state: State, k: int) -> None:
        self.state, self.k, self.run = state, k, state.run
        self.usual = float(FIRST)
        self.owed: Checks | None = None
        self.hope = state.alive_scores()
        self.error = error_of(state.rows)

    # -- deciding -----------------------------------------------------------------------------

    def lead(self) -> int | None:
        """The next pick from c and n as they are; None if the host must look."""
        state = self.state
        if self.owed is not None:
            sweep(state, self.owed, len(self.owed))
            self.owed = None
        found = state.alive_scores()
        best = int(torch.argmax(found))
        if not float(found[best]) > -np.inf:
            return None
        self.hope = found
        lowest, _ = self._bounds([best], state.Q[: state.m], state.residual)
        slack_c, slack_n = self._slack(self.run.drift, state.m)
        most = state.c.abs() + slack_c * state.lengths
        error = slack_n * state.norms2
        score = scores(state.rule, most, torch.clamp(state.n - error, min=1e-300), state.scale)
        reach = (score >= float(just_below(lowest[0]))) & (state.n + error > state.floor)
        near = torch.nonzero(reach)[: LIMIT + 1, 0].tolist()
        if len(near) > LIMIT or lowest[0] == -np.inf:
            return None
        return self._settle(near, best, state.Q[: state.m], state.residual)

    def _settle(self, near: list[int], guess: int, Q: Any, residual: Any) -> int | None:
        """The best of the rows that may be, the lowest among equals."""
        near = sorted({*near, guess})
        if len(near) == 1:
            return guess
        best = first_of_best(*self._bounds(near, Q, residual))
        return near[best] if best >= 0 else None

    def _bounds(self, near: list[int], Q: Any, residual: Any) -> tuple[np.ndarray, np.ndarray]:
        state = self.state
        c, n, norms2 = state.measure(state.rows.here(np.array(near)), Q, residual)
        alive = n > state.rows.tolerance * norms2
        lengths = ROUNDING * state.target_norm
        found = state.rule.bounds(c, n, norms2, state.noise, lengths, ROUNDING)
        return np.where(alive, found[0], -np.inf), np.where(alive, found[1], -np.inf)

    def _slack(self, drift: Any, m: Any) -> tuple[Any, Any]:
        slack_c = self.error * drift + SPARE * self.state.target_norm
        return slack_c, 2.0 * self.error * m**0.5 + SPARE

    # -- a pass -------------------------------------------------------------------------------

    def advance(self, first: int) -> int | None:
        """Take the certain pick in, guess on, check all in one pass; the next pick, if known."""
        state = self.state
        room = self._room()
        guess = self._guess(first, max(1, room))
        checks, owed = guess.checks, len(self.owed or ())
        if room < 1:  # the last pick
            valid = bool(guess.valid[0])
            if valid:
                self._keep(guess, [first], 1)
            return None
        trust = int(np.clip(round(self.usual / 1.5), 1, room))
        every = self.owed.and_then(checks) if self.owed else checks
        found = sweep(state, every, owed + trust)
        self.hope = found.hope
        kept, winner, picks = self._check(guess, found, owed)
        if kept == 0:
            self.owed = checks.part(0, trust, -1.0)
            sweep(state, self.owed, trust)
            self.owed = None
            return None
        self._keep(guess, picks[:kept], kept)
        self.owed = None
        if kept != trust:
            ends = (trust, kept, 1.0) if kept > trust else (kept, trust, -1.0)
            self.owed = checks.part(*ends)
        self.usual = 0.5 * (self.usual + 1.5 * kept) if kept < room else max(self.usual, 2.0 * kept)
        norm = self.norms[kept - 1]
        self.run.drift += float(np.abs(self.coefs[:kept]).sum())
        if state.noise == 0.0 and norm < RESIDUAL * state.target_norm:
            return None
        if norm <= FALL * self.run.fresh_norm:
            if self.owed is not None:
                sweep(state, self.owed, len(self.owed))
                self.owed = None
            state.refresh()
            return self.lead()
        return self.lead() if winner is None else winner

    def _room(self) -> int:
        left = self.k - len(self.run.indices) - 1
        want = float(np.clip(self.usual, FEWEST, MOST_AHEAD))
        owed = len(self.owed or ())
        panels = max(1, round((owed + want) / PANEL))
        return min(left, max(FEWEST, panels * PANEL - owed))

    def _keep(self, guess: Guess, picks: list[int], kept: int) -> None:
        m = self.state.m
        checks = guess.checks
        lower = guess.lower[:kept, : m + kept]
        self.state.keep(picks, checks.directions[:kept], lower, checks.coefs[:kept])

    def _check(self, guess: Guess, found: Any, owed: int) -> tuple[int, int | None, list[int]]:
        """How many guesses were right, and the pick after them."""
        norms2 = (guess.residuals * guess.residuals).sum(1)
        numbers = torch.cat([guess.checks.coefs, norms2, guess.valid.double()]).cpu().numpy()
        whole = torch.cat([guess.picks, found.counts[owed:], found.near[owed:].flatten()])
        whole = whole.cpu().numpy()
        b = len(norms2)
        self.coefs, self.norms = numbers[:b], np.sqrt(numbers[b : 2 * b])
        valid = numbers[2 * b :] > 0
        picks, counts = whole[: b + 1].tolist(), whole[b + 1 : 2 * b + 1]
        near = whole[2 * b + 1 :].reshape(b, LIMIT)
        if not valid[0]:
            return 0, None, picks
        state, m = self.state, self.state.m
        small = RESIDUAL * state.target_norm
        for s in range(b):
            matched = state.noise == 0.0 and self.norms[s] < small
            if matched or not valid[s + 1] or counts[s] > LIMIT:
                return s + 1, None, picks
            others = set(near[s, : counts[s]].tolist()) - set(picks[: s + 1]) - {picks[s + 1]}
            if others:
                Q = torch.cat([state.Q[:m], guess.checks.directions[: s + 1]])
                winner = self._settle(list(others), picks[s + 1], Q, guess.residuals[s])
                if winner != picks[s + 1]:
                    return s + 1, winner, picks
        return b, picks[b], picks

    # -- guessing -----------------------------------------------------------------------------

    def _guess(self, first: int, b: int) -> Guess:
        """Run ahead in the pool; everything stays on the device."""
        state, m = self.state, self.state.m
        self.hope[first] = -torch.inf
        size = min(POOL[len(self.hope) > MANY], len(self.hope))
        others = torch.topk(self.hope, size - 1, sorted=False).indices
        pool = torch.cat([state.rows.here(np.array([first])), others])
        P = state.F[pool].double()
        Q = state.Q[:m]
        A = P @ Q.T
        G = P @ P.T - A @ A.T
        c = P @ state.residual
        out = state.n[pool] == -torch.inf
        out[1:] |= pool[1:] == first  # where few rows are left, it is among the others, too
        n = torch.where(out, -torch.inf, torch.diagonal(G) + state.noise)
        at, taken, V = guess_in(state, (G, c, n, state.floor[pool], state.scale[pool]), b)
        return self._steps(pool, at, taken, P, A, V, b)

    def _steps(self, pool: Any, at: Any, taken: Any, P: Any, A: Any, V: Any, b: int) -> Guess:
        """Directions, and what the pass has to look for, from the guessed positions."""
        state, m = self.state, self.state.m
        c, n, fresh = taken.T
        valid = torch.cumprod(fresh, 0)
        ok = valid[:b]
        root = torch.sqrt(torch.where(ok > 0, n[:b], 1.0))
        coefs = torch.where(ok > 0, c[:b] / root, 0.0)
        S = at[:b]
        inside = torch.tril(V[:, S].T, -1) * ok[:, None]
        lower = inside + torch.diag(root)
        Q, rows = state.Q[:m], P[S]
        U = rows - A[S] @ Q
        if state.noise == 0.0:
            U = U - (U @ Q.T) @ Q
        q = torch.linalg.solve_triangular(lower, U, upper=False) * ok[:, None]
        residuals = state.residual - torch.cumsum(coefs[:, None] * q, 0)
        picks = pool[at]
        norms2 = state.norms2[picks]
        sizes = c.abs() - SPARE * state.target_norm * torch.sqrt(norms2)
        least = scores(
            state.rule, torch.clamp(sizes, min=0.0), n + SPARE * norms2, state.scale[picks]
        )
        bars = torch.where(valid > 0, least * (1 - TIE), torch.inf)[1:]
        drift = self.run.drift + torch.cumsum(coefs.abs(), 0)
        count = torch.arange(m + 1, m + b + 1, **state.kwargs)
        slack_c, slack_n = self._slack(drift, count)
        checks = Checks(q, coefs, torch.ones_like(coefs), bars, slack_c, slack_n)
        return Guess(picks, valid, checks, torch.cat([A[S], lower], 1), residuals)
