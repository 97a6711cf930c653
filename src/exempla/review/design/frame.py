"""The rows that spot checks are drawn from: all that were judged, in strata of like probability.

The listed suspects are all in the review folder. Of the rest, which may be millions of rows, it
carries a random sample, the same share of each stratum: a random row of a random sample of a
stratum is a random row of the stratum. The sizes of the strata are those of the file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from exempla.errors import ExemplaError

__all__ = [
    "LISTED_STRATA", "MOST_CARRIED", "REST_STRATA", "Frame",
    "check_frame", "sample_rest", "strata_of",
]  # fmt: skip

LISTED_STRATA, REST_STRATA = 2, 4
MOST_CARRIED = 600
"""Rows of the rest that a folder carries; 300 right ones bound what is left below 1 %."""


@dataclass(frozen=True)
class Frame:
    """How many rows there are to draw from, by stratum, the most suspicious first.

    The first strata are those of the listed suspects; `seed` is the seed of all drawing.

    >>> Frame((10, 10, 240, 240), seed=0).rows
    500
    """

    sizes: tuple[int, ...]
    seed: int = 0

    def __post_init__(self) -> None:
        if any(size < 0 for size in self.sizes) or self.seed < 0:
            raise ExemplaError("The strata of a frame have sizes, and its seed is not negative.")

    @property
    def rows(self) -> int:
        """All of them."""
        return sum(self.sizes)

    def to_dict(self) -> dict[str, Any]:
        """The JSON form."""
        return {"sizes": list(self.sizes), "rows": self.rows, "seed": self.seed}

    @classmethod
    def from_dict(cls, stated: Mapping[str, Any]) -> Frame:
        """Read it again."""
        return cls(tuple(int(size) for size in stated["sizes"]), int(stated["seed"]))


def check_frame(frame: Frame, listed: int) -> None:
    """ExemplaError unless the frame's first strata are those of so many listed suspects."""
    wanted = np.bincount(strata_of(listed, LISTED_STRATA), minlength=LISTED_STRATA).tolist()
    if list(frame.sizes[:LISTED_STRATA]) != wanted:
        raise ExemplaError(
            f"The frame was made for another number of suspects than {listed}; make it with "
            f"sample_rest(..., listed={listed})."
        )


def strata_of(count: int, strata: int) -> np.ndarray:
    """Which of `strata` equal parts each of `count` ranks belongs to.

    >>> strata_of(5, 2).tolist()
    [0, 0, 0, 1, 1]
    """
    return (np.arange(count) * strata) // max(count, 1)


def sample_rest(
    probabilities: Sequence[float] | np.ndarray,
    *,
    listed: int,
    seed: int = 0,
    most: int = MOST_CARRIED,
) -> tuple[Frame, np.ndarray, np.ndarray]:
    """The frame of `listed` suspects and a rest, and which of the rest the folder shall carry.

    `probabilities` are those of the rest. The answer is the frame, the positions in the rest, and
    the stratum of each.

    >>> frame, chosen, strata = sample_rest([0.01] * 1000, listed=20, seed=1, most=40)
    >>> frame.sizes, len(chosen), strata.min(), strata.max()
    ((10, 10, 250, 250, 250, 250), 40, np.int64(2), np.int64(5))
    """  # fmt: skip
    p = np.asarray(probabilities, dtype=float)
    first = np.bincount(strata_of(listed, LISTED_STRATA), minlength=LISTED_STRATA)
    # Ties in random order: a file may be sorted, and strata should not be its beginning and end.
    rng = np.random.default_rng([seed, 0])
    order = rng.permutation(p.size)
    order = order[np.argsort(-p[order], kind="stable")]
    parts = strata_of(p.size, REST_STRATA)
    sizes = np.bincount(parts, minlength=REST_STRATA)
    carried = min(p.size, most)
    chosen: list[np.ndarray] = []
    strata: list[np.ndarray] = []
    for stratum, size in enumerate(sizes.tolist()):
        count = -(-carried * size // max(p.size, 1))  # rounded up: no stratum is left out
        own = rng.permutation(order[parts == stratum])[:count]
        chosen.append(own)
        strata.append(np.full(own.size, LISTED_STRATA + stratum))
    frame = Frame((*first.tolist(), *sizes.tolist()), seed)
    return frame, np.concatenate(chosen), np.concatenate(strata)
