"""Texts with the tokens marked that decided: on a page, and in a terminal."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from exempla.completions import Completions
from exempla.errors import ExemplaError
from exempla.language import TokenAlignment
from exempla.report.views import Content, View
from exempla.results import Explanation, Selection

__all__ = ["TokenView", "about_texts", "marked_text", "token_views"]

DECISIVE = 1 / 3
"""Tokens are marked in a terminal from this share of the text's largest on."""


@dataclass(frozen=True)
class TokenView(View):
    """Texts for a language model; `parts(i)` gives the strength of every token of text i."""

    texts: Completions
    parts: Callable[[int], np.ndarray]
    marks: ClassVar[tuple[str, str]] = ("for what was asked about", "against it")

    def columns_of(self, index: int) -> dict[str, str | None]:
        """Prompt and completion."""
        prompt, completion = self.texts.texts[index]
        return {"prompt": prompt, "completion": completion}

    def show(self, index: int) -> Content:
        """The text, every token with its strength beside the strongest."""
        parts = self.parts(index)
        largest = float(np.abs(parts).max()) or 1.0
        pieces = zip(self.texts.pieces(index), (parts / largest).tolist(), strict=True)
        return self._with(index, pieces=tuple(pieces))


def about_texts(found: Selection) -> bool:
    """Whether training data and question of an answer are texts whose tokens can be looked at."""
    asked = found.question if isinstance(found, Explanation) else None
    if asked is None or asked.shares is None:
        return False
    return isinstance(asked.explainer.train_data, Completions) and isinstance(
        asked.test, Completions
    )


def token_views(answer: Explanation) -> tuple[TokenView, TokenView]:
    """How to show the training texts and the questioned texts of an answer."""
    tokens = TokenAlignment(answer)
    return (
        TokenView(tokens.train_texts, tokens.train),
        TokenView(tokens.test_texts, tokens.test),
    )


def marked_text(answer: Explanation, rows: int = 10) -> str:
    """The questioned and the picked texts, the first of each, with the decisive tokens in brackets:
    [+token] speaks for what is asked about, [-token] against it."""
    if not about_texts(answer):
        raise ExemplaError(
            "this answer is not about texts: give training data and question to explain(...) as "
            "exempla.Completions(tokenizer, texts)."
        )
    train, test = token_views(answer)
    asked = [f"  {_marked(test, place)}" for place in range(min(rows, answer.n_test))]
    picked = [
        f"  {int(row):>6}  {z:+.2f}  {_marked(train, int(row))}"
        for row, z in zip(answer.indices[:rows], answer.alignment[:rows], strict=True)
    ]
    return "\n".join(["asked about:", *asked, "taught by:", *picked])


def _marked(view: TokenView, index: int) -> str:
    pieces = view.show(index).pieces
    said = [
        text if abs(strength) < DECISIVE else f"[{'+' if strength > 0 else '-'}{text}]"
        for text, strength in pieces
    ]
    return "".join(said).replace("\n", "⏎")
