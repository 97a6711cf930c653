"""What a linear model sees of a token: itself, its shape, its ends, and its neighbours."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

import scipy.sparse as sp
from sklearn.feature_extraction import FeatureHasher

__all__ = ["WIDTH", "shape_of", "token_rows"]

WIDTH = 2**17
"""Columns that features are hashed to."""
LONGEST_RUN = 4


def token_rows(sentences: Iterable[Sequence[str]]) -> sp.csr_matrix:
    """(tokens, WIDTH): one row for every token of every sentence, in order.

    >>> token_rows([["Ada", "came"], ["Yes"]]).shape[0]
    3
    """
    hasher = FeatureHasher(WIDTH, input_type="string", alternate_sign=False)
    rows = (features for words in sentences for features in _features(words))
    return sp.csr_matrix(hasher.transform(rows))


def shape_of(word: str) -> str:
    """Letters and digits by kind, runs cut short.

    >>> shape_of("McDonald's"), shape_of("1984-11"), shape_of("NASA")
    ("AaAaaaa'a", '0000-00', 'AAAA')
    """
    kinds = "".join(
        "0" if c.isdigit() else "A" if c.isupper() else "a" if c.isalpha() else c for c in word
    )
    return re.sub(rf"(.)\1{{{LONGEST_RUN},}}", r"\1" * LONGEST_RUN, kinds)


def _features(words: Sequence[str]) -> Iterator[list[str]]:
    lower = [word.lower() for word in words]
    shapes = [shape_of(word) for word in words]
    for i, word in enumerate(lower):
        found = ["bias", f"w={word}", f"s={shapes[i]}"]
        found += [f"end{k}={word[-k:]}" for k in (2, 3, 4)]
        found += [f"start{k}={word[:k]}" for k in (1, 3)]
        for step in (-2, -1, 1, 2):
            near = i + step
            inside = 0 <= near < len(words)
            found.append(f"w{step}={lower[near] if inside else '|'}")
            if abs(step) == 1:
                found.append(f"s{step}={shapes[near] if inside else '|'}")
        if i:
            found.append(f"w-1,w={lower[i - 1]} {word}")
        yield found
