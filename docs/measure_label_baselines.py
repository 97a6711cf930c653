"""Two simple baselines for the cases of docs/studies/label_noise.md.

    EXEMPLA_DATA=folder python docs/measure_label_baselines.py

Adds two columns to docs/experiments/label_noise.csv: the share of wrong labels among as many first
rows as are wrong, ordered by the loss of each given label

    curated_only     under a model of the curated rows alone, its C cross-validated
    training_loss    under the data set's own model, fitted to all training and curated rows

as in `experiments/baselines/labels.py`.
"""

from __future__ import annotations

import os
import warnings
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import KFold

from exempla.data import stack_rows, take_rows
from experiments.baselines.labels import STRENGTHS
from experiments.label_cases import Case, clean, load

DATA = Path(__file__).parent / "experiments"
FOLDER = Path(os.environ["EXEMPLA_DATA"])
MIN_PROBABILITY = 1e-12
"""A class that the model has never seen has this probability."""


def losses(model: Any, X: Any, y: np.ndarray) -> np.ndarray:
    """Return −log p(y) of every row under a fitted model."""
    p = model.predict_proba(X)
    place = np.searchsorted(model.classes_, y).clip(max=len(model.classes_) - 1)
    own = np.where(model.classes_[place] == y, p[np.arange(len(y)), place], 0.0)
    return -np.log(np.maximum(own, MIN_PROBABILITY))


@lru_cache(maxsize=1)
def curated_model(data: str, seed: int) -> Any:
    """Return the model of the curated rows, with the C that predicts held-out curated rows best."""
    trial = clean(data, seed, FOLDER)
    X, y = trial.curated
    folds = list(KFold(5, shuffle=True, random_state=0).split(y))

    def loss(strength: float) -> float:
        model = clone(trial.model).set_params(C=strength)
        parts = [
            losses(model.fit(take_rows(X, train), y[train]), take_rows(X, held), y[held])
            for train, held in folds
        ]
        return float(np.concatenate(parts).mean())

    return clone(trial.model).set_params(C=min(STRENGTHS, key=loss)).fit(X, y)


def measure(case: Case) -> dict[str, Any]:
    """Return one line of the table."""
    trial = load(case, FOLDER)
    X, y = trial.train
    everything = stack_rows(X, trial.curated[0]), np.concatenate([y, trial.curated[1]])
    models = {
        "curated_only": curated_model(case.data, case.seed),
        "training_loss": clone(trial.model).fit(*everything),
    }
    planted = int(trial.wrong.sum())
    orders = {name: np.argsort(-losses(m, X, y), kind="stable") for name, m in models.items()}
    found = {name: trial.wrong[order[:planted]].mean() for name, order in orders.items()}
    return {**vars(case), "planted": planted, **found}


def main() -> None:
    """Measure every case; cases of one data set and seed follow each other."""
    path = DATA / "label_noise.csv"
    keys = ["data", "seed", "kind", "rate"]
    cases = pd.read_csv(path).sort_values(keys)
    lines = [measure(Case(x.data, x.kind, x.rate, x.seed)) for x in cases.itertuples()]
    found = pd.DataFrame(lines).set_index(keys)
    assert (found.planted == cases.set_index(keys).planted).all(), (
        "not the cases that were reported"
    )
    for name in ("curated_only", "training_loss"):
        cases[name] = found[name].to_numpy()
    cases.sort_index().to_csv(path, index=False, float_format="%.5g")


if __name__ == "__main__":
    warnings.simplefilter("ignore", ConvergenceWarning)
    main()
