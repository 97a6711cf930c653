"""Evidence shown in reports: influence of each pick on each query, and decisive parts.

**Picks and queries.** `evidence_of` returns the kernel values of the picked examples and the
queried ones.

**Decisive words and columns** (`decisive_parts`), for a model that is linear in prepared features:
for an example with label y and most likely other class c, feature i has the strength
x_i·(w_yi − w_ci); a column has the sum over its features. In a regression, feature i has the
strength x_i·w_i, positive if it moves the prediction from the intercept towards the label.

**Tokens** (`TokenView`, `marked_text`): texts with the decisive tokens marked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from exempla.data import Completions, take_examples
from exempla.errors import ExemplaError
from exempla.language import TokenAlignment
from exempla.report.views import Content, View
from exempla.results import Explanation, Selection


def evidence_of(explanation: Explanation) -> np.ndarray | None:
    """Return the (k, n_test) kernel values f_i·f_j of picked and queried examples.

    None if the explanation came without its Explainer.
    """
    question = explanation.question
    if question is None:
        return None
    asked = question.examples
    if len(question.explainer.oracles) > 1:  # each model reads the data in its own way
        asked = question.test
        if question.rows is not None:
            asked = take_examples(asked, question.rows)
    return question.explainer.affinity(explanation.indices, asked, explanation.labels)


def strongest(evidence: np.ndarray, side: str, count: int) -> list[np.ndarray]:
    """Return, for each query, the positions of the picks with the largest influence on it.

    Opponents are sorted by the most negative value, proponents by the most positive one, both sides
    by size; picks on the other side are left out.
    """
    strength = {"opponents": -evidence, "proponents": evidence}.get(side, np.abs(evidence))
    order = np.argsort(-strength, axis=0, kind="stable")[:count]
    return [order[strength[order[:, j], j] > 0, j] for j in range(evidence.shape[1])]


def varied_order(evidence: np.ndarray, best: list[np.ndarray], kinds: Sequence[Any]) -> list[int]:
    """Return the order in which to show queries: by influence, with the kinds taking turns.

    Kinds are confusions such as "true 3, predicted 5"; taking turns varies the first screen.
    """
    total = np.array([float(np.abs(evidence[picks, j]).sum()) for j, picks in enumerate(best)])
    order, seen = np.argsort(-total, kind="stable").tolist(), Counter()
    turns = {}
    for j in order:
        turns[j] = seen[kinds[j]]
        seen[kinds[j]] += 1
    return sorted(order, key=turns.__getitem__)


_MOST_WORDS = 8


class _Decisive(NamedTuple):
    """Strengths of columns and of words, by example."""

    columns: list[dict[str, float]]
    words: list[dict[str, float]]


def decisive_parts(model: Any, X: Any, labels: Any) -> _Decisive | None:
    """Return the decisive words and columns of each row; None if the model is not linear.

    `model` is a fitted Pipeline of a ColumnTransformer and a linear classifier or regression.
    """
    steps: Any = getattr(model, "steps", ())
    if len(steps) != 2:
        return None
    (_, prepare), (_, last) = steps
    if not hasattr(last, "coef_") or not hasattr(prepare, "output_indices_"):
        return None
    X = csr_matrix(prepare.transform(X))
    if hasattr(last, "classes_"):
        directions = _class_directions(last, X, np.asarray(labels))
    elif np.ndim(last.coef_) == 1:
        sides = np.asarray(labels, dtype=np.float64) < float(np.ravel(last.intercept_)[0])
        directions = np.where(sides, -1.0, 1.0)[:, None], np.asarray(last.coef_)[None]
    else:
        return None
    columns, words = _feature_names(prepare)
    found = _Decisive([], [])
    for row in range(X.shape[0]):
        piece = slice(X.indptr[row], X.indptr[row + 1])
        places, signs = X.indices[piece], directions[0][row]
        strengths = X.data[piece] * (signs @ directions[1][:, places])
        by_column: dict[str, float] = {}
        for place, strength in zip(places.tolist(), strengths.tolist()):
            by_column[columns[place]] = by_column.get(columns[place], 0.0) + strength
        order = np.argsort(-np.abs(strengths), kind="stable").tolist()
        named = [(words[places[i]], float(strengths[i])) for i in order if places[i] in words]
        found.columns.append(by_column)
        found.words.append(dict([(w, s) for w, s in named if s != 0.0][:_MOST_WORDS]))
    return found


def _class_directions(last: Any, X: csr_matrix, labels: np.ndarray) -> tuple[Any, np.ndarray]:
    """Return signs (n, classes), so that signs @ coefficients is w_label − w_other of each row."""
    coef, scores = np.asarray(last.coef_), last.decision_function(X)
    if len(coef) == 1:
        coef = np.vstack([-coef[0] / 2, coef[0] / 2])
        scores = np.column_stack([-scores, scores])
    own = labels.astype(str)[:, None] == np.asarray(last.classes_).astype(str)
    signs = own.astype(np.float64)
    signs[np.arange(len(labels)), np.where(own, -np.inf, scores).argmax(1)] -= 1.0
    return signs, coef


def _feature_names(prepare: Any) -> tuple[list[str], dict[int, str]]:
    """Return the column of each prepared feature, and the words among the features."""
    columns = [""] * sum(s.stop - s.start for s in prepare.output_indices_.values())
    words: dict[int, str] = {}
    for name, step, chosen in prepare.transformers_:
        place = prepare.output_indices_[name]
        if place.stop == place.start:
            continue
        if isinstance(chosen, str):  # one text column, passed as strings
            columns[place] = [chosen] * (place.stop - place.start)
            words.update(enumerate(step.get_feature_names_out(), start=place.start))
        else:
            names = step.get_feature_names_out(list(chosen))
            columns[place] = [_owner(str(feature), list(chosen)) for feature in names]
    return columns, words


def _owner(feature: str, columns: list[str]) -> str:
    """Return the column of a prepared feature: the longest name that it begins with."""
    plain = feature.removeprefix("missingindicator_")
    fitting = [c for c in columns if plain == c or plain.startswith(f"{c}_")]
    return max(fitting, key=len, default=feature)


_DECISIVE = 1 / 3
"""Tokens above this share of the largest strength are marked in a terminal."""


@dataclass(frozen=True)
class TokenView(View):
    """Texts for a language model; `parts(i)` returns the strength of every token of text i."""

    texts: Completions
    parts: Callable[[int], np.ndarray]
    marks: ClassVar[tuple[str, str]] = ("for the queried text", "against it")

    def columns_of(self, index: int) -> dict[str, str | None]:
        """Return prompt and completion."""
        prompt, completion = self.texts.texts[index]
        return {"prompt": prompt, "completion": completion}

    def show(self, index: int) -> Content:
        """Return the text, every token with its strength relative to the largest."""
        parts = self.parts(index)
        largest = float(np.abs(parts).max()) or 1.0
        pieces = zip(self.texts.pieces(index), (parts / largest).tolist(), strict=True)
        return self._with(index, pieces=tuple(pieces))


def about_texts(found: Selection) -> bool:
    """Return True if both the training data and the query are tokenised texts."""
    asked = found.question if isinstance(found, Explanation) else None
    if asked is None or asked.shares is None:
        return False
    return all(isinstance(x, Completions) for x in (asked.explainer.train_data, asked.test))


def token_views(answer: Explanation) -> tuple[TokenView, TokenView]:
    """Return the views of the training texts and of the queried texts."""
    found = TokenAlignment(answer)
    return TokenView(found.train_texts, found.train), TokenView(found.test_texts, found.test)


def marked_text(answer: Explanation, rows: int = 10) -> str:
    """Return the first queried and picked texts with decisive tokens in brackets.

    [+token] supports the queried text, [-token] opposes it.
    """
    if not about_texts(answer):
        raise ExemplaError(
            "This answer is not about texts. Pass the training data and the query to explain(...) "
            "as exempla.Completions(tokenizer, texts)."
        )
    train, test = token_views(answer)
    asked = [f"  {_marked(test, place)}" for place in range(min(rows, answer.n_test))]
    picked = [
        f"  {int(row):>6}  {z:+.2f}  {_marked(train, int(row))}"
        for row, z in zip(answer.indices[:rows], answer.alignment[:rows], strict=True)
    ]
    return "\n".join(["queried texts:", *asked, "training texts:", *picked])


def _marked(view: TokenView, index: int) -> str:
    said = [
        text if abs(strength) < _DECISIVE else f"[{'+' if strength > 0 else '-'}{text}]"
        for text, strength in view.show(index).pieces
    ]
    return "".join(said).replace("\n", "⏎")
