"""The greedy loop on a GPU: one target with lookahead, or several with one pass per pick.

`kernels` has the Triton kernels that both share, `lookahead` and `one_pass` the two loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from exempla.selection.device.kernels import use_triton
from exempla.selection.device.lookahead import look_ahead
from exempla.selection.device.one_pass import MAX_TARGETS, OnePass
from exempla.selection.engine import Run
from exempla.selection.rows import Rule

_MAX_PICKS, _MAX_BYTES = 4096, 2**32
"""Picks whose directions are kept on the device, and memory of those of all targets in one pass."""
_MAX_WIDTH = 2**16
"""Width of rows up to which several targets take one pass: a kernel holds whole rows."""


def run_on_device(
    rows: Any, candidates: np.ndarray, runs: list[Run], k: int, noise: float, rule: Rule
) -> None:
    """Pick until k, or until a step that only the host loop can make; the runs are changed."""
    # With noise far below the squared row norms, products would be dominated by rounding.
    separable = noise == 0.0 or noise > 1e-6 * float(rows.norms2.max())
    unfinished = all(len(run.indices) < k <= _MAX_PICKS for run in runs)
    suitable = rows.in_range and (len(runs) == 1 or rows.p <= _MAX_WIDTH)
    if not (separable and unfinished and suitable and use_triton(rows.array)):
        return
    with torch.cuda.device_of(rows.array):  # Triton and graphs run on the current device
        if len(runs) > 1 and not any(run.indices for run in runs):
            each = 8 * k * (k + 2 * rows.p)
            step = int(np.clip(_MAX_BYTES // each, 1, MAX_TARGETS))
            for start in range(0, len(runs), step):
                some = slice(start, start + step)
                OnePass(rows, candidates[some], runs[some], k, noise, rule).pick()
        elif len(runs) == 1 and runs[0].basis.size == runs[0].basis.picks:
            look_ahead(rows, candidates[0], runs[0], k, noise, rule)
