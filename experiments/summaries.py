"""Data summaries: test log-likelihood of a refit against the number of examples kept.

Run:  EXEMPLA_DATA=folder python -m experiments.summaries --out results [--fast]

CovType: class 2 against the rest, 29 000 test rows, 20 000 training rows by chance, as in the
paper, and 2 222 for validation. ChemReact: the file with all 26 733 rows (10 features), 2 500 of
them for testing, and the 2 674 rows that exist with the paper's 100 features, a fifth for testing.
Features are standardised; the model is scikit-learn's logistic regression with its default L2.
Settings of `summarize` were developed on seeds 100 to 104; the reported seeds are 0 to 4.
"""

from __future__ import annotations

import argparse
import bz2
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import StandardScaler

from exempla.selection import SBQ, select
from exempla.tasks.summarize import summarize
from exempla.tasks.summarize.last_layer import read_last_layer
from experiments.baselines.coresets import hilbert_coreset, random_summary, sensitivity_coreset
from experiments.summary_page import write

SIZES = (10, 20, 50, 100, 200, 500, 1000, 2000)
FAST_SIZES = (20, 100)
TOTALS = 9

Picked = tuple[np.ndarray, np.ndarray]
"""Rows of the training part, and their weights."""


@dataclass(frozen=True)
class Split:
    """One random split of a data set, standardised by its training part."""

    name: str
    seed: int
    X: np.ndarray
    y: np.ndarray
    validation: tuple[np.ndarray, np.ndarray]
    test: tuple[np.ndarray, np.ndarray]


def covtype(data: Path, seed: int, fast: bool = False) -> Split:
    with np.load(data / "covtype" / "covtype.npz") as file:
        X, y = file["X"].astype(np.float64), (file["y"] == 2).astype(np.int64)
    n_test, n_train, n_validation = (5000, 5000, 1000) if fast else (29000, 20000, 2222)
    return split("covtype", X, y, seed, n_test, n_validation, n_train)


def chemreact(data: Path, seed: int, fast: bool = False) -> Split:
    with bz2.open(data / "chemreact" / "ds1.10.csv.bz2", "rt") as file:
        table = np.loadtxt(file, delimiter=",")
    return split("chemreact-10", table[:, :-1], (table[:, -1] > 0).astype(np.int64), seed, 2500)


def chemreact100(data: Path, seed: int, fast: bool = False) -> Split:
    with np.load(data / "chemreact" / "ds1.100_subset2674.npz") as file:
        X, y = file["X"].astype(np.float64), (file["y"] > 0).astype(np.int64)
    return split("chemreact-100", X, y, seed, len(y) // 5)


def split(
    name: str,
    X: np.ndarray,
    y: np.ndarray,
    seed: int,
    n_test: int,
    n_validation: int | None = None,
    n_train: int | None = None,
) -> Split:
    """Test, validation (a tenth of the rest unless said otherwise) and training rows."""
    order = np.random.default_rng(seed).permutation(len(y))
    test, rest = order[:n_test], order[n_test:]
    cut = len(rest) // 10 if n_validation is None else n_validation
    validation, train = rest[:cut], rest[cut:]
    train = train if n_train is None else train[:n_train]
    scaler = StandardScaler().fit(X[train])

    def part(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return scaler.transform(X[rows]), y[rows]

    return Split(name, seed, *part(train), part(validation), part(test))


def new_model() -> LogisticRegression:
    return LogisticRegression(solver="newton-cholesky", max_iter=200)


def log_likelihood(model: LogisticRegression, data: tuple[np.ndarray, np.ndarray]) -> float:
    """Mean log p(y | x)."""
    X, y = data
    return float(-np.logaddexp(0.0, (1 - 2 * y) * model.decision_function(X)).mean())


def refit(case: Split, picked: Picked, data: tuple[np.ndarray, np.ndarray]) -> float:
    """Log-likelihood of `data` under a fit on the picked rows.

    Rows of one class allow no fit: they are credited with the smoothed share of that class.
    """
    rows, weights = picked
    X, y = case.X[rows], case.y[rows]
    if len(np.unique(y)) < 2:
        other = 1.0 / (len(rows) + 2)
        same = data[1] == y[0]
        return float(np.where(same, np.log(1 - other), np.log(other)).mean())
    return log_likelihood(new_model().fit(X, y, sample_weight=weights), data)


def with_best_total(case: Split, picked: Picked) -> Picked:
    """The same rows at the total weight that the validation part likes best."""
    rows, weights = picked
    share = weights / weights.sum()
    totals = np.geomspace(min(1.0, len(rows) / 32), len(case.y), TOTALS)
    scores = [refit(case, (rows, share * total), case.validation) for total in totals]
    return rows, share * totals[int(np.argmax(scores))]


def literal(case: Split, model: LogisticRegression, k: int) -> Picked:
    """The paper as printed: scores at θ̂, empirical Fisher, the validation part's mean as target.

    Beyond the rank of the scores (one more than the features) SBQ needs some noise to go on. The
    picked rows are used without weights, which may be negative.
    """
    train = read_last_layer(model, (case.X, case.y))
    target = read_last_layer(model, case.validation)
    scores = train.a * train.residuals(train.theta)
    fisher = scores.T @ scores / len(scores)
    values, vectors = np.linalg.eigh(fisher)
    kept = values > 1e-9 * values.max()
    rows = scores @ (vectors[:, kept] / np.sqrt(values[kept]))
    mu = (target.a * target.residuals(target.theta)).mean(0)
    mu = mu @ (vectors[:, kept] / np.sqrt(values[kept]))
    noise = 1e-6 * float(np.median((rows**2).sum(1)))
    indices = select(rows, mu, k, SBQ(noise=noise)).indices
    return indices, np.ones(len(indices))


def methods(case: Split, model: LogisticRegression, k: int) -> dict[str, Callable[[], Picked]]:
    """Every method as a thunk, so that only what is missing is run."""
    train = (case.X, case.y)

    def of(make: Callable, *args: object) -> Callable[[], Picked]:
        def picked() -> Picked:
            found = make(model, train, k, *args, seed=case.seed)
            return found.indices, found.weights

        return picked

    return {
        "ours": lambda: (lambda s: (s.indices, s.weights))(
            summarize(model, train, k, seed=case.seed, progress=False)
        ),
        "random": of(random_summary),
        "sensitivity": of(sensitivity_coreset),
        "giga": of(hilbert_coreset),
        "paper": lambda: literal(case, model, k),
    }


def study(
    load: Callable[..., Split], data: Path, out: Path, fast: bool, seeds: Iterable[int]
) -> pd.DataFrame:
    """Run what the table does not hold yet; each line is written as soon as it is known."""
    out.mkdir(parents=True, exist_ok=True)
    seeds = list(seeds)[:2] if fast else list(seeds)
    name = load.__name__
    path = out / f"{name}{'-fast' if fast else ''}.csv"
    done = pd.read_csv(path) if path.exists() else pd.DataFrame(columns=["seed", "k", "method"])
    known = set(zip(done["seed"], done["k"], done["method"], strict=True))
    cases = {seed: load(data, seed, fast) for seed in seeds}
    fits = {seed: new_model().fit(c.X, c.y) for seed, c in cases.items()}
    for k in FAST_SIZES if fast else SIZES:
        for seed, case in cases.items():
            if k >= 0.8 * len(case.y):
                continue
            full = log_likelihood(fits[seed], case.test)
            for method, run_it in methods(case, fits[seed], k).items():
                if (seed, k, method) in known:
                    continue
                picked = run_it()
                line = {
                    "data": name,
                    "seed": seed,
                    "k": k,
                    "method": method,
                    "kept": len(picked[0]),
                    "total": picked[1].sum(),
                    "positives": case.y[picked[0]].mean(),
                    "full": full,
                    "loglik": refit(case, picked, case.test),
                }
                if method != "ours":
                    line["loglik_best_total"] = refit(
                        case, with_best_total(case, picked), case.test
                    )
                append(path, line)
    return pd.read_csv(path)


COLUMNS = (
    "data", "seed", "k", "method", "kept", "total", "positives", "full", "loglik",
    "loglik_best_total",
)  # fmt: skip


def append(path: Path, line: dict) -> None:
    table = pd.DataFrame([line], columns=list(COLUMNS))
    table.to_csv(path, mode="a", header=not path.exists(), index=False, float_format="%.6g")


def run_covtype(out: Path, fast: bool, data: Path, seeds: Iterable[int] = range(5)) -> Path:
    """Write covtype.csv, .png, .svg and .md."""
    return write(out, "covtype", {"CovType": study(covtype, data, out, fast, seeds)})


def run_chemreact(out: Path, fast: bool, data: Path, seeds: Iterable[int] = range(5)) -> Path:
    """Write chemreact.csv, chemreact100.csv, and one figure and page for both files."""
    tables = {
        "ChemReact, 10 features": study(chemreact, data, out, fast, seeds),
        "ChemReact, 100 features (2 674 rows)": study(chemreact100, data, out, fast, seeds),
    }
    return write(out, "chemreact", tables)


def run(out: Path, fast: bool, data: Path) -> Path:
    """Both data sets."""
    run_covtype(out, fast, data)
    return run_chemreact(out, fast, data)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="?", choices=["covtype", "chemreact"])
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--fast", action="store_true")
    options = parser.parse_args()
    if "EXEMPLA_DATA" not in os.environ:
        raise SystemExit("EXEMPLA_DATA is not set: name the folder with covtype/ and chemreact/.")
    work = {"covtype": run_covtype, "chemreact": run_chemreact, None: run}[options.what]
    print(work(options.out, options.fast, Path(os.environ["EXEMPLA_DATA"])))


if __name__ == "__main__":
    main()
