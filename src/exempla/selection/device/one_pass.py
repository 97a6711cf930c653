"""One pass per pick on the device, for several targets at once.

c and n of every candidate and target stand beside the rows, in float64. A pick takes three kernels
and a few small products, recorded as a CUDA graph, and one message to the host:

    _pick_kernel     orthogonalise the picked rows, update residuals, mark the rows as picked
    _update_kernel   one reading of the rows: c −= coef·v and n −= v² with v = F q, and the leaders
                     of each block of rows by upper bounds on the scores
    _lead_kernel     the leader of each target, and whether another row could be as good

Products are summed in float32 from two bfloat16 parts, with the error bound of `kernels`. Where
another row could be as good as a leader, both are measured in float64. The host loop takes over
whatever is unusual: a target that is matched, and a pick that adds nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from exempla.selection.device.kernels import (
    BLOCK_ROUNDING,
    error_bound,
    interpreted,
    jit,
    row_products,
    tl,
    triton,
    within_reach,
)
from exempla.selection.device.lookahead import Recorded
from exempla.selection.engine import MATCHED_RATIO, REFRESH_RATIO, Run, score_bounds
from exempla.selection.rows import Rule, first_of_best, tie_threshold

# pyright: reportIndexIssue=false, reportOptionalMemberAccess=false, reportInvalidTypeForm=false
# pyright: reportOperatorIssue=false, reportGeneralTypeIssues=false

MAX_TARGETS = 64
"""Targets of one pass."""
_MAX_MEASURED = 2**27
"""Numbers of the directions of all targets whose leaders are measured in float64 at a time."""
_PARTS, _LANES = 2, 1024
"""bfloat16 parts of each factor; blocks of rows that `_lead_kernel` compares at a time."""
_TILES = {16: (64, 32, 4, 3), MAX_TARGETS: (16, 64, 4, 3)}
"""Rows and depth of a tile, warps and stages of `_update_kernel`, for up to so many targets: the
fastest of seven or eight on an H200."""


@jit
def _pick_kernel(
    chosen, f, u, h, residual, Q, L, coefs, split, norms2, n, drift, marks, norms, m, constants,
    t, p, room, ROW: tl.constexpr, ROOM: tl.constexpr, COLUMNS: tl.constexpr,
    NOISY: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """Add the picked row of one target to its basis. A number passed would be float32."""
    i = tl.program_id(0)
    at, lanes = tl.arange(0, ROW), tl.arange(0, ROOM)
    inside, there = at < p, lanes < room
    j, size = tl.load(chosen + i), tl.load(m)
    noise, error, rounding = tl.load(constants), tl.load(constants + 1), tl.load(constants + 2)
    row = tl.load(f + i * p + at, mask=inside, other=0.0)
    new = tl.load(u + i * p + at, mask=inside, other=0.0)
    r = tl.load(residual + i * p + at, mask=inside, other=0.0)
    along = tl.load(h + i * room + lanes, mask=there, other=0.0)
    if NOISY:
        left = tl.load(norms2 + j) + noise - tl.sum(along * along, 0)
    else:
        left = tl.sum(new * new, 0)
    root = tl.sqrt(left)
    coef = tl.sum(row * r, 0) / root
    q = new / root
    r -= coef * q
    tl.store(residual + i * p + at, r, mask=inside)
    tl.store(Q + (i * room + size) * p + at, q, mask=inside)
    along = tl.where(lanes == size, root, along)
    tl.store(L + (i * room + size) * room + lanes, along, mask=there)
    tl.store(coefs + i * room + size, coef)
    rest = q
    for part in tl.static_range(PARTS):
        some = rest.to(tl.float32).to(tl.bfloat16)
        rest -= some.to(tl.float32).to(tl.float64)
        tl.store(split + (part * p + at) * COLUMNS + i, some, mask=inside)
    tl.store(n + i.to(tl.int64) * t + j, -float("inf"))
    moved = tl.load(drift + i) + tl.abs(coef)
    tl.store(drift + i, moved)
    length = tl.load(constants + 3 + i)
    tl.store(marks + i, coef)
    tl.store(marks + COLUMNS + i, error * moved + rounding * length)
    tl.store(marks + 2 * COLUMNS + i, 2.0 * error * tl.sqrt((size + 1).to(tl.float64)) + rounding)
    tl.store(norms + i, tl.sqrt(tl.sum(r * r, 0)))


@jit
def _update_kernel(
    F, split, marks, c, n, lengths, floor, scale, best, first, second, sure, t, p, count,
    RULE: tl.constexpr, PARTS: tl.constexpr, WIDEN: tl.constexpr,
    ROWS: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Apply one pick per target to a block of rows; find its leader, and the next best score."""
    block = tl.program_id(0)
    rows = block * ROWS + tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    inside = rows < t
    v = row_products(F, split, rows, inside, p, PARTS, WIDEN, ROWS, DEPTH, COLUMNS).to(tl.float64)
    there = columns[None, :].to(tl.int64) * t + rows[:, None]
    mask = inside[:, None] & (columns < count)[None, :]
    coef = tl.load(marks + columns)
    more, less = tl.load(marks + COLUMNS + columns), tl.load(marks + 2 * COLUMNS + columns)
    length = tl.load(lengths + rows, mask=inside, other=0.0)
    lowest = tl.load(floor + rows, mask=inside, other=0.0)
    factor = tl.load(scale + rows, mask=inside, other=0.0)
    cs = tl.load(c + there, mask=mask, other=0.0) - coef[None, :] * v
    ns = tl.load(n + there, mask=mask, other=-float("inf")) - v * v
    tl.store(c + there, cs, mask=mask)
    tl.store(n + there, ns, mask=mask)
    error = less[None, :] * (length * length)[:, None]
    slack = more[None, :] * length[:, None]
    most, least = tl.abs(cs) + slack, tl.maximum(tl.abs(cs) - slack, 0.0)
    if RULE == 0:
        upper, lower = most * most / tl.maximum(ns - error, 1e-300), least * least / (ns + error)
    else:
        upper, lower = most * most * factor[:, None], least * least * factor[:, None]
    upper = tl.where(ns + error > lowest[:, None], upper, -float("inf"))
    lower = tl.where(ns - error > lowest[:, None], lower, 0.0)
    top, place = tl.max(upper, 0), tl.argmax(upper, 0)
    rest = tl.where(tl.arange(0, ROWS)[:, None] == place[None, :], -float("inf"), upper)
    at = block * COLUMNS + columns
    tl.store(best + at, top)
    tl.store(first + at, (block * ROWS + place).to(tl.int64))
    tl.store(second + at, tl.max(rest, 0))
    tl.store(sure + at, tl.max(lower, 0))


@jit
def _lead_kernel(
    best, first, second, sure, chosen, report, constants, blocks,
    COLUMNS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Find the leader of one target, and whether the score of another row may be as high."""
    i = tl.program_id(0)
    lanes = tl.arange(0, LANES)
    top = tl.full((LANES,), -float("inf"), tl.float64)
    rival = tl.full((LANES,), -float("inf"), tl.float64)
    lower = tl.full((LANES,), 0.0, tl.float64)
    row = tl.full((LANES,), 0, tl.int64)
    for start in range(0, blocks, LANES):
        at, there = (start + lanes) * COLUMNS + i, start + lanes < blocks
        value = tl.load(best + at, mask=there, other=-float("inf"))
        other = tl.load(second + at, mask=there, other=-float("inf"))
        which = tl.load(first + at, mask=there, other=0)
        lower = tl.maximum(lower, tl.load(sure + at, mask=there, other=0.0))
        better = value > top
        rival = tl.maximum(tl.maximum(rival, other), tl.where(better, top, value))
        row = tl.where(better, which, row)
        top = tl.where(better, value, top)
    highest = tl.max(top, 0)
    lane = tl.argmax(top, 0)
    j = tl.sum(tl.where(lanes == lane, row, 0), 0)
    rival = tl.maximum(rival, tl.where(lanes == lane, -float("inf"), top))
    bar = tl.max(lower, 0)
    certain = (bar > 0.0) & (tl.max(rival, 0) < bar * (1.0 - tl.load(constants + 2)))
    tl.store(chosen + i, j)
    tl.store(report + 4 * i, j.to(tl.float64))
    tl.store(report + 4 * i + 1, tl.where(highest > -float("inf"), 1.0, 0.0).to(tl.float64))
    tl.store(report + 4 * i + 2, tl.where(certain, 1.0, 0.0).to(tl.float64))
    tl.store(report + 4 * i + 3, bar)


class OnePass:
    """The picks of up to `MAX_TARGETS` runs that have picked nothing yet."""

    def __init__(
        self, rows: Any, candidates: np.ndarray, runs: list[Run], k: int, noise: float, rule: Rule
    ) -> None:
        self.rows, self.runs, self.k, self.noise, self.rule = rows, runs, k, noise, rule
        self.F, device, count = rows.array, rows.array.device, len(runs)
        kwargs: dict[str, Any] = {"dtype": torch.float64, "device": device}
        self.columns = max(16, triton.next_power_of_2(count))
        self.block_rows, *_ = self.tile = _TILES[next(most for most in _TILES if count <= most)]
        self.blocks = triton.cdiv(rows.t, self.block_rows)
        self.norms2, self.lengths = rows.norms2_here, torch.sqrt(rows.norms2_here)
        self.floor = self.norms2 * rows.tolerance
        self.scale = torch.where(self.norms2 > 0, 1.0 / (self.norms2 + noise), 0.0)
        norms = [run.basis.target_norm for run in runs]
        error = error_bound(_PARTS, rows.p)
        settings = [noise, error, BLOCK_ROUNDING, *norms]
        self.constants = torch.tensor(settings, **kwargs)
        self.residual = torch.tensor(np.stack([run.basis.residual for run in runs]), **kwargs)
        kept = rows.here(candidates & (rows.norms2 > 0))
        self.n = torch.where(kept, self.norms2 + noise, -torch.inf)
        self.c = torch.empty_like(self.n)
        self.Q = torch.zeros((count, k, rows.p), **kwargs)
        self.L = torch.zeros((count, k, k), **kwargs)
        self.coefs = torch.zeros((count, k), **kwargs)
        self.m = torch.zeros(1, dtype=torch.int64, device=device)
        self.chosen = torch.zeros(count, dtype=torch.int64, device=device)
        self.drift, self.norms = torch.zeros((2, count), **kwargs)
        self.marks = torch.zeros((3, self.columns), **kwargs)
        """Of each target: coefficient of the last pick, slack of c in ‖f‖, of n in ‖f‖²."""
        parts = (_PARTS, rows.p, self.columns)
        self.split = torch.zeros(parts, dtype=torch.bfloat16, device=device)
        self.best, self.second, self.sure = torch.empty((3, self.blocks, self.columns), **kwargs)
        """Of each block the two highest upper bounds, and the highest lower bound."""
        self.first = torch.empty((self.blocks, self.columns), dtype=torch.int64, device=device)
        self.report = torch.zeros(5 * count, **kwargs)
        """Of each target the leader, whether there is one, whether it is certain, and the highest
        lower bound; then ‖r‖ of all."""
        self.target_norms, self.fresh_norms = np.array(norms), np.array(norms)
        self.recorded = Recorded(device)

    def pick(self) -> None:
        """Pick until k, or until a step that only the host loop can make."""
        self._refresh(list(range(len(self.runs))))
        made = 0
        while made < self.k and (picks := self._chosen()):
            self.recorded(self._step, 1, worth=self.k > 8)
            made += 1
            for run, j in zip(self.runs, picks):
                run.indices.append(j)
            self.received = self.report.cpu().numpy()
            norms = self.received[4 * len(self.runs) :]
            if self.noise == 0.0 and (norms < MATCHED_RATIO * self.target_norms).any():
                break
            stale = np.flatnonzero(norms <= REFRESH_RATIO * self.fresh_norms).tolist()
            if stale and made < self.k:
                self._refresh(stale)
        self._finish(made)

    # -- one step ---------------------------------------------------------------------------------

    def _step(self, apply: int) -> None:
        """Apply the chosen rows, if `apply`, and find the next leaders."""
        count, (t, p), columns = len(self.runs), self.F.shape, self.columns
        rows, depth, warps, stages = self.tile
        if apply:
            f = self.F[self.chosen].double()[:, None]
            h = f @ self.Q.mT
            u = torch.baddbmm(f, h, self.Q, alpha=-1)
            if self.noise == 0.0:  # twice is enough; with noise, directions are not orthonormal
                again = u @ self.Q.mT
                u, h = torch.baddbmm(u, again, self.Q, alpha=-1), h + again
            _pick_kernel[(count,)](
                self.chosen, f, u, h, self.residual, self.Q, self.L, self.coefs, self.split,
                self.norms2, self.n, self.drift, self.marks, self.norms, self.m, self.constants,
                t, p, self.k, ROW=triton.next_power_of_2(p), ROOM=triton.next_power_of_2(self.k),
                COLUMNS=columns, NOISY=self.noise > 0.0, PARTS=_PARTS, num_warps=8,
            )  # fmt: skip
            self.m += 1
        _update_kernel[(self.blocks,)](
            self.F, self.split, self.marks, self.c, self.n, self.lengths, self.floor, self.scale,
            self.best, self.first, self.second, self.sure, t, p, count,
            RULE=int(self.rule), PARTS=_PARTS, WIDEN=interpreted(),
            ROWS=rows, DEPTH=depth, COLUMNS=columns, num_warps=warps, num_stages=stages,
        )  # fmt: skip
        _lead_kernel[(count,)](
            self.best, self.first, self.second, self.sure, self.chosen, self.report,
            self.constants, self.blocks, COLUMNS=columns, LANES=_LANES, num_warps=4,
        )  # fmt: skip
        self.report[4 * count :] = self.norms

    def _refresh(self, targets: list[int]) -> None:
        """Recompute c of these targets in float64, and all leaders."""
        for i, c in zip(targets, self.rows.products(self.residual[targets])):
            self.c[i] = c
        torch.linalg.vector_norm(self.residual, dim=1, out=self.norms)
        self.fresh_norms[targets] = self.norms.cpu().numpy()[targets]
        self.drift[targets] = 0.0
        self.split.zero_()
        error, count = float(self.constants[1]), len(self.runs)
        self.marks[0] = 0.0
        self.marks[1, :count] = error * self.drift + BLOCK_ROUNDING * self.constants[3:]
        self.marks[2] = 2.0 * error * math.sqrt(float(self.m)) + BLOCK_ROUNDING
        self._step(0)
        self.received = self.report.cpu().numpy()

    # -- the next picks ---------------------------------------------------------------------------

    def _chosen(self) -> list[int]:
        """Return the next pick of every target; none if only the host loop can tell."""
        rows, alive, certain, lower = self.received[: 4 * len(self.runs)].reshape(-1, 4).T
        picks = rows.astype(np.int64)
        if not alive.all():
            return []
        contested = np.flatnonzero(certain == 0.0)
        if len(contested):
            picks[contested] = self._settled(contested, lower[contested])
            self.chosen.copy_(torch.from_numpy(picks))
        return picks.tolist() if (picks >= 0).all() else []

    def _settled(self, targets: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Return the best of the rows that may win, the lowest of ties; −1 if it is not known."""
        found = np.full(len(targets), -1)
        if not (lower > 0.0).all():  # perhaps no row adds anything
            return found
        which, bars = (self.rows.here(x) for x in (targets, tie_threshold(lower)))
        block, place = torch.nonzero(self.best[:, which] >= bars, as_tuple=True)
        target, rows = which[place], self.first[block, which[place]]
        # the leaders of blocks, and of a block with two such rows all of them
        crowded = torch.nonzero((self.second[:, which] >= bars).any(0))[:, 0].tolist()
        for i in crowded:
            j = int(targets[i])
            slacks, others = self.marks[1:, j], target != j
            near = within_reach(self, self.c[j], self.n[j], *slacks, float(bars[i]))
            rows = torch.cat([rows[others], near])
            target = torch.cat([target[others], torch.full_like(near, j)])
        if len(rows) * self.Q[0].numel() > _MAX_MEASURED:
            return found
        f = self.F[rows].double()
        squared, inside = (f * f).sum(1), (self.Q[target] @ f[:, :, None])[:, :, 0]
        n = squared + self.noise - (inside * inside).sum(1)
        parts = [target, rows, (f * self.residual[target]).sum(1), n, squared]
        known = torch.stack([part.double() for part in parts]).cpu().numpy()
        spent = n <= self.rows.tolerance * squared  # as copies of picked rows: never asked again
        self.n[target[spent], rows[spent]] = -torch.inf
        for i, j in enumerate(targets.tolist()):
            own = known[:, known[0] == j]
            own = own[:, np.argsort(own[1])]
            best = first_of_best(*score_bounds(own[2:], self.runs[j].basis, self.rule))
            found[i] = int(own[1, best]) if best >= 0 else -1
        return found

    def _finish(self, made: int) -> None:
        """Write the bases to the runs."""
        lower, coefs = self.L[:, :made, :made].cpu().numpy(), self.coefs[:, :made].cpu().numpy()
        picked = self.rows.take(np.array([run.indices for run in self.runs], np.int64).ravel())
        for i, run in enumerate(self.runs):
            own = picked[i * made : (i + 1) * made]
            run.basis = run.basis.refactored(own, lower[i], coefs[i])
