"""Which damping rule is best, and for what? Run: EXEMPLA_DATA=… python -m benchmarks.damping

Two uses, with three truths:
  influence  – digits MLP, 100 half-subsets × 5 retrainings: LDS of `Explainer.influence`.
               A sweep chooses on subsets 0–49; every line is reported on subsets 50–99.
  selection  – Enron1, 20 % of the labels flipped, 500 curated: share of flips among the first 727
               of the SBQ ranking (unit rows, opponents, noise 10). A sweep chooses on seed 100;
               every line is reported on seeds 0–2. (A model of the noisy rows only.)

  removal    – an MLP and a CNN on digits with 5 % wrong labels, four seeds: the 30 rows that
               `explain` names for the test errors are removed and three networks retrained; gain in
               mean log-likelihood of the errors. One rule would serve selection and influence if
               "trust" were at least as good as "per-effective-row" on seeds 0 and 1; seeds 2 and 3
               are reported.

The rules never see a truth. The sweep does, on the other half, and is the mark to come near.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import nn

import exempla
from benchmarks.enron1 import noisy_enron
from benchmarks.fit_cost import Data, digits, small_network, train
from benchmarks.lds_digits_model import lds_data, lds_model
from exempla.kernel.damping import RULES

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


def removal_table() -> None:
    torch.set_num_threads(1)
    print("\nremoval: gain of the errors   seeds 0, 1   seeds 2, 3   wrong labels named")
    for rule in ("trust", "per-effective-row"):
        gains, named = [], []
        for seed in range(4):
            for make in (_mlp, small_network):
                (X, y), test = digits()
                X_test, y_test = test
                rng = np.random.default_rng(seed)
                wrong = rng.permutation(len(y))[: len(y) // 20]
                y[wrong] = (y[wrong] + torch.from_numpy(rng.integers(1, 10, len(wrong)))) % 10
                model = _trained(make, (X, y), seed)
                asked = np.argsort(-_losses(model, test))[:10]
                answer = (
                    exempla.Explainer(model, damping=rule, budget="exact", progress=False)
                    .fit((X, y))
                    .explain((X_test[asked], y_test[asked]), k=30)
                )
                kept = np.setdiff1d(np.arange(len(y)), answer.indices)
                rest = X[kept], y[kept]
                gain = [
                    _losses(_trained(make, (X, y), other), test)[asked]
                    - _losses(_trained(make, rest, other), test)[asked]
                    for other in range(100, 103)
                ]
                gains.append(np.mean(gain))
                named.append(np.isin(answer.indices, wrong).mean())
        halves = np.mean(gains[:4]), np.mean(gains[4:])
        print(f"  {rule:<24} {halves[0]:9.3f} {halves[1]:12.3f} {np.mean(named):15.2f}")


def _mlp() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def _trained(make: Callable[[], nn.Module], data: Data, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return train(make(), data, 15)


def _losses(model: nn.Module, test: Data) -> np.ndarray:
    with torch.no_grad():
        return nn.functional.cross_entropy(model(test[0]), test[1], reduction="none").numpy()


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
    removal_table()
