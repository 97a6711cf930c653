"""Which steps of a training of unknown length stay: evenly spread ones, whenever it ends.

Snapshots are taken at every multiple of a stride. When `keep` of them are there, the next one
waits for a multiple of twice the stride, and when it comes, those in between go: from then on the
stride is twice as long. So there are always more than keep/2 of them, at equal distances, and a
training of T steps takes about keep + keep/2·log2(T/keep) snapshots in all.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["Thinning"]


@dataclass
class Thinning:
    """The stride, and what it says about the steps that were kept.

    >>> thinning, kept = Thinning(keep=4), []
    >>> for step in range(1, 12):
    ...     if step == thinning.next_after(kept):
    ...         kept = thinning.with_step(kept, step)
    >>> kept, thinning.with_last(kept, 9), thinning.with_last(kept, 11)
    ([2, 4, 6, 8], [2, 4, 6, 9], [4, 8, 11])
    """

    keep: int
    stride: int = 1

    def next_after(self, kept: list[int], reached: int = 0) -> int | None:
        """The next step to take a snapshot at; None if only the last weights are kept."""
        if self.keep == 1:
            return None
        stride = self._coming(kept)
        return stride * (max([reached, *kept]) // stride + 1)

    def with_step(self, kept: list[int], step: int) -> list[int]:
        """The steps to keep once there is a snapshot at this one, a step that was announced."""
        return [step] if self.keep == 1 else [*self._room(kept), step]

    def with_last(self, kept: list[int], step: int) -> list[int]:
        """The steps to keep once training has ended here: the last weights always stay.

        They take the place of the newest snapshot if they are nearer to it than half a stride.
        """
        earlier = [s for s in kept if s < step]
        if not earlier or self.keep == 1:
            return [step]
        if 2 * (step - earlier[-1]) < self._coming(earlier):
            return [*earlier[:-1], step]
        return [*self._room(earlier), step]

    def last_to_go(self, steps: Iterable[int]) -> int:
        """Of these steps the one that thinning will spare longest.

        >>> Thinning(keep=8, stride=2).last_to_go([2, 4, 6, 10])
        4
        """
        turns = {step: step // self.stride for step in steps}
        return max(turns, key=lambda step: (turns[step] & -turns[step], step))

    def fewer(self, kept: list[int], keep: int) -> list[int]:
        """The steps that stay when there is room for `keep` snapshots alone."""
        self.keep = keep
        while len(kept) > keep:
            self.stride *= 2
            kept = [s for s in kept if s % self.stride == 0]
        return kept

    def _coming(self, kept: list[int]) -> int:
        """The stride of the next snapshot."""
        on_grid = [s for s in kept if s % self.stride == 0]
        return self.stride * (2 if len(on_grid) >= self.keep else 1)

    def _room(self, kept: list[int]) -> list[int]:
        """The steps that stay when one more comes."""
        self.stride = self._coming(kept)
        # a training that went on after its end has its last weights among them, off the grid
        return [s for s in kept if s % self.stride == 0]
