"""What a report shows of an example: its image, text or table row, and its decisive parts.

**Views** hold the data of a report and return one `Content` at a time, so only the examples that
are shown cost anything.

**Decisive words and columns** (`decisive_parts`), for a model that is linear in prepared features:
for an example with label y and most likely other class c, feature i has the strength
x_i·(w_yi − w_ci); a column has the sum over its features. In a regression, feature i has the
strength x_i·w_i, positive if it moves the prediction from the intercept towards the label.

**Influence** (`evidence_of`, `strongest_picks`): the kernel values of the picked examples and the
queried ones, and which of them to show beside each other.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, NamedTuple

import numpy as np
from scipy.sparse import csr_matrix

from exempla.data import Completions, take_examples
from exempla.errors import ExemplaError
from exempla.language import TokenAlignment
from exempla.results import Explanation, Selection

LONGEST_TEXT = 600
"""Characters of a text that a report shows, around its decisive words."""
MOST_CELLS = 6
"""Cells of a table row that are always visible; the others are folded."""

_Strengths = Callable[[int], Mapping[str, float]]
"""Signed strengths of words or columns of example i."""


@dataclass(frozen=True)
class Content:
    """What is shown of one example; any part may be empty.

    In reports and on the review page, a positive strength supports the example's label and a
    negative one opposes it.
    """

    image: Any = None
    pieces: tuple[tuple[str, float], ...] = ()
    """A text in pieces, each with its strength in [−1, 1] (0 for ordinary words)."""
    cells: tuple[tuple[str, str, float], ...] = ()
    """(column, value, strength), the decisive ones first."""
    label: str | None = None
    predicted: str | None = None
    name: str = ""
    numeric: bool = False
    """Whether label and prediction are real numbers, which are never exactly equal."""

    @property
    def doubted(self) -> bool:
        """Whether the model disagrees with the label."""
        known = None not in (self.label, self.predicted)
        return known and not self.numeric and self.label != self.predicted


@dataclass(frozen=True, kw_only=True)
class View:
    """Labels, predictions and names of the examples, without their content.

    >>> View(labels=["cat", "dog"], predicted=["cat", "cat"]).show(1).doubted
    True
    """

    labels: Any = None
    predicted: Any = None
    names: Any = None
    marks: ClassVar[tuple[str, str]] = ("for its label", "against its label")
    """What the two colours of decisive parts mean."""

    @cached_property
    def numeric(self) -> bool:
        """Whether the model predicts numbers: some prediction has a fraction."""
        said = [] if self.predicted is None else [v for v in self.predicted if v is not None]
        return any(isinstance(v, float | np.floating) and v % 1 for v in said)

    def show(self, index: int) -> Content:
        """Return what to show of example `index`."""
        return Content(
            label=_entry(self.labels, index, "labels"),
            predicted=_entry(self.predicted, index, "predicted"),
            numeric=self.numeric,
            name=_entry(self.names, index, "names") or f"#{index}",
        )

    def columns_of(self, index: int) -> dict[str, str | None]:
        """Return all columns of example `index`, for tables; {} if unknown."""
        return {}

    def _with(self, index: int, **parts: Any) -> Content:
        return replace(View.show(self, index), **parts)


@dataclass(frozen=True)
class ImageView(View):
    """Examples that are images: arrays (h, w[, c]), Pillow images, or paths of image files.

    Arrays that are not uint8 are scaled by the range of the whole array, or by `low` and `high`.

    >>> import numpy as np
    >>> view = ImageView(np.zeros((3, 8, 8)), labels=[0, 1, 2])
    >>> view.show(2).label, view.show(2).image.shape
    ('2', (8, 8))
    """

    images: Any
    low: float | None = None
    high: float | None = None

    def __post_init__(self) -> None:
        images = self.images
        if not isinstance(images, np.ndarray):
            return
        if images.ndim not in (3, 4):
            raise ExemplaError(
                f"ImageView needs images of shape (n, height, width[, channels]), not "
                f"{images.shape}; reshape them first."
            )
        if images.dtype != np.uint8 and images.size:
            low = np.nanmin(images) if self.low is None else self.low
            high = np.nanmax(images) if self.high is None else self.high
            self.__dict__.update(low=float(low), high=float(high))  # the dataclass is frozen

    def show(self, index: int) -> Content:
        """Return the image, as bytes if it is an array."""
        image = _entry(self.images, index, "images", raw=True)
        if isinstance(image, np.ndarray) and self.low is not None and self.high is not None:
            span = (self.high - self.low) or 1.0
            image = np.nan_to_num((image - self.low) / span).clip(0.0, 1.0)
            image = np.round(image * 255).astype(np.uint8)
        return self._with(index, image=image)


@dataclass(frozen=True)
class TextView(View):
    """Examples that are texts; `decisive(i)` may return the strengths of words.

    >>> view = TextView(["free money now"], decisive=lambda i: {"money": 0.5})
    >>> view.show(0).pieces
    (('free ', 0.0), ('money', 1.0), (' now', 0.0))
    """

    texts: Any
    decisive: _Strengths | None = None

    def columns_of(self, index: int) -> dict[str, str | None]:
        """Return the whole text."""
        return {"text": str(_entry(self.texts, index, "texts", raw=True))}

    def show(self, index: int) -> Content:
        """Return the text, shortened around its decisive words."""
        text = str(_entry(self.texts, index, "texts", raw=True))
        strengths = scaled(self.decisive(index)) if self.decisive else {}
        return self._with(index, pieces=mark_words(text, strengths))


@dataclass(frozen=True)
class TableView(View):
    """Examples that are rows of a DataFrame, or of a mapping from column to values.

    >>> TableView({"age": [39, 50]}, labels=["no", "yes"]).show(1).cells
    (('age', '50', 0.0),)
    """

    table: Any
    decisive: _Strengths | None = None

    def columns_of(self, index: int) -> dict[str, str | None]:
        """Return the whole row."""
        names = self.table.keys()
        return {str(c): str(_entry(self.table[c], index, "table", raw=True)) for c in names}

    def show(self, index: int) -> Content:
        """Return the row's cells, the decisive ones first."""
        strengths = scaled(self.decisive(index)) if self.decisive else {}
        cells = [
            (str(c), _cell(_entry(self.table[c], index, "table", raw=True)), strengths.get(c, 0.0))
            for c in self.table.keys()  # noqa: SIM118 - a DataFrame iterates its columns as well
        ]
        return self._with(index, cells=tuple(sorted(cells, key=lambda cell: -abs(cell[2]))))


def confusions(view: View, count: int) -> list[tuple[str | None, str | None]]:
    """Return (true, predicted) of the first `count` examples."""
    labels, said = view.labels, view.predicted
    return [(_entry(labels, i, "labels"), _entry(said, i, "predicted")) for i in range(count)]


def mark_words(
    text: str, strengths: Mapping[str, float], longest: int = LONGEST_TEXT
) -> tuple[tuple[str, float], ...]:
    """Split the text at the given words and shorten it around them."""
    known = {word.casefold(): strength for word, strength in strengths.items()}
    marked = sorted((word for word in strengths if word.strip()), key=len, reverse=True)
    words = "|".join(map(re.escape, marked)) or r"(?!)"  # which never matches
    pattern = re.compile(rf"(?<!\w)({words})(?!\w)", re.IGNORECASE)
    first = pattern.search(text)
    start = 0 if first is None or len(text) <= longest else max(first.start() - longest // 4, 0)
    shown = text[start : start + longest]
    shown = "… " * (start > 0) + shown + " …" * (start + longest < len(text))
    parts = pattern.split(shown)  # words at odd places
    pieces = (
        (part, known.get(part.casefold(), 0.0) if i % 2 else 0.0) for i, part in enumerate(parts)
    )
    return tuple(piece for piece in pieces if piece[0])


def scaled(strengths: Mapping[str, float]) -> dict[str, float]:
    """Scale strengths so that the largest is ±1."""
    top = max((abs(value) for value in strengths.values()), default=0.0)
    return {name: value / top for name, value in strengths.items()} if top > 0 else {}


def rounded(value: float) -> str:
    """Round a number to four significant digits; keep all digits before the point."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e12 else f"{value:.4g}"


def _cell(value: Any) -> str:
    return rounded(float(value)) if isinstance(value, float | np.floating) else str(value)


def _entry(values: Any, index: int, what: str, raw: bool = False) -> Any:
    if values is None:
        return None
    try:
        value = values.iloc[index] if hasattr(values, "iloc") else values[index]
    except (IndexError, KeyError) as error:
        raise ExemplaError(
            f"The view's {what} have no entry {index}; give the view the same rows, in the same "
            "order, as the explanation."
        ) from error
    return value if raw or value is None else _cell(value)


_MIN_MARKED_STRENGTH = 1 / 3
"""Tokens from this share of the largest strength on are marked in a terminal."""


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


def token_views(answer: Selection) -> tuple[TokenView, TokenView] | None:
    """Return views of the training texts and the queried texts; None if either is not texts."""
    if not isinstance(answer, Explanation):
        return None
    asked = answer.question
    if asked is None or asked.shares is None:
        return None
    if not all(isinstance(x, Completions) for x in (asked.explainer.train_data, asked.test)):
        return None
    found = TokenAlignment(answer)
    return TokenView(found.train_texts, found.train), TokenView(found.test_texts, found.test)


def marked_text(answer: Explanation, rows: int = 10) -> str:
    """Return the first queried and picked texts with decisive tokens in brackets.

    [+token] supports the queried text, [-token] opposes it.
    """
    views = token_views(answer)
    if views is None:
        raise ExemplaError(
            "This answer is not about texts. Pass the training data and the query to explain(...) "
            "as exempla.Completions(tokenizer, texts)."
        )
    train, test = views
    asked = [f"  {_marked(test, place)}" for place in range(min(rows, answer.n_test))]
    picked = [
        f"  {int(row):>6}  {z:+.2f}  {_marked(train, int(row))}"
        for row, z in zip(answer.indices[:rows], answer.alignment[:rows], strict=True)
    ]
    return "\n".join(["queried texts:", *asked, "training texts:", *picked])


def _marked(view: TokenView, index: int) -> str:
    pieces = [
        text if abs(strength) < _MIN_MARKED_STRENGTH else f"[{'+' if strength > 0 else '-'}{text}]"
        for text, strength in view.show(index).pieces
    ]
    return "".join(pieces).replace("\n", "⏎")


_MOST_WORDS = 8


class _DecisiveParts(NamedTuple):
    """Strengths of columns and of words, by example."""

    columns: list[dict[str, float]]
    words: list[dict[str, float]]


def decisive_parts(model: Any, X: Any, labels: Any) -> _DecisiveParts | None:
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
        signs, coef = _class_directions(last, X, np.asarray(labels))
    elif np.ndim(last.coef_) == 1:
        below = np.asarray(labels, dtype=np.float64) < float(np.ravel(last.intercept_)[0])
        signs, coef = np.where(below, -1.0, 1.0)[:, None], np.asarray(last.coef_)[None]
    else:
        return None
    columns, words = _feature_names(prepare)
    found = _DecisiveParts([], [])
    for row in range(X.shape[0]):
        piece = slice(X.indptr[row], X.indptr[row + 1])
        features = X.indices[piece]
        strengths = (X.data[piece] * (signs[row] @ coef[:, features])).tolist()
        by_column: dict[str, float] = defaultdict(float)
        for feature, strength in zip(features, strengths):
            by_column[columns[feature]] += strength
        pairs = [(words[f], s) for f, s in zip(features, strengths) if f in words and s != 0.0]
        strongest_first = sorted(pairs, key=lambda pair: -abs(pair[1]))
        found.columns.append(dict(by_column))
        found.words.append(dict(strongest_first[:_MOST_WORDS]))
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


def strongest_picks(
    evidence: np.ndarray, side: str, count: int, view: View
) -> dict[int, np.ndarray]:
    """Return the positions of the picks with the largest influence on each query, in display order.

    Opponents are sorted by the most negative value, proponents by the most positive one, both sides
    by size; picks on the other side are left out. Queries are ordered by influence, with confusions
    such as "true 3, predicted 5" taking turns, which varies the first screen.
    """
    strength = {"opponents": -evidence, "proponents": evidence}.get(side, np.abs(evidence))
    order = np.argsort(-strength, axis=0, kind="stable")[:count]
    best = [order[strength[order[:, j], j] > 0, j] for j in range(evidence.shape[1])]
    total = np.array([float(np.abs(evidence[picks, j]).sum()) for j, picks in enumerate(best)])
    queries, kinds = np.argsort(-total, kind="stable").tolist(), confusions(view, len(best))
    turns, seen = {}, Counter()
    for j in queries:
        turns[j] = seen[kinds[j]]
        seen[kinds[j]] += 1
    return {j: best[j] for j in sorted(queries, key=turns.__getitem__)}
