"""Keep forty weighted rows instead of four hundred.

Run it:         python examples/03_summarize.py [OUT]
It takes:       a few seconds, no downloads (scikit-learn's breast cancer data)
It writes:      OUT/summary.csv    the rows kept and their weights
It shows:       a model fitted on the summary is close to the model fitted on everything

Read it top to bottom.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

import exempla

out = Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out")
out.mkdir(parents=True, exist_ok=True)

# 1. Everything.
X, y = load_breast_cancer(return_X_y=True)
order = np.random.default_rng(0).permutation(len(y))
X, y = scale(X)[order], y[order]
X_train, y_train, X_test, y_test = X[:400], y[:400], X[400:], y[400:]
model = LogisticRegression().fit(X_train, y_train)


def log_likelihood(fitted: LogisticRegression) -> float:
    """Mean over the test rows."""
    return float(fitted.predict_log_proba(X_test)[np.arange(len(y_test)), y_test].mean())


# 2. Forty rows with weights. How much they weigh together is chosen by refitting.
summary = exempla.summarize(model, (X_train, y_train), k=40, progress=False)
table = np.column_stack([summary.indices, summary.weights])
np.savetxt(out / "summary.csv", table, delimiter=",", header="row,weight", comments="", fmt="%.6g")

# 3. The same settings, fitted on the summary, and on forty rows by chance.
rows = summary.indices
small = LogisticRegression().fit(X_train[rows], y_train[rows], sample_weight=summary.weights)
chance = []
for seed in range(10):
    rows = np.random.default_rng(seed).choice(400, 40, replace=False)
    chance.append(log_likelihood(LogisticRegression().fit(X_train[rows], y_train[rows])))
print(f"test log-likelihood of a fit on all 400 rows:   {log_likelihood(model):.4f}")
print(f"on the 40 chosen, weighted:                     {log_likelihood(small):.4f}")
print(f"on 40 by chance (mean of ten draws):            {np.mean(chance):.4f}")
