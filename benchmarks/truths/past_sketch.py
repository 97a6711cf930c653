"""What a sketch loses, and what conjugate gradients win back: error to the exact answer, LDS, cost.

    python -m benchmarks.truths.past_sketch --folder FOLDER [--only NAME,…] [--out FILE.csv]

Questions are sets of ten test examples (twenty sets, drawn once). Ways, all at the automatic
damping:

* exact        the exact Gauss–Newton matrix
* sketch       `WIDTH` K-FAC directions alone
* with rest    the sketch, and one mean eigenvalue for what it leaves out
* gradients    conjugate gradients from there (`Explainer.set_influence`)
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch

import exempla
from benchmarks.truths.exact import exact_influences
from benchmarks.truths.settings import settings_of
from benchmarks.truths.table import Truth, load_truth
from exempla.arrays import as_like, products
from exempla.kernel.solve import query_kernel

WIDTH, SETS, SET_SIZE = 512, 20, 10
OUTCOME = "half, mean of seeds"


def set_lds(truth: Truth, influence: np.ndarray, sets: np.ndarray) -> float:
    removed, after = truth.removals[OUTCOME]
    outcome = after[:, sets].mean(2)
    return exempla.metrics.lds(-influence, removed.astype(bool), outcome)


def lines(truth: Truth) -> list[dict[str, str]]:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X, y, X_test, y_test = (
        torch.from_numpy(truth.data[name]).to(device) for name in ("X", "y", "X_test", "y_test")
    )
    network = truth.network().to(device)
    rng = np.random.default_rng(0)
    sets = np.stack([rng.choice(len(y_test), SET_SIZE, replace=False) for _ in range(SETS)])
    narrow = exempla.Explainer(network, progress=False, sketch=WIDTH).fit((X, y))
    damping = narrow.features.damping
    (exact,), _ = exact_influences(network, X, y, X_test, y_test, (damping,))
    (embedding,) = narrow.embeddings
    mix = np.zeros((len(y_test), SETS))
    for place, chosen in enumerate(sets):
        mix[chosen, place] = 1 / SET_SIZE
    asked = embedding.oracle.read((X_test, y_test), role="test")
    rows, _ = embedding.embed(asked, "true")
    alone = embedding.metric.solve(as_like(mix.T, rows) @ rows, damping)
    solved = [narrow.set_influence((X_test[s], y_test[s])) for s in sets]
    ways = {
        "exact": exact.double().cpu().numpy() @ mix,
        "sketch": products(embedding.rows, alone) / len(y),
        "with rest": query_kernel(embedding, asked, damping, mix=mix).values / len(y),
        "gradients": np.column_stack([found.values for found in solved]),
    }
    told = {
        "passes": f"{np.mean([found.steps for found in solved]):.1f}",
        "residual": f"{max(found.residual for found in solved):.3f}",
    }
    made = []
    for way, influence in ways.items():
        error = np.linalg.norm(influence - ways["exact"]) / np.linalg.norm(ways["exact"])
        made.append(
            {
                "setting": truth.setting.name,
                "part": truth.setting.part,
                "parameters": str(narrow.oracles[0].n_parameters),
                "damping": f"{damping:.3g}",
                "share kept": f"{embedding.evidence.share:.3f}",
                "way": way,
                "error to exact": f"{error:.3f}",
                "LDS": f"{set_lds(truth, influence, sets):.3f}",
            }
            | (told if way == "gradients" else dict.fromkeys(told, ""))
        )
        print(*made[-1].values(), sep="  ", flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/experiments/past_sketch.csv"))
    networks = [s.name for s in settings_of() if s.network != "logistic"]
    parser.add_argument("--only", default=",".join(networks))
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
