"""Choosing the rows: one greedy engine, small selectors, any place the rows may be."""

from exempla.selection.baselines import Random, TopInfluence
from exempla.selection.herding import Herding
from exempla.selection.kernel import select_from_kernel
from exempla.selection.matching_pursuit import MatchingPursuit
from exempla.selection.nonnegative import NonNegative
from exempla.selection.sbq import SBQ
from exempla.selection.select import select
from exempla.selection.selector import Selector
from exempla.selection.sharded import Sharded
from exempla.selection.stochastic import StochasticGreedy

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
