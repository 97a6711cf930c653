"""Does the predicted effect of a removal come true? Five data sets, several sets of rows each.

    EXEMPLA_DATA=… python -m benchmarks.removals [--out docs/experiments/removals.csv]

For each data set `explain` is asked about test errors and about all test rows, for opponents and
proponents, 10 to 100 rows; `.verify()` trains again. Printed: the slope of retrained on predicted
changes of the mean log-likelihood (through the origin) and their correlation, with as many random
removals beside them. Nothing is chosen here.
"""

from __future__ import annotations

import argparse
import csv
import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neural_network import MLPClassifier
from sklearn.preprocessing import scale

import exempla

SIZES = (10, 30, 100)


def sets(data: Path) -> dict[str, tuple[Any, Any, Any, Any, Any]]:
    """Model (not fitted), then training and test rows; a tenth of the training labels is wrong."""
    found = {}
    X, y = load_breast_cancer(return_X_y=True)
    found["breast cancer, logistic"] = LogisticRegression(C=0.1), scale(X), y, 400
    X, y = load_digits(return_X_y=True)
    found["digits, logistic"] = LogisticRegression(max_iter=2000), X / 16, y, 1000
    network = MLPClassifier((32,), alpha=1e-3, max_iter=60, random_state=0)
    found["digits, network"] = network, X / 16, y, 1000
    X, y = load_diabetes(return_X_y=True)
    found["diabetes, ridge"] = Ridge(), scale(X), (y - y.mean()) / y.std(), 300
    with np.load(data / "covtype" / "covtype.npz") as stored:
        some = np.random.default_rng(0).choice(len(stored["y"]), 4000, replace=False)
        X, y = stored["X"][some].astype(float), (stored["y"][some] == 2).astype(int)
    X = X[:, X.std(0) > 0.02]
    found["covtype, logistic"] = LogisticRegression(max_iter=2000), scale(X), y, 2500
    made = {}
    for name, (model, X, y, cut) in found.items():
        rng = np.random.default_rng(0)
        order = rng.permutation(len(y))
        X, y = X[order], y[order].copy()
        if name != "diabetes, ridge":
            wrong = rng.choice(cut, cut // 10, replace=False)
            y[wrong] = rng.permutation(y[wrong])
        made[name] = model, X[:cut], y[:cut], X[cut:], y[cut:]
    return made


def lines(name: str, job: tuple[Any, ...]) -> list[dict[str, Any]]:
    model, X, y, X_test, y_test = job
    model.fit(X, y)
    explainer = exempla.Explainer(model, progress=False).fit((X, y))
    questions = {"all": np.arange(len(y_test))}
    if hasattr(model, "classes_"):
        questions["errors"] = np.flatnonzero(model.predict(X_test) != y_test)
    made = []
    for asked, rows in questions.items():
        for side in ("opponents", "proponents"):
            for k in SIZES:
                found = explainer.explain((X_test[rows], y_test[rows]), k=k, side=side)
                seeds = 3 if isinstance(model, MLPClassifier) else 1
                checked = found.verify(seeds=seeds)
                base = checked.mean("queried", "nothing removed", "log_likelihood")
                chance = checked.mean("queried", "random removed", "log_likelihood") - base
                made.append({"data": name, "asked": asked, "side": side, "k": k,
                             "predicted": f"{checked.predicted:.4f}",
                             "retrained": f"{checked.retrained:.4f}",
                             "random": f"{chance:.4f}"})  # fmt: skip
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/experiments/removals.csv"))
    options = parser.parse_args()
    made = []
    for name, job in sets(Path(os.environ["EXEMPLA_DATA"])).items():
        made += (own := lines(name, job))
        x, z = (np.array([float(line[c]) for line in own]) for c in ("predicted", "retrained"))
        slope, correlation = x @ z / (x @ x), np.corrcoef(x, z)[0, 1]
        print(f"{name:<26} slope {slope:.2f}  correlation {correlation:.3f}", flush=True)
    with options.out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(made[0]))
        writer.writeheader()
        writer.writerows(made)


if __name__ == "__main__":
    main()
