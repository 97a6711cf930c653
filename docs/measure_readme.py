"""Measure again the figures of the README that take minutes: docs/experiments/readme.csv.

    EXEMPLA_DATA=folder PYTHONPATH=. python docs/measure_readme.py [--only enron]

The data and the splits are those of `experiments`; every line carries the commit and the date.
"""

from __future__ import annotations

import argparse
import csv
import os
import subprocess
import time
from datetime import date
from pathlib import Path

import numpy as np
from sklearn.base import clone

import exempla
from experiments import enron, label_errors, summaries

ROOT = Path(__file__).parents[1]
DATA = Path(os.environ.get("EXEMPLA_DATA", "data"))
OUT = ROOT / "docs" / "experiments" / "readme.csv"
HEADER = ("figure", "seed", "method", "value", "seconds", "commit", "date")


def share_found(trial) -> dict[str, float]:
    """Share of the wrong labels among as many first rows, for `fix_labels` and two baselines."""
    wrong = trial.wrong
    n = int(wrong.sum())
    fixes = exempla.fix_labels(trial.model, trial.train, trial.curated, k=n, progress=False)
    X, y = trial.train
    found = {"fix_labels": float(wrong[fixes.indices].mean())}
    for name, rows in (("trusted rows alone", trial.curated), ("training loss", trial.train)):
        model = clone(trial.model).fit(*rows)
        given = np.searchsorted(model.classes_, y)
        p = model.predict_proba(X)[np.arange(len(y)), given]
        found[name] = float(wrong[np.argsort(p, kind="stable")[:n]].mean())
    return found


def measure_enron(seed: int) -> dict[str, float]:
    texts, labels = enron.messages(DATA)
    return share_found(enron.plant(texts, labels, seed, 1e-4, (4137, 1035, 500)))


def measure_sst2(seed: int) -> dict[str, float]:
    return share_found(label_errors.sst2(DATA, seed, label_errors.ROWS, label_errors.CURATED))


def measure_covtype(seed: int) -> dict[str, float]:
    """Test log-likelihood of models of 100 rows, and of all rows."""
    case = summaries.covtype(DATA, seed)
    model = summaries.new_model().fit(case.X, case.y)
    ways = summaries.methods(case, model, 100)
    found = {name: summaries.refit(case, ways[name](), case.test) for name in ("ours", "random")}
    return {**found, "all rows": summaries.log_likelihood(model, case.test)}


FIGURES = {
    "enron": (measure_enron, range(10)),
    "sst2": (measure_sst2, range(5)),
    "covtype": (measure_covtype, range(5)),
}


def main() -> None:
    """Measure, and replace the lines of what was measured."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=FIGURES, help="one figure")
    only = parser.parse_args().only
    words = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(words, cwd=ROOT, capture_output=True, text=True).stdout.strip()
    lines = []
    if OUT.exists():
        with OUT.open(newline="", encoding="utf-8") as file:
            lines = [tuple(line.values()) for line in csv.DictReader(file)]
    for name in [only] if only else FIGURES:
        measure, seeds = FIGURES[name]
        lines = [line for line in lines if line[0] != name]
        for seed in seeds:
            began = time.process_time()
            found = measure(seed)
            took = f"{time.process_time() - began:.1f}"
            for method, value in found.items():
                lines.append((name, seed, method, f"{value:.4f}", took, commit, date.today()))
            print(name, seed, found, took, flush=True)
    with OUT.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADER, *lines])


if __name__ == "__main__":
    main()
