"""Certificates: what is proved about a finished selection, and what is only estimated.

g(S) = z_S'(K_SS + σ²I)⁻¹z_S is what a set S explains of ‖μ‖²; S*_r is the best set of r rows.

(a) g(S) ≤ ‖Pμ‖² for every set, P being the projection on the span of the candidates.
(b) With noise, every set of gains given L obeys Σ_j g(j|L) ≥ γ·g(S|L), γ ≥ σ²/(σ² + max‖f‖²):
    the residual Gram matrix has no eigenvalue below σ² and no diagonal entry above σ² + max‖f‖².
    Hence exact greedy gives g(S_k) ≥ (1 − e^{−γk/r})·g(S*_r).
(c) g(S*_r) ≤ g(S_i) + (1/γ)·(sum of the r largest gains given S_i), for every prefix S_i of any
    selection; for r = 1 and i = 0 even with γ = 1.

Theorem 1 of the paper uses sparse eigenvalues, which cannot be computed; m/M on the selection alone
is an optimistic stand-in and is labelled an estimate.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from exempla.arrays import Array
from exempla.checks import whole_number
from exempla.errors import ExemplaError
from exempla.results import Selection
from exempla.selection.basis import Basis
from exempla.selection.candidates.base import Rows
from exempla.selection.inputs import alignment_of, as_rows, as_targets, side_of

__all__ = ["Certificate", "Curve", "Statement", "certificate"]

ROUNDING = 1e-9
"""Certified bounds are widened by this share, far above what rounding can do to them."""
AMPLE = 1e-6
"""Unit rows whose smallest singular value is above this span everything beyond doubt."""
BUDGET = 1e9
"""Multiplications the cheap level spends on finding the span before it settles for ‖μ‖²."""


@dataclass(frozen=True)
class Statement:
    """One sentence about the selection, with its number and its standing."""

    name: str
    status: Literal["certified", "estimated"]
    value: float
    meaning: str


@dataclass(frozen=True)
class Curve:
    """Posterior variance after 0, 1, … k picks, against its bounds (one entry per pick count)."""

    measured: list[float]
    floor: list[float]
    """Certified: no set of that many candidates comes below."""
    ceiling: list[float]
    """Certified: greedy could not have stayed above (exact SBQ with noise; else ‖μ‖²)."""
    theorem1: list[float]
    """Estimated: the paper's rate with m/M taken on the selection."""


@dataclass(frozen=True)
class Certificate:
    """What is known about a selection. `to_dict()` is plain data for JSON."""

    statements: tuple[Statement, ...]
    curve: Curve
    r: int
    level: str

    def __getitem__(self, name: str) -> Statement:
        for statement in self.statements:
            if statement.name == name:
                return statement
        raise KeyError(name)

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values."""
        return {
            "statements": [asdict(statement) for statement in self.statements],
            "curve": asdict(self.curve),
            "r": self.r,
            "level": self.level,
        }


def certificate(
    features: Array,
    selection: Selection,
    target: Array,
    *,
    r: int | None = None,
    level: Literal["cheap", "full"] = "cheap",
) -> Certificate:
    """Certify a finished selection.

    Parameters
    ----------
    features, target
        What the selection was made from.
    selection : Selection
        Any selector's result.
    r : int, optional
        Size of the competing sets; as many as were picked if not given.
    level : "cheap" or "full"
        Cheap reads the rows about twice and bounds competitors from the start alone; full replays
        the selection (as much arithmetic as k picks) and takes the best bound over all steps.

    >>> import numpy as np
    >>> from exempla.selection import SBQ, select
    >>> rows = np.random.default_rng(0).standard_normal((30, 4))
    >>> target = rows.mean(axis=0)
    >>> proof = certificate(rows, select(rows, target, 3, SBQ(noise=5.0)), target, level="full")
    >>> proof["weak_submodularity"].status, proof["theorem_1"].status
    ('certified', 'estimated')
    >>> bool(0 < proof["share_of_best_set"].value <= 1)
    True
    """
    rows, μ, candidates, z, r = _read(features, selection, target, r, level)
    norm2 = float(μ @ μ)
    noise = selection.noise
    reached = float(selection.gains.sum())
    span = _span_bound(rows, candidates, μ, None if level == "full" else BUDGET)
    largest = float(rows.norms2[candidates].max(initial=0.0))
    γ = noise / (noise + largest) if largest else 1.0
    bounds = _best_set_bounds(rows, selection, μ, candidates, z, γ, span, r, level)
    exact = selection.selector == "SBQ" and noise > rows.tolerance * largest
    guarantee = 1.0 - math.exp(-γ * len(selection) / r) if exact else 0.0
    ratio = _eigenvalue_ratio(rows, selection)
    statements = (
        Statement(
            "share_of_span",
            "certified",
            min(1.0, reached / span) if span else 1.0,
            "what the selection explains, as a share of the most that any weighted set of "
            "candidates, of any size, can explain",
        ),
        Statement(
            "weak_submodularity",
            "certified",
            γ,
            "the gains of single rows add up to at least this share of their joint gain, for "
            "every set" + ("" if noise else "; without noise nothing better than 0 is proved"),
        ),
        Statement("greedy_guarantee", "certified", guarantee, _greedy_words(exact, selection, r)),
        Statement(
            "best_set",
            "certified",
            float(bounds[r]) / norm2,
            f"no set of {r} candidates explains a larger share of the target than this",
        ),
        Statement(
            "share_of_best_set",
            "certified",
            min(1.0, reached / float(bounds[r])) if bounds[r] else 1.0,
            f"what the selection explains is at least this share of what the best {r} "
            "candidates explain",
        ),
        Statement(
            "theorem_1",
            "estimated",
            ratio,
            "m/M of the paper's Theorem 1 with the eigenvalues of the selected rows alone in "
            "place of the sparse eigenvalues, which cannot be computed: optimistic",
        ),
    )
    curve = _curve(selection, norm2, bounds, γ if exact else 0.0, ratio)
    return Certificate(statements, curve, r, level)


def _read(
    features: Array, selection: Selection, target: Array, r: int | None, level: str
) -> tuple[Rows, np.ndarray, np.ndarray, np.ndarray, int]:
    rows = as_rows(features)
    targets, single = as_targets(target, rows.p)
    μ = targets[0]
    if not single:
        raise ExemplaError("certify one target at a time; give a target of shape (p,)")
    if not np.isclose(float(μ @ μ), selection.target_norm2, rtol=1e-6):
        raise ExemplaError("the selection was made for another target; give its own")
    if len(selection) and int(selection.indices.max()) >= rows.t:
        raise ExemplaError("the selection was made from other features; give those")
    if level not in ("cheap", "full"):
        raise ExemplaError(f"level is {level!r}; choose 'cheap' or 'full'")
    if r is None:
        r = max(1, len(selection))
    if not whole_number(r) or not 1 <= r <= rows.t:
        raise ExemplaError(f"r is {r!r}; give a whole number from 1 to {rows.t}")
    z = alignment_of(rows, targets)[0]
    return rows, μ, side_of(z, selection.side) & (rows.norms2 > 0), z, int(r)


def _greedy_words(exact: bool, selection: Selection, r: int) -> str:
    if exact:
        return (
            f"the {len(selection)} greedy picks explain at least this share of what the best "
            f"{r} candidates explain: 1 − exp(−γ·{len(selection)}/{r}), known before selecting"
        )
    return "nothing is proved in advance: that takes exact SBQ with noise"


def _span_bound(rows: Rows, candidates: np.ndarray, μ: np.ndarray, budget: float | None) -> float:
    """‖Pμ‖², or ‖μ‖² (always a bound) if the budget runs out first.

    Row lengths do not change the span, so unit rows are used; a QR factor is carried from block
    to block, which keeps singular values to 1e-16 where a Gram matrix would keep 1e-8.
    """
    norm2 = float(μ @ μ)
    chosen = np.flatnonzero(candidates)
    if not len(chosen):
        return 0.0
    step = max(1024, 2 * rows.p)
    R, spent = np.empty((0, rows.p)), 0.0
    for start in range(0, len(chosen), step):
        part = chosen[start : start + step]
        height = len(R) + len(part)
        spent += float(height) * rows.p * min(height, rows.p)
        if budget is not None and spent > budget:
            return norm2
        unit = rows.take(part) / np.sqrt(rows.norms2[part])[:, None]
        R = np.linalg.qr(np.vstack([R, unit]), mode="r")
        if len(R) == rows.p and np.linalg.svd(R, compute_uv=False)[-1] > AMPLE:
            return norm2  # everything is spanned already
    _, singular, directions = np.linalg.svd(R, full_matrices=False)
    # Singular values at the level of rounding are not told from zero; all others count.
    real = singular > 64 * np.finfo(float).eps * np.sqrt(len(chosen))
    inside = directions[real] @ μ
    return min(norm2, float(inside @ inside) * (1 + ROUNDING))


def _best_set_bounds(
    rows: Rows,
    selection: Selection,
    μ: np.ndarray,
    candidates: np.ndarray,
    z: np.ndarray,
    γ: float,
    span: float,
    r: int,
    level: str,
) -> np.ndarray:
    """Bounds on g(S*_s) for s = 0 … max(r, k): statement (c), never above statement (a)."""
    most = max(r, len(selection))
    gains = np.where(candidates, z * z / np.where(candidates, rows.norms2 + selection.noise, 1), 0)
    first = _largest(gains[:, None], most)
    steps, explained = first, np.zeros(1)
    if level == "full" and γ > 0 and len(selection):
        steps, explained = _replay(rows, selection, μ, candidates, most)
    bounds = np.full(most + 1, span)
    bounds[0] = 0.0
    if γ > 0:
        sums = np.cumsum(steps, axis=0) / γ + explained
        bounds[1:] = np.minimum(bounds[1:], sums.min(axis=1) * (1 + ROUNDING))
    bounds[1] = min(bounds[1], first[0, 0] * (1 + ROUNDING))
    return bounds


def _largest(gains: np.ndarray, count: int) -> np.ndarray:
    """(count, …) the largest entries of each column, descending, padded with zeros."""
    if len(gains) > count:
        gains = np.partition(gains, len(gains) - count, axis=0)[-count:]
    out = np.zeros((count, gains.shape[1]))
    out[: len(gains)] = -np.sort(-gains, axis=0)
    return out


def _replay(
    rows: Rows, selection: Selection, μ: np.ndarray, candidates: np.ndarray, count: int
) -> tuple[np.ndarray, np.ndarray]:
    """The largest gains at every step (count, k+1), and what was explained by then (k+1,)."""
    basis = Basis(μ, selection.noise, rows.tolerance)
    picked_at = {}  # row → number of directions from which on it is out
    for j, row in zip(selection.indices, rows.take(selection.indices)):
        basis.add(row)
        picked_at[int(j)] = basis.size
    coefs = np.concatenate([[0.0], basis.coefs])
    Q = np.vstack([np.zeros(rows.p), basis.directions])
    largest = np.zeros((count, len(Q)))
    step = max(1, (1 << 24) // (8 * max(rows.p, len(Q))))
    chosen = np.flatnonzero(candidates)
    for start in range(0, len(chosen), step):
        part = chosen[start : start + step]
        block = rows.take(part)
        V = block @ Q.T
        c = (block @ μ)[:, None] - np.cumsum(coefs * V, axis=1)
        n = (rows.norms2[part] + selection.noise)[:, None] - np.cumsum(V * V, axis=1)
        # n is at least σ² in exact arithmetic.
        gains = c * c / np.maximum(n, selection.noise)
        for position in np.flatnonzero(np.isin(part, selection.indices)):
            gains[position, picked_at[int(part[position])] :] = 0.0
        largest = _largest(np.vstack([largest, gains]), count)
    return largest, np.cumsum(coefs * coefs)


def _eigenvalue_ratio(rows: Rows, selection: Selection) -> float:
    """m/M of K_SS + σ²I."""
    if not len(selection):
        return 0.0
    picked = rows.take(selection.indices)
    eigenvalues = np.linalg.eigvalsh(picked @ picked.T + selection.noise * np.eye(len(picked)))
    return float(max(0.0, eigenvalues[0]) / eigenvalues[-1])


def _curve(selection: Selection, norm2: float, bounds: np.ndarray, γ: float, ratio: float) -> Curve:
    k = len(selection)
    explained = np.concatenate([[0.0], np.cumsum(selection.gains)])
    share = np.arange(k + 1) / max(1, k)
    # g(S*_k) ≥ g(S_k), so the guarantee with r = k bounds what step i must have reached.
    return Curve(
        measured=np.maximum(norm2 - explained, 0.0).tolist(),
        floor=np.maximum(norm2 - bounds[: k + 1], 0.0).tolist(),
        ceiling=(norm2 - (1 - np.exp(-γ * share)) * explained[-1]).tolist(),
        theorem1=(norm2 - (1 - np.exp(-ratio * share)) * explained[-1]).tolist(),
    )
