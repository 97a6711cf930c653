"""Certificates: what is proved about a finished selection (`bounds`), and what is only estimated.

Theorem 1 of the paper uses sparse eigenvalues, which cannot be computed; m/M on the selection alone
is an optimistic stand-in and is labelled an estimate.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from exempla.arrays import Array
from exempla.checks import check_k, whole_number
from exempla.errors import ExemplaError
from exempla.results import Selection
from exempla.selection.engine import Finished
from exempla.selection.select import as_rows, as_targets, choose, groups, side_of
from exempla.selection.selectors import Selector

__all__ = ["Certificate", "VarianceCurve", "Statement", "certificate", "chosen_and_certified"]


@dataclass(frozen=True)
class Statement:
    """One sentence about the selection, with its number and its standing."""

    name: str
    status: Literal["certified", "estimated"]
    value: float
    meaning: str


@dataclass(frozen=True)
class VarianceCurve:
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
    curve: VarianceCurve
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
    done, r = _read(features, selection, target, r, level)
    return _certified(done, r, level)


def chosen_and_certified(
    features: Array, targets: Array, k: int, selector: Selector, side: str | Sequence[str]
) -> Iterator[tuple[Selection, Array, Certificate]]:
    """`select` for one target (p,) or any number (T, p), with each target and a cheap certificate.

    As many targets as fit into memory are chosen for together; what continuing a selection would
    need is gone with each group.
    """
    rows = as_rows(features)
    k = check_k(k, rows.t)
    count = 1 if targets.ndim == 1 else len(targets)
    for group in groups(count, rows, k):
        some, sides = (targets, side) if targets.ndim == 1 else (targets[group], side)
        each = isinstance(side, list | tuple | np.ndarray)  # anything else `choose` refuses
        if each and targets.ndim > 1 and len(side) == count:
            sides = list(side)[group]
        found = choose(rows, some, k, selector, sides, first=group.start)
        selections = found if isinstance(found, list) else [found]
        some = some if targets.ndim > 1 else targets[None]
        aligned, _ = as_targets(some, rows.p)
        for selection, mu, μ, z in zip(selections, some, aligned, rows.align(aligned), strict=True):
            candidates = side_of(z, selection.side) & (rows.norms2 > 0)
            done = Finished(selection, rows, μ, z, candidates)
            yield selection, mu, _certified(done, max(1, len(selection)), "cheap")


def _certified(done: Finished, r: int, level: str) -> Certificate:
    full = level == "full"
    span = done.span(exact=full)
    best_sets = done.best_sets(r, span, replay=full)
    ratio = done.eigenvalue_ratio()
    statements = _statements(done, r, span, float(best_sets[r]), ratio)
    return Certificate(statements, _curve(done, best_sets, ratio), r, level)


def _read(
    features: Array, selection: Selection, target: Array, r: int | None, level: str
) -> tuple[Finished, int]:
    """The selection with what it was made from, and r; both checked."""
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
    z = rows.align(targets)[0]
    candidates = side_of(z, selection.side) & (rows.norms2 > 0)
    return Finished(selection, rows, μ, z, candidates), int(r)


def _statements(
    done: Finished, r: int, span: float, best: float, ratio: float
) -> tuple[Statement, ...]:
    """Everything that is known, in sentences; `best` bounds what r candidates can explain."""
    reached, k = float(done.selection.gains.sum()), len(done.selection)
    lower = "" if done.selection.noise else "; without noise nothing better than 0 is proved"
    guarantee, how = 0.0, "nothing is proved in advance: that takes exact SBQ with noise"
    if done.greedy:
        guarantee = 1.0 - math.exp(-done.γ * k / r)
        how = (
            f"the {k} greedy picks explain at least this share of what the best {r} candidates "
            f"explain: 1 − exp(−γ·{k}/{r}), known before selecting"
        )
    return (
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
            done.γ,
            "the gains of single rows add up to at least this share of their joint gain, for "
            f"every set{lower}",
        ),
        Statement("greedy_guarantee", "certified", guarantee, how),
        Statement(
            "best_set",
            "certified",
            best / done.norm2,
            f"no set of {r} candidates explains a larger share of the target than this",
        ),
        Statement(
            "share_of_best_set",
            "certified",
            min(1.0, reached / best) if best else 1.0,
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


def _curve(done: Finished, best_sets: np.ndarray, ratio: float) -> VarianceCurve:
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
