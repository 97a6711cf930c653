"""Float64 state of one run beside the rows: Gram–Schmidt in blocks, c and n of every candidate.

What `basis.Basis` does pick by pick on the host is done here for several picks at once: their
products are matrices, and nothing is asked of the host in between. L is the Cholesky factor of
K_SS + σ²I; everything else about the basis follows from it (`finished`).

Guesses become part of the run one pass later than they are made: a pass first takes in what was
right of the last one. So every pass does the same to tensors of the same sizes in the same places,
and can be recorded (`recorded`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from exempla.selection.basis import Basis
from exempla.selection.candidates.base import Rule
from exempla.selection.run import Run
from exempla.selection.ties import TIE

__all__ = ["SPARE", "Guess", "State", "measure", "scores"]

SPARE = 1e-10
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
        slack_c = self.error * drift + SPARE * self.target_norm
        return slack_c, 2.0 * self.error * m**0.5 + SPARE

    def use_parts(self, parts: int) -> None:
        """Products of so many parts of eight bits, in float32; with 0 all is float64."""
        self.parts, self.error = parts, 0.0
        if parts:
            from exempla.selection.device.fused import error_bound

            self.error = error_bound(parts, self.rows.p)
        self.constants = torch.tensor([self.target_norm, self.error, SPARE, TIE], **self.kwargs)

    def sharpen(self) -> None:
        """Products of three parts from now on, and c and n anew."""
        self.use_parts(3)
        self._deflate()
        self.refresh()

    def refresh(self) -> None:
        """c anew, in float64."""
        if self.parts:
            from exempla.selection.device.fused import fused_products

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
            from exempla.selection.device.fused import fused_catch_up

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
