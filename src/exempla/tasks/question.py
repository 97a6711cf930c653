"""What a question is about: which test rows, and which training rows count once.

A model that is right where the test label is wrong makes an "error" that no training row causes.
Before errors are explained, `check_test_labels` estimates for each of them the probability that
its test label is wrong. The model has not been trained on the test rows, so its predictions are
out of sample, and the noise model of `fix_labels` turns them into calibrated probabilities without
training anything. Errors that are probably wrong test labels leave the question; the others count
by the probability that their label is right (`trusted_query`).

Two training rows are copies of each other if their inputs and labels are equal, or if their score
directions are: the cosine of their Fisher kernel is at least MIN_COSINE. In a space of few
dimensions unrelated rows reach such cosines too, so the cosine is used only if fewer than
MAX_CHANCE_SHARE of random pairs of training rows do. Nothing t × t is computed: equal rows are
found by a hash of their inputs, near copies by products of all rows with the few picks, in blocks.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from exempla.arrays import is_tensor, to_numpy
from exempla.checks import check_choice, check_rows
from exempla.data import row_hashes, take_examples
from exempla.errors import ExemplaError
from exempla.explainer import Explainer
from exempla.oracles import is_checkpoint
from exempla.oracles.base import CLASSES
from exempla.results import Explanation

_Found = TypeVar("_Found", bound=Explanation)
_ASK = ("errors", "all")
ONE_CONFUSION = "errors:"
"""Prefix of a question about one confusion: errors:spam->ham, or errors:spam→ham."""
MIN_TEST_ROWS = 100
"""Labelled test rows needed to estimate how many of their labels are wrong."""
_MAX_CLASSES = 1000
"""Classes up to which the table of class probabilities is worth its memory."""
MIN_COSINE = 0.99
"""Cosine of the Fisher kernel from which on two rows count as near copies."""
MAX_CHANCE_SHARE = 1e-4
"""Share of random pairs above MIN_COSINE beyond which the cosine says nothing about copies."""
_SAMPLED_ROWS = 512
"""Random training rows that the chance share is estimated from."""
_BLOCK_ROWS = 8192


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


def queried_rows(explainer: Any, test: Any, ask: Any) -> np.ndarray | None:
    """Return the positions of the test rows that `ask` means; None for all of them."""
    if isinstance(ask, str) and ask in _ASK:
        return _wrong_predictions(explainer, test) if ask == "errors" else None
    first = explainer.embeddings[0].oracle
    read = first.read(test, role="test")
    if not isinstance(ask, str):
        return check_rows(ask, len(read), "ask", "test examples")
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
    numbers = labels.dtype.kind == "f" and bool(np.any(labels != np.round(labels)))
    votes = []
    for model, e, x in zip(explainer.models, explainer.embeddings, read, strict=True):
        if not is_checkpoint(model):
            predicted = np.asarray(e.oracle.predict(x))
            if numbers or predicted.shape != labels.shape:
                raise ExemplaError(
                    "errors can be found for class labels only: for other targets name the rows "
                    "with ask=."
                )
            votes.append(predicted != labels)
    found = np.flatnonzero(np.mean(votes, axis=0) > 0.5)
    if len(found) == 0:
        raise ExemplaError(
            f"the model makes no error on these {len(read[0])} examples, so there is nothing to "
            "explain: give other test data, or name rows with ask=."
        )
    return found


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
    if not 2 <= len(classes) <= _MAX_CLASSES:
        return nothing
    from exempla.tasks.labels.evidence import assess_predictions

    given, answers = codes[: len(labels)], codes[len(labels) :]
    table = _class_probabilities(np.exp(oracle.log_likelihood(examples)), given, answers)
    found = assess_predictions(table, given, len(classes))
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


class TrustedQuery(NamedTuple):
    """The rows a question is about, once errors that are wrong test labels have left it."""

    test: Any
    """The queried examples."""
    rows: np.ndarray | None
    """Their positions in the test data; None for all."""
    weights: np.ndarray | None
    check: TestLabelCheck | None
    """What was found out about their test labels."""

    def answered(self, found: _Found, explainer: Explainer, test: Any, **more: Any) -> _Found:
        """Return the answer with its question in terms of all test data, and what was noticed."""
        assert found.question is not None
        overlap = _overlap_sentence(explainer.train_data, test, self.rows)
        check = self.check
        return replace(
            found,
            question=found.question._replace(test=test, rows=self.rows, **more),
            test_labels={} if check is None else check.to_dict(),
            warnings=(*found.warnings, *([overlap] if overlap else [])),
        )


def trusted_query(
    explainer: Explainer, test: Any, ask: Any, weights: Any = None, errors: bool | None = None
) -> TrustedQuery:
    """Return the queried rows, their weights, and what was found out about their test labels.

    Errors whose test label is probably wrong are left out if the noise model is certain that there
    are wrong labels; the others count by the probability that their label is right.
    """
    rows, check = queried_rows(explainer, test, ask), None
    if rows is not None and (isinstance(ask, str) if errors is None else errors):
        check, p_wrong = check_test_labels(explainer, test, rows)
        given = np.ones(len(rows)) if weights is None else np.asarray(weights, dtype=np.float64)
        # weights of another shape are refused where the query is read
        if check is not None and p_wrong.any() and given.shape == rows.shape:
            keep = p_wrong <= 0.5
            if not check.certain or not keep.any():
                keep[:] = True
            rows, weights = rows[keep], (given * (1.0 - p_wrong))[keep]
    some = test if rows is None else take_examples(test, rows)
    return TrustedQuery(some, rows, weights, check)


def _labelled_hashes(data: Any) -> np.ndarray | None:
    """Return the hashes of inputs and labels together, for data given as (X, y)."""
    if not isinstance(data, tuple) or len(data) < 2 or data[1] is None:
        return None
    inputs = row_hashes(data[0])
    y = to_numpy(data[1]) if is_tensor(data[1]) else np.asarray(data[1])
    if inputs is None or y.ndim != 1 or len(y) != len(inputs):
        return None
    _, codes = np.unique(y.astype(str), return_inverse=True)
    # a multiplicative mix keeps different (input, label) pairs apart
    return inputs ^ (codes.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)


class Copies:
    """Finds the copies of picked training rows.

    `take(positions or slice)` returns whitened rows, of which only the directions count. Equal rows
    are found if the training data are (X, y).
    """

    def __init__(self, take: Callable[[Any], Any], n_train: int, train: Any) -> None:
        self._take, self._t, self._hashes = take, n_train, _labelled_hashes(train)
        self._by_cosine = self._cosine_is_specific()

    def _cosine_is_specific(self) -> bool:
        """Return True if unrelated rows hardly ever reach MIN_COSINE."""
        chosen = np.sort(np.random.default_rng(0).permutation(self._t)[:_SAMPLED_ROWS])
        some = self._unit_rows(chosen)
        if self._hashes is not None:  # equal rows are no evidence about unrelated ones
            some = some[np.unique(self._hashes[chosen], return_index=True)[1]]
        n = len(some)
        if n < 2:
            return False
        above = (np.sum(some @ some.T >= MIN_COSINE) - n) / 2
        return bool(above <= MAX_CHANCE_SHARE * n * (n - 1) / 2)

    def _unit_rows(self, positions: Any) -> np.ndarray:
        rows = np.asarray(to_numpy(self._take(positions)))
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        return rows / np.where(norms > 0, norms, 1.0)

    def group(self, picks: np.ndarray) -> np.ndarray:
        """Return for each pick the position, among the picks, of the first one it is a copy of."""
        first = np.arange(len(picks))
        near = np.zeros((len(picks), len(picks)), dtype=bool)
        if self._by_cosine and len(picks):
            unit = self._unit_rows(picks)
            near |= unit @ unit.T >= MIN_COSINE
        if self._hashes is not None:
            own = self._hashes[picks]
            near |= own[:, None] == own
        for i in range(1, len(picks)):
            leaders = np.flatnonzero(near[i, :i] & (first[:i] == np.arange(i)))
            if len(leaders):
                first[i] = leaders[0]
        return first

    def members(self, leaders: np.ndarray) -> list[np.ndarray]:
        """Return all training rows that are copies of each leader, itself included.

        A row that is near several leaders belongs to the first of them.
        """
        owner = np.full(self._t, -1)
        if self._by_cosine and len(leaders):
            few = self._unit_rows(leaders).T
            for start in range(0, self._t, _BLOCK_ROWS):
                block = slice(start, min(start + _BLOCK_ROWS, self._t))
                near = self._unit_rows(block) @ few >= MIN_COSINE
                owner[block] = np.where(near.any(axis=1), near.argmax(axis=1), -1)
        if self._hashes is not None and len(leaders):
            own, first = np.unique(self._hashes[leaders], return_index=True)
            at = np.searchsorted(own, self._hashes).clip(max=len(own) - 1)
            equal = own[at] == self._hashes
            owner[equal] = first[at][equal]
        owner[leaders] = np.arange(len(leaders))
        return [np.flatnonzero(owner == i) for i in range(len(leaders))]


def _overlap_sentence(train: Any, test: Any, rows: np.ndarray | None) -> str:
    """Return a warning if queried test rows are also training rows; "" otherwise.

    Only inputs are compared: a copy under another label is a leak, too.
    """
    if not isinstance(train, tuple) or not isinstance(test, tuple):
        return ""  # reading a data set row by row only for this may cost more than the answer
    hashes = [row_hashes(data[0]) for data in (train, test)]
    if hashes[0] is None or hashes[1] is None:
        return ""
    queried = hashes[1] if rows is None else hashes[1][rows]
    n = int(np.isin(queried, hashes[0]).sum())
    if not n:
        return ""
    are = "is also a training row" if n == 1 else "are also training rows"
    return (
        f"{n:,} of the {len(queried):,} test rows in question {are}, with the same features: the "
        "test set is not independent of the training set. Split the file by groups of copies."
    )
