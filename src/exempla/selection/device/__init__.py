"""The greedy loop on a GPU, for torch tensors: one round trip to the host per pass.

`lookahead` guesses and checks picks for one target, `targets` picks for many targets at once,
`kernels` holds their operations.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla.selection.rows import Rule

__all__ = ["run_on_device"]


def run_on_device(
    rows: Any, candidates: np.ndarray, runs: list[Any], k: int, noise: float, rule: Rule
) -> None:
    """Make as many picks as possible on the device; the runs are changed in place."""
    import torch

    from exempla.selection.device.kernels import use_triton
    from exempla.selection.device.lookahead import MAX_PICKS, run_single
    from exempla.selection.device.targets import run_many

    fresh = all(run.basis.size == run.basis.picks == len(run.indices) < k for run in runs)
    # With noise far below the squared row norms, products would be dominated by rounding.
    separable = noise == 0.0 or noise > 1e-6 * float(rows.norms2.max())
    if not fresh or not separable or k > MAX_PICKS or not use_triton(rows.array):
        return
    with torch.cuda.device_of(rows.array):  # Triton and graphs run on the current device
        if len(runs) == 1:
            run_single(rows, candidates[0], runs[0], k, noise, rule)
        elif not any(run.indices for run in runs):
            run_many(rows, candidates, runs, k, noise, rule)
