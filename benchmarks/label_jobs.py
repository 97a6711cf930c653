"""Are wrong numbers found, and is their number told honestly?

    EXEMPLA_DATA=… python -m benchmarks.label_jobs choose|report [--cleanlab PYTHON] [--seeds 2]

Settled beforehand: rules are chosen on the tables of CHOOSE with seeds from 1000 on, and reported
on those of REPORT with seeds from 0 on, run once. At most 3,000 rows of each. Of every table no
number, or five in a hundred, are made wrong in one of five ways:

    x10, div10, sign    what is said
    swap                numbers change places among the chosen rows
    digit               two neighbouring digits of the number change places (the first that differ)

Measured: average precision of the order; the share of planted numbers among as many suspects;
expected ÷ planted; whether the 90 % interval holds the number of planted ones that differ from the
true number by more than twice the noise (`visible`), or of all (`planted`). Beside it: the order by
|residual| of five-fold cross-validation, and cleanlab's `regression.learn.CleanLearning`, which
runs in an environment of its own. Lines are added to docs/experiments/label_jobs.csv.
"""

from __future__ import annotations

import argparse
import csv
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import (
    load_breast_cancer,
    load_diabetes,
    load_iris,
    load_wine,
    make_friedman1,
    make_friedman2,
)
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.metrics import average_precision_score
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import exempla
from benchmarks.tree_tables import adult, covtype, hours

OUT = Path(__file__).parents[1] / "docs" / "experiments" / "label_jobs.csv"
ROWS, SHARE = 3000, 0.05
KINDS = ("none", "x10", "div10", "sign", "swap", "digit")
Data = tuple[np.ndarray, np.ndarray]


def column(table: Callable[[], Data], place: int) -> Data:
    """One column of a table, to be predicted from the others."""
    X, _ = table()
    return np.delete(X, place, axis=1), X[:, place]


def heavy(seed: int) -> Data:
    """Friedman's first function with Student noise, ν = 2.5."""
    X, y = make_friedman1(2000, noise=0.0, random_state=seed)
    return X, y + np.random.default_rng(seed).standard_t(2.5, 2000)


def multiplied(seed: int) -> Data:
    """Friedman's second function with log-normal noise: its spread grows with it, and is skew."""
    X, y = make_friedman2(2000, noise=0.0, random_state=seed)
    return X, y * np.random.default_rng(seed).lognormal(0.0, 0.3, 2000)


CHOOSE: dict[str, Callable[[int], Data]] = {
    "diabetes": lambda _: load_diabetes(return_X_y=True),
    "friedman t2.5": heavy,
    "wine alcohol": lambda _: column(lambda: load_wine(return_X_y=True), 0),
    "covtype roads": lambda _: column(covtype, 5),
}
REPORT: dict[str, Callable[[int], Data]] = {
    "adult hours": lambda _: hours(),
    "adult age": lambda _: column(adult, 0),
    "covtype elevation": lambda _: column(covtype, 0),
    "cancer texture": lambda _: column(lambda: load_breast_cancer(return_X_y=True), 21),
    "iris petal length": lambda _: column(lambda: load_iris(return_X_y=True), 2),
    "friedman lognormal": multiplied,
}


def model_of(name: str) -> Any:
    """Ridge regression for small tables, boosted trees for the others."""
    if name in ("diabetes", "wine alcohol", "cancer texture", "iris petal length"):
        return make_pipeline(StandardScaler(), Ridge(1.0))
    return HistGradientBoostingRegressor(max_iter=60, random_state=0)


def planted(y: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """The numbers with a share of them made wrong."""
    if kind == "none":
        return y.copy()
    rows, out = rng.choice(len(y), round(SHARE * len(y)), replace=False), y.copy()
    slips = {"x10": 10.0, "div10": 0.1, "sign": -1.0}
    if kind in slips:
        out[rows] *= slips[kind]
    elif kind == "swap":
        out[rows] = np.roll(out[rows], 1)
    else:
        out[rows] = [transposed(value) for value in out[rows]]
    return out


def transposed(value: float) -> float:
    """The number with the first two neighbouring digits that differ in each other's place."""
    text = f"{value:.6g}" if value % 1 else f"{value:.0f}"
    for i in range(len(text) - 1):
        a, b = text[i], text[i + 1]
        if a.isdigit() and b.isdigit() and a != b:
            return float(text[:i] + b + a + text[i + 2 :])
    return value


def cleanlab_order(python: str, X: np.ndarray, y: np.ndarray, name: str) -> np.ndarray:
    """cleanlab's label quality, low for wrong ones."""
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/in.npz", X=X, y=y)
        small = "Ridge" if hasattr(model_of(name), "steps") else "trees"
        runner = Path(__file__).with_name("label_jobs_cleanlab.py")
        subprocess.run([python, str(runner), folder, small], check=True, capture_output=True)
        return np.load(f"{folder}/out.npy")


def measured(name: str, make: Callable[[int], Data], kind: str, seed: int, python: str) -> list:
    rng = np.random.default_rng(seed)
    X, y = make(seed)
    rows = rng.permutation(len(y))[:ROWS]
    X, y = X[rows], y[rows]
    given = planted(y, kind, rng)
    noise = np.median(np.abs(y - cross_val_predict(model_of(name), X, y, cv=5))) * 1.4826
    wrong = given != y
    visible = np.abs(given - y) > 2 * noise
    start = time.process_time()
    fixes = exempla.fix_labels(model_of(name), (X, given), progress=False, seed=seed)
    seconds = time.process_time() - start
    chance = np.empty(len(y))
    chance[fixes.indices] = -np.arange(len(y))
    scores = {"exempla": chance}
    scores["residual"] = np.abs(given - cross_val_predict(model_of(name), X, given, cv=5))
    if python and kind != "none":
        scores["cleanlab"] = -cleanlab_order(python, X, given, name)
    lines = []
    for method, score in scores.items():
        count = int(wrong.sum())
        first = np.argsort(-score, kind="stable")[:count]
        line = {
            "table": name, "kind": kind, "seed": seed, "rows": len(y), "method": method,
            "planted": count, "visible": int(visible.sum()),
            "ap": average_precision_score(wrong, score) if count else "",
            "at_planted": wrong[first].mean() if count else "",
        }  # fmt: skip
        if method == "exempla":
            low, high = fixes.interval
            line |= {"expected": fixes.expected_errors, "low": low, "high": high,
                     "tail": fixes.tail, "seconds": seconds}  # fmt: skip
        lines.append(line)
    return lines


FIELDS = ("split", "table", "kind", "seed", "rows", "method", "planted", "visible", "ap",
          "at_planted", "expected", "low", "high", "tail", "seconds")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("split", choices=("choose", "report"))
    parser.add_argument("--cleanlab", default="", help="the Python of cleanlab's environment")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--tables", default="", help="only these, separated by commas")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    tables, first = (CHOOSE, 1000) if options.split == "choose" else (REPORT, 0)
    new = not options.out.exists()
    with options.out.open("a", newline="") as file:
        out = csv.DictWriter(file, FIELDS)
        if new:
            out.writeheader()
        for name, make in tables.items():
            if options.tables and name not in options.tables.split(","):
                continue
            for kind in KINDS:
                for seed in range(first, first + options.seeds):
                    for line in measured(name, make, kind, seed, options.cleanlab):
                        line = {k: f"{v:.4g}" if isinstance(v, float) else v
                                for k, v in line.items()}  # fmt: skip
                        out.writerow({"split": options.split, **line})
                        print(line, flush=True)
                    file.flush()


if __name__ == "__main__":
    main()
