"""The question put to `fix_labels`, checked: training rows, then curated rows, one vocabulary.

How a fresh copy of the caller's model is fitted, and what it then says of each label.

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
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle
from exempla.tasks.retrain import Fit, check_fit, describe, error_line, refit, seeded
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


def read_problem(train: Any, curated: Any) -> LabelProblem:
    """Check both sets; every problem found is told at once."""
    problems: list[str] = []
    given = read_labelled(train, "train", problems, _checked_labels)
    X, y, weights, ids = given
    classes = np.unique(y)
    if len(y) and len(classes) < 2:
        problems.append(f"train: all labels are {classes[0].item()!r}, and two classes are needed")
    if curated is None:
        _raise(problems)
        return _known(LabelProblem(X, np.searchsorted(classes, y), classes, len(y), weights, ids))
    if _is_empty(curated):
        raise ExemplaError("the curated set is empty: give rows, or leave curated=None.")
    trusted = read_labelled(curated, "curated", problems, _checked_labels)
    _compare(given, trusted, classes, problems)
    _raise(problems)
    Xc, yc, wc, _ = trusted
    weights = stack_weights((len(y), weights), (len(yc), wc))
    codes = np.searchsorted(classes, np.concatenate([y, yc.astype(classes.dtype)]))
    return _known(LabelProblem(stack_rows(X, Xc), codes, classes, len(y), weights, ids))


def stack_weights(*parts: tuple[int, np.ndarray | None]) -> np.ndarray | None:
    """Return the weights of several sets, each (rows, weights); None if none has weights."""
    if all(weights is None for _, weights in parts):
        return None
    return np.concatenate([np.ones(n) if weights is None else weights for n, weights in parts])


class _Labelled(NamedTuple):
    X: Any
    y: np.ndarray
    """Empty where the labels could not be read."""
    weights: np.ndarray | None
    ids: np.ndarray | None


def read_labelled(
    data: Any,
    whose: str,
    problems: list[str],
    checked: Callable[[np.ndarray, list[str]], np.ndarray],
    what: str = "labels",
) -> _Labelled:
    """Return X, the checked labels or numbers, weights and ids of one set."""
    if not isinstance(data, tuple) or len(data) < 2 or data[1] is None:
        raise ExemplaError(f"{whose} has no {what}: give (X, y) as {whose}.")
    found: list[str] = []
    if is_tensor(data[0]) and data[0].is_sparse:
        found.append("X is a sparse tensor: give a dense one")
    given = unpack((data[0], *map(_in_numpy, data[1:])), found)
    y = np.array([]) if given.y is None else checked(plain_labels(given.y), found)
    problems.extend(f"{whose}: {problem}" for problem in found)
    return _Labelled(given.X, y, given.weights, given.ids)


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


def _is_empty(data: Any) -> bool:
    X = data[0] if isinstance(data, tuple) and data else data
    return (hasattr(X, "shape") or isinstance(X, Sequence)) and n_rows(X) == 0


def _compare(
    train: _Labelled, curated: _Labelled, classes: np.ndarray, problems: list[str]
) -> None:
    """Whether the curated rows are of the same kind as the training rows."""
    if len(train.y) and len(curated.y):
        unseen = sorted(set(curated.y.tolist()) - set(classes.tolist()), key=str)
        if unseen:
            named = ", ".join(map(repr, unseen[:5]))
            problems.append(f"curated: labels {named} never occur in train")
        elif len(np.unique(curated.y)) < 2:
            problems.append("curated: only one class is present, so no wrong label can be shown")
    names = [getattr(part.X, "columns", None) for part in (train, curated)]
    if names[0] is not None and names[1] is not None and set(names[0]) != set(names[1]):
        unshared = sorted(set(names[0]) ^ set(names[1]), key=str)
        named = ", ".join(map(repr, unshared[:5]))
        problems.append(f"curated: both must have the same columns, but only one set has {named}")
        return
    shapes: list[tuple[int, ...]] = [
        tuple(getattr(part.X, "shape", ())) for part in (train, curated)
    ]
    if not all(shapes) or shapes[0][1:] == shapes[1][1:]:
        return
    if all(len(shape) == 2 for shape in shapes):
        widths = [shape[-1] for shape in shapes]
        problems.append(
            f"curated: {widths[1]} columns, but train has {widths[0]}; both must have the same "
            "columns, in the same order"
        )
    else:
        problems.append(f"curated: X has shape {shapes[1]}, but that of train has {shapes[0]}")


def _known(problem: LabelProblem) -> LabelProblem:
    """The problem, if every class can be learnt from some row."""
    unlearnt = problem.classes[problem.class_sizes(np.arange(len(problem))) == 0]
    if len(unlearnt):
        named = ", ".join(map(repr, unlearnt[:5].tolist()))
        raise ExemplaError(
            f"every row labelled {named} has weight zero, so no model can learn that label: leave "
            "these rows out, or let some of them weigh."
        )
    return problem


def _raise(problems: list[str]) -> None:
    if problems:
        raise ExemplaError(f"the labels cannot be checked: {'; '.join(problems)}.")


_FLOOR = 1e-12
"""Smallest probability a signal distinguishes from zero."""


@dataclass(frozen=True)
class Learner:
    """The caller's model as a recipe: every fit starts afresh."""

    model: Any
    classes: np.ndarray
    fit: Fit | None = None

    def fitted(
        self, X: Any, y: np.ndarray, weights: np.ndarray | None, seed: int, quiet: bool = True
    ) -> Any:
        """The model fitted to labels in the user's vocabulary.

        An estimator keeps the `random_state` its owner gave it.
        """
        if len(np.unique(y)) < 2:
            raise ExemplaError(
                "the labels cannot be judged: with a few rows set aside only one class is left to "
                "learn from; give more rows of every class."
            )
        return refit(self.model, X, y, weights, self.fit, seed, keep_random_state=True, quiet=quiet)

    def log_proba(self, fitted: Any, X: Any) -> np.ndarray:
        """log p(c | x) for every class c the training data know, (n, C), never below log FLOOR."""
        try:
            return self._log_proba(fitted, X)
        except (ExemplaError, MemoryError):
            raise
        except Exception as error:  # the model may be the caller's own, and raise anything
            raise ExemplaError(
                f"the fitted {type(fitted).__name__} cannot predict {describe(X)}: "
                f"{error_line(error)}"
            ) from error

    def _log_proba(self, fitted: Any, X: Any) -> np.ndarray:
        out = np.full((n_rows(X), len(self.classes)), np.log(_FLOOR))
        if self.fit is None and not hasattr(fitted, "classes_"):
            raise UnsupportedModelError(
                f"{type(fitted).__name__} tells no classes apart, so it cannot judge labels: use a "
                "classifier with predict_proba, such as LogisticRegression."
            )
        if self.fit is None:
            at = np.searchsorted(self.classes, fitted.classes_)  # a fold may miss a class
            out[:, at] = np.log(np.maximum(fitted.predict_proba(X), _FLOOR))
            return out
        oracle = make_oracle(fitted)
        for code, label in enumerate(self.classes):
            labels = np.full(len(out), label)
            out[:, code] = oracle.log_likelihood(oracle.read((X, labels), role="test"))
        return np.maximum(out, np.log(_FLOOR))


def make_learner(model: Any, classes: np.ndarray, fit: Fit | None) -> Learner:
    """Return a learner, if the model can be refitted and gives probabilities."""
    check_fit(model, fit)
    if fit is None and not hasattr(model, "predict_proba"):
        raise UnsupportedModelError(
            f"{type(model).__name__} gives no class probabilities, which finding wrong labels "
            "needs: use a classifier with predict_proba, such as LogisticRegression."
        )
    return Learner(model, classes, fit)


def check_classifier(model: Any, fit: Fit | None) -> None:
    """Raise an error unless this is a scikit-learn classifier with probabilities."""
    if fit is not None:
        raise ExemplaError(
            "fit= trains single classes and numbers; here give a scikit-learn classifier, or the "
            "probabilities of your own model with probabilities=."
        )
    make_learner(model, np.array([]), None)


_UNSUPERVISED = frozenset({
    "Binarizer", "CountVectorizer", "DictVectorizer", "FeatureHasher", "FunctionTransformer",
    "HashingVectorizer", "KBinsDiscretizer", "MaxAbsScaler", "MinMaxScaler", "MissingIndicator",
    "Normalizer", "OneHotEncoder", "OrdinalEncoder", "PCA", "PolynomialFeatures",
    "PowerTransformer", "QuantileTransformer", "RobustScaler", "SimpleImputer",
    "SplineTransformer", "StandardScaler", "TfidfTransformer", "TfidfVectorizer", "TruncatedSVD",
    "VarianceThreshold",
})  # fmt: skip
"""Steps of scikit-learn that ignore labels; a subclass of the caller's may look at anything."""


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
    if type(step) is Pipeline:
        return all(_is_unsupervised(inner) for _, inner in step.steps)
    if type(step) is FeatureUnion:
        return all(_is_unsupervised(inner) for _, inner in step.transformer_list)
    if type(step) is ColumnTransformer:
        inner = [part for _, part, _ in step.transformers]
        return all(_is_unsupervised(part) for part in [*inner, step.remainder])
    kind = type(step)
    return kind.__module__.startswith("sklearn.") and kind.__name__ in _UNSUPERVISED
