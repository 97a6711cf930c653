"""Wrappers around several models: split (which parts, and how they are put together), parts (the
oracle of the whole, from those of its parts).

Every part has parameters of its own, so that scores stand side by side and the metric is one block
a part. What differs is how the parts' predictions become one:

    product   log p = Σ_m log p_m                 one-vs-rest, several outputs, chains
    mixture   p = Σ_m w_m p_m                     soft voting, bagging
    mean      log p = Σ_m w_m log p_m             calibrated models, without their calibration
    average   f = Σ_m w_m f_m under a Gaussian    voting and bagging regressors

A questioned row's score is the gradient of that; a training row's is each part's own, as the parts
are fitted one by one.

Imports: oracles.base, the reading of data above; an inner model's oracle through make_oracle.

The oracle of a wrapper, put together from the oracles of the models inside it.

Which parts a wrapper has: fitted models, what each sees of x and y, and how they are joined.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from scipy.special import logsumexp
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, BaggingRegressor, VotingClassifier, VotingRegressor
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.model_selection import check_cv
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import (
    ClassifierChain,
    MultiOutputClassifier,
    MultiOutputRegressor,
    RegressorChain,
)
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

from exempla.arrays import is_sparse
from exempla.data import as_matrix, n_rows, plain_labels, refuse_data, take_rows, unpack
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.base import Examples, Labels, Layer, Oracle, ScoreRows
from exempla.oracles.factors import Factors
from exempla.oracles.likelihoods import Gaussian, Likelihood
from exempla.oracles.sklearn.data import notes_of
from exempla.oracles.sklearn.unwrap import is_fitted, open_up, require_fitted

How = Literal["product", "mixture", "mean", "average"]


@dataclass(frozen=True)
class Part:
    """One fitted model inside a wrapper."""

    model: Any
    weight: float = 1.0
    labels: Callable[[np.ndarray], np.ndarray] | None = None
    """From the wrapper's labels to this model's; None: the same."""
    columns: np.ndarray | None = None
    """Columns of X it sees; None: all."""
    before: np.ndarray | None = None
    """In a chain, the outputs it sees beside X."""
    counts: np.ndarray | None = None
    """How often each training row was in its sample; None: once."""

    def inputs(self, X: Any, y: np.ndarray | None) -> Any:
        """X as this model sees it."""
        if self.columns is not None:
            X = as_matrix(X)[:, self.columns]
        if self.before is not None and y is not None:
            X = np.hstack([as_matrix(X), np.asarray(y)[:, self.before].astype(np.float64)])
        return X


@dataclass(frozen=True)
class _Joined:
    """The parts of a wrapper, and how their predictions become one."""

    parts: tuple[Part, ...]
    how: How
    note: str = ""


@dataclass(frozen=True)
class _Coded:
    """Labels as positions among the classes: what voting and bagging hand on."""

    classes: np.ndarray

    def __call__(self, y: np.ndarray) -> np.ndarray:
        known = {label: code for code, label in enumerate(self.classes.tolist())}
        return np.array([known.get(label, label) for label in y.tolist()])


@dataclass(frozen=True)
class _IsClass:
    """Whether the label is this class."""

    name: Any

    def __call__(self, y: np.ndarray) -> np.ndarray:
        return (y == self.name).astype(np.int64)


@dataclass(frozen=True)
class Column:
    """One of several labels."""

    place: int

    def __call__(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y)[:, self.place]


def has_parts(model: Any) -> bool:
    """Whether this is a wrapper around several models."""
    if isinstance(model, GaussianProcessClassifier):
        return len(getattr(model, "classes_", ())) > 2
    return type(model) in _SPLIT


def _inner_models(model: Any) -> list[Any]:
    """The models inside a wrapper as they were given, fitted or not."""
    if isinstance(model, VotingClassifier | VotingRegressor):
        return [inner for _, inner in model.estimators if not isinstance(inner, str)]
    if isinstance(model, GaussianProcessClassifier):
        return []
    # a chain's model had another name before scikit-learn 1.7
    named = (getattr(model, name, None) for name in ("estimator", "base_estimator"))
    given = next((one for one in named if hasattr(one, "fit")), None)
    if given is not None:
        return [given]
    if isinstance(model, CalibratedClassifierCV):
        return [LinearSVC()]
    trees = DecisionTreeRegressor if isinstance(model, BaggingRegressor) else DecisionTreeClassifier
    return [trees()]


def _split_up(model: Any, n: int | None, y: np.ndarray | None) -> _Joined:
    """The parts of a fitted wrapper; n and y are those of the training data, once known."""
    if isinstance(model, GaussianProcessClassifier):
        if model.multi_class != "one_vs_rest":
            raise UnsupportedModelError(
                "GaussianProcessClassifier(multi_class='one_vs_one') keeps no common score: use "
                "multi_class='one_vs_rest'."
            )
        whole = _one_vs_rest(model.base_estimator_, np.asarray(model.classes_))
        parts = tuple(replace(part, model=_of_two_classes(part.model)) for part in whole.parts)
        return replace(whole, parts=parts)
    return _SPLIT[type(model)](model, n, y)


def _of_two_classes(inner: Any) -> GaussianProcessClassifier:
    """A process for two classes around one that a process for many keeps inside."""
    made = GaussianProcessClassifier()
    made.base_estimator_, made.classes_ = inner, np.array([0, 1])
    return made


def _refuse_hard_vote(model: Any) -> None:
    """A majority of labels has no probability."""
    if isinstance(model, VotingClassifier) and model.voting != "soft":
        raise UnsupportedModelError(
            "VotingClassifier(voting='hard') counts labels and gives them no probability: use "
            "voting='soft'."
        )


def _voting(model: Any, n: int | None, y: np.ndarray | None) -> _Joined:
    _refuse_hard_vote(model)
    kept = [i for i, (_, inner) in enumerate(model.estimators) if not isinstance(inner, str)]
    weights = np.ones(len(kept)) if model.weights is None else np.asarray(model.weights)[kept]
    shares = weights / weights.sum()
    classifies = isinstance(model, VotingClassifier)
    labels = _Coded(np.asarray(model.classes_)) if classifies else None
    parts = [Part(m, float(w), labels) for m, w in zip(model.estimators_, shares, strict=True)]
    return _Joined(tuple(parts), "mixture" if classifies else "average")


def _bagging(model: Any, n: int | None, y: np.ndarray | None) -> _Joined:
    classifies = isinstance(model, BaggingClassifier)
    labels = _Coded(np.asarray(model.classes_)) if classifies else None
    drawn = zip(
        model.estimators_, model.estimators_features_, model.estimators_samples_, strict=True
    )
    parts = []
    for inner, columns, rows in drawn:
        counts = None
        if n is not None and len(rows) and rows.max() < n:
            counts = np.bincount(rows, minlength=n).astype(np.float64)
        every = np.array_equal(columns, np.arange(model.n_features_in_))
        share = 1 / len(model.estimators_)
        parts.append(
            Part(inner, share, labels, None if every else np.asarray(columns), None, counts)
        )
    return _Joined(tuple(parts), "mixture" if classifies else "average")


_CALIBRATION = (
    "the calibration of CalibratedClassifierCV is left out: the models inside are explained, and "
    "between two classes calibration changes how long a score is, not where it points"
)


def _calibrated(model: Any, n: int | None, y: np.ndarray | None) -> _Joined:
    inner = [one.estimator for one in model.calibrated_classifiers_]
    counts: list[np.ndarray | None] = [None] * len(inner)
    cv: Any = model.cv
    plain = cv is None or isinstance(cv, int)  # None stands for five folds
    if n is not None and y is not None and plain and len(inner) > 1:
        # without shuffling these are the folds the parts were fitted on
        folds: Any = check_cv(5 if cv is None else cv, y, classifier=True)
        for place, (rows, _) in enumerate(folds.split(y, y)):
            counts[place] = np.bincount(rows, minlength=n).astype(np.float64)
    share = 1 / len(inner)
    parts = [Part(m, share, counts=c) for m, c in zip(inner, counts, strict=True)]
    return _Joined(tuple(parts), "mean", _CALIBRATION)


def _rest(model: Any, n: int | None, y: np.ndarray | None) -> _Joined:
    return _one_vs_rest(model, np.asarray(model.classes_))


def _one_vs_rest(model: Any, classes: np.ndarray) -> _Joined:
    """A yes-or-no model for each class; for two classes one, of the second."""
    names = classes[-1:] if len(classes) == 2 else classes
    parts = []
    for place, inner in enumerate(model.estimators_):
        if type(inner).__name__ == "_ConstantPredictor":  # a class that all rows have, or none
            continue
        labels = Column(place) if getattr(model, "multilabel_", False) else _IsClass(names[place])
        parts.append(Part(inner, labels=labels))
    return _Joined(tuple(parts), "product")


def _outputs(model: Any, n: int | None, y: np.ndarray | None) -> _Joined:
    parts = [Part(m, labels=Column(place)) for place, m in enumerate(model.estimators_)]
    return _Joined(tuple(parts), "product")


def _chain(model: Any, n: int | None, y: np.ndarray | None) -> _Joined:
    order = np.asarray(model.order_)
    parts = [
        Part(inner, labels=Column(int(order[i])), before=order[:i])
        for i, inner in enumerate(model.estimators_)
    ]
    note = (
        f"in {type(model).__name__} every model sees the labels before it: scores are taken at the "
        "given ones"
    )
    return _Joined(tuple(parts), "product", note)


_SPLIT: dict[type, Callable[[Any, int | None, np.ndarray | None], _Joined]] = {
    VotingClassifier: _voting,
    VotingRegressor: _voting,
    BaggingClassifier: _bagging,
    BaggingRegressor: _bagging,
    CalibratedClassifierCV: _calibrated,
    OneVsRestClassifier: _rest,
    MultiOutputClassifier: _outputs,
    MultiOutputRegressor: _outputs,
    ClassifierChain: _chain,
    RegressorChain: _chain,
}


CHUNK = 1024


@dataclass(frozen=True)
class _PartsExamples(Examples):
    """The same examples as every part reads them, and how much each counts for it."""

    X: Any
    labels: np.ndarray | None
    parts: tuple[Examples, ...]
    times: np.ndarray
    """(parts, n): what a part's score is multiplied by."""
    ids: np.ndarray | None = None

    def __len__(self) -> int:
        return self.times.shape[1]

    def take(self, positions: np.ndarray) -> _PartsExamples:
        """The examples at these positions, in this order."""
        at = np.asarray(positions)
        return replace(
            self,
            X=take_rows(self.X, at),
            labels=None if self.labels is None else self.labels[at],
            parts=tuple(part.take(at) for part in self.parts),
            times=self.times[:, at],
            ids=None if self.ids is None else self.ids[at],
        )


class PartsOracle(Oracle):
    """Scores of a wrapper around several models.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.multiclass import OneVsRestClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> oracle = PartsOracle(OneVsRestClassifier(LogisticRegression()).fit(X, y))
    >>> train = oracle.read((X, y), role="train")
    >>> [layer.name for layer in oracle.layers]
    ['part0.coef', 'part1.coef', 'part2.coef']
    """

    _questions_all = False

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
    ) -> None:
        if not (isinstance(likelihood, str) and likelihood == "auto") or parameters is not None:
            raise ExemplaError(
                "A model made of several is scored as a whole, each part under its own likelihood: "
                "leave likelihood and parameters at their defaults."
            )
        self.model = model
        self.layers: tuple[Layer, ...] = ()
        last = open_up(model).last
        _refuse_hard_vote(last)
        for inner in _inner_models(last):
            _oracle_of(inner)
        self.likelihood = "auto"
        if is_fitted(model):
            self._bind(None, None)

    def by_prediction(self) -> PartsOracle:
        """Training rows scored like questioned ones, in every part."""
        other = copy(self)
        other._questions_all = True
        return other

    def _bind(self, n: int | None, y: np.ndarray | None) -> None:
        require_fitted(self.model)
        self._opened = open_up(self.model)
        self._joined: _Joined = _split_up(self._opened.last, n, y)
        self._oracles = [_oracle_of(part.model) for part in self._joined.parts]
        if self._questions_all:
            self._oracles = [oracle.by_prediction() for oracle in self._oracles]
        self.likelihood = self._joined.how
        if self._joined.how == "average":
            _refuse_other_than_gaussian(self._opened.last, self._oracles)

    # ---- reading

    def read(self, data: Any, *, role: Literal["train", "test"]) -> _PartsExamples:
        """Every part reads the data; what it thinks of a questioned row weighs its score."""
        problems: list[str] = []
        given = unpack(data, problems)
        refuse_data(problems, role)
        labels = None if given.y is None else plain_labels(given.y)
        if role == "train" and labels is None:
            raise ExemplaError("The training data cannot be used: labels are missing: give (X, y).")
        y: Any = labels
        X = given.X
        if self._opened_transform is not None:
            X = self._opened_transform(X)
        if y is not None and self._label_map is not None:
            y = self._label_map.inside(y)
        if role == "train":
            self._bind(n_rows(X), y)
        elif y is None:
            y = np.asarray(self._opened.last.predict(X))
        read = self._read_parts(X, y, given.weights, role)
        examples = _PartsExamples(X, labels, read, self._given_times(read, y, role), given.ids)
        if role == "train":
            self._learn(examples, y)
        if role == "test" or self._questions_all:
            examples = replace(examples, times=self._question_times(examples, y))
        return examples

    @property
    def _opened_transform(self) -> Any:
        return open_up(self.model).transform

    @property
    def _label_map(self) -> Any:
        return open_up(self.model).labels

    def _read_parts(
        self, X: Any, y: Any, weights: np.ndarray | None, role: Any
    ) -> tuple[Examples, ...]:
        out = []
        for part, oracle in zip(self._joined.parts, self._oracles, strict=True):
            own = _part_labels(part, y)[0]
            inside = part.inputs(X, y)
            weighted = role == "train" and weights is not None
            out.append(
                oracle.read((inside, own, weights) if weighted else (inside, own), role=role)
            )
        return tuple(out)

    def _given_times(self, read: tuple[Examples, ...], y: Any, role: str) -> np.ndarray:
        """Rows a part has seen, as often as it has; labels it does not know count for nothing."""
        times = np.ones((len(read), len(read[0])))
        for m, part in enumerate(self._joined.parts):
            times[m] = _part_labels(part, y)[1]
            if role == "train" and part.counts is not None:
                times[m] *= part.counts
        return times

    def _learn(self, train: _PartsExamples, y: Any) -> None:
        layers = []
        for m, oracle in enumerate(self._oracles):
            layers += [replace(layer, name=f"part{m}.{layer.name}") for layer in oracle.layers]
        self.layers = tuple(layers)
        self._kinds = [
            next(iter(oracle.scores(part.take(np.arange(1))))).factors
            for oracle, part in zip(self._oracles, train.parts, strict=True)
        ]
        self._variance = 1.0
        if self._joined.how == "average":
            errors = np.asarray(y, dtype=np.float64) - self._opened.last.predict(train.X)
            self._variance = float(np.mean(errors**2)) or 1.0
        notes = [note for oracle in self._oracles for note in oracle.notes]
        self.notes = notes_of(self._opened.note, self._joined.note, *notes)

    # ---- scoring

    def _question_times(self, examples: _PartsExamples, y: Any) -> np.ndarray:
        """∂ log p / ∂ log p_m of every part (or, for an average, ∂ log p / ∂ f_m · σ_m)."""
        how, weights = self._joined.how, np.array([[p.weight] for p in self._joined.parts])
        if how == "product":
            return examples.times
        if how == "mean":
            return examples.times * weights
        if how == "average":
            errors = np.asarray(y, dtype=np.float64) - self._opened.last.predict(examples.X)
            return weights * errors / getattr(self, "_variance", 1.0)
        log_p = self._log_parts(examples) + np.log(weights)
        return np.exp(log_p - logsumexp(log_p, axis=0))

    def _log_parts(self, examples: _PartsExamples) -> np.ndarray:
        """log p_m(y | x), (parts, n); −∞ where a part does not know the label."""
        pairs = zip(self._oracles, examples.parts, strict=True)
        log_p = np.stack([oracle.log_likelihood(part) for oracle, part in pairs])
        return np.where(examples.times > 0, log_p, -np.inf)

    def scores(self, examples: _PartsExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """One row per example: the parts' scores side by side."""
        if labels == "predicted" and self._joined.how == "average":
            raise ExemplaError(
                "Under its own prediction a regression's score is zero, so there is nothing to "
                "explain: give the true values as (X, y)."
            )
        if labels == "predicted" and examples.labels is not None:
            examples = replace(self._read_inside(examples.X), ids=examples.ids)
        for start in range(0, len(examples), CHUNK):
            at = np.arange(start, min(start + CHUNK, len(examples)))
            some = examples.take(at)
            factors: list[Factors] = []
            for m, oracle in enumerate(self._oracles):
                rows = self._part_rows(oracle, some.parts[m])
                factors += [times(f, some.times[m]) for f in rows.factors]
            yield ScoreRows(at, tuple(factors))

    def _read_inside(self, X: Any) -> _PartsExamples:
        """Examples the wrappers around have been taken off already, under their predictions."""
        y = np.asarray(self._opened.last.predict(X))
        read = self._read_parts(X, y, None, "test")
        examples = _PartsExamples(X, None, read, self._given_times(read, y, "test"))
        return replace(examples, times=self._question_times(examples, y))

    def _part_rows(self, oracle: Oracle, examples: Examples) -> ScoreRows:
        if self._joined.how == "average" and getattr(examples, "questioned", False):
            # a Gaussian's Fisher row is ∂f/∂θ / σ
            rows = ScoreRows.join(list(oracle.fisher_rows(examples)))
            sigma = np.full(len(rows), np.sqrt(_variance_of(oracle)))
            return replace(rows, factors=tuple(times(f, sigma) for f in rows.factors))
        return ScoreRows.join(list(oracle.scores(examples)))

    def fisher_rows(self, examples: _PartsExamples) -> Iterator[ScoreRows]:
        """The parts' Fisher rows, one part after another: parts share no parameter."""
        for m, oracle in enumerate(self._oracles):
            for rows in oracle.fisher_rows(examples.parts[m]):
                root = np.sqrt(examples.times[m][rows.sample])
                factors: list[Factors] = []
                for other, kinds in enumerate(self._kinds):
                    if other == m:
                        factors += [times(f, root) for f in rows.factors]
                    else:
                        factors += [nothing(f, len(rows)) for f in kinds]
                yield ScoreRows(rows.sample, tuple(factors), rows.counted)

    def predict(self, examples: _PartsExamples) -> np.ndarray:
        """The model's own predictions, in the user's label vocabulary."""
        found = np.asarray(self._opened.last.predict(examples.X))
        labels = self._opened.labels
        return found if labels is None else labels.outside(found)

    def log_likelihood(self, examples: _PartsExamples) -> np.ndarray:
        """log p of each example under its given label, the parts joined as the model joins them."""
        if examples.labels is None:
            raise ExemplaError(
                "These examples have no labels: give (X, y), or ask for labels='predicted'."
            )
        how, weights = self._joined.how, np.array([[p.weight] for p in self._joined.parts])
        if how == "average":
            v = getattr(self, "_variance", 1.0)
            y = examples.labels
            y = y if self._opened.labels is None else self._opened.labels.inside(y)
            errors = np.asarray(y, dtype=np.float64) - self._opened.last.predict(examples.X)
            return -(errors**2 / v + np.log(2 * np.pi * v)) / 2
        pairs = zip(self._oracles, examples.parts, strict=True)
        log_p = np.stack([oracle.log_likelihood(part) for oracle, part in pairs])
        if how == "mixture":
            unknown = self._unknown(examples)
            return logsumexp(np.where(unknown, -np.inf, log_p) + np.log(weights), axis=0)
        return np.sum(log_p * (weights if how == "mean" else 1.0), axis=0)

    def _unknown(self, examples: _PartsExamples) -> np.ndarray:
        y = examples.labels
        y = y if self._opened.labels is None or y is None else self._opened.labels.inside(y)
        return np.stack([~_part_labels(part, y)[1] for part in self._joined.parts])

    # ---- parameters

    @property
    def implicit_penalty(self) -> float | None:
        known = [oracle.implicit_penalty for oracle in self._oracles]
        return None if None in known else float(np.max(np.array(known, dtype=np.float64)))

    @property
    def theta_norm(self) -> float | None:
        # of parts that are known to be at their optimum nothing is asked
        others = [o for o in self._oracles if o.implicit_penalty is None]
        each = [oracle.theta_norm for oracle in others]
        return None if None in each else float(np.linalg.norm(np.array(each, dtype=np.float64)))

    def penalty_rows(self) -> ScoreRows | None:
        """The parts' own penalties, side by side."""
        found = [oracle.penalty_rows() for oracle in self._oracles]
        groups = []
        for m, rows in enumerate(found):
            if rows is None:
                continue
            factors: list[Factors] = []
            for other, kinds in enumerate(self._kinds):
                own = other == m
                factors += (
                    list(rows.factors) if own else [_dense_nothing(f, len(rows)) for f in kinds]
                )
            groups.append(ScoreRows(rows.sample, tuple(factors)))
        return ScoreRows.join(groups) if groups else None


# ---- small steps


def _oracle_of(model: Any) -> Oracle:
    """The oracle of a model inside."""
    from exempla.oracles import make_oracle

    return make_oracle(model)


def _part_labels(part: Part, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """The labels as a part knows them, and which it knows; an unknown one gives way to any."""
    own = np.asarray(y) if part.labels is None else part.labels(np.asarray(y))
    classes = getattr(part.model, "classes_", None)
    known = np.ones(len(own), dtype=bool)
    if classes is not None and own.ndim == 1:
        known = np.isin(own, np.asarray(classes))
        if not known.all() and known.any():
            own = np.where(known, own, np.asarray(classes)[0])
    return own, known


def _refuse_other_than_gaussian(model: Any, oracles: list[Oracle]) -> None:
    """An average of regressions is known where each is a least-squares model of one number."""
    if all(oracle.likelihood == "gaussian" for oracle in oracles):
        return
    raise UnsupportedModelError(
        f"{type(model).__name__} is known around least-squares models such as Ridge, not around "
        f"a {next(o.likelihood for o in oracles if o.likelihood != 'gaussian')} model: explain its "
        "parts one by one, or a surrogate (exempla.surrogate)."
    )


def _variance_of(oracle: Oracle) -> float:
    """σ² of a Gaussian part."""
    family = getattr(oracle, "family", None)
    return float(family.variance or 1.0) if isinstance(family, Gaussian) else 1.0


def times(factors: Factors, by: np.ndarray) -> Factors:
    """Each score multiplied by a number."""
    shape = (len(by),) + (1,) * (factors.g.ndim - 1)
    return Factors(factors.a, factors.g * by.reshape(shape))


def nothing(like: Factors, n: int) -> Factors:
    """n scores of zero, in arrays of the same kind."""
    g = np.zeros((n, *like.g.shape[1:]))
    if is_sparse(like.a):
        return Factors(sp.csr_array((n, like.a.shape[1])), g)
    return Factors(np.zeros((n, *like.a.shape[1:])), g)


def _dense_nothing(like: Factors, n: int) -> Factors:
    """The same in dense arrays."""
    return Factors(np.zeros((n, like.a.shape[-1])), np.zeros((n, like.g.shape[-1])))
