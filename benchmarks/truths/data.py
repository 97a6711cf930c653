"""The data of the suite: six sets of 1 200 to 2 000 training and 200 test examples, in one file."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
from collections import Counter
from pathlib import Path

import numpy as np

__all__ = ["FILE", "load_set"]

FILE = "data.npz"
TESTS, MORE = 200, 1000
"""Test examples, and at most so many more to look for errors among."""
WORDS, LENGTH = 800, 20


def load_set(folder: Path, name: str) -> dict[str, np.ndarray]:
    """X, y, X_test, y_test and the number of words (0 where the examples are no texts)."""
    with np.load(folder / FILE, allow_pickle=False) as stored:
        parts = {k.split("/")[1]: stored[k] for k in stored.files if k.startswith(name + "/")}
    parts.setdefault("words", np.array(0))
    return parts


def digits(data: Path) -> dict[str, np.ndarray]:
    from sklearn.datasets import load_digits

    X, y = load_digits(return_X_y=True)
    return drawn(X.reshape(-1, 1, 8, 8).astype(np.float32) / 16, y, 1200)


def mnist(data: Path) -> dict[str, np.ndarray]:
    """28 × 28 averaged to 14 × 14."""
    from experiments.paper_cnn import load_mnist

    images = load_mnist(data / "mnist")
    X = images.train_x.astype(np.float32).reshape(-1, 1, 14, 2, 14, 2).mean((3, 5)) / 255
    return drawn(X, images.train_y, 1500)


def adult(data: Path) -> dict[str, np.ndarray]:
    import pandas as pd

    table = pd.read_csv(data / "tabular" / "adult.data.gz", header=None, skipinitialspace=True)
    y = (table.pop(14) == ">50K").to_numpy().astype(np.int64)
    X = pd.get_dummies(table).to_numpy(np.float32)
    X = X[:, X.std(0) > 0.02]
    return drawn((X - X.mean(0)) / X.std(0), y, 2000)


def covtype(data: Path) -> dict[str, np.ndarray]:
    with np.load(data / "covtype" / "covtype.npz") as stored:
        X, y = stored["X"].astype(np.float32), stored["y"].astype(np.int64) - 1
    X = X[:, X.std(0) > 0.02]
    return drawn((X - X.mean(0)) / X.std(0), y, 2000)


def sst2(data: Path) -> dict[str, np.ndarray]:
    with gzip.open(data / "text" / "sst2_train.tsv.gz", "rt", encoding="utf-8") as stream:
        lines = [line.rstrip("\n").split("\t") for line in stream]
    lines = [line for line in lines if line[-1] in ("0", "1") or line[0] in ("0", "1")]
    text_first = lines[0][-1] in ("0", "1")
    texts = [line[0] if text_first else line[1] for line in lines]
    y = np.array([int(line[-1] if text_first else line[0]) for line in lines])
    return as_words(texts, y, 2000)


def enron(data: Path) -> dict[str, np.ndarray]:
    with gzip.open(data / "enron1" / "enron1.jsonl.gz", "rt", encoding="utf-8") as stream:
        mails = [json.loads(line) for line in stream]
    texts = [f"{mail['subject']} {mail['body']}" for mail in mails]
    return as_words(texts, np.array([mail["label"] for mail in mails]), 2000)


def as_words(texts: list[str], y: np.ndarray, count: int) -> dict[str, np.ndarray]:
    """The first words of each text as numbers; 0 is padding, 1 any rarer word."""
    split = [re.findall(r"[a-z]+", text.lower())[:LENGTH] for text in texts]
    long_enough = np.array([len(words) >= 5 for words in split])
    split = [words for words, keep in zip(split, long_enough, strict=True) if keep]
    known = Counter(word for words in split for word in words).most_common(WORDS - 2)
    number = {word: i + 2 for i, (word, _) in enumerate(known)}
    X = np.zeros((len(split), LENGTH), np.int64)
    for i, words in enumerate(split):
        X[i, : len(words)] = [number.get(word, 1) for word in words]
    return drawn(X, y[long_enough], count) | {"words": np.array(WORDS)}


def drawn(X: np.ndarray, y: np.ndarray, count: int) -> dict[str, np.ndarray]:
    order = np.random.default_rng(0).permutation(len(X))[: count + TESTS + MORE]
    train, test, more = np.split(order, [count, count + TESTS])
    y = y.astype(np.int64)
    return {
        "X": X[train], "y": y[train], "X_test": X[test], "y_test": y[test],
        "X_more": X[more], "y_more": y[more],
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    data = Path(os.environ["EXEMPLA_DATA"])
    parts = {}
    for make in (digits, mnist, adult, covtype, sst2, enron):
        made = make(data)
        print(make.__name__, made["X"].shape, np.bincount(made["y"]))
        parts |= {f"{make.__name__}/{name}": value for name, value in made.items()}
    options.out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.out / FILE, **parts)


if __name__ == "__main__":
    main()
