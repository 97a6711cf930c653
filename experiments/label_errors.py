"""Planted label errors in a table, in sentences and in images of digits.

Run:  EXEMPLA_DATA=folder python -m experiments.label_errors --out results/label_errors [--fast]

    adult    census income, 8000 of the 32561 rows, logistic regression on encoded columns
    sst2     SST-2 sentiment, 8000 of the 60614 sentences and phrases, bag of words, L2 1e-4
    digits   scikit-learn's 1797 digits, ten classes, logistic regression

500 curated rows (digits: 300), 10 % of the other training labels replaced by a random other one.
Settings are those of `fix_labels`; nothing is tuned here.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from exempla.data import take_rows
from experiments.label_study import Trial, plot, run_trial, tables

ROWS = 8000
CURATED = 500
STRENGTH = 1e-4
"""L2 on sentences, in units of the mean loss."""


def run(out: Path, fast: bool, data: Path, seeds: Iterable[int] = range(5)) -> Path:
    """Run what is missing, then write label_errors.csv, .png, .svg and .md."""
    out.mkdir(parents=True, exist_ok=True)
    parts = out / ("trials-fast" if fast else "trials")
    rows, curated = (1500, 200) if fast else (ROWS, CURATED)
    results: dict[str, list[pd.DataFrame]] = {"digits": [], "adult": [], "sst2": []}
    for seed in list(seeds)[:1] if fast else seeds:
        trials = {
            "digits": digits(seed),
            "adult": adult(data, seed, rows, curated),
            "sst2": sst2(data, seed, rows, curated),
        }
        for name, trial in trials.items():
            planted = int(trial.wrong.sum())
            ks = tuple(sorted({planted // 8, planted // 4, planted // 2, planted}))
            results[name].append(run_trial(trial, ks, parts))
    return write({name: pd.concat(found) for name, found in results.items()}, out)


def digits(seed: int) -> Trial:
    """997 training, 300 curated and 500 test images."""
    X, y = load_digits(return_X_y=True)
    model = LogisticRegression(C=0.1, max_iter=2000)
    order = np.random.default_rng(seed).permutation(len(y))
    parts = np.split(order, [997, 1297])
    return plant("digits", seed, model, X / 4.0, y, parts)


def adult(data: Path, seed: int, rows: int, curated: int) -> Trial:
    """Income above 50K; categories one-hot, numbers standardised."""
    folder = data / "tabular"
    table = pd.read_csv(folder / "adult.data.gz", header=None, skipinitialspace=True)
    other = pd.read_csv(folder / "adult.test.gz", skipinitialspace=True, header=0)
    other.columns = table.columns
    rng = np.random.default_rng(seed)
    chosen = rng.permutation(len(table))[: rows + curated]
    frame = pd.concat([table.iloc[chosen], other], ignore_index=True)
    label = frame.pop(14).str.rstrip(".").to_numpy(dtype=str)
    numbers = [c for c in frame if frame[c].dtype.kind in "if"]
    names = [c for c in frame if c not in numbers]
    encode = make_column_transformer(
        (StandardScaler(), numbers), (OneHotEncoder(min_frequency=20, sparse_output=False), names)
    )
    X = encode.fit_transform(frame)
    parts = np.split(np.arange(len(frame)), [rows, rows + curated])
    return plant("adult", seed, LogisticRegression(max_iter=2000), X, label, parts)


def sst2(data: Path, seed: int, rows: int, curated: int) -> Trial:
    """Positive or negative; words of at least five occurrences, no stop words removed."""
    table, other = (
        pd.read_csv(data / "text" / f"sst2_{part}.tsv.gz", sep="\t", quoting=3)
        for part in ("train", "dev")
    )
    chosen = np.random.default_rng(seed).permutation(len(table))[: rows + curated]
    frame = pd.concat([table.iloc[chosen], other], ignore_index=True)
    words = CountVectorizer(min_df=5).fit(frame.sentence[: rows + curated])
    X = words.transform(frame.sentence).astype(np.float64)
    model = LogisticRegression(C=1.0 / (STRENGTH * rows), max_iter=2000)
    parts = np.split(np.arange(len(frame)), [rows, rows + curated])
    return plant("sst2", seed, model, X, frame.label.to_numpy(), parts)


def plant(
    name: str, seed: int, model: Any, X: Any, y: np.ndarray, parts: list[np.ndarray]
) -> Trial:
    """Give 10 % of the training rows another label, each other one equally likely."""
    train, curated, test = parts
    rng = np.random.default_rng(10_000 + seed)
    classes, codes = np.unique(y[train], return_inverse=True)
    wrong = rng.choice(len(train), len(train) // 10, replace=False)
    codes[wrong] = (codes[wrong] + rng.integers(1, len(classes), len(wrong))) % len(classes)
    return Trial(
        name=name,
        seed=seed,
        model=model,
        train=(take_rows(X, train), classes[codes]),
        truth=y[train],
        curated=(take_rows(X, curated), y[curated]),
        test=(take_rows(X, test), y[test]),
    )


def write(results: dict[str, pd.DataFrame], out: Path) -> Path:
    """The table, the figure and the page."""
    pd.concat(results.values()).to_csv(out / "label_errors.csv", index=False, float_format="%.6g")
    plot({TITLES[name]: found for name, found in results.items()}, out / "label_errors")
    sections = [f"## {TITLES[name]}\n\n{tables(found)}" for name, found in results.items()]
    page = out / "label_errors.md"
    page.write_text(INTRODUCTION + "\n".join(sections))
    return page


TITLES = {
    "digits": "Digits, ten classes",
    "adult": "Adult census income",
    "sst2": "SST-2 sentences, bag of words",
}

INTRODUCTION = """# Planted label errors elsewhere: Adult, SST-2, digits

**What the paper claims.** Nothing here: it tries label fixing on Enron1 alone. These sets ask
whether what works there works elsewhere, with the same automatic settings.

**What we found.** The Fisher-kernel SBQ ranking is not a general winner: where the model itself is
a good judge, plain loss is as good or better, and on sentences it is far better. The calibrated
evidence weighs both. Its count of wrong labels is rougher here than on Enron1: on overlapping
classes 500 curated rows do not pin it down. The tables say where it leads and where not.

Adult and SST-2 are random subsets of 8000 training rows per seed; 500 further rows are curated
(digits: 997 and 300). 10 % of the training labels are replaced by a random other one. Labels that
were wrong to begin with count against every method alike. Settings were tried on other draws of all
three sets, so none of them is new to the method; sets that are, and other kinds of mistakes, are in
[kinds of wrong labels](label_noise.md).

![share found and test accuracy](label_errors.png)

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("results/label_errors"))
    parser.add_argument("--fast", action="store_true")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(range(5)))
    options = parser.parse_args()
    if "EXEMPLA_DATA" not in os.environ:
        raise SystemExit("EXEMPLA_DATA is not set: name the folder with tabular/ and text/.")
    print(run(options.out, options.fast, Path(os.environ["EXEMPLA_DATA"]), options.seeds))


if __name__ == "__main__":
    main()
