"""What each token has to do with an answer, on both sides.

The score of a text is the sum of the scores of its tokens, ∇ log p(token | what stands before it).
So z_i = f_i·μ, the alignment of a training text with the question, is a sum over its tokens: one
that adds a positive part taught the model what is asked about, one that adds a negative part
taught it otherwise. The same sum over the tokens of a questioned text says which of them the
picked training texts speak for, and which against.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from exempla.arrays import Array, as_like, to_numpy
from exempla.completions import Completions
from exempla.errors import ExemplaError
from exempla.kernel import Scored, Use, questioned_rows, scored, whitened_rows
from exempla.results import Explanation
from exempla.target import unit_scale

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
    def _features(self) -> Array:
        """The training rows that the answer was picked from."""
        return self.explainer.features_for(self._use).rows

    @cached_property
    def _question(self) -> Array:
        """μ, as the answer was made from it."""
        asked = self._scored(self.test_texts)
        rows = questioned_rows(
            self.explainer.embeddings, asked, self.explainer.damping, self._use, self._features
        )
        return as_like(self.shares, rows) @ rows

    @cached_property
    def _picked(self) -> Array:
        """The picked training rows, each by the size of its weight."""
        sizes = as_like(np.abs(self.answer.weights), self._features)
        return sizes @ self._features[self.answer.indices]

    def _scored(self, texts: Any) -> Scored:
        embeddings = self.explainer.embeddings
        examples = [e.oracle.read(texts, role="test") for e in embeddings]
        labels: Any = self.answer.labels
        return scored(embeddings, examples, labels)

    def _parts(self, texts: Completions, row: int, direction: Array, seen: bool) -> np.ndarray:
        explainer, whole = self.explainer, texts[row]
        # the text itself comes last: its length is what its tokens are divided by
        asked = self._scored([*texts.token_by_token(row), whole])
        rows, outside = whitened_rows(
            explainer.embeddings, asked, explainer.damping, self._use, direction
        )
        parts = to_numpy(rows[:-1] @ direction).astype(np.float64)
        if self._use == "selection":
            parts *= unit_scale(rows[-1:], None if seen else outside[-1:])[0]
        out = np.zeros(len(whole["labels"]))
        out[texts.counted(row)] = parts
        return out
