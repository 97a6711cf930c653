"""The one way to write a probability, in reports, on the review page and in its exports."""

from __future__ import annotations

import math

__all__ = ["chance"]


def chance(p: float) -> str:
    """A probability in whole per cents; never certain. Its twin in the browser is in dom.js.

    >>> chance(0.255), chance(0.997), chance(1.0), chance(0.004)
    ('26 %', '> 99 %', '> 99 %', '< 1 %')
    """
    if p > 0.99:
        return "> 99 %"
    return "< 1 %" if p < 0.01 else f"{math.floor(100 * p + 0.5)} %"
