"""Are the sizes true? The effect of a removal as stated by `explain` beside the retrained one.

    EXEMPLA_DATA=… python -m benchmarks.sizes [--out docs/experiments/sizes.csv]

Linear models, trees and networks on four data sets with 5 % of the training labels flipped; queries
of one, ten and all errors; 10, 50 and 5 % of the rows removed. `benchmarks/sizes_settings.csv` says
which settings are for choosing (the corrections `SIZE` of `exempla.tasks.verify`) and which for
reporting; it was written before anything was measured. Every setting has two stated effects: the
answer (measured if retraining is quick) and the corrected prediction alone. The retrained effect is
the mean over trainings with seeds that the answer has not used.
"""

from __future__ import annotations

import argparse
import csv
import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from lightgbm import LGBMClassifier
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import scale

from exempla import Explainer
from exempla.data import take_examples
from exempla.tasks.explain import explain_from
from exempla.tasks.retrain import refit
from exempla.tasks.verify import SIZE, judge_rows, kind_of

SETTINGS = Path(__file__).with_name("sizes_settings.csv")
FLIPPED = 0.05
QUERIES = {"1": 1, "10": 10, "all": 10**9}
REMOVED = ("10", "50", "5%")
SEEDS = range(100, 105)
SCALES = (1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 7.0)
"""Corrections of the log-odds that are recorded for choosing."""

MODELS = {
    "logistic": lambda: LogisticRegression(max_iter=2000),
    "logistic, weak penalty": lambda: LogisticRegression(C=20.0, max_iter=5000),
    "histogram boosting": lambda: HistGradientBoostingClassifier(max_iter=60, random_state=0),
    "LightGBM": lambda: LGBMClassifier(n_estimators=60, random_state=0, verbose=-1, n_jobs=1),
    "MLP": lambda: MLPClassifier((32,), alpha=1e-3, max_iter=60, random_state=0),
    "MLP, two layers": lambda: MLPClassifier((32, 32), alpha=1e-2, max_iter=40, random_state=0),
}


def data_set(name: str) -> tuple[Any, Any, int]:
    """X, y and the number of training rows."""
    folder = Path(os.environ["EXEMPLA_DATA"])
    rng = np.random.default_rng(0)
    if name == "breast cancer":
        X, y = load_breast_cancer(return_X_y=True)
        return scale(X), y, 400
    if name == "digits":
        X, y = load_digits(return_X_y=True)
        return X / 16, y, 1200
    if name == "covtype":
        with np.load(folder / "covtype" / "covtype.npz") as stored:
            some = rng.choice(len(stored["y"]), 3000, replace=False)
            X, y = stored["X"][some].astype(float), (stored["y"][some] == 2).astype(int)
        return scale(X[:, X.std(0) > 0.02]), y, 2000
    import pandas as pd

    (path,) = [p for p in (folder / "tabular").iterdir() if p.name.startswith("adult") and
               "test" not in p.name and "names" not in p.name]  # fmt: skip
    table = pd.read_csv(path, header=None, skipinitialspace=True)
    table = table.iloc[rng.choice(len(table), 3000, replace=False)]
    y = table[14].astype(str).str.contains(">").to_numpy().astype(int)
    X = pd.get_dummies(table.drop(columns=14)).to_numpy(float)
    return scale(X[:, X.std(0) > 0]), y, 2000


def flipped(X: Any, y: Any, cut: int) -> tuple[Any, Any, Any, Any]:
    """Training and test rows in random order; a share of the training labels is wrong."""
    rng = np.random.default_rng(1)
    order = rng.permutation(len(y))
    X, y = X[order], y[order].copy()
    wrong = rng.choice(cut, round(FLIPPED * cut), replace=False)
    y[wrong] = (y[wrong] + rng.integers(1, y.max() + 1, len(wrong))) % (y.max() + 1)
    return X[:cut], y[:cut], X[cut:], y[cut:]


def lines(model_name: str, data: str) -> list[dict[str, Any]]:
    """One line per query and number of removed rows."""
    X, y, X_test, y_test = flipped(*data_set(data))
    start = time.perf_counter()
    model = MODELS[model_name]().fit(X, y)
    explainer = Explainer(model, progress=False).fit((X, y))
    took = time.perf_counter() - start
    wrong = np.random.default_rng(2).permutation(np.flatnonzero(model.predict(X_test) != y_test))
    whole = [refit(model, X, y, None, None, seed) for seed in SEEDS]
    out = []
    for asked, count in QUERIES.items():
        rows = np.sort(wrong[:count])
        query = take_examples((X_test, y_test), rows)
        before = np.mean([judge_rows(m, query)[0].mean() for m in whole])
        for removed in REMOVED:
            k = round(0.05 * len(y)) if removed == "5%" else int(removed)
            began = time.perf_counter() - took
            found = explain_from(explainer, (X_test, y_test), k, ask=rows, started=began)
            keep = np.setdiff1d(np.arange(len(y)), found.removed)
            again = [refit(model, X[keep], y[keep], None, None, seed) for seed in SEEDS]
            after = np.mean([judge_rows(m, query)[0].mean() for m in again])
            size = SIZE[kind_of(explainer)]
            effects = {
                f"x{scale:g}": explainer.removal_effect(found.removed, query, scale=scale)
                for scale in (*SCALES, size.factor)
            }
            effect = found.removal
            predicted = effects[f"x{size.factor:g}"].log_likelihood
            finite = size if np.isfinite(size.high) else size._replace(low=np.nan, high=np.nan)
            ends = sorted((predicted * finite.low, predicted * finite.high))
            low, high = (np.nan if effect[e] is None else effect[e] for e in ("low", "high"))
            out.append(
                {
                    "model": model_name, "kind": kind_of(explainer), "data": data, "query": asked,
                    "removed": removed, "rows": len(found.removed),
                    "retrained": after - before, "measured": int(effect["measured"]),
                    "answer": effect["log_likelihood"], "low": low, "high": high,
                    "predicted": predicted, "predicted_low": ends[0], "predicted_high": ends[1],
                    **{f"x{s:g}": effects[f"x{s:g}"].log_likelihood for s in SCALES},
                }
            )  # fmt: skip
    return out


def summary(found: list[dict[str, Any]], stated: str) -> str:
    """Share of sizes within a factor of 1.5, median ratio, and coverage of the intervals."""
    low, high = ("low", "high") if stated == "answer" else (f"{stated}_low", f"{stated}_high")
    ratio = np.array([line[stated] / line["retrained"] for line in found])
    within = (ratio > 1 / 1.5) & (ratio < 1.5)
    slack = 1e-9
    holds = [line[low] - slack <= line["retrained"] <= line[high] + slack for line in found]
    return (
        f"{len(found):4d} settings: {within.mean():.0%} within a factor of 1.5, median ratio "
        f"{np.median(ratio):.2f}, intervals hold {np.mean(holds):.0%}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--split", choices=("choose", "report"))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    with SETTINGS.open() as file:
        settings = list(csv.DictReader(file))
    found = []
    for line in settings:
        if options.split in (None, line["split"]):
            for one in lines(line["model"], line["data"]):
                found.append({"split": line["split"], **one})
            print(f"{line['model']}, {line['data']}: done", flush=True)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(found[0]), lineterminator="\n")
            writer.writeheader()
            for line in found:
                writer.writerow(
                    {k: f"{v:.5g}" if isinstance(v, float) else v for k, v in line.items()}
                )
    for split in ("choose", "report"):
        for kind in ("linear", "trees", "network", None):
            part = [x for x in found if x["split"] == split and kind in (None, x["kind"])]
            for stated in ("answer", "predicted") if part else ():
                print(f"{split:6s} {kind or 'all':8s} {stated:9s} {summary(part, stated)}")


if __name__ == "__main__":
    main()
