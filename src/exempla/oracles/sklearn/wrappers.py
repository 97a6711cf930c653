"""Wrappers around several models: voting, bagging, calibration, one-vs-rest, several outputs.

Every part has its own parameters, so scores are concatenated and the metric is block diagonal. The
wrappers differ in how they join the predictions of their parts:

    product   log p = Σ_m log p_m                 one-vs-rest, several outputs, chains
    mixture   p = Σ_m w_m p_m                     soft voting, bagging
    mean      log p = Σ_m w_m log p_m             calibrated models, without their calibration
    average   f = Σ_m w_m f_m under a Gaussian    voting and bagging regressors

The score of a test row is the gradient of the joint log p. That of a training row consists of each
part's own score, because the parts are fitted one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
from scipy.special import logsumexp
from sklearn.calibration import CalibratedClassifierCV
from sklearn.ensemble import BaggingClassifier, BaggingRegressor, VotingClassifier, VotingRegressor
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.model_selection import check_cv
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import ClassifierChain, RegressorChain

from exempla.arrays import is_sparse
from exempla.data import as_matrix, n_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.base import Examples, Factors, Labels, Oracle, RowExamples, ScoreRows
from exempla.oracles.likelihoods import Gaussian
from exempla.oracles.sklearn.base import FittedOracle, label_codes, unwrap_estimator


@dataclass(frozen=True)
class _Part:
    """One fitted model inside a wrapper."""

    model: Any
    weight: float = 1.0
    labels: Callable[[np.ndarray], np.ndarray] | None = None
    """Converts the wrapper's labels to this model's; None: they are the same."""
    columns: np.ndarray | None = None
    """Columns of X that it sees; None: all."""
    before: np.ndarray | None = None
    """In a chain, the outputs that it sees besides X."""
    counts: np.ndarray | None = None
    """Number of times each training row was in its sample; None: once."""

    def inputs(self, X: Any, y: np.ndarray) -> Any:
        """Return X as this model sees it."""
        if self.columns is not None:
            X = as_matrix(X)[:, self.columns]
        if self.before is not None:
            X = np.hstack([as_matrix(X), y[:, self.before].astype(np.float64)])
        return X

    def own_labels(self, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return labels as this model knows them, and which it knows; unknown ones are replaced."""
        own = y if self.labels is None else self.labels(y)
        classes = getattr(self.model, "classes_", None)
        known = np.ones(len(own), dtype=bool)
        if classes is not None and own.ndim == 1:
            known = np.isin(own, np.asarray(classes))
            if not known.all() and known.any():
                own = np.where(known, own, np.asarray(classes)[0])
        return own, known


def _is_class(name: Any, y: np.ndarray) -> np.ndarray:
    return (y == name).astype(np.int64)


def _column(place: int, y: np.ndarray) -> np.ndarray:
    return y[:, place]


def _split(model: Any, n: int | None, y: np.ndarray | None) -> tuple[str, list[_Part]]:
    """Return how the predictions of a fitted wrapper's parts are joined, and the parts.

    n and y describe the training data, once known.
    """
    if isinstance(model, VotingClassifier | VotingRegressor | BaggingClassifier | BaggingRegressor):
        classes = getattr(model, "classes_", None)
        labels = None if classes is None else partial(label_codes, np.asarray(classes))
        bagging = isinstance(model, BaggingClassifier | BaggingRegressor)
        parts = _bagging(model, n) if bagging else _voting(model)
        joined = "average" if labels is None else "mixture"
        return joined, [replace(part, labels=labels) for part in parts]
    if isinstance(model, CalibratedClassifierCV):
        return "mean", _calibrated(model, n, y)
    if isinstance(model, GaussianProcessClassifier):
        return "product", _processes(model)
    if isinstance(model, OneVsRestClassifier):
        return "product", _one_vs_rest(model, np.asarray(model.classes_))
    order = np.arange(len(model.estimators_))
    chain = isinstance(model, ClassifierChain | RegressorChain)
    order = np.asarray(model.order_) if chain else order
    parts = [
        _Part(inner, labels=partial(_column, int(order[i])), before=order[:i] if chain else None)
        for i, inner in enumerate(model.estimators_)
    ]
    return "product", parts


def _voting(model: Any) -> list[_Part]:
    kept = [i for i, (_, inner) in enumerate(model.estimators) if not isinstance(inner, str)]
    weights = np.ones(len(kept)) if model.weights is None else np.asarray(model.weights)[kept]
    pairs = zip(model.estimators_, weights / weights.sum(), strict=True)
    return [_Part(inner, float(weight)) for inner, weight in pairs]


def _bagging(model: Any, n: int | None) -> list[_Part]:
    drawn = zip(model.estimators_, model.estimators_features_, model.estimators_samples_)
    return [
        _Part(inner, 1 / len(model.estimators_), columns=columns, counts=_counts(rows, n))
        for inner, columns, rows in drawn
    ]


def _counts(rows: np.ndarray, n: int | None) -> np.ndarray | None:
    """Return how often each of n training rows was drawn; None if these are not its data."""
    known = n is not None and len(rows) and rows.max() < n
    return np.bincount(rows, minlength=n or 0).astype(np.float64) if known else None


def _calibrated(model: Any, n: int | None, y: np.ndarray | None) -> list[_Part]:
    inner = [one.estimator for one in model.calibrated_classifiers_]
    counts: list[np.ndarray | None] = [None] * len(inner)
    cv: Any = model.cv
    if n is not None and (cv is None or isinstance(cv, int)) and len(inner) > 1:
        # without shuffling, these are the folds that the parts were fitted on; None is five
        folds: Any = check_cv(5 if cv is None else cv, y, classifier=True)
        counts = [_counts(rows, n) for rows, _ in folds.split(y, y)]
    return [_Part(m, 1 / len(inner), counts=c) for m, c in zip(inner, counts, strict=True)]


def _one_vs_rest(model: Any, classes: np.ndarray) -> list[_Part]:
    """Return a binary model per class; for two classes, one model of the second class."""
    names, parts = classes[-1:] if len(classes) == 2 else classes, []
    for place, inner in enumerate(model.estimators_):
        if type(inner).__name__ == "_ConstantPredictor":  # all rows have this class, or none
            continue
        several = getattr(model, "multilabel_", False)
        labels = partial(_column, place) if several else partial(_is_class, names[place])
        parts.append(_Part(inner, labels=labels))
    return parts


def _processes(model: Any) -> list[_Part]:
    """Return one process of two classes per class."""
    if model.multi_class != "one_vs_rest":
        raise UnsupportedModelError(
            "GaussianProcessClassifier has no joint score: use multi_class='one_vs_rest'."
        )
    parts = _one_vs_rest(model.base_estimator_, np.asarray(model.classes_))
    for place, part in enumerate(parts):
        two = GaussianProcessClassifier()
        two.base_estimator_, two.classes_ = part.model, np.array([0, 1])
        parts[place] = replace(part, model=two)
    return parts


_CHAIN = "every model in a chain sees the labels before it: scores use the given labels"
_NOTES = {
    "CalibratedClassifierCV": (
        "the models inside CalibratedClassifierCV are explained without their calibration, which "
        "for two classes changes the length of a score but not its direction"
    ),
    **dict.fromkeys(("ClassifierChain", "RegressorChain"), _CHAIN),
}
"""What an explanation of a wrapper leaves out."""


@dataclass(frozen=True)
class _WrapperExamples(RowExamples):
    """The same examples as every part reads them, and how much each counts for it."""

    parts: tuple[Examples, ...] = ()
    counts: np.ndarray = field(default_factory=lambda: np.zeros((0, 0)))
    """(parts, n): the factor of each part's score."""

    def take(self, positions: np.ndarray) -> _WrapperExamples:
        """Return the examples at these positions, in this order."""
        at = np.asarray(positions)
        parts = tuple(part.take(at) for part in self.parts)
        return replace(super().take(at), parts=parts, counts=self.counts[:, at])


class WrapperOracle(FittedOracle):
    """Scores of a wrapper around several models."""

    _variance = 1.0
    """σ² of an average of regressions."""

    def __init__(self, model: Any, likelihood: Any = "auto", parameters: Any = None) -> None:
        if not (isinstance(likelihood, str) and likelihood == "auto") or parameters is not None:
            raise ExemplaError(
                "A wrapper around several models is scored as a whole, each part under its own "
                "likelihood: leave likelihood and parameters at their defaults."
            )
        last = unwrap_estimator(model).model
        if isinstance(last, VotingClassifier) and last.voting != "soft":
            raise UnsupportedModelError(
                "VotingClassifier(voting='hard') gives labels no probability: use voting='soft'."
            )
        # the models inside, fitted or not; a chain's had another name before scikit-learn 1.7
        inside = [getattr(last, name, None) for name in ("estimator", "base_estimator")]
        inside += [inner for _, inner in getattr(last, "estimators", ())]
        for inner in inside:
            if hasattr(inner, "fit"):
                _oracle_of(inner)  # raises if it is not supported
        super().__init__(model)

    def _inspect(self, model: Any) -> None:
        self._split(None, None)

    def _split(self, n: int | None, y: np.ndarray | None) -> None:
        self.likelihood, self._parts = _split(self._last, n, y)
        self._weights = np.array([[part.weight] for part in self._parts])
        self._oracles = [_oracle_of(part.model) for part in self._parts]
        if self._as_test:
            self._oracles = [oracle.by_prediction() for oracle in self._oracles]
        other = next((o.likelihood for o in self._oracles if o.likelihood != "gaussian"), None)
        if self.likelihood == "average" and other is not None:
            raise UnsupportedModelError(
                f"{type(self._last).__name__} is supported around least-squares models such as "
                f"Ridge, not around a {other} model: explain a surrogate (exempla.surrogate)."
            )

    # ---- reading

    def read(self, data: Any, *, role: Literal["train", "test"]) -> _WrapperExamples:
        """Let every part read the data, and weight the parts of a test row."""
        examples = super().read(data, role=role)
        if role == "test" or self._as_test:
            examples = replace(examples, counts=self._test_counts(examples))
        return examples

    def _check_rows(self, X: Any, problems: list[str]) -> Any:
        return X if self._transform is None else self._transform(X)  # parts check them

    def _encode(self, labels: np.ndarray, role: str, problems: list[str]) -> np.ndarray:
        inside = self._unwrapped.labels
        return np.asarray(labels if inside is None else inside.inside(labels))

    def _examples(self, X: Any, role: Any, **fields: Any) -> _WrapperExamples:
        """Read the data in every part; labels that a part does not know have a count of zero."""
        y, weights = fields.pop("codes"), fields.pop("weights")
        if role == "train":
            self._split(n_rows(X), y)
        y = np.asarray(self._last.predict(X)) if y is None else y
        read, counts = [], np.ones((len(self._oracles), n_rows(X)))
        for m, (part, oracle) in enumerate(zip(self._parts, self._oracles, strict=True)):
            own, counts[m] = part.own_labels(y)
            data = (part.inputs(X, y), own)
            read.append(oracle.read(data if weights is None else (*data, weights), role=role))
            if role == "train" and part.counts is not None and not self._as_test:
                counts[m] *= part.counts
        return _WrapperExamples(X, codes=y, parts=tuple(read), counts=counts, **fields)

    def _learn(self, train: _WrapperExamples, mean_weight: float) -> None:
        self.layers = tuple(
            replace(layer, name=f"part{m}.{layer.name}")
            for m, oracle in enumerate(self._oracles)
            for layer in oracle.layers
        )
        self._templates = [
            next(iter(oracle.scores(part.take(np.arange(1))))).factors
            for oracle, part in zip(self._oracles, train.parts, strict=True)
        ]
        known: list[Any] = [oracle.implicit_penalty for oracle in self._oracles]
        self.implicit_penalty = None if None in known else float(max(known))
        if self.likelihood == "average":
            self._variance = float(np.mean(self._errors(train) ** 2)) or 1.0
        notes = [note for oracle in self._oracles for note in oracle.notes]
        self.notes = self._remarks(_NOTES.get(type(self._last).__name__, ""), *notes)

    def _errors(self, examples: _WrapperExamples) -> np.ndarray:
        return np.asarray(examples.codes, dtype=np.float64) - self._last.predict(examples.X)

    # ---- scoring

    def _test_counts(self, examples: _WrapperExamples) -> np.ndarray:
        """Return ∂ log p / ∂ log p_m of every part (for an average, ∂ log p / ∂ f_m · σ_m)."""
        if self.likelihood == "product":
            return examples.counts
        if self.likelihood == "mean":
            return examples.counts * self._weights
        if self.likelihood == "average":
            return self._weights * self._errors(examples) / self._variance
        log_p = self._log_parts(examples, examples.counts > 0) + np.log(self._weights)
        return np.exp(log_p - logsumexp(log_p, axis=0))

    def _log_parts(self, examples: _WrapperExamples, known: np.ndarray) -> np.ndarray:
        """Return log p_m(y | x), (parts, n); −∞ where a part does not know the label."""
        pairs = zip(self._oracles, examples.parts, strict=True)
        log_p = np.stack([oracle.log_likelihood(part) for oracle, part in pairs])
        return np.where(known, log_p, -np.inf)

    def scores(self, examples: _WrapperExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """Yield one row per example: the parts' scores concatenated."""
        if labels == "predicted" and self.likelihood == "average":
            raise ExemplaError(
                "Under its own prediction a regression's score is zero, so there is nothing to "
                "explain: give the true values as (X, y)."
            )
        if labels == "predicted" and examples.labels is not None:
            read = self._examples(examples.X, "test", codes=None, weights=None)
            examples = replace(read, counts=self._test_counts(read), ids=examples.ids)
        for at, some in self._batches(examples):
            factors: list[Factors] = []
            for m, oracle in enumerate(self._oracles):
                rows = self._part_rows(oracle, some.parts[m])
                factors += [_scaled(f, some.counts[m]) for f in rows.factors]
            yield ScoreRows(at, tuple(factors))

    def _part_rows(self, oracle: Oracle, examples: Examples) -> ScoreRows:
        if self.likelihood == "average" and getattr(examples, "is_test", False):
            # the Fisher row of a Gaussian is ∂f/∂θ / σ
            rows = ScoreRows.join(list(oracle.fisher_rows(examples)))
            family = getattr(oracle, "family", None)
            variance = family.variance if isinstance(family, Gaussian) else None
            sigma = np.full(len(rows), np.sqrt(variance or 1.0))
            return replace(rows, factors=tuple(_scaled(f, sigma) for f in rows.factors))
        return ScoreRows.join(list(oracle.scores(examples)))

    def fisher_rows(self, examples: _WrapperExamples) -> Iterator[ScoreRows]:
        """Yield the Fisher rows of one part after another; parts share no parameters."""
        for m, oracle in enumerate(self._oracles):
            for rows in oracle.fisher_rows(examples.parts[m]):
                root = np.sqrt(examples.counts[m][rows.sample])
                own = tuple(_scaled(f, root) for f in rows.factors)
                yield ScoreRows(rows.sample, self._beside(m, own, len(rows)), rows.counted)

    def _beside(self, m: int, own: tuple[Factors, ...], n: int) -> tuple[Factors, ...]:
        """Return the factors of part m with zeros for the other parts."""
        factors: list[Factors] = []
        none = np.zeros(n, dtype=np.int64)  # the first row, times zero
        for other, like in enumerate(self._templates):
            factors += own if other == m else [_scaled(f.take(none), none) for f in like]
        return tuple(factors)

    def _check_labels(self, examples: Any, labels: Labels) -> None:
        # without labels, `codes` are predictions
        super()._check_labels(replace(examples, codes=examples.labels), labels)

    def _log_prob(self, part: _WrapperExamples) -> np.ndarray:
        if self.likelihood == "average":
            errors = self._errors(part)
            return Gaussian(self._variance).log_prob(np.zeros((len(errors), 1)), errors)
        if self.likelihood == "mixture":
            y = np.asarray(part.codes)
            known = np.stack([one.own_labels(y)[1] for one in self._parts])
            return logsumexp(self._log_parts(part, known) + np.log(self._weights), axis=0)
        log_p = self._log_parts(part, np.array(True))
        return np.sum(log_p * (self._weights if self.likelihood == "mean" else 1.0), axis=0)

    # ---- parameters

    @property
    def theta_norm(self) -> float | None:
        # parts with a known penalty do not count
        each: list[Any] = [o.theta_norm for o in self._oracles if o.implicit_penalty is None]
        return None if None in each else float(np.linalg.norm(each))

    def penalty_rows(self) -> ScoreRows | None:
        """Return the penalties of all parts as score rows."""
        groups = []
        for m, oracle in enumerate(self._oracles):
            rows = oracle.penalty_rows()
            if rows is not None:
                factors = self._beside(m, rows.factors, len(rows))
                pairs = [(f.a.toarray() if is_sparse(f.a) else f.a, f.g) for f in factors]
                groups.append(ScoreRows(rows.sample, tuple(Factors(a, g) for a, g in pairs)))
        return ScoreRows.join(groups) if groups else None


def _oracle_of(model: Any) -> Oracle:
    from exempla.oracles import make_oracle

    return make_oracle(model)


def _scaled(factors: Factors, by: np.ndarray) -> Factors:
    """Multiply each score by a number."""
    return Factors(factors.a, factors.g * by[:, None])
