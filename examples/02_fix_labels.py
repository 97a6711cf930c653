"""Find wrong labels, mend them, and see what it was worth.

Run it:         python examples/02_fix_labels.py [OUT]
It takes:       about ten seconds, no downloads (scikit-learn's breast cancer data)
It writes:      OUT/suspects.csv    rows to check, most suspicious first, with suggestions
It shows:       how a hundred rows that a person has checked help to find the others

To decide row by row on a page, with a file of your own:
    exempla fix-labels FILE --label COLUMN --curated-column COLUMN --out DIR
    exempla review DIR

Read it top to bottom.
"""

import sys
from pathlib import Path

import numpy as np
from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import exempla

out = Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out")
out.mkdir(parents=True, exist_ok=True)

# 1. Labels with errors: 30 of 300 are turned round. In life you would not know which.
rng = np.random.default_rng(0)
X, truth = load_breast_cancer(return_X_y=True)
order = rng.permutation(len(truth))
X, truth = X[order], truth[order]
labels = truth[:300].copy()
turned = rng.choice(300, 30, replace=False)
labels[turned] = 1 - labels[turned]

# 2. A hundred rows, not among those, whose labels someone has checked.
curated = (X[300:400], truth[300:400])

# 3. The model may be fitted or not; it is copied, never changed.
model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1))
fixes = exempla.fix_labels(model, (X[:300], labels), curated, k=60, progress=False)
fixes.to_frame().to_csv(out / "suspects.csv", index=False)
print(fixes.to_frame().head(10).round(3).to_string(index=False))

found = np.isin(fixes.indices, turned)
print(f"Expected wrong labels: {fixes.expected_errors:.0f}; there are {len(turned)}.")
print(f"Checking 30 rows finds {found[:30].sum()} of them, checking 60 finds {found.sum()}.")

# 4. Mend what is more likely wrong than not, and fit again.
believed = fixes.probabilities > 0.5
mended = labels.copy()
mended[fixes.indices[believed]] = fixes.suggested[believed]
for name, y in {"as given": labels, "mended": mended, "true": truth[:300]}.items():
    score = model.fit(X[:300], y).score(X[400:], truth[400:])
    print(f"accuracy on other rows, labels {name}: {score:.3f}")
