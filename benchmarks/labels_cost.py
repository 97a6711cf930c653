"""What `fix_labels` costs beside plain five-fold self-confidence, in CPU seconds of one process.

Run:  EXEMPLA_DATA=folder python -m benchmarks.labels_cost

Raw messages (Enron1) through a Pipeline of TF-IDF and logistic regression, without curated rows and
with 500 of them. Both are given the same Pipeline; the ratio is what counts. Lines go to
docs/experiments/labels_cost.csv.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline

import exempla
from experiments.enron import messages

OUT = Path(__file__).parents[1] / "docs" / "experiments" / "labels_cost.csv"


def main() -> None:
    texts, labels = messages(Path(os.environ["EXEMPLA_DATA"]))
    rows = np.random.default_rng(0).permutation(len(texts))
    X, y = [texts[i] for i in rows], labels[rows]
    noisy = np.where(np.random.default_rng(1).random(len(y)) < 0.1, 1 - y, y)
    model = make_pipeline(TfidfVectorizer(min_df=2), LogisticRegression(C=10.0, max_iter=1000))
    start = time.process_time()
    cross_val_predict(model, X, noisy, cv=5, method="predict_proba")
    plain = time.process_time() - start
    print(f"five-fold self-confidence: {plain:.1f} s")
    lines = [{"method": "five-fold self-confidence", "curated": 0, "seconds": plain, "times": 1.0}]
    for m in (0, 500):
        n = len(y) - m
        curated = (X[n:], y[n:]) if m else None
        start = time.process_time()
        exempla.fix_labels(model, (X[:n], noisy[:n]), curated, progress=False)
        spent = time.process_time() - start
        print(f"fix_labels, {m} curated: {spent:.1f} s, {spent / plain:.1f} times as much")
        lines.append(
            {"method": "fix_labels", "curated": m, "seconds": spent, "times": spent / plain}
        )
    pd.DataFrame(lines).to_csv(OUT, index=False, float_format="%.3g")


if __name__ == "__main__":
    main()
