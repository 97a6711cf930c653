"""The public calls, each with arguments that work and what its answer boils down to."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression

import exempla
from tests.fuzz.values import (
    ANYTHING,
    BAD_LABELS,
    BAD_ROWS,
    BAD_WEIGHTS,
    SAME_LABELS,
    SAME_ROWS,
)

_X, _Y = load_breast_cancer(return_X_y=True)
_X = (_X - _X.mean(0)) / _X.std(0)
KEEP = np.r_[0:90]
X, Y = _X[KEEP][:, :6].copy(), _Y[KEEP].copy()
XT, YT = _X[200:240][:, :6].copy(), _Y[200:240].copy()
MODEL = LogisticRegression().fit(X, Y)
FITTED = exempla.Explainer(MODEL, progress=False).fit((X, Y))
ROWS = np.random.default_rng(0).normal(size=(40, 5))
TARGET = ROWS[:8].mean(0)


@dataclass(frozen=True)
class Case:
    """One call: `door(**arguments)` with one argument replaced."""

    door: str
    argument: str
    value: str
    same: bool = False
    """Whether the answer must be the one of the plain call."""


def _answer(found: Any) -> np.ndarray:
    """The numbers of an answer, for comparison."""
    if isinstance(found, list):
        return np.concatenate([_answer(one) for one in found])
    if isinstance(found, exempla.Answer):
        weights = getattr(found, "probabilities", getattr(found, "weights", None))
        if weights is None:  # an attack
            weights = np.asarray(found.X).ravel()
        return np.concatenate([np.asarray(found.indices, float), np.asarray(weights, float)])
    if hasattr(found, "to_numpy"):
        return found.select_dtypes("number").to_numpy(dtype=float).ravel()
    return np.asarray(found, dtype=float).ravel()


DOORS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "explain": (
        lambda **a: exempla.explain(MODEL, **a),
        {"train": (X, Y), "test": (XT, YT), "k": 3, "side": "opponents", "labels": "true",
         "selector": None, "weights": None, "ids": None, "likelihood": "auto", "fisher": "true",
         "sketch": "auto", "damping": "auto", "normalize": True, "parameters": None,
         "store": None, "device": None, "seed": 0, "progress": False},
    ),
    "explain_errors": (
        lambda **a: exempla.explain_errors(MODEL, (X, Y), **a),
        {"test": (XT, YT), "k": 3, "side": "both", "ask": "errors", "seed": 0, "progress": False},
    ),
    "explain_each": (
        FITTED.explain_each,
        {"test": (XT[:3], YT[:3]), "k": 2, "side": "opponents", "labels": "true",
         "selector": None, "weights": None},
    ),
    "influence": (FITTED.influence, {"test": (XT, YT), "labels": "true"}),
    "affinity": (FITTED.affinity, {"indices": [1, 2], "test": (XT, YT), "labels": "true"}),
    "set_damping": (
        lambda **a: exempla.Explainer(MODEL, progress=False).fit((X, Y)).set_damping(**a)
        .influence((XT, YT)),
        {"damping": 0.1},
    ),
    "fix_labels": (
        lambda **a: exempla.fix_labels(MODEL, **a),
        {"train": (X, Y), "curated": (XT, YT), "k": 5, "method": "sbq", "fit": None, "seed": 0,
         "progress": False, "sketch": "auto", "noise": 10.0, "damping": "auto", "ids": None},
    ),
    "clean": (
        lambda **a: exempla.clean(MODEL, **a),
        {"train": (X, Y), "test": (XT, YT), "k": 3, "ask": "all", "method": "influence",
         "noise": 10.0, "fit": None, "ids": None, "damping": "auto", "seed": 0,
         "progress": False},
    ),
    "summarize": (
        lambda **a: exempla.summarize(MODEL, **a),
        {"train": (X, Y), "k": 8, "total": "k", "selector": None, "fit": None, "ids": None,
         "damping": "auto", "seed": 0, "progress": False},
    ),
    "attack": (
        lambda **a: exempla.attack(MODEL, **a),
        {"train": (X, Y), "target": (XT[:4], YT[:4]), "points": 2, "perturb": "train",
         "objective": "influence", "budget": 0.1, "steps": 3, "step": None, "bounds": "auto",
         "damping": "auto", "rounds": 1, "ids": None, "seed": 0, "progress": False},
    ),
    "select": (
        exempla.select,
        {"features": ROWS, "target": TARGET, "k": 3, "selector": None, "side": "both",
         "start": None},
    ),
    "select_from_kernel": (
        exempla.select_from_kernel,
        {"kernel": ROWS @ ROWS.T, "z": ROWS @ TARGET, "k": 3,
         "target_norm2": float(TARGET @ TARGET), "noise": 0.0, "side": "both"},
    ),
    "certificate": (
        lambda **a: exempla.certificate(selection=exempla.select(ROWS, TARGET, 3), **a)
        .to_dict()["statements"][0]["value"],
        {"features": ROWS, "target": TARGET},
    ),
    "hessian_influence": (
        lambda **a: exempla.hessian_influence(MODEL, **a),
        {"train": (X, Y), "test": (XT[:3], YT[:3]), "damping": 0.0},
    ),
    "lds": (
        exempla.metrics.lds,
        {"attribution": ROWS[:, :4], "subsets": ROWS[:12].repeat(8, 1)[:, :40] > 0,
         "outcomes": ROWS[:12, :4]},
    ),
    "noise": (lambda **a: exempla.select(ROWS, TARGET, 3, exempla.SBQ(**a)), {"noise": 0.5}),
    "stochastic": (
        lambda **a: exempla.select(ROWS, TARGET, 3, exempla.StochasticGreedy(**a)),
        {"delta": 0.1, "seed": 0},
    ),
    "sharded": (
        lambda **a: exempla.select(ROWS, TARGET, 3, exempla.Sharded(exempla.SBQ(), **a)),
        {"shards": 2, "mode": "exact", "backend": "local"},
    ),
}  # fmt: skip

PAIRS = ("train", "test", "curated", "target")
PLAIN = ("features", "kernel", "attribution", "outcomes")


def cases() -> Iterator[Case]:
    """Every single replacement there is."""
    for door, (_, arguments) in DOORS.items():
        for name, value in arguments.items():
            for bad in ANYTHING:
                yield Case(door, name, f"any {bad}")
            if name in PAIRS and isinstance(value, tuple):
                for kind, pool in (("X", BAD_ROWS), ("y", BAD_LABELS), ("w", BAD_WEIGHTS)):
                    yield from (Case(door, name, f"bad {kind} {bad}") for bad in pool)
                for kind, pool in (("X", SAME_ROWS), ("y", SAME_LABELS)):
                    yield from (Case(door, name, f"same {kind} {s}", same=True) for s in pool)
            elif name in PLAIN:
                yield from (Case(door, name, f"bad rows {bad}") for bad in BAD_ROWS)
                yield from (Case(door, name, f"same rows {s}", same=True) for s in SAME_ROWS)


def replaced(case: Case) -> dict[str, Any]:
    """The arguments of the case."""
    arguments = dict(DOORS[case.door][1])
    value = arguments[case.argument]
    kind, _, name = case.value.partition(" ")
    if kind == "any":
        arguments[case.argument] = ANYTHING[name]
        return arguments
    part, _, name = name.partition(" ")
    pools: dict[tuple[str, str], dict[str, Callable[[Any], Any]]] = {
        ("bad", "X"): BAD_ROWS, ("bad", "y"): BAD_LABELS, ("bad", "w"): BAD_WEIGHTS,
        ("bad", "rows"): BAD_ROWS, ("same", "X"): SAME_ROWS, ("same", "y"): SAME_LABELS,
        ("same", "rows"): SAME_ROWS,
    }  # fmt: skip
    make = pools[kind, part][name]
    if part == "rows":
        arguments[case.argument] = make(value)
    elif part == "X":
        arguments[case.argument] = (make(value[0]), value[1])
    elif part == "y":
        arguments[case.argument] = (value[0], make(value[1]))
    else:
        arguments[case.argument] = (*value, make(value[1]))
    return arguments


def problem_of(case: Case) -> str:
    """What is wrong with how the call ended; "" if nothing is."""
    call, plain = DOORS[case.door]
    try:
        arguments = replaced(case)
    except (TypeError, ValueError):
        return ""  # such data cannot even be made
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            found = call(**arguments)
        except exempla.ExemplaError as error:
            return "" if str(error).strip() else "an error that says nothing"
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:120]}"
        numbers = _answer(found)
        if not np.isfinite(numbers).all():
            return "an answer that is not finite"
        if case.same:
            expected = _answer(call(**plain))
            if numbers.shape != expected.shape or not np.allclose(numbers, expected, rtol=1e-5):
                return "another answer for the same data"
    return ""
