"""Which test rows a question is about, and which of the errors are wrong test labels.

A model that is right where the test label is wrong makes an "error" that no training row causes.
Before errors are explained, `check_test_labels` estimates for each of them the probability that
its test label is wrong. The model has not been trained on the test rows, so its predictions are
out of sample, and the noise model of `fix_labels` turns them into calibrated probabilities without
training anything. Errors that are probably wrong test labels leave the question; the others count
by the probability that their label is right.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

import numpy as np

from exempla.checks import check_choice, check_rows
from exempla.errors import ExemplaError
from exempla.oracles import is_checkpoint
from exempla.oracles.base import CLASSES

_ASK = ("errors", "all")
ONE_CONFUSION = "errors:"
"""Prefix of a question about one confusion: errors:spam->ham, or errors:spam→ham."""
MIN_TEST_ROWS = 100
"""Labelled test rows needed to estimate how many of their labels are wrong."""
MAX_CLASSES = 1000
"""Classes up to which the table of class probabilities is worth its memory."""


class TestLabelCheck(NamedTuple):
    """Errors whose test label is more likely wrong than right."""

    n_errors: int
    rows: np.ndarray
    """Their positions in the test data."""
    probabilities: np.ndarray
    """That each of these labels is wrong."""
    suggested: np.ndarray
    """What the model predicts for them."""
    expected: float
    """Expected number of wrong labels among the errors."""
    certain: bool
    """Whether the noise model excludes that there are no wrong labels at all. Where classes overlap
    it cannot, and suspects are then weighed but kept in the question."""

    @property
    def sentence(self) -> str:
        """The finding in words; "" if no label is suspect."""
        n = len(self.rows)
        if not n:
            return ""
        which = f"{n:,} of the {self.n_errors:,} errors"
        if not self.certain:
            return (
                f"{which} may be wrong test labels, but the classes overlap too much to tell; each "
                "error counts by the probability that its label is right."
            )
        look = "looks like a wrong test label" if n == 1 else "look like wrong test labels"
        if n == self.n_errors:
            return f"{which} {look}: check the test file with `fix-labels` first."
        shown = ", ".join(map(str, self.rows[:5])) + (", …" if n > 5 else "")
        left = "it was left out" if n == 1 else "they were left out"
        return (
            f"{which} {look} (test rows {shown}) and {left}: check the test file with `fix-labels`."
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the check as plain Python values."""
        plain = {k: v.tolist() if hasattr(v, "tolist") else v for k, v in self._asdict().items()}
        return plain | {"n_suspect": len(self.rows), "sentence": self.sentence}


def check_ask(ask: Any) -> None:
    """Raise if `ask` is text that is not understood; rows are checked against the test data."""
    if isinstance(ask, str) and ask.startswith(ONE_CONFUSION):
        _confusion_of(ask)
    elif isinstance(ask, str):
        check_choice("ask", ask, _ASK)


def is_about_errors(ask: Any) -> bool:
    """Return True if the question is about wrong predictions, whichever these are."""
    return isinstance(ask, str) and ask != "all"


def queried_rows(explainer: Any, test: Any, ask: Any) -> np.ndarray | None:
    """Return the positions of the test rows that `ask` means; None for all of them."""
    check_ask(ask)
    if isinstance(ask, str) and ask == "all":
        return None
    first = explainer.embeddings[0].oracle
    if not isinstance(ask, str):
        return check_rows(ask, len(first.read(test, role="test")), "ask", "test examples")
    if ask == "errors":
        return _wrong_predictions(explainer, test)
    read = first.read(test, role="test")
    return confused(ask, _labels_of(read), np.asarray(first.predict(read)))


def confused(ask: str, labels: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return the positions of one confusion: ``errors:TRUE->PREDICTED`` (or with an arrow, →)."""
    true, other = _confusion_of(ask)
    given, answers = labels.astype(str), predicted.astype(str)
    known = np.unique([*given, *answers]).tolist()
    for name in (true, other):
        if name not in known:
            classes = ", ".join(known[:12]) + (", …" if len(known) > 12 else "")
            raise ExemplaError(f"There is no class {name!r} among the test rows: {classes}.")
    found = np.flatnonzero((given == true) & (answers == other))
    if not len(found):
        wrong = [f"{g}->{a}" for g, a in zip(given, answers, strict=True) if g != a]
        there = ", ".join(f"{pair} ({n:,})" for pair, n in Counter(wrong).most_common(3))
        others = f"; there are {there}" if there else ""
        raise ExemplaError(f"No test row of {true!r} was predicted as {other!r}{others}.")
    return found


def _confusion_of(ask: str) -> tuple[str, str]:
    pieces = [p.strip() for p in ask.removeprefix(ONE_CONFUSION).replace("→", "->").split("->")]
    if len(pieces) != 2 or len(set(pieces) - {""}) != 2:
        raise ExemplaError(
            f"{ask!r} does not name a confusion; write errors:TRUE->PREDICTED, such as "
            "errors:spam->ham."
        )
    return pieces[0], pieces[1]


def _labels_of(examples: Any) -> np.ndarray:
    if examples.labels is None:
        raise ExemplaError("the test data has no labels, so errors cannot be found: give (X, y).")
    return np.asarray(examples.labels)


def _wrong_predictions(explainer: Any, test: Any) -> np.ndarray:
    """Return the positions of the test rows that most models predict wrongly.

    Earlier checkpoints of a model know less than the model itself and do not vote.
    """
    read = [e.oracle.read(test, role="test") for e in explainer.embeddings]
    labels = _labels_of(read[0])
    votes = [
        _is_wrong(np.asarray(e.oracle.predict(x)), labels)
        for model, e, x in zip(explainer.models, explainer.embeddings, read, strict=True)
        if not is_checkpoint(model)
    ]
    found = np.flatnonzero(np.mean(votes, axis=0) > 0.5)
    if len(found) == 0:
        raise ExemplaError(
            f"the model makes no error on these {len(read[0])} examples, so there is nothing to "
            "explain: give other test data, or name rows with ask=."
        )
    return found


def _is_wrong(predicted: np.ndarray, labels: np.ndarray) -> np.ndarray:
    numbers = labels.dtype.kind == "f" and bool(np.any(labels != np.round(labels)))
    if predicted.shape != labels.shape or numbers:
        raise ExemplaError(
            "errors can be found for class labels only: for other targets name the rows with ask=."
        )
    return predicted != labels


def check_test_labels(
    explainer: Any, test: Any, rows: np.ndarray
) -> tuple[TestLabelCheck | None, np.ndarray]:
    """Estimate which of these errors, positions in `test`, are wrong test labels.

    Returns the check, and the probability that each label is wrong. None and zeros where it cannot
    be estimated: no classes, or fewer than MIN_TEST_ROWS test rows.
    """
    oracle = explainer.embeddings[0].oracle
    examples = oracle.read(test, role="test")
    labels = None if examples.labels is None else np.asarray(examples.labels)
    nothing = None, np.zeros(len(rows))
    if labels is None or labels.ndim != 1 or oracle.likelihood not in CLASSES:
        return nothing
    predicted = np.asarray(oracle.predict(examples))
    if len(labels) < MIN_TEST_ROWS or predicted.shape != labels.shape:
        return nothing
    classes, codes = np.unique(np.concatenate([labels, predicted]), return_inverse=True)
    if not 2 <= len(classes) <= MAX_CLASSES:
        return nothing
    from exempla.tasks.labels.evidence import assess_predictions
    from exempla.tasks.labels.problem import LabelProblem

    given, answers = codes[: len(labels)], codes[len(labels) :]
    table = _class_probabilities(np.exp(oracle.log_likelihood(examples)), given, answers)
    found = assess_predictions(table, LabelProblem(None, given, classes, len(given)))
    # only flips: mistakes where the model hesitates cannot be told from its own errors
    p_wrong = found.flipped[rows]
    suspect = np.flatnonzero(p_wrong > 0.5)
    suspect = suspect[np.argsort(-p_wrong[suspect], kind="stable")]
    check = TestLabelCheck(
        n_errors=len(rows),
        rows=rows[suspect],
        probabilities=p_wrong[suspect],
        suggested=predicted[rows[suspect]],
        expected=float(p_wrong.sum()),
        certain=bool(found.interval[0] > 0),
    )
    return check, p_wrong


def _class_probabilities(p: np.ndarray, given: np.ndarray, predicted: np.ndarray) -> np.ndarray:
    """Return p(class | x) from the probability of the given label and the predicted class.

    What the given label leaves goes to the predicted class where that is another one, and is spread
    evenly where the two agree. With two classes this is exact.
    """
    n, C = len(p), max(int(given.max()), int(predicted.max())) + 1
    row = np.arange(n)
    p = np.clip(p, 0.0, 1.0)
    table = np.tile(((1.0 - p) / (C - 1))[:, None], (1, C))
    table[predicted != given] = 0.0
    table[row, predicted] = 1.0 - p
    table[row, given] = p
    return table
