"""Errors that are wrong test labels: whom are they blamed on, before and after the check?

    EXEMPLA_DATA=… python -m benchmarks.wrong_test_labels [--out docs/experiments/test_labels.csv]

Enron1 and SST-2 with 5 % of all labels flipped, in training and test rows alike. `explain` and
`clean` are asked about all errors, once as they are and once with the check of the test labels.
Printed and written: how many errors are wrong test labels, how many the check finds, and the share
of mislabelled rows among the 50 blamed ones.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression

from exempla import Explainer
from exempla.tasks.clean import clean_from
from exempla.tasks.explain import explain_from

FLIPPED, TEST_SHARE, K = 0.05, 0.2, 50


def texts(name: str) -> tuple[list[str], np.ndarray]:
    folder = Path(os.environ["EXEMPLA_DATA"])
    if name == "enron1":
        with gzip.open(folder / "enron1" / "enron1.jsonl.gz", "rt") as file:
            rows = [json.loads(line) for line in file]
        return [r["subject"] + "\n" + r["body"] for r in rows], np.array([r["label"] for r in rows])
    with gzip.open(folder / "text" / "sst2_train.tsv.gz", "rt") as file:
        rows = [line.rstrip("\n").split("\t") for line in file]
    column = 0 if rows[5][0] in ("0", "1") else 1
    rows = [r for r in rows if len(r) == 2 and r[column] in ("0", "1")][:12_000]
    return [r[1 - column] for r in rows], np.array([int(r[column]) for r in rows])


def lines(name: str, seed: int) -> list[dict[str, Any]]:
    """One line per job, without and with the check."""
    words, y = texts(name)
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(y))
    y, cut = y[order].copy(), round((1 - TEST_SHARE) * len(y))
    flipped = rng.random(len(y)) < FLIPPED
    y[flipped] = 1 - y[flipped]
    X = TfidfVectorizer(sublinear_tf=True, min_df=3).fit_transform([words[i] for i in order])
    model = LogisticRegression(C=10.0, max_iter=1000).fit(X[:cut], y[:cut])
    test = X[cut:], y[cut:]
    wrong = np.flatnonzero(model.predict(X[cut:]) != y[cut:])
    explainer = Explainer(model, progress=False).fit((X[:cut], y[:cut]))
    out = []
    for job, ask in (("explain", explain_from), ("clean", clean_from)):
        for checked in (False, True):
            found = ask(explainer, test, K, ask=wrong, errors=checked)
            suspects = np.array(found.test_labels.get("rows", []), dtype=int)
            out.append(
                {
                    "data": name, "seed": seed, "job": job, "check": int(checked),
                    "errors": len(wrong), "wrong_test_labels": int(flipped[cut:][wrong].sum()),
                    "suspects": len(suspects),
                    "suspects_wrong": int(flipped[cut:][suspects].sum()),
                    "blamed": len(found.removed),
                    "blamed_mislabelled": int(flipped[:cut][found.removed].sum()),
                }
            )  # fmt: skip
            if seed == 0:
                print(f"{name}, {job}, {'with' if checked else 'no'} check: {found.finding}")
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    found = [x for name in ("enron1", "sst2") for s in range(options.seeds) for x in lines(name, s)]
    for line in found:
        print(line)
    if options.out:
        with options.out.open("w", newline="") as file:
            writer = csv.DictWriter(file, fieldnames=list(found[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(found)


if __name__ == "__main__":
    main()
