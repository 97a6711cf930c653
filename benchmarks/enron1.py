"""Enron1 with planted label errors, as the label experiments use it."""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression

__all__ = ["NoisyEnron", "noisy_enron"]

N_TRAIN, N_CURATED, FLIPPED = 4137, 500, 0.2


@dataclass(frozen=True)
class NoisyEnron:
    """A model of noisy messages, with curated and test messages it has not seen."""

    model: LogisticRegression
    train: tuple[Any, np.ndarray]
    """The 3637 messages that are not curated, a fifth of their labels flipped."""
    curated: tuple[Any, np.ndarray]
    test: tuple[Any, np.ndarray]
    wrong: np.ndarray
    """Which training labels were flipped."""


def noisy_enron(folder: Path, seed: int, l2: float) -> NoisyEnron:
    """Split, flip and fit; `l2` is the penalty of the mean loss, so C = 1/(l2·n)."""
    with gzip.open(folder / "enron1.jsonl.gz", "rt") as lines:
        messages = [json.loads(line) for line in lines]
    texts = np.array([m["subject"] + "\n" + m["body"] for m in messages], dtype=object)
    labels = np.array([m["label"] for m in messages])
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(labels))
    curated, noisy, test = np.split(order, [N_CURATED, N_TRAIN])
    words = CountVectorizer(min_df=5, stop_words="english").fit(texts[order[:N_TRAIN]])
    wrong = np.zeros(len(noisy), dtype=bool)
    wrong[rng.choice(len(noisy), int(FLIPPED * len(noisy)), replace=False)] = True
    given = np.where(wrong, 1 - labels[noisy], labels[noisy])
    X = words.transform(texts[noisy]).astype(np.float64)
    model = LogisticRegression(C=1 / (l2 * len(noisy)), max_iter=5000).fit(X, given)
    return NoisyEnron(
        model,
        (X, given),
        *((words.transform(texts[i]).astype(np.float64), labels[i]) for i in (curated, test)),
        wrong,
    )
