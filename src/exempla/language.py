"""Token contributions to an explanation of a language model.

The score of a text is the sum of the scores of its tokens, ∇ log p(token | previous tokens). The
alignment z_i = f_i·μ of a training text with the query is therefore a sum over its tokens: a token
with a positive part taught the model what is queried, one with a negative part the opposite. The
same sum over the tokens of a queried text shows which of them the selected texts support.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from exempla.arrays import Array, as_like, to_numpy
from exempla.data import Completions
from exempla.errors import ExemplaError
from exempla.kernel.embed import unit_scale
from exempla.kernel.kernel import EmbeddedExamples, Kernel, Query
from exempla.results import Explanation

__all__ = ["TokenAlignment"]


class TokenAlignment:
    """The contribution of each token to an explanation of texts.

    Parameters
    ----------
    answer : Explanation
        An answer of `explain` whose training data and query were `Completions`.
    """

    def __init__(self, answer: Explanation) -> None:
        asked = answer.question
        if asked is None or asked.shares is None:
            raise ExemplaError(
                "Token contributions need an answer of explain(...) that still knows its query: "
                "one that was read from a file or renumbered does not."
            )
        train, test = asked.explainer.train_data, asked.test
        if not isinstance(train, Completions) or not isinstance(test, Completions):
            raise ExemplaError(
                "Token contributions are available for texts only: give training data and query as "
                "exempla.Completions(tokenizer, texts)."
            )
        self.answer, self.explainer = answer, asked.explainer
        self.train_texts, self.test_texts, self.shares = train, test, asked.shares
        self._labels: Any = answer.labels
        self._known: dict[tuple[bool, int], np.ndarray] = {}
        """What was asked before: a report shows most texts twice."""

    def train(self, row: int) -> np.ndarray:
        """Return the part of each token of training text `row` in its alignment with the query.

        Tokens that do not count, such as the prompt, have 0. The sum is `answer.alignment`.
        """
        return self._parts(row, is_train=True)

    def test(self, place: int) -> np.ndarray:
        """Return how much the selected texts, weighted by |weight|, support each token of queried
        text `place`; negative where they contradict it."""
        return self._parts(place, is_train=False)

    @property
    def _kernel(self) -> Kernel:
        return self.explainer.kernel()

    @cached_property
    def _query(self) -> Query:
        return self._kernel.query(self.test_texts, self._labels)

    @cached_property
    def _residual(self) -> bool:
        """Whether the answer was selected with the residual of the sketch."""
        return self._kernel.adds_residual(self._query)

    @cached_property
    def _target(self) -> _WeightedSum:
        """μ, as the answer was computed from it."""
        kernel, query = self._kernel, self._query
        features = kernel.features.rows
        if not self._residual:
            unit = kernel.query_rows(query, features)
            return _WeightedSum(as_like(self.shares, unit) @ unit)
        rows, _ = kernel.whiten(query, features)
        counted = self.shares / kernel.full_norms(query.embedded, rows)
        return _WeightedSum(as_like(counted, rows) @ rows, query.embedded, counted)

    @cached_property
    def _selected(self) -> _WeightedSum:
        """The selected training rows, weighted by |weight|."""
        chosen, sizes = self.answer.indices, np.abs(self.answer.weights)
        kernel = self._kernel
        rows = kernel.features.rows
        if not self._residual:
            return _WeightedSum(as_like(sizes, rows) @ rows[chosen])
        own, full = (x[chosen] for x in kernel.train_norms())
        counted = sizes / full
        inside = as_like(counted * own, rows) @ rows[chosen]
        return _WeightedSum(inside, kernel.train_examples(chosen), counted)

    def _parts(self, row: int, is_train: bool) -> np.ndarray:
        if (known := self._known.get((is_train, row))) is not None:
            return known.copy()
        texts = self.train_texts if is_train else self.test_texts
        other = self._target if is_train else self._selected
        kernel, text = self._kernel, texts[row]
        # the text itself comes last: its tokens are divided by its norm
        query = kernel.query([*texts.token_by_token(row), text], self._labels)
        rows, residual = kernel.whiten(query, other.inside)
        parts = to_numpy(rows[:-1] @ other.inside).astype(np.float64)
        if self._residual:
            embedded, last = query.embedded, np.array([len(query) - 1])
            outside = kernel.residual_products(embedded, other.examples, other.counted[:, None])
            parts += outside[:-1, 0]
            parts /= kernel.full_norms([one.take(last) for one in embedded], rows[-1:])
        elif kernel.use == "selection":
            parts *= unit_scale(rows[-1:], None if is_train else residual[-1:])[0]
        out = np.zeros(len(text["labels"]))
        out[texts.counted(row)] = parts
        self._known[is_train, row] = out
        return out.copy()


class _WeightedSum(NamedTuple):
    """A weighted sum of examples that tokens are multiplied with."""

    inside: Array
    """Whitened, in sketch space."""
    examples: Sequence[EmbeddedExamples] = ()
    counted: Any = None
    """The examples and their weights, for the residual."""
