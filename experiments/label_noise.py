"""Kinds of wrong labels: is the number right, are the probabilities, and is the order good?

Run:  EXEMPLA_DATA=folder python -m experiments.label_noise --out results/label_noise [--fast]

Every case of `label_cases.REPORT` is run once (a case that is there already is not run again) and
leaves one line: how many labels were expected to be wrong and are, the interval, what a person
misses who checks as many rows as are wrong, and how often rows of each probability are wrong.
Beside it stand five-fold self-confidence and, with --peers FOLDER, cleanlab in its own environment,
both on the same out-of-fold probabilities. With --before FOLDER the same lines of an earlier
version are compared with.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from exempla.tasks.labels.fix_labels import fix_labels_from, gather
from experiments.label_cases import KINDS, REPORT, Case, load
from experiments.label_noise_page import write

__all__ = ["measure", "run"]

EDGES = np.array([0.0, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0001])
LIGHT = 256
"""Directions of the Fisher kernel in the earlier version, where all of them take minutes."""


def measure(case: Case, data: Path, asked: Path | None = None) -> dict[str, Any]:
    """One line of the table; `asked` is where the question to cleanlab is left."""
    trial = load(case, data)
    wrong, n = trial.wrong, len(trial.wrong)
    planted, budget = int(wrong.sum()), round(case.rate * n)
    sketch = LIGHT if case.data.startswith(("enron", "sst2")) else "auto"
    evidence = gather(trial.model, trial.train, trial.curated, seed=case.seed, sketch=sketch)
    start = time.process_time()
    fixes = fix_labels_from(evidence)
    seconds = time.process_time() - start
    order = fixes.indices
    low, high = getattr(fixes, "expected_errors_interval", None) or (np.nan, np.nan)
    line: dict[str, Any] = {
        "data": case.data, "kind": case.kind, "rate": case.rate, "seed": case.seed, "rows": n,
        "planted": planted, "expected": fixes.expected_errors, "low": low, "high": high,
        "seconds": seconds,
        "found": wrong[order[:planted]].mean(), "misses": 1 - wrong[order[:budget]].sum() / planted,
    }  # fmt: skip
    p = np.empty(n)
    p[order] = fixes.probabilities
    place = np.digitize(p, EDGES) - 1
    for b in range(len(EDGES) - 1):
        here = place == b
        line |= {
            f"rows_{b}": here.sum(),
            f"sum_{b}": p[here].sum(),
            f"wrong_{b}": wrong[here].sum(),
        }
    log_p = evidence.cross_fitted[:n]
    given = evidence.problem.codes[:n]
    own = np.argsort(log_p[np.arange(n), given], kind="stable")
    line["self_confidence"] = wrong[own[:planted]].mean()
    if asked is not None:
        proba = np.exp(log_p)
        np.savez(asked, labels=given, proba=proba / proba.sum(1, keepdims=True), wrong=wrong)
    return line


def by_cleanlab(python: Path, asked: list[Path]) -> None:
    """cleanlab's orders and its number of issues, on the same probabilities: one process for all,
    which adds to each case's line."""
    script = Path(__file__).parents[1] / "benchmarks" / "peers" / "run_cleanlab.py"
    subprocess.run([str(python), str(script), *map(str, asked)], check=True, capture_output=True)
    for path in asked:
        answer = path.with_suffix(".out.npz")
        with np.load(path) as case, np.load(answer) as found:
            wrong, k = case["wrong"], int(case["wrong"].sum())
            said = {f"cleanlab_{name}": wrong[found[name][:k]].mean() for name in ORDERS}
            said["cleanlab_count"] = int(found["count"])
        line = path.with_suffix(".csv")
        pd.read_csv(line).assign(**said).to_csv(line, index=False)
        path.unlink()
        answer.unlink()


ORDERS = ("self_confidence", "normalized_margin")


def run(
    out: Path,
    fast: bool,
    data: Path,
    cases: Iterable[Case] = REPORT,
    peer: Path | None = None,
    before: Path | None = None,
) -> Path:
    """Run what is missing, then write label_noise.csv, the figures and the page."""
    out.mkdir(parents=True, exist_ok=True)
    lines = out / "cases"
    lines.mkdir(exist_ok=True)
    if fast:
        cases = [Case("digits", kind, 0.1, 0) for kind in KINDS]
    for case in cases:
        path = lines / f"{case}.csv"
        if not path.exists():
            asked = None if peer is None else path.with_suffix(".npz")
            pd.DataFrame([measure(case, data, asked)]).to_csv(path, index=False)
    if peer is not None and (waiting := sorted(lines.glob("*.npz"))):
        by_cleanlab(peer, waiting)
    found = pd.concat([pd.read_csv(p) for p in sorted(lines.glob("*.csv"))], ignore_index=True)
    earlier = None
    if before is not None:
        earlier = pd.concat([pd.read_csv(p) for p in sorted((before / "cases").glob("*.csv"))])
    return write(found, earlier, EDGES, out)


def main() -> None:
    parser = argparse.ArgumentParser(description="Kinds of wrong labels.")
    parser.add_argument("--out", type=Path, default=Path("results/label_noise"))
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--data", nargs="*", default=None, help="only these data sets")
    parser.add_argument("--seeds", nargs="*", type=int, default=None, help="only these seeds")
    parser.add_argument("--kinds", nargs="*", default=KINDS, help="only these kinds of mistakes")
    parser.add_argument("--peer", type=Path, help="the Python of an environment with cleanlab")
    parser.add_argument("--before", type=Path, help="results of an earlier version")
    options = parser.parse_args()
    if "EXEMPLA_DATA" not in os.environ:
        raise SystemExit("EXEMPLA_DATA is not set: name the folder with the data.")
    cases = [
        case
        for case in REPORT
        if (options.data is None or case.data in options.data)
        and (options.seeds is None or case.seed in options.seeds)
        and case.kind in options.kinds
    ]
    folder = Path(os.environ["EXEMPLA_DATA"])
    print(run(options.out, options.fast, folder, cases, options.peer, options.before))


if __name__ == "__main__":
    main()
