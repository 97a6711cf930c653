"""Many targets at once on the device: each pick of all of them is one product of matrices.

With many targets the products are what costs, and running ahead would not save any. All sums are
in float64; a target whose best row is not alone within rounding is settled by itself, and one that
runs out of rows is left to the loop on the host.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from exempla.selection.basis import Basis
from exempla.selection.candidates.base import Rule
from exempla.selection.device.state import measure, scores
from exempla.selection.run import FALL, RESIDUAL, Run, measured_bounds
from exempla.selection.ties import ROUNDING, TIE, first_of_best

__all__ = ["run_together"]

ENTRIES = {"cuda": 1 << 27, "cpu": 1 << 24}
"""Targets × rows whose c and n are kept at a time."""
SCORED = 1 << 24
"""Targets × rows that are compared at a time."""


def run_together(
    rows: Any, candidates: np.ndarray, runs: list[Run], k: int, noise: float, rule: Rule
) -> None:
    """Pick for all runs, from nothing, in groups that fit into memory."""
    most = max(1, ENTRIES.get(rows.array.device.type, ENTRIES["cpu"]) // (rows.t + k * rows.p))
    for start in range(0, len(runs), most):
        here = slice(start, start + most)
        Together(rows, candidates[here], runs[here], k, noise, rule).run()


class Together:
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
        step = max(1, SCORED // self.rows.t)
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
