"""Certificates: what is proved about a finished selection, and what is only estimated.

g(S) = z_S'(K_SS + σ²I)⁻¹z_S is the part of ‖μ‖² that a set S explains; S*_r is the best set of r
rows.

(a) g(S) ≤ ‖Pμ‖² for every set, where P is the projection on the span of the candidates.
(b) With noise, every set of gains given L obeys Σ_j g(j|L) ≥ γ·g(S|L), γ ≥ σ²/(σ² + max‖f‖²):
    the residual Gram matrix has no eigenvalue below σ² and no diagonal entry above σ² + max‖f‖².
    Hence exact greedy gives g(S_k) ≥ (1 − e^{−γk/r})·g(S*_r).
(c) g(S*_r) ≤ g(S_i) + (1/γ)·(sum of the r largest gains given S_i), for every prefix S_i of any
    selection; for r = 1 and i = 0 even with γ = 1.

Theorem 1 of the paper uses sparse eigenvalues, which cannot be computed; m/M of the selection alone
is an optimistic substitute and is labelled an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np

from exempla.arrays import Array
from exempla.checks import check_choice, check_k, whole_number
from exempla.errors import ExemplaError
from exempla.results import Selection
from exempla.selection.engine import Basis
from exempla.selection.rows import Rows
from exempla.selection.select import as_rows, as_targets, choose, groups, side_of
from exempla.selection.selectors import Selector

_BOUND_SLACK = 1e-9
"""Certified bounds are widened by this fraction, far above the effect of rounding."""
_MIN_SINGULAR_VALUE = 1e-6
"""Unit rows whose smallest singular value is above this span the whole space beyond doubt."""
MAX_SPAN_WORK = 1e9
"""Multiplications that the cheap level spends on the span before it settles for ‖μ‖²."""


@dataclass(frozen=True)
class Statement:
    """One statement about a selection: its value, its meaning, and whether it is certified."""

    name: str
    status: Literal["certified", "estimated"]
    value: float
    meaning: str


@dataclass(frozen=True)
class VarianceCurve:
    """Posterior variance after 0, 1, … k picks and its bounds."""

    measured: list[float]
    floor: list[float]
    """Certified: no set of that many candidates has a lower variance."""
    ceiling: list[float]
    """Certified: greedy cannot have a higher variance (exact SBQ with noise; otherwise ‖μ‖²)."""
    theorem1: list[float]
    """Estimated: the rate of Theorem 1 with m/M of the selected rows."""


@dataclass(frozen=True)
class Certificate:
    """Statements about a selection, by name (``certificate["share_of_span"]``), and its curve.

    Attributes
    ----------
    statements : tuple of Statement
    curve : VarianceCurve
    r : int
        Size of the competing sets.
    level : {"cheap", "full"}
    """

    statements: tuple[Statement, ...]
    curve: VarianceCurve
    r: int
    level: str

    def __getitem__(self, name: str) -> Statement:
        return {statement.name: statement for statement in self.statements}[name]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain Python values, ready for JSON."""
        return asdict(self) | {"statements": [asdict(one) for one in self.statements]}


def certificate(
    features: Array,
    selection: Selection,
    target: Array,
    *,
    r: int | None = None,
    level: Literal["cheap", "full"] = "cheap",
) -> Certificate:
    """Certify a finished selection: what is proved about it, and what is only estimated.

    Parameters
    ----------
    features : array of shape (t, p)
        The features the selection was made from.
    selection : Selection
        The result of any selector.
    target : array of shape (p,)
        The target of the selection.
    r : int, optional
        Size of the competing sets. Default: the number of picks.
    level : {"cheap", "full"}, default "cheap"
        "cheap" reads the rows about twice and bounds competitors from the first step alone; "full"
        replays the selection (the arithmetic of k picks) and takes the best bound over all steps.

    Returns
    -------
    Certificate

    Raises
    ------
    ExemplaError
        If the selection was made from other features or for another target.

    Examples
    --------
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
    rows = as_rows(features)
    targets, single = as_targets(target, rows.p)
    if not single:
        raise ExemplaError("a certificate is for one target; give a target of shape (p,)")
    if not np.isclose(float(targets[0] @ targets[0]), selection.target_norm2, rtol=1e-6):
        raise ExemplaError("the selection was made for another target; give that target")
    if len(selection) and int(selection.indices.max()) >= rows.t:
        raise ExemplaError("the selection was made from other features; give those features")
    check_choice("level", level, ("cheap", "full"))
    if r is not None and (not whole_number(r) or not 1 <= r <= rows.t):
        raise ExemplaError(f"r is {r!r}; give a whole number from 1 to {rows.t}")
    return _Finished(selection, rows, targets[0], rows.align(targets)[0]).certified(r, level)


def chosen_and_certified(
    features: Array, targets: Array, k: int, selector: Selector, side: str | Sequence[str]
) -> Iterator[tuple[Selection, Array, Certificate]]:
    """Select for one target (p,) or several (T, p); yield selection, target and cheap certificate.

    As many targets as fit into memory are processed together.
    """
    single, count = targets.ndim == 1, 1 if targets.ndim == 1 else len(targets)
    rows = as_rows(features, k * count if whole_number(k) and k > 0 else None)
    k = check_k(k, rows.t)
    for group in groups(count, rows, k):
        some, sides = targets if single else targets[group], side
        if isinstance(side, list | tuple | np.ndarray) and not single and len(side) == count:
            sides = list(side)[group]  # `choose` refuses anything else
        problem, found = choose(rows, some, k, selector, sides, first=group.start)
        every = zip(found, some[None] if single else some, problem.targets, problem.alignment)
        for selection, mu, μ, z in every:
            yield selection, mu, _Finished(selection, rows, μ, z).certified(None, "cheap")


def _statements(
    done: _Finished, r: int, span: float, best: float, ratio: float
) -> tuple[Statement, ...]:
    """Return all statements; `best` bounds what r candidates can explain."""
    reached, k = float(done.selection.gains.sum()), len(done.selection)
    lower = "" if done.selection.noise else "; without noise only the bound 0 is proved"
    guarantee, how = 0.0, "no guarantee in advance: it requires exact SBQ with noise"
    if done.greedy:
        guarantee = 1.0 - math.exp(-done.γ * k / r)
        how = (
            f"the {k} greedy picks explain at least this share of what the best {r} candidates "
            f"explain: 1 − exp(−γ·{k}/{r}), known before selecting"
        )
    values = {
        "share_of_span": (
            min(1.0, reached / span) if span else 1.0,
            "what the selection explains, as a share of the most that any weighted set of "
            "candidates, of any size, can explain",
        ),
        "weak_submodularity": (
            done.γ,
            "the gains of single rows add up to at least this share of their joint gain, for "
            f"every set{lower}",
        ),
        "greedy_guarantee": (guarantee, how),
        "best_set": (
            best / done.norm2,
            f"no set of {r} candidates explains a larger share of the target than this",
        ),
        "share_of_best_set": (
            min(1.0, reached / best) if best else 1.0,
            f"what the selection explains is at least this share of what the best {r} "
            "candidates explain",
        ),
    }
    estimate = Statement(
        "theorem_1",
        "estimated",
        ratio,
        "m/M of the paper's Theorem 1 with the eigenvalues of the selected rows alone in "
        "place of the sparse eigenvalues, which cannot be computed: optimistic",
    )
    return *(Statement(name, "certified", *said) for name, said in values.items()), estimate


def _curve(done: _Finished, best_sets: np.ndarray, ratio: float) -> VarianceCurve:
    k, norm2 = len(done.selection), done.norm2
    explained = np.concatenate([[0.0], np.cumsum(done.selection.gains)])
    share = np.arange(k + 1) / max(1, k)
    γ = done.γ if done.greedy else 0.0
    # g(S*_k) ≥ g(S_k), so the guarantee with r = k bounds what step i must have reached.
    return VarianceCurve(
        measured=np.maximum(norm2 - explained, 0.0).tolist(),
        floor=np.maximum(norm2 - best_sets[: k + 1], 0.0).tolist(),
        ceiling=(norm2 - (1 - np.exp(-γ * share)) * explained[-1]).tolist(),
        theorem1=(norm2 - (1 - np.exp(-ratio * share)) * explained[-1]).tolist(),
    )


@dataclass(frozen=True)
class _Finished:
    """A finished selection and the problem it was made from: the bounds (a) to (c)."""

    selection: Selection
    rows: Rows
    target: np.ndarray
    """μ, (p,) float64."""
    alignment: np.ndarray
    """(t,): z_j = f_j·μ."""

    @cached_property
    def candidates(self) -> np.ndarray:
        """(t,) bool: the nonzero rows on the selection's side."""
        return side_of(self.alignment, self.selection.side) & (self.rows.norms2 > 0)

    def certified(self, r: int | None, level: str) -> Certificate:
        """Return the certificate against sets of r candidates, by default as many as picked."""
        r = max(1, len(self.selection)) if r is None else int(r)
        span = self.span(exact=level == "full")
        best_sets = self.best_sets(r, span, replay=level == "full")
        ratio = self.eigenvalue_ratio()
        statements = _statements(self, r, span, float(best_sets[r]), ratio)
        return Certificate(statements, _curve(self, best_sets, ratio), r, level)

    @property
    def norm2(self) -> float:
        """‖μ‖²."""
        return float(self.target @ self.target)

    @property
    def largest(self) -> float:
        """max ‖f‖² over the candidates."""
        return float(self.rows.norms2[self.candidates].max(initial=0.0))

    @property
    def γ(self) -> float:
        """The constant of (b)."""
        noise, largest = self.selection.noise, self.largest
        return noise / (noise + largest) if largest else 1.0

    @property
    def greedy(self) -> bool:
        """True if the picks are those of exact greedy and γ is above 0."""
        noise = self.selection.noise
        return self.selection.selector == "SBQ" and noise > self.rows.tolerance * self.largest

    def span(self, *, exact: bool) -> float:
        """Return ‖Pμ‖² of (a), or the bound ‖μ‖² if it need not be exact and is costly.

        The span does not depend on row lengths, so unit rows are used. A QR factor is updated block
        by block: singular values are accurate to 1e-16, with a Gram matrix only to 1e-8.
        """
        rows, norm2 = self.rows, self.norm2
        chosen = np.flatnonzero(self.candidates)
        if not len(chosen):
            return 0.0
        step = max(1024, 2 * rows.p)
        R, spent = np.empty((0, rows.p)), 0.0
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            height = len(R) + len(part)
            spent += float(height) * rows.p * min(height, rows.p)
            if not exact and spent > MAX_SPAN_WORK:
                return norm2
            unit = rows.take(part) / np.sqrt(rows.norms2[part])[:, None]
            R = np.linalg.qr(np.vstack([R, unit]), mode="r")
            if len(R) == rows.p and np.linalg.svd(R, compute_uv=False)[-1] > _MIN_SINGULAR_VALUE:
                return norm2  # the rows so far span everything
        _, singular, directions = np.linalg.svd(R, full_matrices=False)
        # Singular values at the level of rounding count as zero.
        real = singular > 64 * np.finfo(float).eps * np.sqrt(len(chosen))
        inside = directions[real] @ self.target
        return min(norm2, float(inside @ inside) * (1 + _BOUND_SLACK))

    def best_sets(self, r: int, span: float, *, replay: bool) -> np.ndarray:
        """Return bounds on g(S*_s) for s = 0 … max(r, k): (c), limited by (a).

        From the first step alone, or with `replay` the best over all steps.
        """
        most = max(r, len(self.selection))
        n = np.where(self.candidates, self.rows.norms2 + self.selection.noise, 1)
        gains = np.where(self.candidates, self.alignment * self.alignment / n, 0)
        first = _largest(gains[:, None], most)
        steps, explained = first, np.zeros(1)
        if replay and self.γ > 0 and len(self.selection):
            steps, explained = self._replay(most)
        bounds = np.full(most + 1, span)
        bounds[0] = 0.0
        if self.γ > 0:
            sums = np.cumsum(steps, axis=0) / self.γ + explained
            bounds[1:] = np.minimum(bounds[1:], sums.min(axis=1) * (1 + _BOUND_SLACK))
        bounds[1] = min(bounds[1], first[0, 0] * (1 + _BOUND_SLACK))
        return bounds

    def _replay(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the largest gains at every step (count, k+1) and g(S_i) of every prefix (k+1,)."""
        rows, indices, noise = self.rows, self.selection.indices, self.selection.noise
        basis = Basis(self.target, noise, rows.tolerance)
        picked_at = {}  # row → number of directions after which it is picked
        for j, row in zip(indices, rows.take(indices)):
            basis.add(row)
            picked_at[int(j)] = basis.size
        coefs = np.concatenate([[0.0], basis.coefs])
        Q = np.vstack([np.zeros(rows.p), basis.directions])
        largest = np.zeros((count, len(Q)))
        step = max(1, (1 << 24) // (8 * max(rows.p, len(Q))))
        chosen = np.flatnonzero(self.candidates)
        for start in range(0, len(chosen), step):
            part = chosen[start : start + step]
            block = rows.take(part)
            V = block @ Q.T
            c = (block @ self.target)[:, None] - np.cumsum(coefs * V, axis=1)
            n = (rows.norms2[part] + noise)[:, None] - np.cumsum(V * V, axis=1)
            # n is at least σ² in exact arithmetic.
            gains = c * c / np.maximum(n, noise)
            for position in np.flatnonzero(np.isin(part, indices)):
                gains[position, picked_at[int(part[position])] :] = 0.0
            largest = _largest(np.vstack([largest, gains]), count)
        return largest, np.cumsum(coefs * coefs)

    def eigenvalue_ratio(self) -> float:
        """Return m/M of K_SS + σ²I."""
        if not len(self.selection):
            return 0.0
        picked = self.rows.take(self.selection.indices)
        gram = picked @ picked.T + self.selection.noise * np.eye(len(picked))
        eigenvalues = np.linalg.eigvalsh(gram)
        return float(max(0.0, eigenvalues[0]) / eigenvalues[-1])


def _largest(gains: np.ndarray, count: int) -> np.ndarray:
    """Return the `count` largest entries of each column, descending, padded with zeros."""
    if len(gains) > count:
        gains = np.partition(gains, len(gains) - count, axis=0)[-count:]
    out = np.zeros((count, gains.shape[1]))
    out[: len(gains)] = -np.sort(-gains, axis=0)
    return out
