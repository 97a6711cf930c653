"""Many targets at once on the device: each pick of all targets is one matrix product.

With many targets the products dominate the cost, and lookahead would not save any. All sums are in
float64. `kernels.score_targets` updates c and n and finds the leader of every tile of rows in one
pass over them. A target whose leader is not alone within rounding is settled by itself, and one
that runs out of rows is left to the host loop.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from exempla.selection.device.kernels import (
    TARGET_ROWS,
    inverse_squares,
    measure,
    score_targets,
    scores,
)
from exempla.selection.engine import MATCHED_RATIO, REFRESH_RATIO, Basis, Run, measured_bounds
from exempla.selection.rows import RELATIVE_TIE, ROUNDING, Rule, first_of_best

MAX_ENTRIES = {"cuda": 1 << 27, "cpu": 1 << 24}
"""Targets × rows whose c and n are kept at a time."""


def run_many(
    rows: Any, candidates: np.ndarray, runs: list[Run], k: int, noise: float, rule: Rule
) -> None:
    """Pick for all runs, from the beginning, in groups that fit into memory."""
    entries = MAX_ENTRIES.get(rows.array.device.type, MAX_ENTRIES["cpu"])
    most = max(1, entries // (rows.t + k * rows.p))
    for start in range(0, len(runs), most):
        here = slice(start, start + most)
        _Targets(rows, candidates[here], runs[here], k, noise, rule).run()


class _Targets:
    """The state of some targets, pick by pick."""

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
        self.active = torch.ones(count, dtype=torch.bool, device=device)
        self.floor = rows.norms2_here * rows.tolerance
        self.lengths = torch.sqrt(rows.norms2_here)
        self.scale = inverse_squares(rows, noise)
        self.constants = torch.tensor([ROUNDING], **kwargs)
        kept = rows.here(candidates & (rows.norms2 > 0))
        self.n = torch.where(kept, rows.norms2_here + noise, -torch.inf)
        self.c = torch.empty_like(self.n)
        step = max(rows.block_rows, min(1024, 8 * count))
        starts = range(0, rows.t, step)
        tiles = [-(-min(step, rows.t - start) // TARGET_ROWS) for start in starts]
        self.first_tile = dict(zip(starts, np.cumsum([0, *tiles]).tolist()))
        """Number of the first tile of each block of rows."""
        self.best, self.upper, self.rival = (
            torch.empty((count, sum(tiles)), **kwargs) for _ in range(3)
        )
        self.where = torch.empty((count, sum(tiles)), dtype=torch.int64, device=device)
        self._refresh(torch.arange(count, device=device))

    def run(self) -> None:
        """Make all picks, then write the bases."""
        for m in range(self.k):
            picks = self._decide(m)
            if picks is None:
                break
            self._take(m, picks)
            if m + 1 < self.k:
                self._update(m)
        self._finish()

    def _decide(self, m: int) -> Any:
        """Return the next row of every target; None if no target is active."""
        score, tile = self.best.max(1, keepdim=True)
        best = self.where.gather(1, tile)[:, 0]
        others = self.upper.scatter(1, tile, -torch.inf)
        rival = torch.maximum(others.amax(1), self.rival.amax(1))
        if self.noise == 0.0:
            norms = torch.linalg.vector_norm(self.residual, dim=1)
            self.active &= norms >= MATCHED_RATIO * self.sizes
        self.active &= score[:, 0] > -torch.inf
        contested = self.active & (rival >= self._threshold(best))
        active, some = torch.stack([self.active.any(), contested.any()]).tolist()
        if not active:
            return None
        for i in torch.nonzero(contested)[:, 0].tolist() if some else []:
            best[i] = self._settled(m, i, int(best[i]))
        self.active &= best >= 0
        return torch.where(self.active, best, 0)

    def _threshold(self, best: Any) -> Any:
        """Return the lowest score that counts as equal to that of the best rows."""
        at = best[:, None]
        c, n = self.c.gather(1, at)[:, 0], self.n.gather(1, at)[:, 0]
        length = self.lengths[best]
        size = torch.clamp(c.abs() - ROUNDING * self.sizes * length, min=0.0)
        n = n + ROUNDING * length * length
        return scores(self.rule, size, n, self.scale[best]) * (1 - RELATIVE_TIE)

    def _settled(self, m: int, i: int, best: int) -> int:
        """Return the best of the rows that may equal the leader of target i, the lowest of ties."""
        leaders = torch.full_like(self.picks[:, 0], best)
        threshold = self._threshold(leaders)[i]
        most = self.c[i].abs() + ROUNDING * self.sizes[i] * self.lengths
        error = ROUNDING * self.rows.norms2_here
        if self.rule is Rule.GAIN:
            reach = most * most >= threshold * (self.n[i] - error)
        else:
            reach = most * most * self.scale >= threshold
        near = torch.nonzero(reach & (self.n[i] + error > self.floor))[:, 0]
        rows = self.rows.array[near].double()
        found = measure(rows, self.Q[i, :m], self.residual[i], self.noise)
        size, tolerance = float(self.sizes[i]), self.rows.tolerance
        which = first_of_best(*measured_bounds(found, self.noise, size, tolerance, self.rule))
        return int(near[which]) if which >= 0 else -1

    def _take(self, m: int, picks: Any) -> None:
        """Gram–Schmidt for all targets; a target whose row adds nothing new stops here."""
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
        self.active &= n > self.rows.tolerance * squared
        root = torch.sqrt(torch.where(self.active, n, 1.0))
        kept = self.active[:, None]
        q = torch.where(kept, u / root[:, None], 0.0)
        source = u if self.noise == 0.0 else rows
        coef = torch.where(self.active, (source * self.residual).sum(1) / root, 0.0)
        self.Q[:, m], self.coefs[:, m] = q, coef
        self.L[:, m, :m], self.L[:, m, m] = h, root
        self.residual -= coef[:, None] * q
        self.picks[:, m] = picks
        self.done += self.active
        out = torch.where(kept, -torch.inf, self.n.gather(1, picks[:, None]))
        self.n.scatter_(1, picks[:, None], out)

    def _update(self, m: int) -> None:
        """Multiply all rows by all new directions; update c, n and the leaders."""
        q, coefs = self.Q[:, m].contiguous(), self.coefs[:, m].contiguous()
        for part, block in self.rows.blocks(len(self.runs)):
            score_targets(self, part, self.first_tile[part.start], q @ block.T, coefs)
        norms = torch.linalg.vector_norm(self.residual, dim=1)
        stale = torch.nonzero(norms <= REFRESH_RATIO * self.fresh)[:, 0]
        if len(stale):
            self._refresh(stale)

    def _refresh(self, which: Any) -> None:
        """Recompute c of these targets, and all leaders."""
        residual = self.residual[which]
        for part, block in self.rows.blocks(len(self.runs)):
            self.c[which, part] = residual @ block.T
            score_targets(self, part, self.first_tile[part.start], None, None)
        self.fresh[which] = torch.linalg.vector_norm(residual, dim=1)

    def _finish(self) -> None:
        """Write a basis to every run."""
        done, picks = self.done.tolist(), self.picks.cpu().numpy()
        lower, coefs = self.L.cpu().numpy(), self.coefs.cpu().numpy()
        for i, run in enumerate(self.runs):
            m, old = done[i], run.basis
            run.indices = picks[i, :m].tolist()
            rows = self.rows.take(picks[i, :m])
            run.basis = Basis.from_factor(
                old.target, old.noise, old.tolerance, rows, lower[i, :m, :m], coefs[i, :m]
            )
