"""Labels that are wrong in known places, and what was said about them: cases for simulated reviews.

Real ones: `fix_labels` on Enron, SST-2, digits and Adult with planted mistakes of four kinds, with
200 trusted rows or, for reviews that start with random checks, without. Synthetic
ones: the same kinds, where what is stated is right for uniform mistakes only. And two in which the
stated probabilities are wrong on purpose: turned round, and the same for every row.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

__all__ = ["KINDS", "RATES", "Case", "real_cases", "synthetic_case"]

KINDS = ("uniform", "one direction", "class pair", "ambiguous")
RATES = (0.05, 0.10, 0.20)
ROWS, CURATED = 1800, 200


@dataclass(frozen=True)
class Case:
    """Rows in their order of suspicion, and which of them are wrong."""

    data: str
    kind: str
    rate: float
    p: np.ndarray
    given: np.ndarray
    suggested: np.ndarray
    model: np.ndarray
    wrong: np.ndarray
    expected: np.ndarray | None = None
    """The expected number of wrong labels and its 90 % interval, as `fix_labels` states them."""

    def turned(self) -> Case:
        """The same rows with every probability turned round."""
        kind = f"turned round ({self.kind})"
        return replace(self, kind=kind, p=1 - self.p, model=1 - self.model).ordered()

    def blind(self) -> Case:
        """The same rows in random order, each with the same small probability."""
        by = np.random.default_rng(self.p.size).permutation(self.p.size)
        parts = {name: getattr(self, name)[by] for name in ("given", "suggested", "wrong")}
        same = np.full(self.p.size, 0.01)
        return replace(self, kind=f"blind ({self.kind})", p=same, model=same + 0.49, **parts)

    def ordered(self) -> Case:
        """The most suspicious first."""
        by = np.argsort(-self.p, kind="stable")
        parts = {n: getattr(self, n)[by] for n in ("p", "given", "suggested", "model", "wrong")}
        return replace(self, **parts)


def synthetic_case(kind: str, rate: float, seed: int, rows: int = 2000) -> Case:
    """Rows whose score tells right from wrong by two standard deviations.

    Stated is the posterior for uniform mistakes at half the true rate. With "ambiguous" mistakes
    wrong rows look like right ones of the middle: what is stated is far too low.
    """
    rng = np.random.default_rng([seed, KINDS.index(kind), int(1000 * rate)])
    given = rng.integers(4, size=rows)
    other = (given + rng.integers(1, 4, size=rows)) % 4
    chance = np.full(rows, rate)
    if kind == "one direction":
        chance = np.where(given == 0, min(4 * rate, 0.9), 0.0)
    elif kind == "class pair":
        chance = np.where((given == 0) & (other == 1), min(12 * rate, 0.9), 0.0)
    wrong = rng.random(rows) < chance
    score = rng.normal(np.where(wrong, 1.2, -1.2), 1.0)
    if kind == "ambiguous":
        score = rng.normal(-1.2, 1.0, rows)
        odds = np.exp(-0.5 * ((score - 0.2) / 0.4) ** 2)
        wrong = rng.random(rows) < np.minimum(0.95, odds * rate * rows / odds.sum())
    prior = rate / 2
    p = 1 / (1 + (1 - prior) / prior * np.exp(-2.4 * score))
    names = np.array(["a", "b", "c", "d"])
    model = 1 / (1 + np.exp(-score))
    return Case("synthetic", kind, rate, p, names[given], names[other], model, wrong).ordered()


def real_cases(
    folder: Path,
    cache: Path,
    seed: int = 0,
    sets: tuple[str, ...] = ("digits", "adult", "enron"),
    curated: int = CURATED,
    rates: tuple[float, ...] = RATES,
) -> Iterator[Case]:
    """`fix_labels` on each data set with each kind of mistake; answers are kept in `cache`."""
    cache.mkdir(parents=True, exist_ok=True)
    for data in sets:
        for kind in KINDS:
            for rate in rates:
                name = f"{data}-{kind}-{rate}-{seed}-{curated}.npz"
                path = cache / name.replace(" ", "_")
                if not path.exists():
                    np.savez(path, **_judged(data, kind, rate, folder, seed, curated))
                with np.load(path, allow_pickle=False) as kept:
                    yield Case(data, kind, rate, **{name: kept[name] for name in kept}).ordered()


def _judged(
    data: str, kind: str, rate: float, folder: Path, seed: int, curated: int
) -> dict[str, np.ndarray]:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import cross_val_predict

    from exempla.tasks.labels.fix_labels import fix_labels

    X, y = _LOAD[data](folder, seed)
    trusted, rest = np.arange(CURATED), np.arange(CURATED, len(y))
    model = LogisticRegression(max_iter=2000, C=0.1 if data == "digits" else 1.0)
    chances = cross_val_predict(model, X, y, cv=5, method="predict_proba")
    given = _spoiled(y, chances, kind, rate, rest, np.random.default_rng([seed, 7]))
    known = (X[trusted], y[trusted]) if curated else None
    fixes = fix_labels(model, (X[rest], given[rest]), known, seed=seed, progress=False)
    rows = rest[fixes.indices]
    fitted = model.fit(X[rest], given[rest]).predict_proba(X[rows])
    said = np.searchsorted(model.classes_, fixes.suggested)
    return {
        "p": np.asarray(fixes.probabilities, float).clip(0, 1),
        "given": np.asarray(fixes.given).astype(str),
        "suggested": np.asarray(fixes.suggested).astype(str),
        "model": fitted[np.arange(len(rows)), said],
        "wrong": given[rows] != y[rows],
        "expected": np.array([fixes.expected_errors, *fixes.interval]),
    }


def _spoiled(y: np.ndarray, chances: np.ndarray, kind: str, rate: float, rest: np.ndarray,
             rng: np.random.Generator) -> np.ndarray:  # fmt: skip
    """Labels with `rate` of them wrong, in the way that `kind` says."""
    count, classes = int(rate * len(rest)), chances.shape[1]
    second = np.where(np.arange(classes) == y[:, None], -1.0, chances).argmax(axis=1)
    given = y.copy()
    if kind == "ambiguous":
        unsure = rest[np.argsort(chances[rest, y[rest]], kind="stable")]
        # The rows nearest to the middle, but not those that the model takes for another anyway.
        unsure = unsure[np.argsort(np.abs(chances[unsure, y[unsure]] - 0.5), kind="stable")]
        given[unsure[:count]] = second[unsure[:count]]
        return given
    if kind == "uniform":
        chosen = rng.choice(rest, count, replace=False)
        given[chosen] = (y[chosen] + rng.integers(1, classes, count)) % classes
        return given
    # From one class to any; or from two classes (of ten) to one other each.
    sources = [1] if kind == "one direction" else ([4, 3, 7] if classes > 2 else [0])
    goals = {4: 9, 3: 8, 7: 1, 0: 1}
    able = rest[np.isin(y[rest], sources)]
    chosen = rng.choice(able, min(count, int(0.6 * len(able))), replace=False)
    if kind == "one direction":
        given[chosen] = (y[chosen] + rng.integers(1, classes, len(chosen))) % classes
    else:
        given[chosen] = [goals[int(label)] for label in y[chosen]]
    return given


def _digits(folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    return X[order] / 16.0, y[order]


def _adult(folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd
    from sklearn.preprocessing import StandardScaler

    table = pd.read_csv(folder / "tabular" / "adult.data.gz", header=None, skipinitialspace=True)
    table = table.sample(ROWS, random_state=seed)
    y = (table[14] == ">50K").to_numpy().astype(int)
    X = pd.get_dummies(table.drop(columns=[14])).to_numpy(dtype=float)
    return StandardScaler().fit_transform(X[:, X.std(axis=0) > 0]), y


def _enron(folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    with gzip.open(folder / "enron1" / "enron1.jsonl.gz", "rt") as lines:
        messages = [json.loads(line) for line in lines]
    order = np.random.default_rng(seed).permutation(len(messages))[:ROWS]
    texts = [messages[i]["subject"] + "\n" + messages[i]["body"] for i in order]
    return _words(texts, "english"), np.array([int(messages[i]["label"]) for i in order])


def _sst2(folder: Path, seed: int) -> tuple[np.ndarray, np.ndarray]:
    import pandas as pd

    table = pd.read_csv(folder / "text" / "sst2_train.tsv.gz", sep="\t", quoting=3)
    table = table.sample(ROWS, random_state=seed)
    return _words(table["sentence"].tolist(), None), table["label"].to_numpy()


def _words(texts: list[str], stop_words: str | None) -> np.ndarray:
    from sklearn.decomposition import TruncatedSVD
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectors = TfidfVectorizer(min_df=3, stop_words=stop_words, sublinear_tf=True)
    X = TruncatedSVD(200, random_state=0).fit_transform(vectors.fit_transform(texts))
    return X / X.std(axis=0)


_LOAD = {"digits": _digits, "adult": _adult, "enron": _enron, "sst2": _sst2}
