"""How good a model is, by rows it has not learned from where there are any.

A model that knows its training rows by heart looks perfect on them, and has no reasons worth
asking for. So it is judged, in this order, by

    test rows      those that `explain_errors` and `clean` looked for errors among
    held-out rows  a copy of a scikit-learn model, fitted without them, where that takes seconds
    asked rows     unless all of them are wrong: those were chosen for being so

and by its training rows only to see whether it learned anything at all.
"""

from __future__ import annotations

import time
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from exempla.agreement import FEW, LOOKED_AT, Judged, spaced
from exempla.data import arrays_of, n_rows, take_examples
from exempla.effect import CLASSES
from exempla.errors import ExemplaError
from exempla.oracles import make_oracle
from exempla.results import Explanation, Question

__all__ = ["on_training_rows", "on_unseen_rows"]

PROBED = 300
"""Rows of a first fit, which tells whether one on `LOOKED_AT` is quick enough."""
PATIENCE = 2.0
"""Seconds a fit may take for the sake of one sentence."""
FIFTHS = 5


_HELD_OUT: WeakKeyDictionary[Any, Judged | None] = WeakKeyDictionary()
"""One judgement per explainer: an answer is printed, shown and reported."""


def on_training_rows(explanation: Explanation) -> Judged | None:
    """The model on what it learned from."""
    question = _asked(explanation)
    if question is None:
        return None
    embedding = question.explainer.embeddings[0]
    train = embedding.train
    return _judged(embedding.oracle, train.take(spaced(len(train))), "its training rows")


def on_unseen_rows(explanation: Explanation) -> Judged | None:
    """The model on rows it has not learned from, or None where there are none to be had."""
    question = _asked(explanation)
    if question is None:
        return None
    explainer = question.explainer
    oracle = explainer.embeddings[0].oracle
    if question.rows is not None:
        return _given(oracle, question.test, "test rows")
    if explainer not in _HELD_OUT:
        _HELD_OUT[explainer] = _refitted(explainer, oracle.likelihood)
    if (found := _HELD_OUT[explainer]) is not None:
        return found
    asked = _given(oracle, question.test, "the predictions asked about")
    return asked._replace(chosen=True) if asked and asked.classes and asked.score > 0 else None


def _asked(explanation: Explanation) -> Question | None:
    """The question, where its model can be asked again."""
    question = explanation.question
    if question is None or not getattr(question.explainer, "embeddings", ()):
        return None
    return question


def _given(oracle: Any, test: Any, rows: str) -> Judged | None:
    """A test set as the caller gave it."""
    first = test[0] if isinstance(test, tuple) else test
    try:
        n = n_rows(getattr(first, "dataset", first))  # a loader counts batches
        read = oracle.read(take_examples(test, spaced(n)), role="test")
        return _judged(oracle, read, rows)
    except (ExemplaError, AttributeError, TypeError, ValueError):  # cannot be read in part
        return None


def _judged(oracle: Any, examples: Any, rows: str) -> Judged | None:
    labels = None if examples.labels is None else np.asarray(examples.labels)
    if labels is None or labels.ndim != 1 or len(labels) < FEW:
        return None
    if oracle.likelihood not in (*CLASSES, "gaussian"):
        return None
    said = np.asarray(oracle.predict(examples))
    if said.shape != labels.shape:
        return None
    return Judged(said, labels, oracle.likelihood in CLASSES, rows)


def _refitted(explainer: Any, likelihood: str) -> Judged | None:
    """Copies of a scikit-learn model, fitted to four fifths of some rows, on the other fifth: each
    fifth in turn where rows are few, else the first one alone."""
    from exempla.tasks.retrain import check_fit  # scikit-learn: not for every page

    model = explainer.models[0]
    # of a search, what it found: the search itself may take long
    model = getattr(model, "best_estimator_", model)
    if likelihood not in (*CLASSES, "gaussian") or len(explainer.models) > 1:
        return None
    try:
        check_fit(model, None)
        data = arrays_of(explainer.train_data, "training data")
        rows = np.random.default_rng(0).permutation(n_rows(data[0]))[:LOOKED_AT]
        start = time.perf_counter()
        parts = [_on_fifth(model, data, rows[:PROBED], 0)]
        took = time.perf_counter() - start
        if took * (len(rows) / PROBED) ** 2 > PATIENCE:
            return None
        if len(rows) > PROBED:
            parts = [_on_fifth(model, data, rows, 0)]
        else:
            parts += [_on_fifth(model, data, rows, i) for i in range(1, FIFTHS)]
    except (ExemplaError, TypeError, ValueError):  # what cannot be fitted again is not judged
        return None
    said, labels = (np.concatenate(side) for side in zip(*parts, strict=True))
    held = "training rows held out from a copy of it"
    return Judged(said, labels, likelihood in CLASSES, held) if len(labels) >= FEW else None


def _on_fifth(model: Any, data: Any, rows: np.ndarray, i: int) -> tuple[np.ndarray, np.ndarray]:
    """What a copy, fitted to the other rows, says about the i-th fifth, and what they are."""
    from exempla.tasks.retrain import refit

    X, y, weights = data
    out, kept = rows[i::FIFTHS], np.delete(rows, np.s_[i::FIFTHS])
    some = None if weights is None else weights[kept]
    fitted = refit(model, take_examples(X, kept), take_examples(y, kept), some, None, 0)
    oracle = make_oracle(fitted, "auto")
    read = oracle.read((take_examples(X, out), take_examples(y, out)), role="test")
    said, labels = np.asarray(oracle.predict(read)), np.asarray(read.labels)
    if said.shape != labels.shape or labels.ndim != 1:
        raise ExemplaError("There is more than one answer to a row.")
    return said, labels
