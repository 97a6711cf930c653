"""Selection: pick the k rows whose weighted sum approximates a target.

`select` validates and dispatches; `selectors` are the algorithms; `engine` is the greedy loop;
`rows` holds the candidates and their scores (`candidate_scores` is the interface), with `sharded`
and `device` as further backends.
Nothing here knows about models. Imports: arrays, checks, errors, results.
"""

from exempla.selection.select import select, select_from_kernel
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
