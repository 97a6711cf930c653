"""Are wrong labels found where rows have several, tokens have one each, or classes are a thousand?

    EXEMPLA_DATA=… python -m benchmarks.label_parts [--seeds 2]

On sets that were not looked at while the jobs were built, run once:

    adult columns     several labels: of 3,000 people whether they earn above 50K, are women, are
                      married, work above 40 hours, from the other columns
    covtype columns   several labels: of 3,000 places whether they bear lodgepole pine, lie in the
                      first wilderness, face north, are above 3,000 m, from the other columns
    enron commas      tokens: of 400 messages, whether a comma or a full stop follows each word
    mnist thousands   1,000 classes: three images of digits read as one number, 3,000 of them; the
                      model reads the digits one by one

Of every set no label, or five in a hundred, are replaced by another one by chance. Ours and plain
self-confidence (the smallest out-of-fold probability of the given label first) are given the same
out-of-fold probabilities. The first runs of both sets of columns showed faults (on Adult an order
behind self-confidence, on both intervals without the truth), which were mended by looking at them:
of that they are no test. Lines are added to docs/experiments/label_jobs.csv.
"""

from __future__ import annotations

import argparse
import csv
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.decomposition import PCA
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.preprocessing import StandardScaler

import exempla
from benchmarks.label_jobs import FIELDS, OUT
from exempla.tasks.labels.crossfit import SoftmaxRegression
from exempla.tasks.labels.parts import token_rows
from experiments.enron import messages
from experiments.paper_cnn import read_idx

SHARE = 0.05


class Judged(NamedTuple):
    """Every label of a set: whether it is wrong, its out-of-fold probability, what ours says."""

    wrong: np.ndarray
    own: np.ndarray
    place: np.ndarray
    """Of each label its rank in our order."""
    fixes: Any


def replaced(codes: np.ndarray, classes: int, share: float, rng: np.random.Generator) -> np.ndarray:
    """Codes with a share of them another one."""
    out = codes.copy()
    rows = rng.choice(len(codes), round(share * len(codes)), replace=False)
    out[rows] = (out[rows] + rng.integers(1, classes, len(rows))) % classes
    return out


def ranks(order: np.ndarray) -> np.ndarray:
    place = np.empty(len(order), dtype=int)
    place[order] = np.arange(len(order))
    return place


def several(X: np.ndarray, Y: np.ndarray, share: float, rng: np.random.Generator) -> Judged:
    """A table of labels judged, each label's model a logistic regression."""
    given = replaced(Y.ravel(), 2, share, rng).reshape(Y.shape)
    model = LogisticRegression(max_iter=500)
    p = np.column_stack(
        [
            np.asarray(cross_val_predict(model, X, g, cv=5, method="predict_proba"))[:, 1]
            for g in given.T
        ]
    )
    fixes = exempla.fix_labels(None, (X, given), probabilities=p, progress=False)
    own = np.where(given == 1, p, 1 - p).ravel()
    place = ranks(fixes.indices * Y.shape[1] + fixes.part.astype(int))
    return Judged((given != Y).ravel(), own, place, fixes)


def adult_columns(data: Path, share: float, seed: int) -> Judged:
    rng = np.random.default_rng(seed)
    table = pd.read_csv(data / "tabular" / "adult.data.gz", header=None, skipinitialspace=True)
    table = table.iloc[rng.permutation(len(table))[:3000]]
    Y = np.column_stack(
        [
            table[14] == ">50K",
            table[9] == "Female",
            table[5].str.startswith("Married"),
            table[12] > 40,
        ]
    ).astype(int)
    numbers = StandardScaler().fit_transform(table[[0, 4, 10, 11]])
    X = np.hstack([numbers, pd.get_dummies(table[[1, 6, 8, 13]]).to_numpy(float)])
    return several(X, Y, share, rng)


def covtype_columns(data: Path, share: float, seed: int) -> Judged:
    rng = np.random.default_rng(seed)
    with np.load(data / "covtype" / "covtype.npz") as file:
        some = rng.choice(len(file["y"]), 3000, replace=False)
        X, y = file["X"][some].astype(float), file["y"][some]
    north = (X[:, 1] < 90) | (X[:, 1] > 270)
    Y = np.column_stack([y == 2, X[:, 10] == 1, north, X[:, 0] > 3000]).astype(int)
    rest = np.delete(X, [0, 1, 10, 11, 12, 13], axis=1)
    return several(StandardScaler().fit_transform(rest), Y, share, rng)


def enron_commas(data: Path, share: float, seed: int) -> Judged:
    rng = np.random.default_rng(seed)
    texts, _ = messages(data)
    sentences: list[list[str]] = []
    marks: list[list[int]] = []
    for row in rng.permutation(len(texts)):
        pieces = re.findall(r"[A-Za-z']+|[,.]", texts[row])[:120]
        words = [(w, nxt) for w, nxt in zip(pieces, [*pieces[1:], ""]) if w not in (",", ".")]
        if len(words) >= 10:
            sentences.append([w for w, _ in words])
            marks.append([{",": 1, ".": 2}.get(nxt, 0) for _, nxt in words])
        if len(sentences) == 400:
            break
    truth = np.concatenate(marks)
    given = replaced(truth, 3, share, rng)
    lengths = [len(s) for s in sentences]
    groups = np.repeat(np.arange(len(sentences)), lengths)
    rows, p = token_rows(sentences), np.empty((len(truth), 3))
    for learn, held in GroupKFold(5).split(rows, given, groups):
        model = SoftmaxRegression(random_state=seed).fit(rows[learn], given[learn])
        p[held] = model.predict_proba(rows[held])
    ends = np.cumsum(lengths)[:-1]
    labels = [part.tolist() for part in np.split(given, ends)]
    fixes = exempla.fix_labels(
        None, (sentences, labels), probabilities=np.split(p, ends), progress=False, seed=seed
    )
    starts = np.concatenate([[0], ends])
    order = starts[fixes.indices] + fixes.part.astype(int)
    return Judged(given != truth, p[np.arange(len(given)), given], ranks(order), fixes)


def mnist_thousands(data: Path, share: float, seed: int) -> Judged:
    rng = np.random.default_rng(seed)
    X = read_idx(data / "mnist" / "t10k-images-idx3-ubyte.gz").reshape(10000, -1) / 255.0
    y = read_idx(data / "mnist" / "t10k-labels-idx1-ubyte.gz").astype(int)
    rows = rng.permutation(len(y))[:9000]
    X, y = PCA(30, random_state=0).fit_transform(X[rows]), y[rows]
    thirds = y.reshape(3000, 3)
    truth = thirds @ np.array([100, 10, 1])
    given = replaced(truth, 1000, share, rng)
    digits = np.column_stack([given // 100, given // 10 % 10, given % 10])
    p = cross_val_predict(
        LogisticRegression(max_iter=300), X, digits.ravel(), cv=5, method="predict_proba",
    )  # fmt: skip
    a, b, c = np.asarray(p).reshape(3000, 3, 10).transpose(1, 0, 2)
    every = (a[:, :, None, None] * b[:, None, :, None] * c[:, None, None, :]).reshape(3000, 1000)
    classes, codes = np.unique(given, return_inverse=True)
    every = np.maximum(every[:, classes], 1e-12)
    every /= every.sum(1, keepdims=True)
    fixes = exempla.fix_labels(
        None, (np.arange(3000), given), probabilities=every, progress=False, seed=seed
    )
    return Judged(given != truth, every[np.arange(3000), codes], ranks(fixes.indices), fixes)


SETS: dict[str, Callable[[Path, float, int], Judged]] = {
    "adult columns": adult_columns,
    "covtype columns": covtype_columns,
    "enron commas": enron_commas,
    "mnist thousands": mnist_thousands,
}


def lines(name: str, found: Judged, kind: str, seed: int, seconds: float) -> list[dict[str, Any]]:
    out, count = [], int(found.wrong.sum())
    low, high = found.fixes.interval
    for method, score in (("exempla", -found.place), ("self-confidence", -found.own)):
        first = np.argsort(-score, kind="stable")[:count]
        line: dict[str, Any] = {
            "split": "report", "table": name, "kind": kind, "seed": seed, "method": method,
            "rows": len(found.wrong), "planted": count,
            "ap": average_precision_score(found.wrong, score) if count else "",
            "at_planted": found.wrong[first].mean() if count else "",
        }  # fmt: skip
        if method == "exempla":
            line |= {"expected": found.fixes.expected_errors, "low": low, "high": high}
            line["seconds"] = seconds
        out.append(line)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--sets", nargs="*", default=list(SETS), help="only these")
    parser.add_argument("--out", type=Path, default=OUT)
    options = parser.parse_args()
    data = Path(os.environ["EXEMPLA_DATA"])
    with options.out.open("a", newline="") as file:
        out = csv.DictWriter(file, list[str](FIELDS))
        for name in options.sets:
            judge = SETS[name]
            for kind, share in (("none", 0.0), ("other", SHARE)):
                for seed in range(options.seeds):
                    start = time.process_time()
                    found = judge(data, share, seed)
                    for line in lines(name, found, kind, seed, time.process_time() - start):
                        text = {
                            k: f"{v:.4g}" if isinstance(v, float) else v for k, v in line.items()
                        }
                        out.writerow(text)
                        print(text, flush=True)
                    file.flush()


if __name__ == "__main__":
    main()
