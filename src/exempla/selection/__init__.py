"""Choosing the rows: one greedy engine, small selectors, any place the rows may be."""

from exempla.selection.kernel import select_from_kernel
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
