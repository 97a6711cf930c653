"""The door to selection: `select`."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, overload

import numpy as np

from exempla.arrays import Array
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.results import Selection
from exempla.selection.inputs import make_problem
from exempla.selection.selector import Outcome, Problem, Selector
from exempla.selection.selectors.sbq import SBQ

__all__ = ["choose", "select"]

Vector = np.ndarray[tuple[int], Any] | Sequence[float]
Matrix = np.ndarray[tuple[int, int], Any] | Sequence[Sequence[float]] | Sequence[np.ndarray]
"""What a type checker can tell to be one target, and to be several. Most arrays do not tell their
dimensions: a NumPy array of unknown shape passes for one target, anything else is `Any`."""


@overload
def select(
    features: Array,
    target: Vector,
    k: int,
    selector: Selector | None = None,
    side: str = "both",
    *,
    start: Selection | None = None,
) -> Selection: ...


@overload
def select(
    features: Array,
    target: Matrix,
    k: int,
    selector: Selector | None = None,
    side: str | Sequence[str] = "both",
    *,
    start: Sequence[Selection | None] | None = None,
) -> list[Selection]: ...


@overload
def select(
    features: Array,
    target: Any,
    k: int,
    selector: Selector | None = None,
    side: str | Sequence[str] = "both",
    *,
    start: Selection | Sequence[Selection | None] | None = None,
) -> Any: ...


def select(
    features: Array,
    target: Array,
    k: int,
    selector: Selector | None = None,
    side: str | Sequence[str] = "both",
    *,
    start: Selection | Sequence[Selection | None] | None = None,
) -> Any:
    """Choose at most k rows whose weighted sum stands in for the target.

    Parameters
    ----------
    features : (t, p) array
        One row per training example; NumPy, torch (CPU or CUDA), DataFrame or lists. Never
        changed. float32 rows stay float32.
    target : (p,) or (T, p) array
        What to match; several targets share each pass over the rows.
    k : int
        How many rows to choose, 1 … t.
    selector : Selector, optional
        How to choose; `SBQ()` if not given.
    side : "both", "opponents", "proponents", or one of them per target
        Candidates by the sign of z = f·μ: below zero, above zero, or all.
    start : Selection, optional
        An earlier result for the same problem; its picks are kept and added to.

    Returns
    -------
    Selection, or a list of T of them if `target` is (T, p)
        Fewer than k rows, with an `ExemplaWarning`, where no more can be found.

    >>> import numpy as np
    >>> from exempla.selection import select
    >>> rows = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    >>> result = select(rows, np.array([2.0, 1.0]), k=1)
    >>> result.indices, round(result.explained, 2)
    (array([2]), 0.9)
    >>> select(rows, np.array([2.0, 1.0]), k=2, start=result).indices
    array([2, 0])
    """
    return choose(features, target, k, selector, side, start)


def choose(
    features: Array,
    target: Array,
    k: int,
    selector: Selector | None,
    side: str | Sequence[str],
    start: Any = None,
    first: int = 0,
) -> Any:
    """`select`, where the targets may be a part of all: `first` is the number of the first one."""
    if selector is None:
        selector = SBQ()
    if not isinstance(selector, Selector):
        raise ExemplaError(f"selector is {selector!r}; give a selector such as SBQ(noise=1.0)")
    with selector.placed(features) as rows:
        problem, k, single = make_problem(rows, target, k, side, start)
        _check_starts(problem, selector)
        outcomes = selector.choose(problem, k)
    results = [_result(problem, i, outcome, selector) for i, outcome in enumerate(outcomes)]
    for i, result in enumerate(results):
        if len(result) < k:
            why = _shortfall(result, k, None if single else first + i)
            warnings.warn(why, ExemplaWarning, stacklevel=3)
            results[i] = replace(result, warnings=(why,))
    return results[0] if single else results


def _check_starts(problem: Problem, selector: Selector) -> None:
    for start in problem.starts:
        if start is None:
            continue
        if not selector.continues:
            raise ExemplaError(f"{selector.name} cannot continue from a start; run it anew")
        if start.selector != selector.name or start.noise != selector.noise:
            raise ExemplaError(
                f"start was chosen by {start.selector} with noise {start.noise:g}; "
                "continue with the same selector"
            )


def _result(problem: Problem, i: int, outcome: Outcome, selector: Selector) -> Selection:
    norm2 = float(problem.targets[i] @ problem.targets[i])
    return Selection(
        indices=outcome.indices,
        weights=outcome.weights,
        gains=outcome.gains,
        explained=float(outcome.gains.sum()) / norm2,
        variance=outcome.variance,
        mmd2=outcome.mmd2,
        rank=outcome.rank,
        target_norm2=norm2,
        noise=float(selector.noise),
        side=problem.sides[i],
        selector=selector.name,
        candidates=int(np.count_nonzero(problem.candidates[i])),
        stopped=outcome.stopped,
        state=outcome.state,
    )


def _shortfall(result: Selection, k: int, target: int | None) -> str:
    """Why fewer rows came back than were asked for."""
    whose = "" if target is None else f" for target {target}"
    found = f"{len(result)} of {k} rows were selected{whose}: "
    if result.stopped == "rank":
        return found + (
            f"the candidates have rank {result.rank} and no further row adds anything; "
            "a selector with noise can go beyond the rank"
        )
    if result.stopped == "residual":
        return found + "no further row can bring the weighted sum closer to the target"
    rows = "nonzero rows" if result.side == "both" else f"{result.side} among the nonzero rows"
    return found + f"there are only {result.candidates} {rows}"
