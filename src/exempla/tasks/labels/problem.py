"""The question put to `fix_labels`, checked: training rows, then curated rows, one vocabulary.

Steps of a Pipeline that never look at labels are fitted once, not once per training.

Judging labels trains the model a dozen times over. Where all steps before the last are known to
ignore labels (TF-IDF, scaling, one-hot), what they make of a row tells nothing about its label, so
nothing is lost by fitting them to all rows at once; for text that is most of the time. Any other
step may have learnt from the labels under suspicion, and the Pipeline is then trained as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline

from exempla.arrays import is_tensor, to_numpy
from exempla.checks import check_ids, check_k, check_seed
from exempla.data import listing, n_rows, plain_labels, stack_rows, take_rows, unpack
from exempla.errors import ExemplaError
from exempla.tasks.retrain import Fit, seeded
from exempla.version import __version__


@dataclass(frozen=True)
class LabelRequest:
    """The arguments of `fix_labels` that every kind of labels has."""

    model: Any
    train: Any
    curated: Any
    k: int | None
    fit: Fit | None
    seed: int
    ids: Any
    probabilities: Any

    def __post_init__(self) -> None:
        check_seed(self.seed)

    def listed(self, n_labels: int, what: str) -> int | None:
        """Return how many labels to list; None for all."""
        return None if self.k is None else check_k(self.k, n_labels, what)

    def names(self, n_train: int, own_ids: Any = None) -> np.ndarray | None:
        """Return the caller's names of the rows, or those that came with the data."""
        return check_ids(own_ids if self.ids is None else self.ids, n_train)

    def fields(
        self,
        rows: np.ndarray,
        names: np.ndarray | None,
        n_train: int,
        n_labels: int,
        n_trusted: int = 0,
    ) -> dict[str, Any]:
        """Return the fields of `LabelFixes` that say what was asked; `rows` are those listed."""
        return {
            "indices": rows.astype(np.int64),
            "ids": None if names is None else names[rows],
            "k": n_labels if self.k is None else int(self.k),
            "n_train": n_train,
            "n_labels": n_labels,
            "n_trusted": n_trusted,
            "trusted": n_trusted > 0,
            "seed": int(self.seed),
            "version": __version__,
        }


@dataclass(frozen=True)
class LabelProblem:
    """Training rows 0 … n_train − 1, then the curated rows."""

    X: Any
    codes: np.ndarray
    """Given labels as positions in `classes`; those of the curated rows are true."""
    classes: np.ndarray
    n_train: int
    weights: np.ndarray | None = None
    ids: np.ndarray | None = None
    groups: np.ndarray | None = None
    """Rows of one group stay in one fold: the tokens of a sentence."""

    def __len__(self) -> int:
        return len(self.codes)

    @property
    def train(self) -> np.ndarray:
        return np.arange(self.n_train)

    @property
    def curated(self) -> np.ndarray:
        return np.arange(self.n_train, len(self))

    def inputs(self, rows: np.ndarray) -> Any:
        """X of these rows; X itself, not a copy, if they are all."""
        everything = len(rows) == len(self) and np.array_equal(rows, np.arange(len(self)))
        return self.X if everything else take_rows(self.X, rows)

    def labels(self, rows: np.ndarray) -> np.ndarray:
        """Given labels in the user's vocabulary."""
        return self.classes[self.codes[rows]]

    def weights_of(self, rows: np.ndarray) -> np.ndarray | None:
        return None if self.weights is None else self.weights[rows]

    def original_codes(self, labels: Any) -> np.ndarray:
        """Return the codes of the labels the curated rows had before they were corrected."""
        y = plain_labels(labels) if not isinstance(labels, np.ndarray) else labels
        m = len(self.curated)
        if np.ndim(y) != 1 or len(y) != m:
            raise ExemplaError(
                f"original_labels must hold one label for each of the {m} curated rows, but has "
                f"shape {np.shape(y)}."
            )
        names = {name: code for code, name in enumerate(self.classes.tolist())}
        plain = np.asarray(y).tolist()
        unseen = sorted({label for label in plain if label not in names}, key=str)
        if unseen:
            named = ", ".join(map(repr, unseen[:5]))
            raise ExemplaError(
                f"original_labels: {named} never occur in train; give labels of the same kind."
            )
        return np.array([names[label] for label in plain], dtype=np.int64)

    def class_sizes(self, rows: np.ndarray) -> np.ndarray:
        """How many of these rows each class can be learnt from: those that weigh anything."""
        if self.weights is not None:
            rows = rows[self.weights[rows] > 0]
        return np.bincount(self.codes[rows], minlength=len(self.classes))


class Rows(NamedTuple):
    """Rows and their labels or numbers: `n_train` to be judged, then the curated ones."""

    X: Any
    y: np.ndarray
    """Empty where the labels could not be read."""
    n_train: int
    weights: np.ndarray | None = None
    ids: np.ndarray | None = None

    @property
    def curated(self) -> np.ndarray:
        """(n + m,) which rows are curated."""
        return np.arange(len(self.y)) >= self.n_train


def read_rows(
    train: Any,
    curated: Any,
    checked: Callable[[np.ndarray, list[str]], np.ndarray],
    compare: Callable[[Rows, Rows | None, list[str]], None],
    noun: str = "labels",
) -> Rows:
    """Check both sets and stack them; raise one error that names every problem.

    `checked` returns the labels of one set as they are judged, `compare` looks at both sets.
    """
    problems: list[str] = []
    given = _read_set(train, "train", problems, checked, noun)
    trusted = None
    if curated is not None:
        X = curated[0] if isinstance(curated, tuple) and curated else curated
        if (hasattr(X, "shape") or isinstance(X, Sequence)) and n_rows(X) == 0:
            raise ExemplaError("the curated set is empty: give rows, or leave curated=None.")
        trusted = _read_set(curated, "curated", problems, checked, noun)
    compare(given, trusted, problems)
    if problems:
        raise ExemplaError(f"the {noun} cannot be checked: {'; '.join(problems)}.")
    if trusted is None:
        return given
    weights = None
    if given.weights is not None or trusted.weights is not None:
        both = (given, trusted)
        weights = np.concatenate(
            [np.ones(len(part.y)) if part.weights is None else part.weights for part in both]
        )
    X, y = stack_rows(given.X, trusted.X), np.concatenate([given.y, trusted.y])
    return Rows(X, y, len(given.y), weights, given.ids)


def _read_set(
    data: Any,
    whose: str,
    problems: list[str],
    checked: Callable[[np.ndarray, list[str]], np.ndarray],
    noun: str,
) -> Rows:
    if not isinstance(data, tuple) or len(data) < 2 or data[1] is None:
        raise ExemplaError(f"{whose} has no {noun}: give (X, y) as {whose}.")
    found: list[str] = []
    if is_tensor(data[0]) and data[0].is_sparse:
        found.append("X is a sparse tensor: give a dense one")
    given = unpack((data[0], *map(_in_numpy, data[1:])), found)
    y = np.array([]) if given.y is None else checked(plain_labels(given.y), found)
    problems.extend(f"{whose}: {problem}" for problem in found)
    return Rows(given.X, y, len(y), given.weights, given.ids)


def read_problem(train: Any, curated: Any) -> LabelProblem:
    """Return training and curated rows with one class each."""
    found = read_rows(train, curated, _checked_labels, _compare)
    classes = np.unique(found.y[: found.n_train])
    codes = np.searchsorted(classes, found.y.astype(classes.dtype))
    problem = LabelProblem(found.X, codes, classes, found.n_train, found.weights, found.ids)
    unlearnt = classes[problem.class_sizes(np.arange(len(problem))) == 0]
    if len(unlearnt):
        named = ", ".join(map(repr, unlearnt[:5].tolist()))
        raise ExemplaError(
            f"every row labelled {named} has weight zero, so no model can learn that label: leave "
            "these rows out, or let some of them weigh."
        )
    return problem


def _in_numpy(part: Any) -> Any:
    return to_numpy(part) if is_tensor(part) else part


def _checked_labels(y: np.ndarray, found: list[str]) -> np.ndarray:
    """One class name per row, in this machine's byte order; empty if they are anything else."""
    if y.ndim != 1:
        found.append(f"y must hold one label per row, but has shape {y.shape}")
    elif len(missing := np.flatnonzero(pd.isna(y))):
        found.append(f"labels are missing in {listing(missing)}")
    elif y.dtype.kind in "cSV":
        found.append(f"labels are of type {y.dtype}: give text or whole numbers")
    elif y.dtype.kind == "f" and len(odd := np.flatnonzero((np.floor(y) != y) | np.isinf(y))):
        found.append(f"labels must name classes, not measure like {y[odd[0]]:g} in row {odd[0]}")
    elif y.dtype == object:
        return _one_kind(y, found)
    else:
        return y.astype(y.dtype.newbyteorder("="), copy=False)
    return np.array([])


def _one_kind(y: np.ndarray, found: list[str]) -> np.ndarray:
    """Labels kept as Python objects, if they can be told apart and sorted."""
    if all(isinstance(label, str) for label in y):
        return y.astype(str)
    kinds = sorted({type(label).__name__ for label in y})
    try:
        set(y.tolist())
        np.unique(y)
    except TypeError:
        found.append(
            f"labels are of the kinds {', '.join(kinds)}: give all as text or all as whole numbers"
        )
        return np.array([])
    return y


def _compare(train: Rows, curated: Rows | None, problems: list[str]) -> None:
    """Whether there are two classes, and the curated rows are of the same kind."""
    classes = np.unique(train.y)
    if len(classes) == 1:
        problems.append(f"train: all labels are {classes[0].item()!r}, and two classes are needed")
    if curated is None:
        return
    if len(train.y) and len(curated.y):
        unseen = sorted(set(curated.y.tolist()) - set(classes.tolist()), key=str)
        if unseen:
            named = ", ".join(map(repr, unseen[:5]))
            problems.append(f"curated: labels {named} never occur in train")
        elif len(np.unique(curated.y)) < 2:
            problems.append("curated: only one class is present, so no wrong label can be shown")
    names = [getattr(part.X, "columns", None) for part in (train, curated)]
    shapes: list[Any] = [tuple(getattr(part.X, "shape", ())) for part in (train, curated)]
    if names[0] is not None and names[1] is not None and set(names[0]) != set(names[1]):
        unshared = sorted(set(names[0]) ^ set(names[1]), key=str)
        named = ", ".join(map(repr, unshared[:5]))
        problems.append(f"curated: both must have the same columns, but only one set has {named}")
    elif not all(shapes) or shapes[0][1:] == shapes[1][1:]:
        return
    elif all(len(shape) == 2 for shape in shapes):
        problems.append(
            f"curated: {shapes[1][1]} columns, but train has {shapes[0][1]}; both must have the "
            "same columns, in the same order"
        )
    else:
        problems.append(f"curated: X has shape {shapes[1]}, but that of train has {shapes[0]}")


_UNSUPERVISED = frozenset({
    "Binarizer", "CountVectorizer", "DictVectorizer", "FeatureHasher", "FunctionTransformer",
    "HashingVectorizer", "KBinsDiscretizer", "MaxAbsScaler", "MinMaxScaler", "MissingIndicator",
    "Normalizer", "OneHotEncoder", "OrdinalEncoder", "PCA", "PolynomialFeatures",
    "PowerTransformer", "QuantileTransformer", "RobustScaler", "SimpleImputer",
    "SplineTransformer", "StandardScaler", "TfidfTransformer", "TfidfVectorizer", "TruncatedSVD",
    "VarianceThreshold",
})  # fmt: skip
"""Steps of scikit-learn that ignore labels; a subclass of the caller's may look at anything."""


_COMPOSITE = {
    Pipeline: "steps", FeatureUnion: "transformer_list", ColumnTransformer: "transformers",
}  # fmt: skip


def without_unsupervised_steps(model: Any, X: Any, seed: int) -> tuple[Any, Any]:
    """The last step of a Pipeline and the rows it sees, if no other step looks at labels.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.feature_extraction.text import CountVectorizer
    >>> model = make_pipeline(CountVectorizer(), LogisticRegression())
    >>> last, rows = without_unsupervised_steps(model, ["a word", "another word"], seed=0)
    >>> last, rows.shape
    (LogisticRegression(), (2, 2))
    """
    if type(model) is not Pipeline or len(model.steps) < 2:
        return model, X
    if not all(_is_unsupervised(step) for _, step in model.steps[:-1]):
        return model, X
    try:
        with seeded(seed):
            steps: Any = clone(model[:-1])
            return model.steps[-1][1], steps.fit_transform(X)
    except Exception:  # it will be told when the Pipeline is trained as a whole
        return model, X


def _is_unsupervised(step: Any) -> bool:
    if step is None or isinstance(step, str):  # "passthrough", "drop"
        return True
    kind = type(step)
    if kind in _COMPOSITE:
        parts = [part[1] for part in getattr(step, _COMPOSITE[kind])]
        return all(_is_unsupervised(part) for part in [*parts, getattr(step, "remainder", None)])
    return kind.__module__.startswith("sklearn.") and kind.__name__ in _UNSUPERVISED
