"""Choosing the rows: one greedy engine, small selectors, any place the rows may be."""

from exempla.selection.kernel import select_from_kernel
from exempla.selection.select import select
from exempla.selection.selector import Selector
from exempla.selection.selectors.herding import Herding
from exempla.selection.selectors.matching_pursuit import MatchingPursuit
from exempla.selection.selectors.nonnegative import NonNegative
from exempla.selection.selectors.random import Random
from exempla.selection.selectors.sbq import SBQ
from exempla.selection.selectors.sharded import Sharded
from exempla.selection.selectors.stochastic import StochasticGreedy
from exempla.selection.selectors.top_influence import TopInfluence

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
