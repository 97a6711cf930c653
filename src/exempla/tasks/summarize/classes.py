"""A summary of labelled data shows every class."""

from __future__ import annotations

import numpy as np

from exempla.selection.ties import just_below

__all__ = ["stratified_sample", "with_every_class"]

FEWEST = 100
"""Examples of each class that a sample of candidates keeps, where there are so many."""


def stratified_sample(
    classes: np.ndarray | None,
    among: np.ndarray,
    size: int,
    rng: np.random.Generator,
    leverage: np.ndarray | None = None,
) -> np.ndarray:
    """`size` of the rows `among`, by chance, with some of every class; in order.

    With `leverage` (one number per row of `among`) every other one is drawn in proportion to it:
    an evenly drawn sample would miss what only a few examples show.
    """
    if size >= len(among):
        return among
    order = rng.permutation(among)
    if leverage is not None and leverage.sum() > 0:
        # the smallest of exponential times with rate leverage: draws without replacement
        times = rng.standard_exponential(len(among)) / np.maximum(leverage, 1e-300)
        order = interleaved(among[np.argsort(times)], order)
    if classes is None:
        return np.sort(order[:size])
    labels = classes[order]
    first = [np.flatnonzero(labels == c)[:FEWEST] for c in np.unique(labels)]
    sure = np.concatenate(first)[:size]
    rest = np.setdiff1d(np.arange(len(order)), sure)  # still in random order
    return np.sort(order[np.concatenate([sure, rest])[:size]])


def interleaved(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Entries of the two orders in turn, each at its first place only.

    >>> interleaved(np.array([2, 1, 0]), np.array([0, 1, 2]))
    array([2, 0, 1])
    """
    both = np.stack([first, second], axis=1).ravel()
    places = np.sort(np.unique(both, return_index=True)[1])
    return both[places]


def with_every_class(
    picked: np.ndarray, classes: np.ndarray, rows: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """The picks, with the latest ones exchanged for the best example of each missing class.

    The best is the one whose row points most towards the target. A pick leaves only if another
    of its class stays; if there are fewer picks than classes, the smallest classes are left out.

    >>> import numpy as np
    >>> rows, classes = np.eye(3), np.array([0, 0, 1])
    >>> with_every_class(np.array([0, 1]), classes, rows, np.ones(3))
    array([0, 2])
    """
    picked = np.array(picked)
    present, counts = np.unique(classes, return_counts=True)
    wanted = present[np.argsort(-counts, kind="stable")][: len(picked)]
    for missing in wanted[~np.isin(wanted, classes[picked])]:
        candidates = np.flatnonzero(classes == missing)
        norms = np.sqrt(np.einsum("ij,ij->i", rows[candidates], rows[candidates]))
        towards = (rows[candidates] @ target) / np.maximum(norms, np.finfo(np.float32).tiny)
        held, times = np.unique(classes[picked], return_counts=True)
        spare = np.isin(classes[picked], held[times > 1])
        if not spare.any():
            # only classes beyond the wanted ones can be in the way: they go first
            spare = ~np.isin(classes[picked], wanted)
        best = int(np.argmax(towards >= just_below(towards.max())))
        picked[np.flatnonzero(spare)[-1]] = candidates[best]
    return picked
