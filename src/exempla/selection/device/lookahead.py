"""Lookahead on the device, for one target: the pool of `engine.Lookahead` as matrices.

The products of all pool rows with each other are one matrix, so that guessing b picks takes b small
steps on vectors, without the host. A pass is one CUDA graph: it applies the correct guesses of the
last pass, guesses on, and checks all guesses in one reading of the rows. The host sends four
numbers, receives which guesses may be wrong, and settles those in float64.

`State` is the run in float64 beside the rows: blockwise Gram–Schmidt, c and n of every candidate. L
is the Cholesky factor of K_SS + σ²I; the rest of the basis follows from it (`State.finish`).
Correct guesses are applied one pass later, so that every pass does the same to tensors of fixed
size and place, and can be recorded (`Recorded`).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from exempla.selection.device.kernels import (
    BLOCK_ROUNDING,
    MAX_NEAR,
    catch_up,
    error_bound,
    guess,
    mark,
    scores,
    sweep,
    within_reach,
)
from exempla.selection.engine import MATCHED_RATIO, REFRESH_RATIO, Run, score_bounds
from exempla.selection.rows import RELATIVE_TIE, Rule, first_of_best, tie_threshold

POOL, _MANY_ROWS = (1024, 2048), 200_000
"""Rows to guess among, of few and of many rows."""
_GUESSES, _WIDE_ROWS = (16, 32), 512
"""Picks to guess at a time, for narrow and for wide rows: in more dimensions guesses stay correct
longer, and reading the rows costs more."""
_DIRECTION_BLOCK = 1024
"""Directions are multiplied in whole blocks: a graph has a fixed size."""
_MEASURED_RIVALS = 8
"""Rows that may beat a guess and are measured within the pass; the host measures more itself."""


def look_ahead(
    rows: Any, candidates: np.ndarray, run: Run, k: int, noise: float, rule: Rule
) -> None:
    """Pick until k, or until a step that only the host loop can make; the run is changed."""
    state = State(rows, candidates, run, k, noise, rule, _GUESSES[rows.p >= _WIDE_ROWS])
    lookahead = DeviceLookahead(state, k)
    winner = lookahead.lead()
    while winner is not None and len(run.indices) < k:
        winner = lookahead.advance(winner)
    lookahead.catch_up()
    state.finish()


class DeviceLookahead:
    """Guess and check the picks of one run, pass by pass."""

    def __init__(self, state: State, k: int) -> None:
        self.state, self.k, self.run = state, k, state.run
        b = state.n_guesses
        self.guessed = GuessedSteps(b, state.rows.p, state.room, state.kwargs)
        self.guessed.residuals[0] = state.residual
        self.near = torch.full((b, MAX_NEAR), -1, device=state.F.device)
        self.n_pending = 0
        """Correct guesses of the last pass that have not been applied."""
        self.numbers = torch.zeros(4, **state.kwargs)
        """Sent by the host: the certain pick, pending guesses, directions so far, drift."""
        self.upto = torch.tril(torch.ones((b, b), **state.kwargs))
        self.report = torch.zeros(
            2 * b + 6 * (b + 1) + b * (_MEASURED_RIVALS + 3 * (_MEASURED_RIVALS + 1)),
            **state.kwargs,
        )
        """Read by the host: everything it needs to know about a pass."""
        self.recorded = Recorded(state.F.device)

    # -- deciding -----------------------------------------------------------------------------

    def lead(self) -> int | None:
        """Return the next pick from the current c and n; None if the host loop must decide."""
        self.catch_up()
        state = self.state
        found = scores(state.rule, state.c, state.n, state.scale)
        found = torch.where(state.n > state.floor, found, -torch.inf)
        best = int(torch.argmax(found))
        if not float(found[best]) > -np.inf:
            return None
        state.upper_bounds.copy_(found)
        lowest, _ = self._bounds([best], state.Q[: state.m], state.residual)
        slacks, bar = state.slack(self.run.drift, state.m), float(tie_threshold(lowest[0]))
        near = within_reach(state, state.c, state.n, *slacks, bar)[: MAX_NEAR + 1].tolist()
        if len(near) > MAX_NEAR and state.n_parts == 2:
            state.raise_precision()
            self.recorded = Recorded(state.F.device)
            return self.lead()
        if len(near) > MAX_NEAR or lowest[0] == -np.inf:
            return None
        return self._settle(near, best, state.Q[: state.m], state.residual)

    def _settle(self, near: list[int], guess: int, Q: Any, residual: Any) -> int | None:
        """Return the best of the rows that may win, the lowest of ties."""
        near = sorted({*near, guess})
        if len(near) == 1:
            return guess
        return self._best(np.array(near), *self._bounds(near, Q, residual))

    def _best(self, near: np.ndarray, lowest: np.ndarray, highest: np.ndarray) -> int | None:
        order = np.argsort(near)
        best = first_of_best(lowest[order], highest[order])
        return int(near[order[best]]) if best >= 0 else None

    def _bounds(self, near: list[int], Q: Any, residual: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return bounds on the scores of these rows, measured in float64."""
        state = self.state
        rows = state.F[state.rows.here(np.array(near))].double()
        squared, inside = (rows * rows).sum(1), rows @ Q.T
        n = squared + state.noise - (inside * inside).sum(1)
        measured = torch.stack([rows @ residual, n, squared]).cpu().numpy()
        return score_bounds(measured, self.run.basis, state.rule)

    # -- a pass -------------------------------------------------------------------------------

    def advance(self, first: int) -> int | None:
        """Apply the certain pick, check new guesses in one pass; return the next pick if known."""
        state, run = self.state, self.run
        left = self.k - len(run.indices)
        self._send(first)
        size = min(
            state.room,
            -(-(state.m + self.n_pending + state.n_guesses) // _DIRECTION_BLOCK) * _DIRECTION_BLOCK,
        )
        if left == 1:  # no further pick has to be checked
            self._pass(size, check=False)
        else:
            self.recorded(self._pass, size, worth=left > 3 * state.n_guesses)
        state.m, self.n_pending = state.m + self.n_pending, 0
        picks, coefs, norms, right, winner = self._checked(left)
        if right == 0:
            return None
        run.indices.extend(picks[:right])
        run.drift += float(np.abs(coefs[:right]).sum())
        self.n_pending = right
        norm = norms[right - 1]
        if right == left or (state.noise == 0.0 and norm < MATCHED_RATIO * state.target_norm):
            return None
        if norm <= REFRESH_RATIO * run.fresh_norm:
            self.catch_up()
            state.refresh()
            return self.lead()
        return self.lead() if winner is None else winner

    def catch_up(self) -> None:
        """Apply pending guesses without a pass."""
        if self.n_pending:
            self._send(0)
            numbers = self.numbers.long()
            self.state.take(self.guessed, numbers[1:2], numbers[2:3])
            catch_up(self.state)
            self.state.m, self.n_pending = self.state.m + self.n_pending, 0
            self.guessed.residuals[0] = self.state.residual

    def _send(self, first: int) -> None:
        numbers = [first, self.n_pending, self.state.m, self.run.drift]
        self.numbers.copy_(torch.tensor(numbers, dtype=torch.float64))

    def _pass(self, size: int, check: bool = True) -> None:
        """Run the whole pass on the device, with products of `size` directions."""
        state, guessed = self.state, self.guessed
        numbers = self.numbers.long()
        first, pending, m = numbers[:1], numbers[1:2], numbers[2:3]
        state.take(guessed, pending, m)
        marks = self._guessed(first, m + pending, size)
        parts = [
            marks.flatten(),
            guessed.picks,
            torch.linalg.vector_norm(guessed.residuals[1:], dim=1),
        ]
        if check:
            counts, near = sweep(state, guessed.directions, guessed.picks, marks)
            self.near.copy_(near)
            rivals = torch.cat([guessed.picks[1:, None], near[:, :_MEASURED_RIVALS]], 1)
            parts += [
                counts,
                near[:, :_MEASURED_RIVALS].flatten(),
                self._measured(rivals, size).flatten(),
            ]
        report = torch.cat([part.double() for part in parts])
        self.report[: len(report)].copy_(report)

    def _measured(self, rivals: Any, size: int) -> Any:
        """Return float64 c, n and ‖f‖² of rows after each step, (3, b, …); −1 is any row."""
        state, guessed, b = self.state, self.guessed, self.state.n_guesses
        rows = state.F[torch.clamp(rivals, min=0).flatten()].double()
        squared, before = (rows * rows).sum(1), rows @ state.Q[:size].T
        since = torch.cumsum((rows @ guessed.directions.T) ** 2, 1)
        c, since = (
            torch.diagonal(x.reshape(b, -1, b), dim1=0, dim2=2).T  # each row after its own step
            for x in (rows @ guessed.residuals[1:].T, since)
        )
        n = (squared + state.noise - (before * before).sum(1)).reshape(b, -1) - since
        return torch.stack([c, n, squared.reshape(b, -1)])

    def _checked(self, left: int) -> tuple[list[int], np.ndarray, np.ndarray, int, int | None]:
        """Return picks, coefficients, residual norms, how many are correct, and the next pick."""
        state, b = self.state, self.state.n_guesses
        ends = np.cumsum([5 * (b + 1), b + 1, b, b, b * _MEASURED_RIVALS])
        marks, rows, norms, counts, near, known = np.split(self.report.cpu().numpy(), ends)
        coefs, *_, valid = marks.reshape(5, b + 1)
        near, known = (
            near.reshape(b, _MEASURED_RIVALS).astype(np.int64),
            known.reshape(3, b, _MEASURED_RIVALS + 1),
        )
        picks = rows.astype(np.int64).tolist()
        if not valid[0]:
            return picks, coefs, norms, 0, None
        small = MATCHED_RATIO * state.target_norm
        for s in range(b):
            matched = state.noise == 0.0 and norms[s] < small
            if s + 1 == left or matched or not valid[s + 1] or counts[s] > MAX_NEAR:
                return picks, coefs, norms, s + 1, None
            count = int(counts[s])
            if count == 0:
                continue
            if count <= _MEASURED_RIVALS:
                rivals = np.array([picks[s + 1], *near[s, :count]])
                bounds = score_bounds(known[:, s, : count + 1], self.run.basis, state.rule)
                winner = self._best(rivals, *bounds)
            else:
                Q = torch.cat([state.Q[: state.m], self.guessed.directions[: s + 1]])
                rivals = self.near[s, :count].tolist()
                winner = self._settle(rivals, picks[s + 1], Q, self.guessed.residuals[s + 1])
            if winner != picks[s + 1]:
                return picks, coefs, norms, s + 1, winner
        return picks, coefs, norms, b, picks[b]

    # -- guessing -----------------------------------------------------------------------------

    def _guessed(self, first: Any, m: Any, size: int) -> Any:
        """Guess within the pool, write the guess to its fixed place and return `mark`'s marks.

        Positions are numbers on the device, so that the recorded graph does not depend on them.
        """
        state, guessed, bounds = self.state, self.guessed, self.state.upper_bounds
        b, p = state.n_guesses, state.rows.p
        bounds.index_fill_(0, first, -torch.inf)
        most = min(POOL[len(bounds) > _MANY_ROWS], len(bounds))
        others = torch.topk(bounds, most - 1, sorted=False).indices
        pool = torch.cat([first, others])
        P, Q = state.F[pool].double(), state.Q[:size]
        A = P @ Q.T
        G = (P @ P.T).addmm_(A, A.T, alpha=-1)
        out = state.n[pool] == -torch.inf
        out[1:] |= others == first  # with few rows left it may be among the others, too
        n = torch.where(out, -torch.inf, torch.diagonal(G) + state.noise)
        floor, scale = state.floor[pool], state.scale[pool]
        at, taken, V = guess(state.rule, (G, P @ state.residual, n, floor, scale), b)
        chosen = at[:-1]
        torch.index_select(pool, 0, at, out=guessed.picks)
        A = A[chosen]
        marks, block = mark(state, taken, V[:, chosen], guessed.picks, self.numbers)
        U = torch.addmm(P[chosen], A, Q, alpha=-1)
        if state.noise == 0.0:
            U = torch.addmm(U, U @ Q.T, Q, alpha=-1)
        q = torch.linalg.solve_triangular(block, U, upper=False)
        coefs = marks[0, :b]
        guessed.lines[:, :p] = q
        guessed.lines[:, p : p + size] = A
        guessed.lines.index_copy_(1, p + m + state.counter, block)
        guessed.lines[:, -1] = coefs
        guessed.pending[0] = coefs
        guessed.residuals[0] = state.residual
        torch.addmm(state.residual, self.upto * coefs, q, alpha=-1, out=guessed.residuals[1:])
        return marks


class GuessedSteps:
    """b guessed steps in tensors of fixed place."""

    def __init__(self, b: int, p: int, room: int, kwargs: dict[str, Any]) -> None:
        self.picks = torch.zeros(b + 1, dtype=torch.int64, device=kwargs["device"])
        """(b + 1,) rows; the last is the guess after all steps."""
        self.lines = torch.zeros((b, p + room + 1), **kwargs)
        """Direction, row of L and coefficient of each step."""
        self.directions = self.lines[:, :p]
        self.residuals = torch.zeros((b + 1, p), **kwargs)
        """After 0, 1, … steps."""
        self.pending = torch.ones((2, b), **kwargs)
        """Coefficients, and ones."""


class State:
    """Directions, coefficients, residual and scores of one run, on the device of the rows."""

    def __init__(
        self, rows: Any, candidates: np.ndarray, run: Run, k: int, noise: float, rule: Rule,
        ahead: int,
    ) -> None:  # fmt: skip
        self.rows, self.run, self.noise, self.rule, self.n_guesses = rows, run, noise, rule, ahead
        self.F = rows.array
        kwargs: dict[str, Any] = {"dtype": torch.float64, "device": rows.array.device}
        self.kwargs = kwargs
        self.norms2 = rows.norms2_here
        self.lengths = torch.sqrt(self.norms2)
        self.floor = self.norms2 * rows.tolerance
        self.scale = torch.where(self.norms2 > 0, 1.0 / (self.norms2 + noise), 0.0)
        """By which c² is multiplied for `Rule.PURSUIT`."""
        self.target_norm = float(np.linalg.norm(run.basis.target))
        self.set_precision(2)
        self.m = run.basis.size
        """Number of directions."""
        self.room = k + ahead
        self.lines = torch.zeros((self.room, rows.p + self.room + 1), **kwargs)
        """Direction, row of L and coefficient of each pick; zero from the m-th on."""
        self.Q, self.L = self.lines[:, : rows.p], self.lines[:, rows.p : -1]
        self.coefs = self.lines[:, -1]
        self.counter = torch.arange(ahead, device=self.F.device)
        self.gone, self.stays = (torch.full((), x, **kwargs) for x in (-torch.inf, 0.0))
        here, m = rows.here, self.m
        self.residual = here(run.basis.residual).clone()  # changed in place
        self.Q[:m], self.L[:m, :m] = here(run.basis.directions), here(run.basis.lower)
        self.coefs[:m] = here(run.basis.coefs)
        self.products = torch.zeros((rows.t, ahead), dtype=torch.float32, device=self.F.device)
        """Products of all rows with the directions of the last pass."""
        self.pending = torch.zeros((2, ahead), **kwargs)
        """Coefficients of correct guesses, and ones: not yet applied to c and n."""
        kept = rows.here(candidates & (rows.norms2 > 0))
        self.n = torch.where(kept, 0.0, -torch.inf).double()
        self._deflate()
        if run.indices:
            self.n[rows.here(np.array(run.indices))] = -torch.inf
        self.c = torch.empty_like(self.n)
        self.upper_bounds = torch.empty(rows.t, dtype=torch.float32, device=self.F.device)
        """Largest upper bound of each row relative to a threshold; −inf for removed rows."""
        self.refresh()

    def _deflate(self) -> None:
        """Recompute n in float64."""
        n = self.norms2 + self.noise
        for part, block in self.rows.blocks() if self.m else ():
            inside = block @ self.Q[: self.m].T
            n[part] -= (inside * inside).sum(1)
        self.n.copy_(torch.where(self.n > -torch.inf, n, -torch.inf))

    def slack(self, drift: Any, m: Any) -> tuple[Any, Any]:
        """Return bounds on the errors of c, in ‖f‖, and of n, in ‖f‖²; see `engine.slack`."""
        slack_c = self.error * drift + BLOCK_ROUNDING * self.target_norm
        return slack_c, 2.0 * self.error * m**0.5 + BLOCK_ROUNDING

    def set_precision(self, parts: int) -> None:
        """Use products of this many bfloat16 parts, in float32."""
        self.n_parts, self.error = parts, error_bound(parts, self.rows.p)
        constants = [self.target_norm, self.error, BLOCK_ROUNDING, RELATIVE_TIE]
        self.constants = torch.tensor(constants, **self.kwargs)

    def raise_precision(self) -> None:
        """Use products of three parts from now on; recompute c and n."""
        self.set_precision(3)
        self._deflate()
        self.refresh()

    def refresh(self) -> None:
        """Recompute c in float64."""
        self.c.copy_(self.rows.products(self.residual[None])[0])
        self.run.fresh_norm = float(torch.linalg.vector_norm(self.residual))
        self.run.drift = 0.0

    def take(self, steps: GuessedSteps, count: Any, m: Any) -> None:
        """Apply the first `count` guesses to the basis, after its m directions.

        Both numbers are on the device, and guesses that are not applied are written as zeros: all
        sizes are fixed. c and n are updated by the next pass or by `catch_up`.
        """
        correct = self.counter < count
        taken = correct.double()
        self.lines.index_copy_(0, m + self.counter, steps.lines * taken[:, None])
        self.residual.copy_(steps.residuals.index_select(0, count)[0])
        out = torch.where(correct, self.gone, self.stays)
        self.n.index_add_(0, steps.picks[:-1], out)
        torch.mul(steps.pending, taken, out=self.pending)

    def finish(self) -> None:
        """Write the basis to the run."""
        m = self.m
        lower, coefs = self.L[:m, :m].cpu().numpy(), self.coefs[:m].cpu().numpy()
        rows = self.rows.take(np.array(self.run.indices, dtype=np.int64))
        self.run.basis = self.run.basis.refactored(rows, lower, coefs)


class Recorded:
    """Run work on tensors of fixed place and size, which depends on one number, as CUDA graphs.

    The first call simply runs the work, which compiles what has to be compiled; from the second
    call on it is a CUDA graph. Recording takes as long as a few runs: `worth` tells whether more
    runs will follow. Without a GPU nothing is recorded.
    """

    def __init__(self, device: Any) -> None:
        self.on_gpu = device.type == "cuda"
        self.seen: set[int] = set()
        self.graphs: dict[int, Any] = {}

    def __call__(self, work: Callable[[int], None], size: int, worth: bool) -> None:
        """Run the work. It is not stored here, because it refers to the owner of this object."""
        if self.on_gpu and worth and size in self.seen and size not in self.graphs:
            self.graphs[size] = _record(work, size)
        if size in self.graphs:
            self.graphs[size].replay()
        else:
            work(size)
            self.seen.add(size)


def _record(work: Callable[[int], None], size: int) -> Any:
    """Return a graph of the work.

    Garbage collection of another graph would invalidate the recording. `torch.cuda.graph` collects
    garbage and frees memory itself, which takes longer than the passes that are saved.
    """
    graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    collecting = gc.isenabled()
    gc.disable()
    try:
        with torch.cuda.stream(stream):
            graph.capture_begin(capture_error_mode="thread_local")
            work(size)
            graph.capture_end()
    finally:
        if collecting:
            gc.enable()
    torch.cuda.current_stream().wait_stream(stream)
    return graph
