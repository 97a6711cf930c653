"""The question put to `fix_labels`, checked: training rows, then curated rows, one vocabulary.

Steps of a Pipeline that are known to ignore labels (TF-IDF, scaling, one-hot) are fitted once, not
once per training; for text that is most of the time. Any other step may have learnt from the labels
under suspicion, and the Pipeline is then trained as a whole.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import FeatureUnion, Pipeline

from exempla.arrays import is_tensor, native, to_numpy
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
        self, rows: np.ndarray, names: Any, n_train: int, n_labels: int, n_trusted: int = 0
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
        y, m = plain_labels(labels), len(self.curated)
        if y.shape != (m,):
            raise ExemplaError(
                f"original_labels must hold one label for each of the {m} curated rows, but has "
                f"shape {y.shape}."
            )
        codes = pd.Index(self.classes).get_indexer(pd.Index(y))
        if (codes < 0).any():
            named = ", ".join(map(repr, np.unique(y[codes < 0].astype(str))[:5].tolist()))
            raise ExemplaError(
                f"original_labels: {named} never occur in train; give labels of the same kind."
            )
        return codes

    def class_sizes(self, rows: np.ndarray) -> np.ndarray:
        """How many of these rows each class can be learnt from: those that weigh anything."""
        if self.weights is not None:
            rows = rows[self.weights[rows] > 0]
        return np.bincount(self.codes[rows], minlength=len(self.classes))


class LabelledRows(NamedTuple):
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


Check = Callable[[np.ndarray, list[str]], np.ndarray]
"""Returns the labels of one set as they are judged; adds what is wrong with them to the list."""


def read_rows(train: Any, curated: Any, check: Check, noun: str = "labels") -> LabelledRows:
    """Check both sets and stack them; raise one error that names every problem."""
    problems: list[str] = []
    given, trusted = _read_set(train, "train", problems, check, noun), None
    if curated is not None:
        X = curated[0] if isinstance(curated, tuple) and curated else curated
        if (hasattr(X, "shape") or isinstance(X, Sequence)) and n_rows(X) == 0:
            raise ExemplaError("the curated set is empty: give rows, or leave curated=None.")
        trusted = _read_set(curated, "curated", problems, check, noun)
        problems += _unlike(given.X, trusted.X)
        kinds = ["number" if y.dtype.kind in "biuf" else y.dtype.kind for y in (given.y, trusted.y)]
        if len(given.y) and len(trusted.y) and kinds[0] != kinds[1]:
            types = f"{trusted.y.dtype}, but those of train {given.y.dtype}"
            problems.append(f"curated: {noun} have the type {types}; give both as text or numbers")
    _refuse(problems, noun)
    if trusted is None:
        return given
    weights = None
    if given.weights is not None or trusted.weights is not None:
        both = (given, trusted)
        weights = np.concatenate(
            [np.ones(len(part.y)) if part.weights is None else part.weights for part in both]
        )
    X, y = stack_rows(given.X, trusted.X), np.concatenate([given.y, trusted.y])
    return LabelledRows(X, y, len(given.y), weights, given.ids)


def _read_set(data: Any, whose: str, problems: list[str], check: Check, noun: str) -> LabelledRows:
    if not isinstance(data, tuple) or len(data) < 2 or data[1] is None:
        raise ExemplaError(f"{whose} has no {noun}: give (X, y) as {whose}.")
    found: list[str] = []
    if is_tensor(data[0]) and data[0].is_sparse:
        found.append("X is a sparse tensor: give a dense one")
    in_numpy = [to_numpy(part) if is_tensor(part) else part for part in data[1:]]
    given = unpack((data[0], *in_numpy), found)
    y = np.array([]) if given.y is None else check(plain_labels(given.y), found)
    problems.extend(f"{whose}: {problem}" for problem in found)
    return LabelledRows(given.X, y, len(y), given.weights, given.ids)


def _unlike(train: Any, curated: Any) -> list[str]:
    """Return in which way the two sets have different columns, if so."""
    names = [getattr(X, "columns", None) for X in (train, curated)]
    shapes = [tuple(getattr(X, "shape", ())) for X in (train, curated)]
    if names[0] is not None and names[1] is not None and set(names[0]) != set(names[1]):
        unshared = sorted(set(names[0]) ^ set(names[1]), key=str)
        named = ", ".join(map(repr, unshared[:5]))
        return [f"curated: both must have the same columns, but only one set has {named}"]
    if all(shapes) and shapes[0][1:] != shapes[1][1:]:
        same = "give both the same columns, in the same order"
        return [f"curated: X has shape {shapes[1]}, but that of train has {shapes[0]}; {same}"]
    return []


def _refuse(problems: list[str], noun: str = "labels") -> None:
    if problems:
        raise ExemplaError(f"the {noun} cannot be checked: {'; '.join(problems)}.")


def read_problem(train: Any, curated: Any) -> LabelProblem:
    """Return training and curated rows with one class each."""
    found = read_rows(train, curated, _checked_labels)
    n, y = found.n_train, found.y
    classes, problems = np.unique(y[:n]), []
    if len(classes) == 1:
        problems.append(f"train: all labels are {classes[0].item()!r}, and two classes are needed")
    unseen = sorted(set(y[n:].tolist()) - set(classes.tolist()), key=str)
    if unseen:
        named = ", ".join(map(repr, unseen[:5]))
        problems.append(f"curated: labels {named} never occur in train")
    elif n < len(y) and len(np.unique(y[n:])) < 2:
        problems.append("curated: only one class is present, so no wrong label can be shown")
    _refuse(problems)
    codes = np.searchsorted(classes, y.astype(classes.dtype))
    problem = LabelProblem(found.X, codes, classes, n, found.weights, found.ids)
    unlearnt = classes[problem.class_sizes(np.arange(len(problem))) == 0]
    if len(unlearnt):
        named = ", ".join(map(repr, unlearnt[:5].tolist()))
        raise ExemplaError(
            f"every row labelled {named} has weight zero, so no model can learn that label: leave "
            "these rows out, or let some of them weigh."
        )
    return problem


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
    elif y.dtype != object:
        return native(y)
    elif all(isinstance(label, str) for label in y):
        return y.astype(str)
    else:
        try:  # they must be hashable and of an order
            set(y.tolist())
            np.unique(y)
            return y
        except TypeError:
            kinds = ", ".join(sorted({type(label).__name__ for label in y}))
            found.append(f"labels are of the kinds {kinds}: give all as text or as whole numbers")
    return np.array([])


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
    """Return the last step of a Pipeline and the rows it sees, if no other step looks at labels."""
    if type(model) is Pipeline and len(model.steps) > 1 and _is_unsupervised(model[:-1]):
        # what goes wrong is said when the Pipeline is trained as a whole
        with suppress(Exception), seeded(seed):
            steps: Any = clone(model[:-1])
            return model.steps[-1][1], steps.fit_transform(X)
    return model, X


def _is_unsupervised(step: Any) -> bool:
    if step is None or isinstance(step, str):  # "passthrough", "drop"
        return True
    kind = type(step)
    if kind in _COMPOSITE:
        parts = [part[1] for part in getattr(step, _COMPOSITE[kind])]
        return all(_is_unsupervised(part) for part in [*parts, getattr(step, "remainder", None)])
    return kind.__module__.startswith("sklearn.") and kind.__name__ in _UNSUPERVISED
