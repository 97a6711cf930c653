"""Use an installed exempla as a new user would: `python tests/smoke.py`. Needs the core alone."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from sklearn.datasets import load_breast_cancer
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

import exempla
from exempla.cli.main import main
from exempla.report import write_report

X, y = load_breast_cancer(return_X_y=True)
X = scale(X)
train, test = (X[:300], y[:300]), (X[300:], y[300:])
model = LogisticRegression().fit(*train)
with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    answer = exempla.explain_errors(model, train, test, k=5, progress=False)
    if len(answer) != 5 or not write_report(answer, folder / "report.html").exists():
        sys.exit("explain_errors or its report failed")
    fixes = exempla.fix_labels(LogisticRegression(), train, k=5, progress=False)
    if len(fixes) != 5:
        sys.exit("fix_labels failed")
    rows = "size,colour,label\n" + "3,red,ham\n9,blue,spam\n4,red,ham\n8,green,spam\n" * 10
    (folder / "mails.csv").write_text(rows)
    out = str(folder / "out")
    if main(["fix-labels", str(folder / "mails.csv"), "--label", "label", "--quiet", "--out", out]):
        sys.exit("the command line failed")
if "torch" in sys.modules:
    sys.exit("the core imported torch")
where = Path(exempla.__file__).parent
print(f"exempla {exempla.__version__} works on Python {sys.version.split()[0]}, from {where}")
