"""Which strange values mean something where they stand: everything else must be refused."""

from __future__ import annotations

__all__ = ["LENT", "means_something"]

NUMBER = "zero, fraction, huge, int8"
OPTIONS: dict[str, str] = {
    "k": "int8",
    "seed": "zero, int8",
    "first_seed": "zero, int8",
    "seeds": "int8",
    "steps": "int8",
    "rounds": "int8",
    "shards": "huge, int8",
    "damping": NUMBER,
    "noise": NUMBER,
    "penalty": NUMBER,
    "budget": "fraction, huge, int8",
    "step": "none, fraction, huge, int8",
    "target_norm2": "fraction, huge, int8",
    "indices": "array, tuple",
    "ask": "none, array, tuple",
    "bounds": "none, tuple",
    "progress": "true, numpy bool",
    "normalize": "true, numpy bool",
    "labels": "numpy string",
    "fisher": "numpy string",
    "sketch": "huge",
    "store": "none, word, numpy string",
    **dict.fromkeys(("ids", "selector", "weights", "start", "device", "parameters"), "none"),
    **dict.fromkeys(("fit", "holdout", "curated", "sample_weight"), "none"),
}
"""By argument, of the values in place of any option."""
AT_ONE_DOOR: dict[tuple[str, str], str] = {
    ("fix_labels", "k"): "none, int8",
    ("attack", "k"): "array, int8, tuple",  # a number of rows, or the rows themselves
    ("fix_labels", "damping"): f"none, {NUMBER}",
    # kept for a later `verify`, and not called before
    ("clean", "fit"): "none, lambda, class",
    ("summarize", "fit"): "none, lambda, class",
}
ASKED = ("test", "target", "holdout")
"""Arguments that hold questioned examples: they need no labels, and may all be of one class."""
EXTREME = {"huge", "large", "tiny", "zeros"}
"""Numbers all the same: finite answers to them are right."""
LENT = {"estimator": (TypeError, ValueError)}
"""Where a wrapped library's own errors are the ones that its users know."""


def means_something(door: str, argument: str, value: str) -> bool:
    """Whether a call with this value in its place may be answered."""
    kind, _, rest = value.partition(" ")
    if kind == "any":
        allowed = AT_ONE_DOOR.get((door, argument), OPTIONS.get(argument, ""))
        return rest in allowed.split(", ")
    part, _, name = rest.partition(" ")
    if part == "X":
        independent = argument == "features" or door == "array scores"
        if argument == "outcomes" and name == "infinite":
            return True  # a log-likelihood of -inf has its place in a ranking
        return name in EXTREME or (name == "a row less" and independent)
    if part == "y":
        return name in _labels(door, argument)
    # the weights of questioned examples do not count: a network does not even read them
    return name == "tiny" or (door == "network" and argument in ASKED)


def _labels(door: str, argument: str) -> set[str]:
    if door == "network":  # knows its classes; an axis of length one is no other label
        return {"none", "one class", "cube"} if argument in ASKED else {"one class", "cube"}
    if argument in ASKED:
        return {"none", "one class"}
    return {"all different", "one of a kind"} if door in ("fix_labels", "estimator") else set()
