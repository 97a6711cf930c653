"""cleanlab's order of wrong numbers, run by the Python of its own environment.

    PYTHON benchmarks/label_jobs_cleanlab.py FOLDER Ridge|trees

FOLDER/in.npz holds X and y; FOLDER/out.npy gets the label quality of every row.
"""

from __future__ import annotations

import sys

import numpy as np
from cleanlab.regression.learn import CleanLearning  # pyright: ignore[reportMissingImports]
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.linear_model import Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

folder, kind = sys.argv[1:]
with np.load(f"{folder}/in.npz") as data:
    X, y = data["X"], data["y"]
model = HistGradientBoostingRegressor(max_iter=60, random_state=0)
if kind == "Ridge":
    model = make_pipeline(StandardScaler(), Ridge(1.0))
found = CleanLearning(model, seed=0, verbose=False).find_label_issues(X, y)
np.save(f"{folder}/out.npy", found["label_quality"].to_numpy())
