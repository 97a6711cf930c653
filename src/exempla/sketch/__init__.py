"""Scores of any length become rows of one width: exactly where that fits, else in K-FAC's basis."""

from exempla.sketch.base import Sketch
from exempla.sketch.choose import check_sketch, choose_sketch

__all__ = ["Sketch", "check_sketch", "choose_sketch"]
