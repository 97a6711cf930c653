"""Why does the model misread these digits?

Run it:         python examples/01_explain_errors.py [OUT]
It takes:       a few seconds, no downloads (scikit-learn's 8×8 digits)
It writes:      OUT/report.html   the answer for people, one file without network access
                OUT/answer.csv    the same rows for programs
It shows:       train, question, explain, report, and the check by retraining

Read it top to bottom.
"""

import sys
from pathlib import Path

from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import exempla
from exempla.report import ImageView, write_report

out = Path(sys.argv[1] if len(sys.argv) > 1 else "examples-out")
out.mkdir(parents=True, exist_ok=True)

# 1. A model as you would train it: nothing here knows of exempla.
X, y = load_digits(return_X_y=True)
X = X / 16
X_train, y_train, X_test, y_test = X[:600], y[:600], X[600:1200], y[600:1200]
model = LogisticRegression(max_iter=1000).fit(X_train, y_train)
said = model.predict(X_test)
wrong = said != y_test
print(f"The model misreads {wrong.sum()} of {len(y_test)} test digits.")

# 2. One question about all of its mistakes. Opponents push against the true labels.
answer = exempla.explain_errors(model, (X_train, y_train), (X_test, y_test), k=30, progress=False)
print(answer)

# 3. For people, and for programs.
train_view = ImageView(X_train.reshape(-1, 8, 8), labels=y_train, predicted=model.predict(X_train))
test_view = ImageView(X_test[wrong].reshape(-1, 8, 8), labels=y_test[wrong], predicted=said[wrong])
write_report(answer, out / "report.html", train_view=train_view, test_view=test_view)
answer.to_csv(out / "answer.csv")

# 4. Does it hold? Retrain without these rows, and without as many chosen by chance. Judge both
#    the questioned predictions and those nobody asked about.
print(answer.verify(seeds=2))
print(f"Open {out / 'report.html'}.")
