"""Which words or columns decided, for a model that is linear in prepared features.

For an example with label y and its strongest rival c, feature i speaks with x_i·(w_yi − w_ci) for
the label; a column speaks with the sum over its features, a word with its own. Of a number the
model predicts, feature i speaks with x_i·w_i, for the label if that leads to the side of the
intercept (the mean, for the scaled features of the default model) on which the label lies.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix

__all__ = ["Decisive", "decisive_parts"]

MOST_WORDS = 8


@dataclass(frozen=True)
class Decisive:
    """Strengths of columns and of words, for the examples it was made of."""

    columns: tuple[dict[str, float], ...]
    words: tuple[dict[str, float], ...]


def decisive_parts(model: Any, X: Any, labels: Any) -> Decisive | None:
    """What decided about each row of X; None if the model is not linear in columns.

    `model` is a fitted Pipeline of a ColumnTransformer and a linear classifier or regression.

    >>> import pandas as pd
    >>> from sklearn.compose import ColumnTransformer
    >>> from sklearn.feature_extraction.text import TfidfVectorizer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> X = pd.DataFrame({"text": ["free money", "free lunch", "meeting notes", "lunch notes"]})
    >>> y = ["spam", "spam", "ham", "ham"]
    >>> prepare = ColumnTransformer([("text", TfidfVectorizer(), "text")])
    >>> model = make_pipeline(prepare, LogisticRegression()).fit(X, y)
    >>> found = decisive_parts(model, X, y)
    >>> sorted(found.words[0]), found.words[0]["money"] > 0
    (['free', 'money'], True)
    """
    last: Any = getattr(model, "steps", [(None, None)])[-1][1]
    prepare: Any = model[0] if last is not None and len(model.steps) == 2 else None
    if not hasattr(last, "coef_"):
        return None
    if not hasattr(prepare, "output_indices_"):
        return None
    prepared = csr_matrix(prepare.transform(X))
    if hasattr(last, "classes_"):
        directions = _directions(last, prepared, np.asarray(labels))
    elif np.ndim(last.coef_) == 1:  # pyright: ignore[reportOptionalMemberAccess]
        directions = _towards(last, np.asarray(labels, dtype=np.float64))
    else:
        return None
    parts = _parts(prepare)
    columns, words = [], []
    for row in range(prepared.shape[0]):
        piece = slice(prepared.indptr[row], prepared.indptr[row + 1])
        places = prepared.indices[piece]
        strengths = prepared.data[piece] * directions(row)[places]
        columns.append(_by_column(parts, places, strengths))
        words.append(_by_word(parts, places, strengths))
    return Decisive(tuple(columns), tuple(words))


def _directions(last: Any, prepared: csr_matrix, labels: np.ndarray) -> Any:
    """A function from a row to w_label − w_rival."""
    coef = np.asarray(last.coef_)
    classes = np.asarray(last.classes_)
    if len(coef) == 1:
        coef = np.vstack([-coef[0] / 2, coef[0] / 2])
    scores = last.decision_function(prepared)
    scores = np.column_stack([-scores, scores]) if scores.ndim == 1 else scores.copy()
    known = {str(name): place for place, name in enumerate(classes)}
    own = np.array([known.get(str(label), -1) for label in labels])
    scores[np.flatnonzero(own >= 0), own[own >= 0]] = -np.inf
    rival = scores.argmax(1)

    def direction(row: int) -> np.ndarray:
        mine = coef[own[row]] if own[row] >= 0 else np.zeros(coef.shape[1])
        return mine - coef[rival[row]]

    return direction


def _towards(last: Any, labels: np.ndarray) -> Any:
    """A function from a row to w, turned to the side of the intercept on which its label lies."""
    sides = np.where(labels < float(np.ravel(last.intercept_)[0]), -1.0, 1.0)
    return lambda row: sides[row] * np.asarray(last.coef_)


@dataclass(frozen=True)
class _Parts:
    column_of: np.ndarray
    """Column name of each prepared feature."""
    word_of: Mapping[int, str]
    """Word of each prepared feature that is one."""


def _parts(prepare: Any) -> _Parts:
    column_of = np.empty(sum(s.stop - s.start for s in prepare.output_indices_.values()), object)
    word_of: dict[int, str] = {}
    for name, step, chosen in prepare.transformers_:
        place = prepare.output_indices_[name]
        if place.stop == place.start:
            continue
        if isinstance(chosen, str):  # one text column, handed over as strings
            column_of[place] = chosen
            word_of.update(enumerate(step.get_feature_names_out(), start=place.start))
        else:
            names = step.get_feature_names_out(list(chosen))
            column_of[place] = [_owner(str(feature), list(chosen)) for feature in names]
    return _Parts(column_of, word_of)


def _owner(feature: str, columns: list[str]) -> str:
    """The column a prepared feature came from: the longest name it begins with.

    >>> _owner("missingindicator_age", ["age", "wage"]), _owner("job_title_clerk", ["job_title"])
    ('age', 'job_title')
    """
    plain = feature.removeprefix("missingindicator_")
    fitting = [c for c in columns if plain == c or plain.startswith(f"{c}_")]
    return max(fitting, key=len, default=feature)


def _by_column(parts: _Parts, places: np.ndarray, strengths: np.ndarray) -> dict[str, float]:
    found: dict[str, float] = {}
    for place, strength in zip(places.tolist(), strengths.tolist()):
        column = str(parts.column_of[place])
        found[column] = found.get(column, 0.0) + strength
    return found


def _by_word(parts: _Parts, places: np.ndarray, strengths: np.ndarray) -> dict[str, float]:
    """The few words that speak loudest, for or against."""
    order = np.argsort(-np.abs(strengths), kind="stable")
    words = ((parts.word_of.get(int(places[i])), float(strengths[i])) for i in order)
    return dict([(w, s) for w, s in words if w is not None and s != 0.0][:MOST_WORDS])
