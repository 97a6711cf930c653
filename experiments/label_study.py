"""One trial of finding planted label errors: every method on the same evidence, and the tables.

`enron.py` and `label_errors.py` plant the errors; this file runs the methods, keeps each trial's
numbers in its own CSV (a method that is there already is not run again) and sums them up.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import t as student
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from exempla.data import stack_rows
from exempla.tasks.labels.evidence import Evidence
from exempla.tasks.labels.fix_labels import fix_labels_from, gather
from experiments.baselines.labels import LABEL_BASELINES

__all__ = ["OURS", "Trial", "paired", "plot", "run_trial", "summary", "tables"]

OURS = ("calibrated", "sbq")
NAMES = {
    "calibrated": "fix_labels",
    "sbq": "SBQ, Fisher kernel (the paper's ranking)",
    "curated_only": "model of the curated rows alone",
    "self_confidence_with_curated": "5-fold self-confidence + curated",
    "self_confidence": "5-fold self-confidence",
    "training_loss": "training loss",
    "influence": "influence on the curated rows",
    "self_influence": "self-influence",
    "rbf_sbq": "SBQ, RBF kernel",
    "literal": "SBQ exactly as printed in the paper",
    "random": "random",
}


@dataclass(frozen=True)
class Trial:
    """A data set with planted errors, and the model that learns from it."""

    name: str
    seed: int
    model: Any
    train: tuple[Any, np.ndarray]
    truth: np.ndarray
    curated: tuple[Any, np.ndarray]
    test: tuple[Any, np.ndarray]

    @property
    def wrong(self) -> np.ndarray:
        return self.train[1] != self.truth


def run_trial(
    trial: Trial,
    ks: tuple[int, ...],
    folder: Path,
    more: Mapping[str, Callable[[Evidence, int], np.ndarray]] = MappingProxyType({}),
) -> pd.DataFrame:
    """Every method's share of errors among its first k, and the test accuracy after fixing them.

    `more` are further methods: the first k rows to check, from the same evidence.
    """
    path = folder / f"{trial.name}-seed{trial.seed}.csv"
    done = pd.read_csv(path) if path.exists() else pd.DataFrame({"method": []})
    missing = [m for m in (*OURS, *LABEL_BASELINES, *more) if m not in set(done.method)]
    if not missing:
        return done
    evidence = gather(trial.model, trial.train, trial.curated, seed=trial.seed)
    lines: list[dict[str, Any]] = []
    for method in missing:
        start, expected = time.process_time(), np.nan
        if method in OURS:
            fixes = fix_labels_from(evidence, method=method, k=max(ks))
            order, expected = fixes.indices, fixes.expected_errors
        elif method in more:
            order = more[method](evidence, max(ks))
        else:
            order = np.argsort(-LABEL_BASELINES[method](evidence), kind="stable")
        seconds = time.process_time() - start
        for k in ks:
            lines.append(
                {
                    "data": trial.name,
                    "seed": trial.seed,
                    "method": method,
                    "k": k,
                    "share": float(trial.wrong[order[:k]].mean()),
                    "accuracy": accuracy_after(trial, order[:k]),
                    "expected": expected,
                    "planted": int(trial.wrong.sum()),
                    "seconds": seconds,
                }
            )
    for name, rows in (("nothing", []), ("everything", np.flatnonzero(trial.wrong))):
        if name not in set(done.method):
            score = accuracy_after(trial, np.asarray(rows, dtype=int))
            lines.append({**lines[0], "method": name, "k": 0, "share": np.nan, "accuracy": score})
    frame = pd.concat([pd.DataFrame(lines), done]) if len(done) else pd.DataFrame(lines)
    folder.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False, float_format="%.6g")
    return frame


def accuracy_after(trial: Trial, checked: np.ndarray) -> float:
    """Test accuracy of the model once the checked rows have their true labels."""
    X, y = trial.train
    fixed = y.copy()
    fixed[checked] = trial.truth[checked]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model = clone(trial.model).fit(
            stack_rows(X, trial.curated[0]), np.concatenate([fixed, trial.curated[1]])
        )
    return float(model.score(*trial.test))


def paired(
    results: pd.DataFrame, value: str, ours: str, k: int, rival: str | None = None
) -> dict[str, Any]:
    """Ours minus a baseline, by default the one with the best mean at this k, with the paired 95 %
    interval."""
    table = results[results.k == k].pivot(index="seed", columns="method", values=value)
    rivals = [m for m in LABEL_BASELINES if m in table]
    best = rival or max(rivals, key=lambda m: table[m].mean())
    difference = (table[ours] - table[best]).to_numpy()
    n = len(difference)
    half = np.nan
    if n > 1:
        half = float(student.ppf(0.975, n - 1) * difference.std(ddof=1) / np.sqrt(n))
    return {
        "measure": value,
        "method": ours,
        "k": k,
        "mean": table[ours].mean(),
        "best baseline": best,
        "its mean": table[best].mean(),
        "difference": difference.mean(),
        "± (95 %)": half,
    }


def verdicts(results: pd.DataFrame, ours: str, ks: list[int]) -> str:
    """Against every baseline at every k: how often above, and where below, beyond the interval."""
    lines = []
    for value in ("share", "accuracy"):
        cells = [
            paired(results, value, ours, k, rival)
            for k in ks
            for rival in LABEL_BASELINES
            if rival in set(results.method)
        ]
        above = sum(c["difference"] > c["± (95 %)"] for c in cells)
        below = [
            f"{NAMES[c['best baseline']]} at {c['k']} ({c['difference']:.4f} ± {c['± (95 %)']:.4f})"
            for c in cells
            if c["difference"] < -c["± (95 %)"]
        ]
        lines.append(
            f"{value.capitalize()}, {NAMES[ours]} against every baseline at every k, paired: above "
            f"beyond the interval in {above} of {len(cells)} comparisons; below it: "
            f"{'; '.join(below) or 'none'}."
        )
    return "\n\n".join(lines) + "\n"


def summary(results: pd.DataFrame, value: str) -> pd.DataFrame:
    """Mean over seeds: a line per method, a column per k."""
    found = results[results.k > 0].pivot_table(index="method", columns="k", values=value)
    return found.reindex([m for m in NAMES if m in found.index])


def tables(results: pd.DataFrame) -> str:
    """The markdown tables of one data set."""
    ks = sorted(k for k in results.k.unique() if k > 0)
    seeds = results.seed.nunique()
    parts = [
        f"Share of wrong labels among the first k checked (mean of {seeds} seeds; "
        f"{results.planted.mean():.0f} planted):\n",
        markdown(summary(results, "share"), 3),
        "\nTest accuracy after the first k were checked and mended "
        f"(nothing mended {_reference(results, 'nothing'):.4f}, "
        f"everything {_reference(results, 'everything'):.4f}):\n",
        markdown(summary(results, "accuracy"), 4),
        "\nOurs minus the baseline with the best mean at each k, paired over seeds:\n",
    ]
    lines = [paired(results, v, m, k) for m in OURS for v in ("share", "accuracy") for k in ks]
    frame = pd.DataFrame(lines)
    frame["best baseline"] = frame["best baseline"].map(NAMES)
    parts.append(markdown(frame.set_index("measure"), 4))
    if seeds > 1:  # one seed has no interval
        parts.append(verdicts(results, OURS[0], ks))
    for method in OURS:
        one = results[(results.method == method)].drop_duplicates("seed")
        ratio = (one.expected / one.planted).to_numpy()
        parts.append(
            f"\nExpected number of wrong labels, {method}: {one.expected.mean():.0f} on average "
            f"for {one.planted.mean():.0f} planted; per seed {ratio.min():.2f} to "
            f"{ratio.max():.2f} of the truth."
        )
    return "\n".join(parts) + "\n"


def _reference(results: pd.DataFrame, name: str) -> float:
    return float(results[results.method == name].accuracy.mean())


def markdown(frame: pd.DataFrame, digits: int) -> str:
    """A data frame as a markdown table."""
    head = [str(frame.index.name), *map(str, frame.columns)]
    lines = [" | ".join(head), " | ".join("---" for _ in head)]
    for index, row in zip(frame.index, frame.itertuples(index=False), strict=True):
        cells = [f"{v:.{digits}f}" if isinstance(v, float) else str(v) for v in row]
        lines.append(" | ".join([NAMES.get(index, str(index)), *cells]))
    return "\n".join(f"| {line} |" for line in lines) + "\n"


def plot(results: dict[str, pd.DataFrame], path: Path) -> None:
    """Share found and accuracy against rows checked, one column per data set; PNG and SVG."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    fig, axes = plt.subplots(
        2, len(results), figsize=(4.6 * len(results), 7), squeeze=False, layout="constrained"
    )
    for column, (title, frame) in enumerate(results.items()):
        for row, (value, words) in enumerate(
            (("share", "share wrong among checked"), ("accuracy", "test accuracy after fixing"))
        ):
            ax = axes[row, column]
            for i, (method, line) in enumerate(summary(frame, value).iterrows()):
                thick = 2.5 if method in OURS else 1.2
                ax.plot(
                    line.index,
                    line,
                    marker="o",
                    ms=3,
                    lw=thick,
                    color=f"C{i}",
                    ls="-" if i < 10 else "--",  # there are ten colours
                    label=NAMES[str(method)],
                )
            ax.set(title=title if row == 0 else "", xlabel="rows checked", ylabel=words)
            ax.grid(alpha=0.3)
            if value == "accuracy":
                ax.axhline(_reference(frame, "everything"), color="grey", ls=":", lw=1)
    handles, names = axes[0, 0].get_legend_handles_labels()
    fig.legend(handles, names, loc="outside lower center", ncols=3, fontsize=8)
    for kind in ("png", "svg"):
        fig.savefig(path.with_suffix(f".{kind}"), dpi=110)
    plt.close(fig)
