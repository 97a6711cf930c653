"""Make the pictures and figures of docs/gallery.md: one case per job, on data of scikit-learn.

    python docs/make_gallery.py

Pictures go to docs/images/gallery, figures to docs/experiments/gallery_jobs.csv. About 20 seconds
of one core.
"""

from __future__ import annotations

import csv
import warnings
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_breast_cancer, load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.preprocessing import scale

import exempla
from exempla.report import ImageView, plot_evidence

DOCS = Path(__file__).parent
PICTURES = DOCS / "images" / "gallery"
FIGURES: list[tuple[str, str, float]] = []
TEAL, GREY = "#00796b", "#9e9e9e"


def digits() -> tuple[np.ndarray, np.ndarray]:
    X, y = load_digits(return_X_y=True)
    return X / 16, y


def save(figure, name: str) -> None:
    figure.savefig(PICTURES / f"{name}.png", dpi=80)
    plt.close(figure)


def bars(names: list[str], values: list[float], label: str, name: str) -> None:
    """One horizontal bar per name, the first one coloured."""
    figure, ax = plt.subplots(figsize=(6, 0.5 + 0.42 * len(names)), layout="constrained")
    ax.barh(names[::-1], values[::-1], color=[GREY] * (len(names) - 1) + [TEAL], height=0.6)
    for i, value in enumerate(values[::-1]):
        ax.text(value, i, f" {value:.0%}", va="center")
    ax.set_xlim(0, max(values) * 1.15)
    ax.set_xlabel(label)
    ax.xaxis.set_major_formatter(matplotlib.ticker.PercentFormatter(1.0))
    ax.spines[["top", "right"]].set_visible(False)
    save(figure, name)


def explain() -> None:
    X, y = digits()
    model = LogisticRegression(max_iter=2000).fit(X[:900], y[:900])
    wrong = model.predict(X[900:]) != y[900:]
    asked = X[900:][wrong], y[900:][wrong]
    answer = exempla.explain(model, (X[:900], y[:900]), asked, k=50, progress=False)
    view = ImageView(X[:900].reshape(-1, 8, 8), labels=y[:900], predicted=model.predict(X[:900]))
    test = ImageView(asked[0].reshape(-1, 8, 8), labels=asked[1], predicted=model.predict(asked[0]))
    plot_evidence(answer, view, test, PICTURES / "explain.png", questioned=4)
    checked = answer.verify(seeds=1)
    FIGURES.append(("explain", "errors", float(wrong.sum())))
    FIGURES.append(("explain", "rows", float(len(answer))))
    FIGURES.append(("explain", "fixed", checked.mean("queried", "selected removed")))
    FIGURES.append(("explain", "fixed by random rows", checked.mean("queried", "random removed")))


def fix_labels() -> None:
    X, y = digits()
    fixes = exempla.fix_labels(LogisticRegression(max_iter=2000), (X, y), k=8, progress=False)
    figure, axes = plt.subplots(1, 8, figsize=(8, 1.5), layout="constrained")
    shown = zip(axes, fixes.indices, fixes.suggested, fixes.probabilities, strict=True)
    for ax, row, suggested, p in shown:
        ax.imshow(X[row].reshape(8, 8), cmap="gray_r")
        ax.set_title(f"{y[row]} → {suggested}\n{p:.0%}", fontsize=9)
        ax.axis("off")
    save(figure, "fix-labels")
    FIGURES.append(("fix_labels", "rows", float(len(y))))
    FIGURES.append(("fix_labels", "expected", float(fixes.expected_errors)))


def clean() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)
    rng = np.random.default_rng(0)
    order = rng.permutation(len(y))
    X, y = X[order], y[order].copy()
    flipped = rng.choice(200, 20, replace=False)
    y[flipped] = 1 - y[flipped]
    train, test = (X[:200], y[:200]), (X[200:], y[200:])
    model = LogisticRegression(C=1.0).fit(*train)
    found = exempla.clean(model, train, test, 20, ask="all", progress=False)
    checked = found.verify(seeds=1)
    arms = {"nothing": "nothing removed", "random": "random removed", "clean": "selected removed"}
    share = {k: 1 - checked.mean("queried", arm) for k, arm in arms.items()}
    bars(
        ["20 rows named by clean", "20 random rows", "nothing removed"],
        [share["clean"], share["random"], share["nothing"]],
        "test rows misclassified after retraining",
        "clean",
    )
    FIGURES.append(("clean", "flipped among named", float(np.isin(found.indices, flipped).sum())))
    FIGURES.extend(("clean", name, value) for name, value in share.items())


def summarize() -> None:
    X, y = load_breast_cancer(return_X_y=True)
    X = scale(X)[np.random.default_rng(0).permutation(len(y))]
    y = y[np.random.default_rng(0).permutation(len(y))]
    model = LogisticRegression(C=0.1).fit(X[:400], y[:400])
    sizes, ours, chance = (10, 20, 40, 80), [], []
    for k in sizes:
        few = exempla.summarize(model, (X[:400], y[:400]), k=k, progress=False)
        refit = LogisticRegression(C=0.1).fit(X[few.indices], y[few.indices], few.weights)
        ours.append(_log_likelihood(refit, X[400:], y[400:]))
        rng = np.random.default_rng(k)
        draws = []
        for _ in range(20):
            rows = rng.choice(400, k, replace=False)
            if len(set(y[rows])) == 2:
                weights = np.full(k, 400 / k)
                refit = LogisticRegression(C=0.1).fit(X[rows], y[rows], weights)
                draws.append(_log_likelihood(refit, X[400:], y[400:]))
        chance.append(float(np.mean(draws)))
    whole = _log_likelihood(model, X[400:], y[400:])
    figure, ax = plt.subplots(figsize=(6, 2.6), layout="constrained")
    ax.plot(sizes, ours, "o-", color=TEAL, label="summarize")
    ax.plot(sizes, chance, "o-", color=GREY, label="random rows (mean of 20)")
    ax.axhline(whole, color="black", lw=0.8, ls=":", label="all 400 rows")
    ax.set(xlabel="rows kept", ylabel="mean test log-likelihood")
    ax.legend(frameon=False)
    ax.spines[["top", "right"]].set_visible(False)
    save(figure, "summarize")
    FIGURES.extend(("summarize", f"{k} rows", value) for k, value in zip(sizes, ours, strict=True))
    FIGURES.extend(
        ("summarize", f"{k} random rows", value) for k, value in zip(sizes, chance, strict=True)
    )
    FIGURES.append(("summarize", "all rows", whole))


def _log_likelihood(model: LogisticRegression, X: np.ndarray, y: np.ndarray) -> float:
    return float(model.predict_log_proba(X)[np.arange(len(y)), y].mean())


def acquire() -> None:
    X, y = digits()
    train, pool, test = (X[:60], y[:60]), X[60:1000], (X[1000:], y[1000:])
    model = LogisticRegression(max_iter=500).fit(*train)
    found = exempla.acquire(model, train, pool, test, k=30, progress=False)
    checked = found.verify(labels=y[60:1000], seeds=3)
    _, mine, chance = checked.queried
    bars(
        ["30 rows named by acquire", "30 random rows"],
        [mine, chance],
        "of the first model's test errors corrected",
        "acquire",
    )
    FIGURES.append(("acquire", "errors", float((model.predict(test[0]) != test[1]).sum())))
    FIGURES.append(("acquire", "corrected", mine))
    FIGURES.append(("acquire", "corrected by random rows", chance))


def attack() -> None:
    X, y = digits()
    keep = np.isin(y, [3, 8])
    X, y = X[keep], (y[keep] == 8).astype(int)
    train = X[:200], y[:200]
    model = LogisticRegression(C=1.0).fit(*train)
    margin = model.decision_function(X[200:])
    close = np.argsort(np.abs(margin))[5:15] + 200
    target = X[close], model.predict(X[close])
    found = exempla.attack(model, train, target, k=10, budget=0.5, rounds=3, progress=False)
    moved = X[:200].copy()
    moved[found.indices] = found.X
    again = LogisticRegression(C=1.0).fit(moved, train[1])
    flipped = float((again.predict(target[0]) != target[1]).sum())
    figure, axes = plt.subplots(2, 5, figsize=(6, 2.6), layout="constrained")
    for i in range(5):
        for ax, rows in ((axes[0, i], found.original), (axes[1, i], found.X)):
            ax.imshow(rows[i].reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
            ax.set(xticks=[], yticks=[])
    axes[0, 0].set_ylabel("before")
    axes[1, 0].set_ylabel("after")
    save(figure, "attack")
    FIGURES.append(("attack", "targets", float(len(close))))
    FIGURES.append(("attack", "flipped", flipped))


def main() -> None:
    """Make everything."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for case in (explain, fix_labels, clean, summarize, acquire, attack):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case()
    out = DOCS / "experiments" / "gallery_jobs.csv"
    with out.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("job", "what", "value"))
        writer.writerows((job, what, f"{value:.4g}") for job, what, value in FIGURES)


if __name__ == "__main__":
    main()
