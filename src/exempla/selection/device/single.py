"""Running ahead on the device, for one target: `ahead.Scout` with its pool as matrices.

The products of all pool rows with each other are one matrix, so that guessing b picks is b small
steps on vectors, with nothing asked of the host. A pass is one graph: it takes in what was right of
the last one, guesses on and checks all in one reading of the rows. The host says four numbers,
hears which guesses may have been beaten and settles those in float64.

`sweep` in Triton: a tile of rows times all directions in registers.

Each factor is cut into two or three bfloat16 parts, and products of small parts are left out: on a
Hopper chip three such products of a tile take no longer than reading it. c and n are float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from exempla.selection.basis import first_of_best, just_below
from exempla.selection.device.several import (
    LIMIT,
    Checks,
    Guess,
    Recorded,
    State,
    fused,
    guess_in,
    mark,
    measure,
    scores,
    sweep,
)
from exempla.selection.engine import FALL, RESIDUAL, Run, measured_bounds
from exempla.selection.rows import Rule

POOL, _MANY = (1024, 2048), 200_000
"""Rows to guess among, of few and of many."""
_AHEAD, _LONG = (16, 32), 512
"""Picks to guess at a time, of short rows and of long ones: in more directions guesses hold longer,
and reading the rows costs more beside them."""
_BLOCK = 1024
"""Directions are multiplied in whole blocks: a graph has one size."""
_FEW = 8
"""Rows that may beat a guess and are measured within the pass; of more the host asks by itself."""
MOST_PICKS = 4096
"""Picks whose directions are kept on the device."""


def run_ahead(
    rows: Any, candidates: np.ndarray, run: Run, k: int, noise: float, rule: Rule
) -> None:
    """Pick until k, or until a step that only the loop on the host can take."""
    b = _AHEAD[rows.p >= _LONG]
    state = State(rows, candidates, run, k, noise, rule, b, 2 if fused(rows.array) else 0)
    ahead = _Ahead(state, k)
    winner = ahead.lead()
    while winner is not None and len(run.indices) < k:
        winner = ahead.advance(winner)
    ahead.catch_up()
    state.finished()


class _Ahead:
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
        self.heard = torch.zeros(2 * b + 6 * (b + 1) + b * (_FEW + 3 * (_FEW + 1)), **state.kwargs)
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
        size = min(state.room, -(-(state.m + self.waiting + state.ahead) // _BLOCK) * _BLOCK)
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
            rivals = torch.cat([guess.picks[1:, None], near[:, :_FEW]], 1)
            parts += [counts, near[:, :_FEW].flatten(), self._measured(rivals, size).flatten()]
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
        ends = np.cumsum([5 * (b + 1), b + 1, b, b, b * _FEW])
        marks, rows, norms, counts, near, known = np.split(self.heard.cpu().numpy(), ends)
        coefs, *_, valid = marks.reshape(5, b + 1)
        near, known = near.reshape(b, _FEW).astype(np.int64), known.reshape(3, b, _FEW + 1)
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
            if count <= _FEW:
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
        most = min(POOL[len(hope) > _MANY], len(hope))
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


# Triton comes with torch where there is a GPU, and its kernels are no ordinary functions.
# pyright: reportMissingImports=false, reportIndexIssue=false
# pyright: reportOptionalMemberAccess=false, reportInvalidTypeForm=false


try:
    import triton
    import triton.language as tl
except ImportError:  # the kernels are then plain functions that nobody calls
    triton, tl = None, None


ROWS, _DEPTH, _WARPS, _STAGES = 128, 32, 4, 4
_AT_ONCE, _GUESS_WARPS = 8, 8


def error_bound(parts: int, p: int) -> float:
    """Bound on the error of a product of rows of p entries, in units of ‖f‖.

    With two parts, each factor lacks 2⁻¹⁸ of itself, and the product of both second parts is left
    out, as much again: 192 · 2⁻²⁴. The rest is rounding: of sums of `_DEPTH` products, which stay
    in the matrix unit, and of one more sum for each of those.
    """
    return ((192.0 if parts == 2 else 0.0) + 16.0 + p / _DEPTH) * 2.0**-24


def installed() -> bool:
    """Whether there is a Triton to run the kernels."""
    return triton is not None


def _jit(kernel: Any) -> Any:
    return triton.jit(kernel) if triton is not None else kernel


@_jit
def _kernel(
    F, Q, marks, picks, tried, c, n, lengths, floor, scale, counts, near, hope, t, p,
    RULE: tl.constexpr, LIMIT: tl.constexpr, PARTS: tl.constexpr,
    ROWS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < t
    columns = tl.arange(0, COLUMNS)
    sums = tl.zeros((ROWS, COLUMNS), tl.float32)
    lines = F + rows[:, None].to(tl.int64) * p
    for i in range(0, p, DEPTH):
        at = i + tl.arange(0, DEPTH)
        f = tl.load(lines + at[None, :], mask=inside[:, None] & (at < p)[None, :], other=0.0)
        places = Q + at[:, None] * COLUMNS + columns[None, :]
        there = (at < p)[:, None]
        q0 = tl.load(places, mask=there, other=0.0)
        q1 = tl.load(places + p * COLUMNS, mask=there, other=0.0)
        f0 = f.to(tl.bfloat16)
        rest = f - f0.to(tl.float32)
        f1 = rest.to(tl.bfloat16)
        # The matrix unit cuts sums off, so that long ones drift: they are made outside of it.
        if PARTS == 3:
            q2 = tl.load(places + 2 * p * COLUMNS, mask=there, other=0.0)
            f2 = (rest - f1.to(tl.float32)).to(tl.bfloat16)
            little = tl.dot(f0, q2, tl.dot(f1, q1, tl.dot(f2, q0)))
            little = tl.dot(f0, q1, tl.dot(f1, q0, little))
        else:
            little = tl.dot(f0, q1, tl.dot(f1, q0))
        sums += tl.dot(f0, q0, little)
    there = tried + rows[:, None].to(tl.int64) * COLUMNS + columns[None, :]
    tl.store(there, sums, mask=inside[:, None])
    cs = tl.load(c + rows, mask=inside, other=0.0)
    ns = tl.load(n + rows, mask=inside, other=-float("inf"))
    length = tl.load(lengths + rows, mask=inside, other=0.0)
    lowest = tl.load(floor + rows, mask=inside, other=0.0)
    factor = tl.load(scale + rows, mask=inside, other=0.0)
    best = tl.full((ROWS,), -float("inf"), tl.float64)
    known = rows < 0
    for s in range(COLUMNS):
        v = tl.sum(tl.where((columns == s)[None, :], sums, 0.0), 1).to(tl.float64)
        coef, bar = tl.load(marks + s), tl.load(marks + (COLUMNS + 1) + s)
        more = tl.load(marks + 2 * (COLUMNS + 1) + s)
        less = tl.load(marks + 3 * (COLUMNS + 1) + s)
        known = known | (rows == tl.load(picks + s))
        cs = cs - coef * v
        ns = ns - v * v
        most = tl.abs(cs) + more * length
        error = less * length * length
        wanted = tl.where(inside, bar, float("inf"))
        asked = (ns + error > lowest) & (wanted < float("inf"))
        if RULE == 0:
            least = ns - error
            reach = (most * most >= bar * least) & asked
            share = most * most / (tl.maximum(least, 1e-300) * bar)
        else:
            reach = (most * most * factor >= bar) & asked
            share = most * most * factor / bar
        best = tl.where(asked, tl.maximum(best, share), best)
        reach = reach & (known == 0) & (rows != tl.load(picks + s + 1))
        ones = tl.full((ROWS,), 1, tl.int64)
        place = tl.atomic_add(counts + s + tl.zeros((ROWS,), tl.int64), ones, mask=reach)
        tl.store(near + s * LIMIT + place, rows.to(tl.int64), mask=reach & (place < LIMIT))
    tl.store(hope + rows, best.to(tl.float32), mask=inside)


def fused_sweep(state: State, checks: Checks) -> tuple[Any, Any]:
    """`sweep.sweep` as one launch."""
    b, (t, p) = len(checks.directions), state.F.shape
    state.catch_up()
    counts = torch.zeros(b, dtype=torch.int64, device=state.F.device)
    near = torch.full((b, LIMIT), -1, dtype=torch.int64, device=state.F.device)
    _kernel[(triton.cdiv(t, ROWS),)](
        state.F, parts_of(checks.directions.T, state.parts), checks.marks, checks.picks,
        state.tried, state.c, state.n, state.lengths, state.floor, state.scale, counts, near,
        state.hope, t, p,
        RULE=int(state.rule), LIMIT=LIMIT, PARTS=state.parts, ROWS=ROWS, DEPTH=_DEPTH,
        COLUMNS=b, num_warps=_WARPS, num_stages=_STAGES,
    )  # fmt: skip
    return counts, near


def parts_of(values: Any, count: int) -> Any:
    """(count, …) bfloat16 numbers that sum to the values, nearly."""
    parts = torch.empty((count, *values.shape), dtype=torch.bfloat16, device=values.device)
    for part in parts:
        part.copy_(values)
        values = values - part
    return parts


@_jit
def _catch_up(tried, right, c, n, t, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < t
    columns = tl.arange(0, COLUMNS)
    coefs, ones = tl.load(right + columns), tl.load(right + COLUMNS + columns)
    there = tried + rows[:, None].to(tl.int64) * COLUMNS + columns[None, :]
    v = tl.load(there, mask=inside[:, None] & (ones > 0)[None, :], other=0.0).to(tl.float64)
    cs, ns = tl.load(c + rows, mask=inside), tl.load(n + rows, mask=inside)
    tl.store(c + rows, cs - tl.sum(v * coefs[None, :], 1), mask=inside)
    tl.store(n + rows, ns - tl.sum(v * v, 1), mask=inside)


def fused_catch_up(state: State) -> None:
    """c and n with the steps that were right, in one launch."""
    t, b = state.tried.shape
    _catch_up[(triton.cdiv(t, ROWS),)](
        state.tried, state.right, state.c, state.n, t, ROWS=ROWS, COLUMNS=b, num_warps=4
    )


@_jit
def _product(F, r, out, t, p, ROWS: tl.constexpr, DEPTH: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    inside = rows < t
    lines = F + rows[:, None].to(tl.int64) * p
    sums = tl.zeros((ROWS, DEPTH), tl.float64)
    for i in range(0, p, DEPTH):
        at = i + tl.arange(0, DEPTH)
        f = tl.load(lines + at[None, :], mask=inside[:, None] & (at < p)[None, :], other=0.0)
        sums += f.to(tl.float64) * tl.load(r + at, mask=at < p, other=0.0)[None, :]
    tl.store(out + rows, tl.sum(sums, 1), mask=inside)


def fused_products(F: Any, vector: Any, out: Any) -> None:
    """F · vector in float64, in one reading of the rows."""
    t, p = F.shape
    _product[(triton.cdiv(t, 32),)](F, vector, out, t, p, ROWS=32, DEPTH=128, num_warps=4)


@_jit
def _guess(
    G, c, n, floor, scale, V, at, taken, size, b,
    RULE: tl.constexpr, LANES: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    lanes = tl.arange(0, LANES)
    inside = lanes < size
    cs = tl.load(c + lanes, mask=inside, other=0.0)
    ns = tl.load(n + lanes, mask=inside, other=-float("inf"))
    lowest = tl.load(floor + lanes, mask=inside, other=0.0)
    factor = tl.load(scale + lanes, mask=inside, other=0.0)
    for s in range(b + 1):
        if RULE == 0:
            score = cs * cs / ns
        else:
            score = cs * cs * factor
        score = tl.where(ns > lowest, score, -float("inf"))
        j = tl.where(s == 0, 0, tl.argmax(score, 0))
        here = lanes == j
        cj = tl.sum(tl.where(here, cs, 0.0), 0)
        nj = tl.sum(tl.where(here, ns, 0.0), 0)
        bottom = tl.sum(tl.where(here, lowest, 0.0), 0)
        fresh = nj > bottom
        tl.store(at + s, j.to(tl.int64))
        tl.store(taken + 3 * s, cj)
        tl.store(taken + 3 * s + 1, nj)
        tl.store(taken + 3 * s + 2, tl.where(fresh, 1.0, 0.0).to(tl.float64))
        if s < b:
            root = tl.sqrt(tl.where(fresh, nj, 1.0))
            v = tl.load(G + j * size + lanes, mask=inside, other=0.0)
            for start in range(0, s, AT_ONCE):
                for turn in tl.static_range(AT_ONCE):  # so many loads on their way at a time
                    before = start + turn
                    here_too = inside & (before < s)
                    other = tl.load(V + before * size + lanes, mask=here_too, other=0.0)
                    v -= tl.load(V + before * size + j, mask=before < s, other=0.0) * other
            v = tl.where(fresh, v / root, 0.0)
            tl.store(V + s * size + lanes, v, mask=inside)
            cs = cs - tl.where(fresh, cj / root, 0.0) * v
            ns = tl.where(here, -float("inf"), ns - v * v)
            tl.debug_barrier()  # the next turn reads what other threads wrote


def fused_guess(rule: Any, pool: tuple[Any, ...], b: int) -> tuple[Any, Any, Any]:
    """`guess.guess_in` as one launch of one program."""
    G, c, n, floor, scale = (part.contiguous() for part in pool)
    size, device = len(c), c.device
    V = torch.empty((b, size), dtype=torch.float64, device=device)
    at = torch.empty(b + 1, dtype=torch.int64, device=device)
    taken = torch.empty((b + 1, 3), dtype=torch.float64, device=device)
    lanes = triton.next_power_of_2(size)
    _guess[(1,)](
        G, c, n, floor, scale, V, at, taken, size, b,
        RULE=int(rule), LANES=lanes, AT_ONCE=_AT_ONCE, num_warps=_GUESS_WARPS, num_stages=1,
    )  # fmt: skip
    return at, taken, V


@_jit
def _mark(
    taken, V, picks, norms2, scale, said, marks, block, constants,
    RULE: tl.constexpr, B: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    # Numbers given to a kernel would be float32.
    norm, error = tl.load(constants), tl.load(constants + 1)
    spare, tie = tl.load(constants + 2), tl.load(constants + 3)
    i = tl.arange(0, LANES)
    inside = i <= B
    c = tl.load(taken + 3 * i, mask=inside, other=0.0)
    n = tl.load(taken + 3 * i + 1, mask=inside, other=1.0)
    fresh = tl.load(taken + 3 * i + 2, mask=inside, other=0.0)
    valid = tl.cumsum((fresh == 0.0).to(tl.int32), 0) == 0
    root = tl.sqrt(tl.where(valid, n, 1.0))
    coef = tl.where(valid, c / root, 0.0)
    pick = tl.load(picks + i, mask=inside, other=0)
    squared = tl.load(norms2 + pick, mask=inside, other=0.0)
    size = tl.maximum(tl.abs(c) - spare * norm * tl.sqrt(squared), 0.0)
    if RULE == 0:
        least = size * size / (n + spare * squared)
    else:
        least = size * size * tl.load(scale + pick, mask=inside, other=0.0)
    bar = tl.where(valid, least * (1.0 - tie), float("inf"))
    drift = tl.load(said + 3) + tl.cumsum(tl.abs(coef), 0)
    count = tl.load(said + 1) + tl.load(said + 2) + (i + 1).to(tl.float64)
    tl.store(marks + i, coef, mask=inside)
    tl.store(marks + (B + 1) + i - 1, bar, mask=inside & (i > 0))
    tl.store(marks + (B + 1) + B + i, bar, mask=i == 0)  # the first bar is nobody's
    tl.store(marks + 2 * (B + 1) + i, error * drift + spare * norm, mask=inside)
    tl.store(marks + 3 * (B + 1) + i, 2.0 * error * tl.sqrt(count) + spare, mask=inside)
    tl.store(marks + 4 * (B + 1) + i, tl.where(valid, 1.0, 0.0).to(tl.float64), mask=inside)
    j = tl.arange(0, B)
    below = tl.load(V + j[None, :] * B + i[:, None], mask=(i < B)[:, None], other=0.0)
    below = tl.where((j[None, :] < i[:, None]) & valid[:, None], below, 0.0)
    whole = tl.where(j[None, :] == i[:, None], root[:, None], below)
    tl.store(block + i[:, None] * B + j[None, :], whole, mask=(i < B)[:, None])


def fused_mark(state: State, taken: Any, V: Any, picks: Any, said: Any) -> tuple[Any, Any]:
    """`guess.mark` as one launch of one program."""
    b = len(V)
    marks, block = torch.empty((5, b + 1), **state.kwargs), torch.empty((b, b), **state.kwargs)
    _mark[(1,)](
        taken, V.contiguous(), picks, state.norms2, state.scale, said, marks, block,
        state.constants,
        RULE=int(state.rule), B=b, LANES=triton.next_power_of_2(b + 1), num_warps=1,
    )  # fmt: skip
    return marks, block
