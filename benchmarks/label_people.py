"""Mistakes that people made: write docs/experiments/human_labels.csv and print how ours compares.

    python -m benchmarks.label_people results.jsonl [more.jsonl …]

Each line of a results file is one run of a comparison on labels whose truth is known: set, kind,
n, wrong, Cname, seed, curated and, under `results`, a dictionary for each method (ours,
self-confidence, margin, training loss, cleanlab) with average precision, AUC, precision among as
many as are wrong, and for ours the expected number of mistakes with its interval. Sets that are not
in the results keep their lines.
"""

from __future__ import annotations

import csv
import datetime
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

OUT = Path("docs/experiments/human_labels.csv")
BASELINES = ("self-confidence", "margin", "loss", "residual", "cleanlab")


def lines(files: list[str]) -> list[dict[str, Any]]:
    """Return one line for each run and method."""
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%h"], capture_output=True, text=True, check=True
    ).stdout.strip()
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    out = []
    for text in [line for file in files for line in Path(file).read_text().splitlines()]:
        run = json.loads(text)
        for method, found in run["results"].items():
            if "error" in found:
                continue
            counts = {k: round(found[k]) if k in found else "" for k in ("expected", "low", "high")}
            out.append({
                "set": run["set"], "kind": run["kind"], "labels": run["n"], "wrong": run["wrong"],
                "model": run["Cname"], "seed": run["seed"], "trusted": run["curated"],
                "method": method, "ap": round(found["ap"], 4), "auc": round(found["auc"], 4),
                "precision_at_wrong": round(found["p_at_k"], 4), **counts,
                "seconds": round(found["seconds"], 1) if "seconds" in found else "",
                "date": today, "commit": commit,
            })  # fmt: skip
    return out


def summary(table: list[dict[str, Any]]) -> None:
    """Print the gain over self-confidence, the best baseline and the counts, set by set."""
    runs: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for line in table:
        key = tuple(line[k] for k in ("set", "model", "seed", "trusted"))
        runs.setdefault(key, {})[line["method"]] = line
    for trusted in (False, True):
        gains: dict[str, list[float]] = {}
        held, ratios = [], []
        for (name, model, seed, rows), found in sorted(runs.items()):
            if (rows > 0) != trusted:
                continue
            ours, ap = found["exempla"], {k: v["ap"] for k, v in found.items()}
            first = ap.get("self-confidence", ap.get("residual"))
            best = max(ap[k] for k in BASELINES if k in ap)
            gains.setdefault(name, []).append(ours["ap"] - first)
            held.append(ours["low"] <= ours["wrong"] <= ours["high"])
            ratios.append(ours["expected"] / ours["wrong"])
            print(
                f"{name:14s} {model:6s} {seed} trusted {rows:3d}  ours {ours['ap']:.3f}  "
                f"self-confidence {first:.3f}  best {best:.3f}  adjusted "
                f"{ap.get('cleanlab adjusted', float('nan')):.3f}  expected/true {ratios[-1]:.2f}"
            )
        if gains:
            mean = np.mean([np.mean(values) for values in gains.values()])
            within = np.mean([0.5 <= ratio <= 2 for ratio in ratios])
            print(f"mean gain over sets {mean:+.4f}, intervals hold {np.mean(held):.0%}, expected/"
                  f"true within 0.5 to 2 in {within:.0%} of {len(ratios)} runs\n")  # fmt: skip


def main() -> None:
    table = lines(sys.argv[1:])
    sets = {line["set"] for line in table}
    with OUT.open() as file:
        kept = [line for line in csv.DictReader(file) if line["set"] not in sets]
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, table[0].keys(), restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows([*table, *kept])
    summary(table)


if __name__ == "__main__":
    main()
