"""One argument of one call replaced, and what is wrong with how the call ends."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

import exempla
from tests.fuzz.doors import DOORS
from tests.fuzz.meaning import LENT, means_something
from tests.fuzz.values import (
    ANYTHING,
    BAD_LABELS,
    BAD_ROWS,
    BAD_WEIGHTS,
    SAME_LABELS,
    SAME_ROWS,
)

__all__ = ["Case", "cases", "problem_of"]

PAIRS = ("train", "test", "curated", "target", "holdout")
PLAIN = ("features", "kernel", "attribution", "outcomes", "X")
LABELS, WEIGHTS = ("y",), ("sample_weight",)
Pool = dict[str, Callable[[Any], Any]]
POOLS: dict[tuple[str, str], Pool] = {
    ("bad", "X"): BAD_ROWS, ("bad", "y"): BAD_LABELS, ("bad", "w"): BAD_WEIGHTS,
    ("same", "X"): SAME_ROWS, ("same", "y"): SAME_LABELS, ("same", "w"): {},
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One call: `door(**arguments)` with one argument, or a part of it, replaced.

    `value` is "any NAME", or "bad" or "same", the part ("X", "y", "w") and a name.
    """

    door: str
    argument: str
    value: str

    @property
    def kind(self) -> str:
        return self.value.partition(" ")[0]

    @property
    def name(self) -> str:
        return self.value.split(" ", 1 if self.kind == "any" else 2)[-1]

    @property
    def part(self) -> str:
        """X, y or w; "" where the whole argument is replaced by anything."""
        return "" if self.kind == "any" else self.value.split(" ")[1]


def cases() -> Iterator[Case]:
    """Every single replacement there is."""
    for door, (_, arguments) in DOORS.items():
        for name, value in arguments.items():
            for bad in ANYTHING:
                yield Case(door, name, f"any {bad}")
            for part in _parts(name, value):
                for kind in ("bad", "same"):
                    for one in POOLS[kind, part]:
                        yield Case(door, name, f"{kind} {part} {one}")


def _parts(name: str, value: Any) -> str:
    """Which parts the argument has that can be replaced."""
    if name in PAIRS and isinstance(value, tuple):
        return "Xyw"
    if name in PLAIN or (name in PAIRS and np.ndim(value) == 2):
        return "X"
    return "y" if name in LABELS else "w" if name in WEIGHTS else ""


def replaced(case: Case) -> dict[str, Any]:
    """The arguments of the case."""
    arguments = dict(DOORS[case.door][1])
    value = arguments[case.argument]
    if case.kind == "any":
        made = ANYTHING[case.name]
    else:
        make = POOLS[case.kind, case.part][case.name]
        if not isinstance(value, tuple):
            made = make(arguments["y"] if value is None else value)
        elif case.part == "X":
            made = (make(value[0]), value[1])
        elif case.part == "y":
            made = (value[0], make(value[1]))
        else:
            made = (*value, make(value[1]))
    return {**arguments, case.argument: made}


def problem_of(case: Case, beside: Case | None = None) -> str:
    """What is wrong with how the call ended; "" if nothing is.

    With a second case its argument is replaced too.
    """
    call, plain = DOORS[case.door]
    try:
        arguments = replaced(case)
        if beside is not None:
            arguments[beside.argument] = replaced(beside)[beside.argument]
    except (TypeError, ValueError):
        return ""  # such data cannot even be made
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = call(**arguments)
        except exempla.ExemplaError as error:
            said = str(error).strip()
            return "" if said and "\n" not in said else f"not one sentence: {said[:120]}"
        except LENT.get(case.door, ()):
            return ""
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:120]}"
        numbers = answer_of(found)
        if not np.isfinite(numbers).all():
            return "an answer that is not finite"
        if case.kind == "same" and (beside is None or beside.kind == "same"):
            expected = answer_of(call(**plain))
            if numbers.shape != expected.shape or not np.allclose(numbers, expected, rtol=1e-5):
                return "another answer for the same data"
        elif not all(map(_means_something, (case, beside or case))):
            return "accepted what means nothing"
    return ""


def _means_something(case: Case) -> bool:
    return case.kind == "same" or means_something(case.door, case.argument, case.value)


def answer_of(found: Any) -> np.ndarray:
    """The numbers of an answer, for comparison."""
    if isinstance(found, list):
        return np.concatenate([answer_of(one) for one in found])
    if isinstance(found, exempla.Answer):
        weights = getattr(found, "probabilities", getattr(found, "weights", None))
        if weights is None:  # an attack
            weights = np.asarray(found.X).ravel()
        return np.concatenate([np.asarray(found.indices, float), np.asarray(weights, float)])
    if hasattr(found, "to_numpy"):
        return found.select_dtypes("number").to_numpy(dtype=float).ravel()
    return np.asarray(found, dtype=float).ravel()
