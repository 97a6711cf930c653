"""Choosing the rows: one greedy engine, small selectors, any place the rows may be."""

from exempla.selection.baselines import Random, TopInfluence
from exempla.selection.matching_pursuit import MatchingPursuit
from exempla.selection.sbq import SBQ
from exempla.selection.select import select
from exempla.selection.selector import Selector

__all__ = ["MatchingPursuit", "Random", "SBQ", "Selector", "TopInfluence", "select"]
