"""Which damping rule is best, and for what? Run: EXEMPLA_DATA=… python -m benchmarks.damping

Two uses, each with a truth:
  influence  – digits MLP, 100 half-subsets × 5 retrainings: LDS of `Explainer.influence`.
               A sweep chooses on subsets 0–49; every line is reported on subsets 50–99.
  selection  – Enron1, 20 % of the labels flipped, 500 curated: share of flips among the first 727
               of the SBQ ranking (unit rows, opponents, noise 10). A sweep chooses on seed 100;
               every line is reported on seeds 0–2. (A model of the noisy rows only.)

The rules never see a truth. The sweep does, on the other half, and is the mark to come near.
"""

from __future__ import annotations

import os
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

import exempla
from benchmarks.enron1 import noisy_enron
from benchmarks.lds_digits_model import lds_data, lds_model
from exempla.kernel.fisher import RULES

SWEEP = np.geomspace(0.1, 100, 13)
"""Multiples of the per-row rule that a sweep tries: 13 values."""


def influence_table(folder: Path) -> None:
    X, y, X_test, y_test = lds_data(folder)
    truth = np.load(folder / "truth.npz")
    outcomes = -truth["loss"].mean(1)
    explainer = exempla.Explainer(lds_model(folder), progress=False).fit((X, y))

    def score(damping: str | float) -> tuple[float, float, float]:
        explainer.set_damping(damping)
        A = explainer.influence((X_test, y_test))
        halves = [
            exempla.metrics.lds(A, truth["subsets"][part], outcomes[part])
            for part in (slice(0, 50), slice(50, 100))
        ]
        return explainer.features.damping, *halves

    print("\ninfluence: digits LDS       damping   0–49   50–99")
    for rule in RULES:
        value, choose, report = score(rule)
        print(f"  {rule:<24} {value:9.3g}  {choose:.4f}  {report:.4f}")
    base = score("per-row")[0]
    value, choose, report = max((score(base * m) for m in SWEEP), key=lambda s: s[1])
    print(f"  {'best of 13 on 0–49':<24} {value:9.3g}  {choose:.4f}  {report:.4f}")


def found_shares(folder: Path, seed: int, l2: float) -> dict[str, float]:
    """Share of flips found at 727 by every rule and every value of the sweep."""
    job = noisy_enron(folder, seed, l2)
    explainer = exempla.Explainer(job.model, progress=False).fit(job.train)
    base = RULES["per-row"](explainer.embeddings[0].evidence).value
    settings: dict[str, str | float] = {rule: rule for rule in RULES}
    settings |= {f"{m:.3g} × per-row": base * m for m in SWEEP[SWEEP >= 0.9]}
    found = {}
    for name, damping in settings.items():
        ranking = explainer.set_damping(damping).explain(job.curated, k=727).indices
        found[name] = exempla.metrics.found_share(ranking, job.wrong, 727)
    return found


def selection_table(folder: Path, seeds: tuple[int, ...] = (0, 1, 2), chosen_on: int = 100) -> None:
    for l2 in (1e-4, 1e-2):
        with ProcessPoolExecutor(max_workers=max(1, (os.cpu_count() or 2) // 2)) as pool:
            jobs = [pool.submit(found_shares, folder, seed, l2) for seed in (chosen_on, *seeds)]
            first, *rest = (job.result() for job in jobs)
        print(
            f"\nselection: Enron1, L2 {l2:g}    seed {chosen_on}  mean of seeds {seeds}", flush=True
        )
        best = max(first, key=lambda name: first[name])
        for name in [*RULES, best]:
            mark = " (best of the sweep)" if name == best and name not in RULES else ""
            mean = np.mean([shares[name] for shares in rest])
            print(f"  {name + mark:<36} {first[name]:.3f}  {mean:.3f}", flush=True)


if __name__ == "__main__":
    data = os.environ.get("EXEMPLA_DATA")
    if not data:
        sys.exit("benchmarks.damping needs EXEMPLA_DATA, the folder with lds_digits and enron1.")
    influence_table(Path(data) / "lds_digits")
    selection_table(Path(data) / "enron1")
