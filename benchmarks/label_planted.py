"""Planted flips: average precision of `fix_labels` by set, kind of flips and regularisation.

    EXEMPLA_DATA=… python -m benchmarks.label_planted [--half choose|report] [--sets a,b]

Eight sets of at most 2,500 rows; 10 % uniform flips, 20 % of class 1 ("oneclass") and 20 % of
class 0 ("otherclass"; with ten classes 30 % of the first three); weak and strong regularisation;
without trusted rows and with 300. The halves are those of `label_variants.md`. Lines are written
to docs/experiments/planted_labels.csv. Its columns c039afd and ab83df4 are the same runs at those
commits and are kept.
"""

from __future__ import annotations

import argparse
import bz2
import csv
import datetime
import os
import subprocess
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.decomposition import PCA
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import StandardScaler

import exempla
from experiments.enron import messages
from experiments.paper_cnn import read_idx

OUT = Path("docs/experiments/planted_labels.csv")
HALVES = {
    "choose": ("enron", "mnist", "adult", "chemreact"),
    "report": ("breast_cancer", "covtype", "digits", "sst2"),
}
FIELDS = (
    "set", "flips", "regularisation", "C", "trusted", "wrong", "self_confidence", "c039afd",
    "ab83df4", "now", "expected", "low", "high", "date", "commit",
)  # fmt: skip
KEY = ("set", "flips", "regularisation", "trusted")
STRENGTHS = {
    "enron": (1.0, 0.003), "sst2": (10.0, 0.1), "adult": (1.0, 0.001), "mnist": (1.0, 0.001),
    "chemreact": (10.0, 0.001), "covtype": (1.0, 0.001), "breast_cancer": (1.0, 0.001),
    "digits": (10.0, 0.01),
}  # fmt: skip
ROWS, TRUSTED = 2500, 300


def sample(n: int) -> np.ndarray:
    """Return at most `ROWS` of n rows."""
    return np.sort(np.random.default_rng(0).permutation(n)[:ROWS])


def load(name: str, data: Path) -> tuple[Any, np.ndarray]:
    """Return the rows as features, and their labels."""
    if name == "enron":
        texts, labels = messages(data)
        rows = sample(len(texts))
        words = CountVectorizer(min_df=5, stop_words="english", binary=True)
        return words.fit_transform([texts[i] for i in rows]).astype(float), labels[rows]
    if name == "sst2":
        file = next(p for p in sorted((data / "text").iterdir()) if "train" in p.name)
        table = pd.read_csv(file, sep="\t", quoting=3)
        table = table.iloc[sample(len(table))]
        words = TfidfVectorizer(min_df=2, sublinear_tf=True)
        return words.fit_transform(table["sentence"]).astype(float), table["label"].to_numpy()
    if name == "adult":
        files = [p for p in (data / "tabular").iterdir() if "test" not in p.name.lower()]
        file = next(p for p in sorted(files) if "adult" in p.name.lower())
        table = pd.read_csv(file, skipinitialspace=True)
        table = table.iloc[sample(len(table))]
        X = pd.get_dummies(table.drop(columns=table.columns[-1])).to_numpy(float)
        return scaled(X), pd.factorize(table[table.columns[-1]])[0]
    if name == "mnist":
        X, y = (read_idx(next((data / "mnist").glob(f"train-{part}*")))
                for part in ("images", "labels"))  # fmt: skip
        rows = sample(len(y))
        X = X[rows].reshape(len(rows), -1) / 255.0
        return PCA(60, random_state=0).fit_transform(X), y[rows].astype(int)
    if name == "chemreact":
        with bz2.open(data / "chemreact" / "ds1.10.csv.bz2", "rt") as lines:
            table = np.loadtxt(lines, delimiter=",")
        y = (table[:, -1] > 0).astype(int)
        others = np.random.default_rng(0).permutation(np.flatnonzero(y == 0))[:1696]
        rows = np.random.default_rng(1).permutation(np.concatenate([np.flatnonzero(y), others]))
        return scaled(table[rows, :-1]), y[rows]
    if name == "covtype":
        table = np.load(data / "covtype" / "covtype.npz")
        rows = sample(len(table["y"]))
        return scaled(table["X"][rows].astype(float)), (table["y"][rows] == 2).astype(int)
    loaded: Any = (load_digits if name == "digits" else load_breast_cancer)(return_X_y=True)
    X, y = loaded
    return (X / 16.0, y) if name == "digits" else (scaled(X), y)


def scaled(X: np.ndarray) -> np.ndarray:
    """Return the columns that vary, standardised."""
    X = StandardScaler().fit_transform(X)
    return X[:, X.std(axis=0) > 0]


def planted(y: np.ndarray, how: str) -> np.ndarray:
    """Return labels with flips."""
    rng, classes, given = np.random.default_rng(0), int(y.max()) + 1, y.copy()
    if how == "uniform":
        wrong = rng.random(len(y)) < 0.1
    elif classes > 2:
        wrong = (y < 3) & (rng.random(len(y)) < 0.3)
    else:
        wrong = (y == (how == "oneclass")) & (rng.random(len(y)) < 0.2)
    given[wrong] = (y[wrong] + rng.integers(1, classes, wrong.sum())) % classes
    return given


def self_confidence(model: Any, X: Any, y: np.ndarray, curated: Any) -> np.ndarray:
    """Return the five-fold probability of each label; curated rows are in every fold."""
    both, rows = (X, y), np.arange(len(y))
    out = np.zeros(len(y))
    if curated is not None:
        from exempla.data import stack_rows

        both = (stack_rows(X, curated[0]), np.concatenate([y, curated[1]]))
    more = np.arange(len(y), len(both[1]))
    for a, b in StratifiedKFold(5, shuffle=True, random_state=0).split(rows, y):
        learn = np.concatenate([a, more])
        p = model.fit(both[0][learn], both[1][learn]).predict_proba(X[b])
        out[b] = p[np.arange(len(b)), np.searchsorted(model.classes_, y[b])]
    return out


def cells(name: str, data: Path) -> list[dict[str, Any]]:
    """Return one line for each kind of flips, regularisation and number of trusted rows."""
    X, y = load(name, data)
    y = np.unique(y, return_inverse=True)[1]
    kinds = ("uniform", "oneclass") if y.max() > 1 else ("uniform", "oneclass", "otherclass")
    n, out = len(y), []
    m = min(TRUSTED, n // 4)
    order = np.random.default_rng(100).permutation(n)
    cur, rest = order[:m], order[m:]
    for how in kinds:
        given = planted(y, how)
        for strength, C in zip(("weak", "strong"), STRENGTHS[name], strict=True):
            model = LogisticRegression(C=C, max_iter=300, tol=1e-3)
            for trusted in (0, TRUSTED):
                train = (X[rest], given[rest]) if trusted else (X, given)
                curated = (X[cur], y[cur]) if trusted else None
                wrong = (given != y)[rest] if trusted else given != y
                fixes = exempla.fix_labels(model, train, curated, progress=False)
                rank = np.empty(len(wrong))
                rank[fixes.indices] = -np.arange(len(wrong))
                own = self_confidence(model, *train, curated)
                out.append({
                    "set": name, "flips": how, "regularisation": strength, "C": C,
                    "trusted": trusted, "wrong": int(wrong.sum()),
                    "self_confidence": round(float(average_precision_score(wrong, -own)), 4),
                    "now": round(float(average_precision_score(wrong, rank)), 4),
                    "expected": round(fixes.expected_errors),
                    "low": round(fixes.interval[0]), "high": round(fixes.interval[1]),
                })  # fmt: skip
                print(out[-1], flush=True)
    return out


def write(lines: list[dict[str, Any]]) -> None:
    """Put the lines into the table; older columns of the same cells stay."""
    commit = subprocess.run(
        ["git", "log", "-1", "--format=%h"], capture_output=True, text=True, check=True
    ).stdout.strip()
    today = datetime.datetime.now(tz=datetime.UTC).date().isoformat()
    table: dict[tuple[str, ...], dict[str, Any]] = {}
    if OUT.exists():
        with OUT.open() as file:
            table = {tuple(line[k] for k in KEY): line for line in csv.DictReader(file)}
    for line in lines:
        key = tuple(str(line[k]) for k in KEY)
        table[key] = table.get(key, {}) | line | {"date": today, "commit": commit}
    with OUT.open("w", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(table.values())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--half", choices=HALVES)
    parser.add_argument("--sets", default="")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    names = HALVES[options.half] if options.half else (*HALVES["choose"], *HALVES["report"])
    for name in options.sets.split(",") if options.sets else names:
        write(cells(name, Path(os.environ["EXEMPLA_DATA"])))


if __name__ == "__main__":
    main()
