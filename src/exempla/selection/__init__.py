"""Selection: pick the k rows whose weighted sum approximates a target.

`select` validates and dispatches; `selectors` are the algorithms; `engine` is the greedy loop with
`lookahead` over `sweeps`; `rows` is the interface of the array backends (`numba_rows`, `shards`,
`device`). Nothing here knows about models. Imports: arrays, checks, errors, results.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from exempla.selection.select import select
from exempla.selection.selectors import (
    SBQ,
    Herding,
    MatchingPursuit,
    NonNegative,
    Random,
    Selector,
    StochasticGreedy,
    TopInfluence,
)

if TYPE_CHECKING:
    from exempla.selection.kernel import select_from_kernel
    from exempla.selection.sharded import Sharded

__all__ = [
    "select",
    "select_from_kernel",
    "Selector",
    "SBQ",
    "MatchingPursuit",
    "StochasticGreedy",
    "NonNegative",
    "Herding",
    "TopInfluence",
    "Random",
    "Sharded",
]
_LAZY = {"select_from_kernel": "kernel", "Sharded": "sharded"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
