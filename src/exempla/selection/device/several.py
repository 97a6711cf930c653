"""Many targets at once on the device: each pick of all of them is one product of matrices.

With many targets the products are what costs, and running ahead would not save any. All sums are
in float64; a target whose best row is not alone within rounding is settled by itself, and one that
runs out of rows is left to the loop on the host.

Float64 state of one run beside the rows: Gram–Schmidt in blocks, c and n of every candidate.

What `basis.Basis` does pick by pick on the host is done here for several picks at once: their
products are matrices, and nothing is asked of the host in between. L is the Cholesky factor of
K_SS + σ²I; everything else about the basis follows from it (`finished`).

Guesses become part of the run one pass later than they are made: a pass first takes in what was
right of the last one. So every pass does the same to tensors of the same sizes in the same places,
and can be recorded (`recorded`).

The pass that checks guesses: tensors in, tensors out.

`sweep` takes a tile of rows times all directions, follows c and n through the steps in float64
and keeps the few rows that reach a bar. The products themselves are kept, too: an eighth or less of
what the rows take, so that what was right need not be computed again. In Triton a tile lives in
registers; the fallback does the same for blocks of rows, in float64 throughout.

Greedy picks inside a pool, from its rows' products, and what other rows would have to reach.

Work of many small launches, recorded once and then launched as one graph.
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from exempla.selection.basis import ROUNDING, TIE, Basis, first_of_best
from exempla.selection.engine import FALL, RESIDUAL, Run, measured_bounds
from exempla.selection.rows import Rule

_SPARE = 1e-10
"""What block-wise float64 arithmetic may do to a product of unit vectors, generously: rows that are
picked have at least 1e-5 of their length outside the span."""


def scores(rule: Rule, c: Any, n: Any, scale: Any) -> Any:
    """`Rule.score` for tensors."""
    return c * c / n if rule is Rule.GAIN else c * c * scale


def measure(rows: Any, Q: Any, residual: Any, noise: float) -> tuple[np.ndarray, ...]:
    """(c, n, ‖f‖²) of float64 rows, on the host, given directions and residual."""
    squared, inside = (rows * rows).sum(1), rows @ Q.T
    n = squared + noise - (inside * inside).sum(1)
    return tuple(torch.stack([rows @ residual, n, squared]).cpu().numpy())


class Guess:
    """b guessed steps, in places that stay."""

    def __init__(self, b: int, p: int, room: int, kwargs: dict[str, Any]) -> None:
        self.picks = torch.zeros(b + 1, dtype=torch.int64, device=kwargs["device"])
        """Rows; the last is the guess after all steps."""
        self.lines = torch.zeros((b, p + room + 1), **kwargs)
        """Of each step its direction, its row of L and its coefficient."""
        self.directions = self.lines[:, :p]
        self.residuals = torch.zeros((b + 1, p), **kwargs)
        """After none, one, … of the steps."""
        self.right = torch.ones((2, b), **kwargs)
        """Coefficients, and ones."""


class State:
    """Directions, coefficients, residual, and the race of one run, on the device of the rows."""

    def __init__(
        self, rows: Any, candidates: np.ndarray, run: Run, k: int, noise: float, rule: Rule,
        ahead: int, parts: int,
    ) -> None:  # fmt: skip
        self.rows, self.run, self.noise, self.rule, self.ahead = rows, run, noise, rule, ahead
        self.F = rows.array
        kwargs: dict[str, Any] = {"dtype": torch.float64, "device": rows.array.device}
        self.kwargs = kwargs
        self.norms2 = rows.norms2_here
        self.lengths = torch.sqrt(self.norms2)
        self.floor = self.norms2 * rows.tolerance
        self.scale = rows.here(rule.scale(rows.norms2, noise))
        self.target_norm = float(np.linalg.norm(run.basis.target))
        self.use_parts(parts)
        self.m = run.basis.size
        """Directions taken in."""
        self.room = k + ahead
        self.lines = torch.zeros((self.room, rows.p + self.room + 1), **kwargs)
        """Of each direction itself, its row of L, its coefficient; zero from the m-th on."""
        self.Q, self.L = self.lines[:, : rows.p], self.lines[:, rows.p : -1]
        self.coefs = self.lines[:, -1]
        self.steps = torch.arange(ahead, device=self.F.device)
        self.gone, self.stays = (torch.full((), x, **kwargs) for x in (-torch.inf, 0.0))
        self._load(run.basis)
        self.tried = torch.zeros(
            (rows.t, ahead), dtype=torch.float32 if parts else torch.float64, device=self.F.device
        )
        """Products of all rows with the directions of the last pass."""
        self.right = torch.zeros((2, ahead), **kwargs)
        """Coefficients of those that were right, and ones; c and n do not have them yet."""
        kept = rows.here(candidates & (rows.norms2 > 0))
        self.n = torch.where(kept, 0.0, -torch.inf).double()
        self._deflate()
        if run.indices:
            self.n[rows.here(np.array(run.indices))] = -torch.inf
        self.c = torch.empty_like(self.n)
        self.hope = torch.empty(rows.t, dtype=torch.float32, device=self.F.device)
        """How near each row came to being picked; −inf if it is out."""
        self.refresh()

    def _load(self, basis: Basis) -> None:
        here, m = self.rows.here, self.m
        self.residual = here(basis.residual).clone()  # changed in place
        self.Q[:m] = here(basis.directions)
        self.L[:m, :m] = here(basis.lower)
        self.coefs[:m] = here(basis.coefs)

    def _deflate(self) -> None:
        """n anew, in float64."""
        n = self.norms2 + self.noise
        for part, block in self.rows.blocks() if self.m else ():
            inside = block @ self.Q[: self.m].T
            n[part] -= (inside * inside).sum(1)
        self.n.copy_(torch.where(self.n > -torch.inf, n, -torch.inf))

    def slack(self, drift: Any, m: Any) -> tuple[Any, Any]:
        """Bounds on the errors of c, in units of ‖f‖, and of n, in units of ‖f‖² (`run.slack`)."""
        slack_c = self.error * drift + _SPARE * self.target_norm
        return slack_c, 2.0 * self.error * m**0.5 + _SPARE

    def use_parts(self, parts: int) -> None:
        """Products of so many parts of eight bits, in float32; with 0 all is float64."""
        self.parts, self.error = parts, 0.0
        if parts:
            from exempla.selection.device.single import error_bound

            self.error = error_bound(parts, self.rows.p)
        self.constants = torch.tensor([self.target_norm, self.error, _SPARE, TIE], **self.kwargs)

    def sharpen(self) -> None:
        """Products of three parts from now on, and c and n anew."""
        self.use_parts(3)
        self._deflate()
        self.refresh()

    def refresh(self) -> None:
        """c anew, in float64."""
        if self.parts:
            from exempla.selection.device.single import fused_products

            fused_products(self.F, self.residual, self.c)
        else:
            self.c[:] = self.rows.products(self.residual[None])[0]
        self.run.fresh_norm, self.run.drift = self.residual_norm, 0.0

    @property
    def residual_norm(self) -> float:
        return float(torch.linalg.vector_norm(self.residual))

    def alive_scores(self) -> Any:
        """(t,) scores; −inf for rows that are out or have nothing new."""
        found = scores(self.rule, self.c, self.n, self.scale)
        return torch.where(self.n > self.floor, found, -torch.inf)

    def take(self, guess: Guess, count: Any, m: Any) -> None:
        """The first `count` guesses become part of the basis, after its m directions.

        Both numbers are on the device, and what is not taken is written as zeros: all is of one
        size. c and n hear of it in the next pass, or from `catch_up`.
        """
        right = self.steps < count
        taken = right.double()
        self.lines.index_copy_(0, m + self.steps, guess.lines * taken[:, None])
        self.residual.copy_(guess.residuals.index_select(0, count)[0])
        out = torch.where(right, self.gone, self.stays)
        self.n.index_add_(0, guess.picks[:-1], out)
        torch.mul(guess.right, taken, out=self.right)

    def catch_up(self) -> None:
        """c and n with the steps that were right; none is waiting afterwards."""
        if self.parts:
            from exempla.selection.device.single import fused_catch_up

            fused_catch_up(self)
        else:
            self.c -= self.tried @ self.right[0]
            self.n -= (self.tried * self.tried) @ self.right[1]
        self.right.zero_()

    def finished(self) -> None:
        """Hand the basis over to the run."""
        m = self.m
        lower, coefs = self.L[:m, :m].cpu().numpy(), self.coefs[:m].cpu().numpy()
        rows = self.rows.take(np.array(self.run.indices, dtype=np.int64))
        old = self.run.basis
        self.run.basis = Basis.of(old.target, old.noise, old.tolerance, rows, lower, coefs)


ENTRIES = {"cuda": 1 << 27, "cpu": 1 << 24}
"""Targets × rows whose c and n are kept at a time."""
_SCORED = 1 << 24
"""Targets × rows that are compared at a time."""


def run_together(
    rows: Any, candidates: np.ndarray, runs: list[Run], k: int, noise: float, rule: Rule
) -> None:
    """Pick for all runs, from nothing, in groups that fit into memory."""
    most = max(1, ENTRIES.get(rows.array.device.type, ENTRIES["cpu"]) // (rows.t + k * rows.p))
    for start in range(0, len(runs), most):
        here = slice(start, start + most)
        _Together(rows, candidates[here], runs[here], k, noise, rule).run()


class _Together:
    """Some targets' way, pick by pick."""

    def __init__(
        self, rows: Any, candidates: np.ndarray, runs: list[Run], k: int, noise: float, rule: Rule
    ) -> None:
        self.rows, self.runs, self.k, self.noise, self.rule = rows, runs, k, noise, rule
        count, device = len(runs), rows.array.device
        kwargs: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.target = rows.here(np.stack([run.basis.target for run in runs]))
        self.sizes = torch.linalg.vector_norm(self.target, dim=1)
        self.residual = self.target.clone()
        self.fresh = self.sizes.clone()
        self.Q = torch.zeros((count, k, rows.p), **kwargs)
        self.L = torch.zeros((count, k, k), **kwargs)
        self.coefs = torch.zeros((count, k), **kwargs)
        self.picks = torch.full((count, k), -1, dtype=torch.int64, device=device)
        self.done = torch.zeros(count, dtype=torch.int64, device=device)
        self.going = torch.ones(count, dtype=torch.bool, device=device)
        self.floor = rows.norms2_here * rows.tolerance
        self.lengths = torch.sqrt(rows.norms2_here)
        self.scale = rows.here(rule.scale(rows.norms2, noise))
        kept = rows.here(candidates & (rows.norms2 > 0))
        self.n = torch.where(kept, rows.norms2_here + noise, -torch.inf)
        self.c = torch.empty_like(self.n)
        self._refresh(torch.arange(count, device=device))

    def run(self) -> None:
        """All picks, then the bases."""
        for m in range(self.k):
            picks = self._decide(m)
            if picks is None:
                break
            self._take(m, picks)
            if m + 1 < self.k:
                self._update(m)
        self._finish()

    # -- deciding -----------------------------------------------------------------------------

    def _decide(self, m: int) -> Any:
        """The next row of every target; None where no target goes on."""
        count = len(self.runs)
        step = max(1, _SCORED // self.rows.t)
        found = [self._leaders(m, slice(i, i + step)) for i in range(0, count, step)]
        best, first, score = (torch.cat(parts) for parts in zip(*found))
        if self.noise == 0.0:
            norms = torch.linalg.vector_norm(self.residual, dim=1)
            self.going &= norms >= RESIDUAL * self.sizes
        self.going &= score > -torch.inf
        contested = self.going & (first != best)
        going, some = torch.stack([self.going.any(), contested.any()]).tolist()
        if not going:
            return None
        for i in torch.nonzero(contested)[:, 0].tolist() if some else []:
            best[i] = self._settled(m, i, int(best[i]))
        self.going &= best >= 0
        return torch.where(self.going, best, 0)

    def _leaders(self, m: int, part: slice) -> tuple[Any, Any, Any]:
        """Best row, first row that may equal it, and the best score, of some targets."""
        c, n = self.c[part], self.n[part]
        found = torch.where(n > self.floor, scores(self.rule, c, n, self.scale), -torch.inf)
        score, best = found.max(1)
        reach = self._reach(part, best, self._least(part, best)[:, None])
        return best, reach.to(torch.int8).argmax(1), score

    def _least(self, part: slice, best: Any) -> Any:
        """What the best score is at least, and what still counts as equal to it."""
        at = best[:, None]
        c, n = self.c[part].gather(1, at)[:, 0], self.n[part].gather(1, at)[:, 0]
        length = self.lengths[best]
        size = torch.clamp(c.abs() - ROUNDING * self.sizes[part] * length, min=0.0)
        n = n + ROUNDING * length * length
        return scores(self.rule, size, n, self.scale[best]) * (1 - TIE)

    def _reach(self, part: slice, best: Any, bar: Any) -> Any:
        """Which rows may be as good, (targets, t) bool."""
        c, n = self.c[part], self.n[part]
        most = c.abs() + ROUNDING * self.sizes[part, None] * self.lengths
        error = ROUNDING * self.rows.norms2_here
        if self.rule is Rule.GAIN:
            reach = most * most >= bar * (n - error)
        else:
            reach = most * most * self.scale >= bar
        return reach & (n + error > self.floor)

    def _settled(self, m: int, i: int, best: int) -> int:
        """The best of the rows that may be as good as the best, the lowest among equals."""
        part = slice(i, i + 1)
        at = torch.tensor([best], device=self.c.device)
        near = torch.nonzero(self._reach(part, at, self._least(part, at)[:, None])[0])[:, 0]
        rows = self.rows.array[near].double()
        found = measure(rows, self.Q[i, :m], self.residual[i], self.noise)
        size, tolerance = float(self.sizes[i]), self.rows.tolerance
        which = first_of_best(*measured_bounds(found, self.noise, size, tolerance, self.rule))
        return int(near[which]) if which >= 0 else -1

    # -- taking in ----------------------------------------------------------------------------

    def _take(self, m: int, picks: Any) -> None:
        """Gram–Schmidt for all targets; a row that adds nothing ends its target's way here."""
        rows = self.rows.array[picks].double()
        Q = self.Q[:, :m]
        h = torch.einsum("tmp,tp->tm", Q, rows)
        u = rows - torch.einsum("tm,tmp->tp", h, Q)
        squared = (rows * rows).sum(1)
        if self.noise == 0.0:
            again = torch.einsum("tmp,tp->tm", Q, u)
            u = u - torch.einsum("tm,tmp->tp", again, Q)
            h, n = h + again, (u * u).sum(1)
        else:
            n = squared + self.noise - (h * h).sum(1)
        self.going &= n > self.rows.tolerance * squared
        root = torch.sqrt(torch.where(self.going, n, 1.0))
        kept = self.going[:, None]
        q = torch.where(kept, u / root[:, None], 0.0)
        source = u if self.noise == 0.0 else rows
        coef = torch.where(self.going, (source * self.residual).sum(1) / root, 0.0)
        self.Q[:, m], self.coefs[:, m] = q, coef
        self.L[:, m, :m], self.L[:, m, m] = h, root
        self.residual -= coef[:, None] * q
        self.picks[:, m] = picks
        self.done += self.going
        out = torch.where(kept, -torch.inf, self.n.gather(1, picks[:, None]))
        self.n.scatter_(1, picks[:, None], out)

    def _update(self, m: int) -> None:
        """One product of all rows with all new directions."""
        q, coef = self.Q[:, m], self.coefs[:, m, None]
        for part, block in self.rows.blocks():
            v = q @ block.T
            self.c[:, part] -= coef * v
            self.n[:, part] -= v.square_()
        norms = torch.linalg.vector_norm(self.residual, dim=1)
        stale = torch.nonzero(norms <= FALL * self.fresh)[:, 0]
        if len(stale):
            self._refresh(stale)

    def _refresh(self, which: Any) -> None:
        """c anew for these targets."""
        residual = self.residual[which]
        for part, block in self.rows.blocks():
            self.c[which, part] = residual @ block.T
        self.fresh[which] = torch.linalg.vector_norm(residual, dim=1)

    # -- the end ------------------------------------------------------------------------------

    def _finish(self) -> None:
        """Hand a basis to every run."""
        done, picks = self.done.tolist(), self.picks.cpu().numpy()
        lower, coefs = self.L.cpu().numpy(), self.coefs.cpu().numpy()
        for i, run in enumerate(self.runs):
            m, old = done[i], run.basis
            run.indices = picks[i, :m].tolist()
            rows = self.rows.take(picks[i, :m])
            run.basis = Basis.of(
                old.target, old.noise, old.tolerance, rows, lower[i, :m, :m], coefs[i, :m]
            )


LIMIT = 128
"""Rows that may reach a bar and are handed out, after each step."""


@dataclass(frozen=True)
class Checks:
    """What a pass has to look for, on the device; `marks` are those of `guess`."""

    directions: Any
    """(b, p)"""
    picks: Any
    """(b + 1,) rows that are known of: after a step only others than the next are looked for."""
    marks: Any


def fused(array: Any) -> bool:
    """Whether the Triton kernels can be used for these rows."""
    if array.device.type != "cuda" or not array.is_contiguous():
        return False
    from exempla.selection.device.single import installed

    return installed()


def sweep(state: State, checks: Checks) -> tuple[Any, Any]:
    """Bring c and n up to date and try the steps from there.

    Returns how many other rows may reach each bar (b,) and the first of them (b, LIMIT), in no
    order. `state.hope` is the largest share of a bar that a row came up to, `state.tried` the
    products.
    """
    if state.parts:
        from exempla.selection.device.single import fused_sweep

        return fused_sweep(state, checks)
    return plain_sweep(state, checks)


def plain_sweep(state: State, checks: Checks) -> tuple[Any, Any]:
    """The same in torch: the fallback, and the reference for tests."""
    b, device = len(checks.directions), state.F.device
    coefs, bars, slack_c, slack_n = checks.marks[:4, :b]
    state.catch_up()
    reached = [[] for _ in range(b)]
    known = checks.picks.tolist()
    Q = checks.directions.T
    for part, block in state.rows.blocks():
        V = block @ Q
        state.tried[part] = V.to(state.tried.dtype)
        lengths, norms2 = state.lengths[part, None], state.norms2[part, None]
        c = state.c[part, None] - torch.cumsum(coefs * V, 1)
        n = state.n[part, None] - torch.cumsum(V * V, 1)
        most, error = c.abs() + slack_c * lengths, slack_n * norms2
        alive = n + error > state.floor[part, None]
        if state.rule is Rule.GAIN:
            reach = (most * most >= bars * (n - error)) & alive
        else:
            reach = (most * most * state.scale[part, None] >= bars) & alive
        asked = bars < torch.inf
        least = torch.clamp(n - error, min=1e-300)
        score = most * most * state.scale[part, None]
        score = most * most / least if state.rule is Rule.GAIN else score
        share = torch.where(alive & asked, score / bars, -torch.inf)
        state.hope[part] = share.amax(1).float()
        for row, step in torch.nonzero(reach & asked).tolist():
            if part.start + row not in known[: step + 2]:
                reached[step].append(part.start + row)
    near = torch.full((b, LIMIT), -1, dtype=torch.int64, device=device)
    for step, rows in enumerate(reached):
        near[step, : min(LIMIT, len(rows))] = torch.tensor(rows[:LIMIT], device=device)
    return torch.tensor([len(rows) for rows in reached], device=device), near


def guess_in(state: State, pool: tuple[Any, ...], b: int) -> tuple[Any, Any, Any]:
    """b picks in a pool (G, c, n, floor, scale), from its first row on, and the one after them.

    Returns the positions (b + 1,), what was there (b + 1, 3: c, n, whether it adds anything), and
    the products of each new direction with all pool rows (b, size). G is FFᵀ − (FQᵀ)(FQᵀ)ᵀ.
    """
    if state.parts:
        from exempla.selection.device.single import fused_guess

        return fused_guess(state.rule, pool, b)
    return _plain_guess(state.rule, pool, b)


def _plain_guess(rule: Any, pool: tuple[Any, ...], b: int) -> tuple[Any, Any, Any]:
    """The same in torch: the fallback, and the reference for tests."""
    G, c, n, floor, scale = pool
    V = torch.zeros((b, len(c)), dtype=c.dtype, device=c.device)
    at, taken = [], []
    j = torch.zeros(1, dtype=torch.int64, device=c.device)
    for s in range(b + 1):
        if s:
            alive = torch.where(n > floor, scores(rule, c, n, scale), -torch.inf)
            j = torch.argmax(alive, dim=0, keepdim=True)
        cj, nj = c[j], n[j]
        fresh = nj > floor[j]
        at.append(j)
        taken.append(torch.cat([cj, nj, fresh.double()]))
        if s < b:
            root = torch.sqrt(torch.where(fresh, nj, 1.0))
            before = V[:s].index_select(1, j)[:, 0] @ V[:s]
            v = torch.where(fresh, (G.index_select(0, j)[0] - before) / root, 0.0)
            V[s] = v
            c = c - torch.where(fresh, cj / root, 0.0) * v
            n = (n - v * v).index_fill(0, j, -torch.inf)
    return torch.cat(at), torch.stack(taken), V


def mark(state: State, taken: Any, V: Any, picks: Any, said: Any) -> tuple[Any, Any]:
    """What the guessed steps are, and what other rows would have to reach.

    `taken` as from `guess_in`, V (b, b) its products with the picks, `said` as in `single`. Returns
    marks (5, b + 1): coefficients; bars for the pick after each step; slacks of c and of n; whether
    this and all before it have anything new. And the block (b, b) of L.
    """
    if state.parts:
        from exempla.selection.device.single import fused_mark

        return fused_mark(state, taken, V, picks, said)
    return plain_mark(state, taken, V, picks, said)


def plain_mark(state: State, taken: Any, V: Any, picks: Any, said: Any) -> tuple[Any, Any]:
    """The same in torch: the fallback, and the reference for tests."""
    b = len(V)
    c, n, fresh = taken.T
    valid = torch.cumprod(fresh, 0)
    root = torch.sqrt(torch.where(valid > 0, n, 1.0))
    coefs = torch.where(valid > 0, c / root, 0.0)
    block = torch.tril(V.T, -1) * valid[:b, None] + torch.diag(root[:b])
    norms2 = state.norms2[picks]
    sizes = c.abs() - _SPARE * state.target_norm * torch.sqrt(norms2)
    least = scores(state.rule, torch.clamp(sizes, min=0.0), n + _SPARE * norms2, state.scale[picks])
    bars = torch.where(valid > 0, least * (1 - TIE), torch.inf).roll(-1)
    drift = said[3] + torch.cumsum(coefs.abs(), 0)
    count = said[1] + said[2] + torch.arange(1, b + 2, device=c.device)
    slack_c, slack_n = state.slack(drift, count)
    return torch.stack([coefs, bars, slack_c, slack_n, valid]), block


class Recorded:
    """Work on tensors that keep their places and sizes, which one number decides.

    The first time it is simply done, which compiles what is to be compiled; from the second time on
    it is a CUDA graph. Recording takes as long as a few runs of the work: `worth` says whether
    there will be more. Without a GPU nothing is recorded.
    """

    def __init__(self, device: Any) -> None:
        self.on_gpu = device.type == "cuda"
        self.seen: set[int] = set()
        self.graphs: dict[int, Any] = {}

    def __call__(self, work: Callable[[int], None], size: int, worth: bool) -> None:
        """The same work each time: it is not kept, since it holds what holds this."""
        if self.on_gpu and worth and size in self.seen and size not in self.graphs:
            self.graphs[size] = record(work, size)
        if size in self.graphs:
            self.graphs[size].replay()
        else:
            work(size)
            self.seen.add(size)


def record(work: Callable[[int], None], size: int) -> Any:
    """A graph of the work; one of somebody else's that is collected meanwhile would spoil it.

    `torch.cuda.graph` would also collect garbage and give memory back, which takes longer than the
    passes that are saved.
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
