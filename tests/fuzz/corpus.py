"""Calls that failed once, kept so that they never do again: silently answered, or a traceback."""

from __future__ import annotations

from collections.abc import Iterator

from tests.fuzz.cases import Case
from tests.fuzz.doors import DOORS

__all__ = ["CORPUS", "PAIRS"]

TRAINED_ON = (
    ("explain", "train"), ("fix_labels", "train"), ("clean", "train"), ("summarize", "train"),
    ("attack", "train"), ("network", "train"), ("hessian_influence", "train"),
)  # fmt: skip
ASKED = (
    ("explain", "test"), ("explain_errors", "test"), ("explain_each", "test"), ("clean", "test"),
    ("influence", "test"), ("affinity", "test"), ("attack", "test"), ("network", "test"),
    ("fitted", "test"),
)  # fmt: skip

EVERYWHERE = (
    # hidden values were computed with, imaginary parts dropped
    "bad X masked", "bad X masked list", "bad y masked", "bad y masked list",
    "bad X complex", "bad X complex objects", "bad X complex frame", "bad X complex sparse",
    "bad y complex", "bad X missing frame", "bad X missing sparse",
    # raw errors of NumPy, scikit-learn and torch
    "bad y nested", "bad y dates", "bad y two columns", "bad y a number", "bad y a string",
    "bad X objects", "bad X structured", "bad X ragged", "bad X cube", "bad X huge",
    # other answers for the same numbers
    "same X subclass", "same X mask of nothing", "same X big-endian", "same X long double",
    "same X objects", "same X nullable frame", "same y big-endian", "same y column",
    "same y category", "same y unsigned",
)  # fmt: skip
TRAINING = (
    "bad w nested", "bad w masked", "bad w masked list", "bad w complex", "bad w dates",
    "bad w huge", "bad y one of a kind", "bad y one class", "bad y missing", "bad y missing series",
)  # fmt: skip

OPTIONS = {
    "seed": ("word", "negative", "huge", "fraction", "true", "frame"),
    "k": ("true", "fraction", "masked", "frame", "int8"),
    "normalize": ("word", "empty string", "zero", "none"),
    "progress": ("word", "none", "zero", "empty list"),
    "damping": ("word", "nan", "infinite", "negative", "true", "array"),
    "labels": ("array", "frame", "none", "word"),
    "side": ("array", "frame", "missing", "dict"),
    "method": ("array", "frame", "none"),
    "ids": ("nested", "array", "masked"),
    "store": ("empty string", "surrogate", "zero byte", "fraction"),
    "device": ("word", "fraction", "array"),
    "fit": ("word", "fraction", "array"),
    "noise": ("word", "nan", "negative", "true"),
    "weights": ("nested", "complex array", "masked", "date"),
    "likelihood": ("dict", "array", "missing", "class"),
    "parameters": ("nested", "fraction", "class"),
    "ask": ("nested", "empty list", "masked", "word"),
}
"""Accepted though they mean nothing, or a traceback, at every door that has the option."""

AT_ONE_DOOR = (
    Case("attack", "budget", "any word"),
    Case("attack", "budget", "any true"),
    Case("attack", "steps", "any huge"),
    Case("attack", "rounds", "any huge"),
    Case("attack", "step", "any word"),
    Case("attack", "step", "any nan"),
    Case("attack", "bounds", "any word"),
    Case("attack", "bounds", "any nested"),
    Case("attack", "bounds", "any masked"),
    Case("attack", "k", "any nested"),
    Case("fix_labels", "seed", "any int8"),
    Case("attack", "train", "bad w tiny"),
    Case("attack verify", "seeds", "any word"),
    Case("attack verify", "seeds", "any huge"),
    Case("verify", "seeds", "any huge"),
    Case("verify", "holdout", "bad X large"),
    Case("weak_points", "budget", "any nan"),
    Case("affinity", "indices", "any empty list"),
    Case("affinity", "indices", "any masked"),
    Case("select", "features", "bad X tiny"),
    Case("select", "features", "bad X masked"),
    Case("select", "features", "bad X complex"),
    Case("select", "target", "any masked"),
    Case("select_from_kernel", "kernel", "bad X complex"),
    Case("select_from_kernel", "kernel", "bad X masked"),
    Case("select_from_kernel", "kernel", "any class"),
    Case("select_from_kernel", "kernel", "same X list"),
    Case("select_from_kernel", "z", "any complex array"),
    Case("sharded", "mode", "any array"),
    Case("sharded", "backend", "any dict"),
    Case("stochastic", "delta", "any true"),
    Case("lds", "attribution", "bad X nan"),
    Case("lds", "attribution", "bad X strings"),
    Case("lds", "attribution", "same X mask of nothing"),
    Case("lds", "outcomes", "bad X nan"),
    Case("lds", "subsets", "any nested"),
    Case("mislabel_auc", "suspicion", "any negative"),
    Case("mislabel_auc", "suspicion", "any nan"),
    Case("mislabel_auc", "wrong", "any nested"),
    Case("mislabel_auc", "wrong", "any missing"),
    Case("found_share", "ranking", "any zero"),
    Case("found_share", "wrong", "any none"),
    Case("found_share", "wrong", "any word"),
    Case("estimator", "X", "bad X masked"),
    Case("estimator", "sample_weight", "bad w masked"),
    Case("network", "train", "any class"),
)


def _all() -> Iterator[Case]:
    for door, argument in (*TRAINED_ON, *ASKED):
        yield from (Case(door, argument, value) for value in EVERYWHERE)
    for door, argument in TRAINED_ON:
        yield from (Case(door, argument, value) for value in TRAINING)
    for door, (_, arguments) in DOORS.items():
        for argument, values in OPTIONS.items():
            if argument in arguments:
                yield from (Case(door, argument, f"any {value}") for value in values)
    yield from AT_ONE_DOOR


CORPUS: tuple[Case, ...] = tuple(dict.fromkeys(_all()))
TWO = {
    # a sparse matrix, or a list, with a frame below it
    ("fix_labels", "train", "same X sparse"): ("curated", "same X nullable frame"),
    ("fix_labels", "train", "same X sparse array"): ("curated", "bad X dates"),
    ("fix_labels", "train", "same X list"): ("curated", "same X named frame"),
    # squares beyond all floats
    ("fix_labels", "train", "bad X large"): ("sketch", "any huge"),
    ("explainer", "train", "bad X large"): ("damping", "any huge"),
}
PAIRS = tuple((Case(*one), Case(one[0], *other)) for one, other in TWO.items())
"""Calls with two arguments replaced."""
