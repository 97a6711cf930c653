"""How to sum over the moments of a training: as they are, or made more equal in size?

    python -m benchmarks.truths.moments --folder FOLDER [--only NAME,…] [--out FILE.csv]

The exact Gauss–Newton influence of six moments of one training, each at the library's damping for
a run, divided by a power of the size of its effects on the question (`LEVELLING_EXPONENT`)
and summed. Questions are single test examples, and sets of ten. Between the dampings that
`benchmarks.truths.make` wrote down, effects are interpolated in the logarithm.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch

import exempla
from benchmarks.truths.exact import DAMPINGS
from benchmarks.truths.settings import settings_of
from benchmarks.truths.table import Truth, load_truth

MOMENTS = (0, 1, 2, 4, 6, 7)
POWERS = (0.0, 0.25, 0.5, 0.75, 1.0)
SETS, SET_SIZE = 20, 10
OUTCOMES = ("half, mean of seeds", "5 %, mean of seeds")


def effects(truth: Truth) -> list[np.ndarray]:
    """(masks, tests) of each moment: what leaving the masked rows out does to the tests."""
    X, y = torch.from_numpy(truth.data["X"]), torch.from_numpy(truth.data["y"])
    *earlier, _ = [truth.network(0, moment).state_dict() for moment in MOMENTS]
    # wide enough for the evidence that the damping stands on
    run = exempla.Explainer([truth.network(), *earlier], sketch=1024, progress=False).fit((X, y))
    last, *others = [d.value for d in run.kernel("influence").dampings]
    return [
        at(truth, f"0/{moment}", damping)
        for moment, damping in zip(MOMENTS, [*others, last], strict=True)
    ]


def at(truth: Truth, key: str, damping: float) -> np.ndarray:
    stored = truth.stored["effect/" + key].astype(np.float64) * truth.stored["spread/" + key]
    stored, grid = np.nan_to_num(stored), np.log(DAMPINGS)
    x = np.clip(np.log(damping), grid[0], grid[-1])
    below = min(int(np.searchsorted(grid, x, side="right")) - 1, len(grid) - 2)
    share = (x - grid[below]) / (grid[below + 1] - grid[below])
    return (1 - share) * stored[below] + share * stored[below + 1]


def summed(parts: list[np.ndarray], power: float) -> np.ndarray:
    sizes = [np.sqrt((part**2).mean(0)) for part in parts]
    return sum((p / np.maximum(s, 1e-30) ** power for p, s in zip(parts, sizes)), np.zeros(1))


def lines(truth: Truth) -> list[dict[str, str]]:
    parts = effects(truth)
    tests = parts[0].shape[1]
    rng = np.random.default_rng(0)
    sets = np.stack([rng.choice(tests, SET_SIZE, replace=False) for _ in range(SETS)])
    half = len(truth.removals[OUTCOMES[0]][1])
    made = []
    for power in POWERS:
        single, together = summed(parts, power), summed([p[:, sets].mean(2) for p in parts], power)
        line = {"setting": truth.setting.name, "part": truth.setting.part, "power": f"{power:g}"}
        for outcome in OUTCOMES:
            own = slice(None, half) if outcome.startswith("half") else slice(half, None)
            after = truth.removals[outcome][1]
            one = np.eye(len(after))
            line[outcome] = f"{exempla.metrics.lds(single[own], one, after):.3f}"
            line[f"sets, {outcome}"] = (
                f"{exempla.metrics.lds(together[own], one, after[:, sets].mean(2)):.3f}"
            )
        made.append(line)
        print(*line.values(), sep="  ", flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/experiments/truths_moments.csv"))
    parser.add_argument("--only", default=",".join(s.name for s in settings_of()))
    options = parser.parse_args()
    made: list[dict[str, str]] = []
    for setting in settings_of():
        if setting.name in options.only.split(","):
            made += lines(load_truth(options.folder, setting))
    with options.out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(made[0]))
        writer.writeheader()
        writer.writerows(made)


if __name__ == "__main__":
    main()
