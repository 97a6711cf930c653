"""Evidence shown in reports: influence of each pick on each query, and decisive parts.

**Picks and queries.** `evidence_of` returns the kernel values of the picked examples and the
queried ones; `layout_of` projects them on a map.

**Decisive words and columns** (`decisive_parts`), for a model that is linear in prepared features:
for an example with label y and most likely other class c, feature i has the strength
x_i·(w_yi − w_ci); a column has the sum over its features. In a regression, feature i has the
strength x_i·w_i, positive if it moves the prediction from the intercept towards the label.

**Tokens** (`TokenView`, `marked_text`): texts with the decisive tokens marked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_matrix

from exempla.data import Completions, take_examples
from exempla.errors import ExemplaError
from exempla.language import TokenAlignment
from exempla.report.views import Content, View
from exempla.results import Explanation, Selection


def evidence_of(explanation: Explanation) -> np.ndarray | None:
    """Return the (k, n_test) kernel values f_i·f_j; None without the Explainer.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> import exempla
    >>> X, y = load_iris(return_X_y=True)
    >>> model = LogisticRegression(max_iter=500).fit(X, y)
    >>> answer = exempla.explain(model, (X, y), (X[:2], y[:2]), k=3, progress=False)
    >>> evidence_of(answer).shape
    (3, 2)
    """
    return _kernel_to(explanation, explanation.indices)


def _kernel_to(explanation: Explanation, rows: np.ndarray) -> np.ndarray | None:
    """Return the kernel values of these training rows and each queried example."""
    question = explanation.question
    if question is None:
        return None
    asked = question.examples
    if len(question.explainer.oracles) > 1:  # each model reads the data in its own way
        asked = question.test
        if question.rows is not None:
            asked = take_examples(asked, question.rows)
    return question.explainer.affinity(rows, asked, explanation.labels)


@dataclass(frozen=True)
class Layout:
    """Positions of a sample of training examples, the picked and the queried ones, on a map."""

    rows: np.ndarray
    """Training rows of the sample."""
    sample: np.ndarray
    picked: np.ndarray
    queried: np.ndarray
    explained: float
    """Share of the sample's variance that the two axes show."""


_MAX_MAPPED = 500
"""Training examples, and queried examples, on the map."""


def layout_of(explanation: Explanation) -> Layout | None:
    """Project the examples on the first two principal components of the kernel.

    Kernel PCA of a random sample of training examples and the picked ones: with centred Gram matrix
    G = U Λ Uᵀ, an example with kernel values κ to the sample has coordinates Λ^(−1/2) Uᵀ κ. None if
    the explanation came without its Explainer, or if there is nothing to draw.
    """
    query = explanation.question
    if query is None or explanation.n_test == 0 or explanation.n_train < 3:
        return None
    rng = np.random.default_rng(0)
    others = np.setdiff1d(np.arange(explanation.n_train), explanation.indices)
    count = max(_MAX_MAPPED - len(explanation), 0)
    some = rng.permutation(others)[:count]
    rows = np.concatenate([explanation.indices, some])[: 2 * _MAX_MAPPED]
    features = np.asarray(query.explainer.kernel().features.rows[rows], np.float64)
    kernel = features @ features.T
    asked = _kernel_to(explanation, rows)
    if asked is None or asked.shape[0] != len(rows) or not np.isfinite(kernel).all():
        return None
    asked = asked[:, :_MAX_MAPPED]
    means = kernel.mean(0)
    centred = kernel - means - means[:, None] + means.mean()
    values, vectors = np.linalg.eigh(centred)
    first = vectors[:, -2:][:, ::-1] / np.sqrt(np.maximum(values[-2:][::-1], 1e-12))
    placed = centred @ first
    queried = (asked - asked.mean(0) - means[:, None] + means.mean()).T @ first
    n, total = len(explanation), max(float(values.clip(0).sum()), 1e-12)
    share = float(values[-2:].clip(0).sum() / total)
    return Layout(rows[n:], placed[n:], placed[:n], queried, share)


def strongest(evidence: np.ndarray, side: str, count: int) -> list[np.ndarray]:
    """Return, for each query, the positions of the picks with the largest influence on it.

    Opponents are sorted by the most negative value, proponents by the most positive one, both sides
    by size; picks on the other side are left out.

    >>> import numpy as np
    >>> strongest(np.array([[-0.5], [0.2], [-0.9]]), "opponents", 5)[0].tolist()
    [2, 0]
    """
    strength = {"opponents": -evidence, "proponents": evidence}.get(side, np.abs(evidence))
    order = np.argsort(-strength, axis=0, kind="stable")[:count]
    return [order[strength[order[:, j], j] > 0, j] for j in range(evidence.shape[1])]


def varied_order(evidence: np.ndarray, best: list[np.ndarray], kinds: Sequence[Any]) -> list[int]:
    """Return the order in which to show queries: by influence, with the kinds taking turns.

    Kinds are confusions such as "true 3, predicted 5"; taking turns varies the first screen.

    >>> import numpy as np
    >>> evidence = np.array([[-0.9, -0.8, -0.1]])
    >>> varied_order(evidence, [np.array([0])] * 3, ["a", "a", "b"])
    [0, 2, 1]
    """
    total = np.array([float(np.abs(evidence[picks, j]).sum()) for j, picks in enumerate(best)])
    turn: dict[Any, int] = {}
    turns = np.zeros(len(total), dtype=int)
    order = np.argsort(-total, kind="stable")
    for j in order.tolist():
        turns[j] = turn.get(kinds[j], 0)
        turn[kinds[j]] = int(turns[j]) + 1
    return order[np.argsort(turns[order], kind="stable")].tolist()


_MOST_WORDS = 8


@dataclass(frozen=True)
class _Decisive:
    """Strengths of columns and of words, by example."""

    columns: tuple[dict[str, float], ...]
    words: tuple[dict[str, float], ...]


def decisive_parts(model: Any, X: Any, labels: Any) -> _Decisive | None:
    """Return the decisive words and columns of each row; None if the model is not linear.

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
    return _Decisive(tuple(columns), tuple(words))


def _directions(last: Any, prepared: csr_matrix, labels: np.ndarray) -> Any:
    """Return a function from a row to w_label − w_other."""
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
    """Return a function from a row to ±w, with the sign of its label minus the intercept."""
    sides = np.where(labels < float(np.ravel(last.intercept_)[0]), -1.0, 1.0)
    return lambda row: sides[row] * np.asarray(last.coef_)


@dataclass(frozen=True)
class _Parts:
    column_of: np.ndarray
    """Column of each prepared feature."""
    word_of: Mapping[int, str]
    """Words, by prepared feature."""


def _parts(prepare: Any) -> _Parts:
    column_of = np.empty(sum(s.stop - s.start for s in prepare.output_indices_.values()), object)
    word_of: dict[int, str] = {}
    for name, step, chosen in prepare.transformers_:
        place = prepare.output_indices_[name]
        if place.stop == place.start:
            continue
        if isinstance(chosen, str):  # one text column, passed as strings
            column_of[place] = chosen
            word_of.update(enumerate(step.get_feature_names_out(), start=place.start))
        else:
            names = step.get_feature_names_out(list(chosen))
            column_of[place] = [_owner(str(feature), list(chosen)) for feature in names]
    return _Parts(column_of, word_of)


def _owner(feature: str, columns: list[str]) -> str:
    """Return the column of a prepared feature: the longest name that it begins with.

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
    """Return the words with the largest strengths."""
    order = np.argsort(-np.abs(strengths), kind="stable")
    words = ((parts.word_of.get(int(places[i])), float(strengths[i])) for i in order)
    return dict([(w, s) for w, s in words if w is not None and s != 0.0][:_MOST_WORDS])


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
    return isinstance(asked.explainer.train_data, Completions) and isinstance(
        asked.test, Completions
    )


def token_views(answer: Explanation) -> tuple[TokenView, TokenView]:
    """Return the views of the training texts and of the queried texts."""
    tokens = TokenAlignment(answer)
    return (
        TokenView(tokens.train_texts, tokens.train),
        TokenView(tokens.test_texts, tokens.test),
    )


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
    pieces = view.show(index).pieces
    said = [
        text if abs(strength) < _DECISIVE else f"[{'+' if strength > 0 else '-'}{text}]"
        for text, strength in pieces
    ]
    return "".join(said).replace("\n", "⏎")
