"""What each token has to do with an answer, on both sides.

The score of a text is the sum of the scores of its tokens, ∇ log p(token | what stands before it).
So z_i = f_i·μ, the alignment of a training text with the question, is a sum over its tokens: one
that adds a positive part taught the model what is asked about, one that adds a negative part
taught it otherwise. The same sum over the tokens of a questioned text says which of them the
picked training texts speak for, and which against.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from exempla.arrays import Array, as_like, to_numpy
from exempla.data import Completions
from exempla.errors import ExemplaError
from exempla.kernel.query import Asked, Use, questioned_rows, scored, unit_scale, whitened_rows
from exempla.kernel.residual import Beyond, Some, read
from exempla.results import Explanation, Features

__all__ = ["TokenAlignment"]


class TokenAlignment:
    """The parts that tokens add to an answer about texts.

    Made from an `Explanation` whose training data and question were `Completions`.
    """

    def __init__(self, answer: Explanation) -> None:
        asked = answer.question
        if asked is None or asked.shares is None:
            raise ExemplaError(
                "tokens can be looked at for an answer of explain(...) that still knows its "
                "question: not for one that was read from a file or renumbered."
            )
        train, test = asked.explainer.train_data, asked.test
        if not isinstance(train, Completions) or not isinstance(test, Completions):
            raise ExemplaError(
                "tokens are known of texts only: give training data and question as "
                "exempla.Completions(tokenizer, texts)."
            )
        self.answer, self.explainer = answer, asked.explainer
        self.train_texts, self.test_texts, self.shares = train, test, asked.shares
        self._use: Use = "selection" if asked.explainer.normalize else "influence"

    def train(self, row: int) -> np.ndarray:
        """What every token of training text `row` adds to its alignment with the question; 0 for
        tokens that do not count. Their sum is `answer.alignment` of that text."""
        return self._parts(self.train_texts, row, self._question, seen=True)

    def test(self, place: int) -> np.ndarray:
        """How far the picked texts, each by the size of its weight, speak for every token of
        questioned text `place`: negative where they speak against it."""
        return self._parts(self.test_texts, place, self._picked, seen=False)

    @cached_property
    def _features(self) -> Features:
        """The training rows that the answer was picked from."""
        return self.explainer.features_for(self._use)

    @cached_property
    def _beyond(self) -> Beyond | None:
        """What the sketches leave out, where the answer was picked with it."""
        explainer = self.explainer
        beyond = Beyond(explainer.embeddings, explainer.damping, self._use)
        return beyond if beyond and beyond.affordable(self._asked) else None

    @cached_property
    def _asked(self) -> Asked:
        return self._read(self.test_texts)

    @cached_property
    def _question(self) -> _Sum:
        """μ, as the answer was made from it."""
        if self._beyond is None:
            explainer, rows = self.explainer, self._features.rows
            given = (explainer.embeddings, self._asked.rows, explainer.damping, self._use, rows)
            unit = questioned_rows(*given)
            return _Sum(as_like(self.shares, unit) @ unit)
        some, rows, lengths = self._beyond.questioned(self._features, self._asked)
        counted = self.shares / lengths
        return _Sum(as_like(counted, rows) @ rows, some, counted)

    @cached_property
    def _picked(self) -> _Sum:
        """The picked training rows, each by the size of its weight."""
        chosen, sizes, rows = self.answer.indices, np.abs(self.answer.weights), self._features.rows
        if self._beyond is None:
            return _Sum(as_like(sizes, rows) @ rows[chosen])
        own, whole = (x[chosen] for x in self._beyond.training_lengths(self._features))
        counted = sizes / whole
        inside = as_like(counted * own, rows) @ rows[chosen]
        return _Sum(inside, self._beyond.training(chosen), counted)

    def _read(self, texts: Any) -> Asked:
        embeddings = self.explainer.embeddings
        examples = [e.oracle.read(texts, role="test") for e in embeddings]
        labels: Any = self.answer.labels
        return Asked(texts, examples, labels, scored(embeddings, examples, labels), [])

    def _parts(self, texts: Completions, row: int, other: _Sum, seen: bool) -> np.ndarray:
        explainer, whole = self.explainer, texts[row]
        # the text itself comes last: its length is what its tokens are divided by
        asked = self._read([*texts.token_by_token(row), whole])
        rows, outside = whitened_rows(
            explainer.embeddings, asked.rows, explainer.damping, self._use, other.inside
        )
        parts = to_numpy(rows[:-1] @ other.inside).astype(np.float64)
        if self._beyond is not None:
            some = read(asked)
            parts += self._beyond.products(some, other.some, other.counted[:, None])[:-1, 0]
            parts /= self._beyond.lengths([one.last() for one in some], rows[-1:])
        elif self._use == "selection":
            parts *= unit_scale(rows[-1:], None if seen else outside[-1:])[0]
        out = np.zeros(len(whole["labels"]))
        out[texts.counted(row)] = parts
        return out


class _Sum(NamedTuple):
    """A sum of examples that tokens are multiplied with."""

    inside: Array
    """Whitened, in sketch space."""
    some: Sequence[Some] = ()
    counted: Any = None
    """The examples, and how much each of them counts, where what sketches leave out counts."""
