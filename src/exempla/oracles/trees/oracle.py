"""Scores of boosted trees: a generalised linear model on leaf indicators, at the ensemble's own
outputs.

With the structure of the trees fixed, outputs = base + Φθ with Φ the leaf indicators and θ the leaf
values. The score of an example is its residual times the indicators of its leaves; the Fisher is
ΦᵀWΦ with the likelihood's weights. What stays out is that other data would grow other trees; how
much that matters is measured (docs/trees.md), not assumed.

An ensemble at earlier stages of boosting, as checkpoints are of a network.

The ridge that boosting with a learning rate amounts to.

A leaf's step η·G/(H + l2), G and H its sums of gradients and Hessians when its tree was grown, is
the optimum of that tree alone under the penalty (H + l2)/η on the leaf's value. All trees together
are held back alike: their mean over all leaves is the penalty δ under which a refit would stop
where boosting stops. In the mean-loss objective

    δ = (mean over leaves of H/n + l2/n) / η,    Σ_leaves H/n = mean Hessian of an example

so that no leaf has to be looked at one by one.

A model that early stopping kept small is refitted at that size.

Early stopping looks at rows that a refit does not have. What it found out, how many trees are
enough, is kept instead, so that refits differ from the model in their rows alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, Literal

import numpy as np

from exempla.data import n_rows, plain_labels, refuse_data, take_rows, unpack
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.base import CLASS_CUT, Labels, Layer, Oracle, ScoreRows
from exempla.oracles.likelihoods import Gaussian, Likelihood, resolve
from exempla.oracles.sklearn.anatomy import keep_layers
from exempla.oracles.sklearn.families import encode
from exempla.oracles.sklearn.unwrap import is_fitted, require_fitted, unwrap
from exempla.oracles.trees.columns import (
    LeafColumns,
    LeafFactors,
    ReadLeaves,
    TreeBatch,
    TreeExamples,
    columns_of,
    refused,
    summed_values,
    values_of,
)
from exempla.oracles.trees.leaves import AsymmetricLaplace, LeafReader, is_boosted, read_leaves

_STAGES = 20
"""Stages of boosting at which the mean Hessian is taken; it changes slowly."""


def learning_rate_penalty(
    reader: LeafReader,
    family: Likelihood,
    columns: list[LeafColumns],
    values: list[np.ndarray],
    base: np.ndarray,
    leaves: np.ndarray,
    weights: np.ndarray | None,
    n: int,
) -> tuple[float, float]:
    """δ, from the leaves of some training rows of so many; and the Hessian that is left at the end
    of boosting, as a share of its mean over the stages."""
    used = sum(len(np.unique(leaves[:, c.trees] + c.starts)) * len(c.outputs) for c in columns)
    rounds = max(len(c.trees) for c in columns)
    stages = np.unique(np.linspace(0, rounds - 1, _STAGES).astype(np.int64))
    found = []
    for stage in [*stages, rounds]:
        first = [c.first(stage) for c in columns]
        parts = [value[: c.width] for c, value in zip(first, values, strict=True)]
        outputs = base + summed_values(first, parts, leaves, len(base))
        found.append(_mean_hessian(family, outputs, weights))
    mean, last = float(np.mean(found[:-1])), found[-1]
    total = mean * rounds
    penalty = (total / used + reader.l2 * _unit_of(family) / n) / reader.rate
    return penalty, last / mean if mean > 0 else 1.0


def _mean_hessian(family: Likelihood, outputs: np.ndarray, weights: np.ndarray | None) -> float:
    """Mean over examples of the trace of the output Fisher."""
    at, root = family.fisher_root(outputs)
    energy = np.bincount(at, weights=np.einsum("ij,ij->i", root, root), minlength=len(outputs))
    return float(np.mean(energy if weights is None else energy * weights))


def _unit_of(family: Likelihood) -> float:
    """What a Hessian of 1 in the library's loss is in minus the log-likelihood."""
    if isinstance(family, Gaussian):
        return 1.0 / (family.variance or 1.0)
    if isinstance(family, AsymmetricLaplace):
        return family.quantile * (1 - family.quantile) / (family.scale or 1.0) ** 2
    return 1.0


BATCH_BYTES = 64 * 2**20
_CHECKED = 256
"""Rows whose summed leaf values are compared with the library's own outputs, at every reading."""
_SURE = 1e-3
"""Share of the Hessian left at the end of boosting below which the ensemble has become sure of
nearly every training row: what is left of their residuals says little."""
_SATURATED = (
    "the trees have become sure of nearly every training row, so that their last stage shows "
    "little of what they learnt: add earlier_stages(model), of exempla.oracles.trees.oracle, to "
    "the models given."
)
_LOOKED_AT = 2048
"""Training rows from which the penalty that the learning rate amounts to is computed."""


class TreeOracle(Oracle):
    """Scores of a boosted ensemble with respect to its leaf values.

    `share` keeps the first trees only, that share of them: the ensemble as it was at an earlier
    stage of boosting.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> oracle = TreeOracle(HistGradientBoostingClassifier(max_iter=5).fit(X, y))
    >>> train = oracle.read((X, y), role="train")
    >>> [len(rows) for rows in oracle.scores(train)], oracle.likelihood
    ([150], 'categorical')
    """

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
        share: float = 1.0,
    ) -> None:
        self.model = model
        auto = isinstance(likelihood, str) and likelihood == "auto"
        self._wanted = None if auto else resolve(likelihood)
        self._parameters, self.share = parameters, share
        self._moved = False
        self._base: np.ndarray | None = None
        self._penalty: float | None = None
        self.layers: tuple[Layer, ...] = ()
        self.likelihood = "auto" if self._wanted is None else self._wanted.name
        if _is_booster(model) or is_fitted(model):
            self._bind()

    def _bind(self) -> None:
        """Take the model apart as it is now (it may have been refitted since)."""
        if self._moved:  # these leaf values are not the model's own
            return
        if not _is_booster(self.model):
            require_fitted(self.model)
        self._transform, last = unwrap(self.model)
        self._reader: LeafReader = read_leaves(last)
        self._base = None
        self._family = agreed(self._reader.family, self._wanted, type(last).__name__)
        self.likelihood = self._family.name
        self._columns = columns_of(self._reader, self.share)
        self._values = values_of(self._reader, self._columns)
        self._kept = keep_layers(self._names(), self._parameters)
        several = self._reader.n_outputs > 1
        self._cut = CLASS_CUT if several else 0.0
        self.fisher_note = f"exact over classes above {CLASS_CUT:g}" if several else "exact"
        layers = [self._columns[i] for i in self._kept]
        self.layers = tuple(
            Layer(name, c.width, len(c.outputs), np.zeros(c.width))
            for name, c in zip([self._names()[i] for i in self._kept], layers, strict=True)
        )
        sizes = self._reader.sizes
        kind = np.min_scalar_type(int(sizes.max()) - 1)
        self._read = ReadLeaves(self._reader.leaves, self._transform, len(sizes), kind)

    def _names(self) -> list[str]:
        if len(self._columns) == 1:
            return ["leaves"]
        return [f"leaves{int(c.outputs[0])}" for c in self._columns]

    @property
    def classes(self) -> np.ndarray | None:
        """The labels, in the order of their codes; None for a regression."""
        return self._reader.classes

    @property
    def family(self) -> Likelihood:
        """The likelihood itself: what turns outputs and labels into scores."""
        return self._family

    # ---- parameters

    @property
    def theta(self) -> np.ndarray:
        """The kept layers' leaf values."""
        return np.concatenate([self._values[i].ravel() for i in self._kept])

    @property
    def theta_norm(self) -> float:
        return float(np.linalg.norm(self.theta))

    @property
    def implicit_penalty(self) -> float | None:
        """The ridge that boosting with a learning rate amounts to (see `penalty`)."""
        return self._penalty

    def at(self, theta: np.ndarray) -> TreeOracle:
        """The same oracle at other leaf values; it scores examples this one has read."""
        sizes = [self._values[i].size for i in self._kept]
        if np.shape(theta) != (sum(sizes),):
            raise ExemplaError(f"theta has shape {np.shape(theta)}; give ({sum(sizes)},) numbers.")
        moved = copy(self)
        moved._moved, moved._values = True, list(self._values)
        for i, part in zip(self._kept, np.split(theta, np.cumsum(sizes)[:-1]), strict=True):
            moved._values[i] = part.reshape(self._values[i].shape)
        return moved

    # ---- reading

    def read(self, data: Any, *, role: Literal["train", "test"]) -> TreeExamples:
        """Check the data; learn from training data the scale of a regression's likelihood."""
        if role == "train" or not self.layers:
            self._bind()
        problems: list[str] = []
        given = unpack(data, problems)
        labels = None if given.y is None else plain_labels(given.y)
        codes = None
        if labels is not None:
            reader = self._reader
            codes = encode(labels, reader.classes, reader.n_outputs, self._family, role, problems)
        if given.y is None and role == "train" and not problems:
            problems.append("labels are missing: give (X, y)")
        refuse_data(problems, role)
        try:
            self._check_sums(given.X)
            examples = TreeExamples.of(
                given.X,
                self._read,
                codes=codes,
                weights=self._weights(codes, given.weights) if role == "train" else None,
                labels=labels,
                ids=given.ids,
            )
        except ExemplaError:
            raise
        except Exception as error:  # whatever the library raises, the cause is the data
            raise refused(error) from error
        if role == "train":
            self._learn(examples)
        return examples

    def _weights(
        self, codes: np.ndarray | None, sample_weight: np.ndarray | None
    ) -> np.ndarray | None:
        if codes is None or self._reader.classes is None:
            return sample_weight
        each = self._reader.weight_of_classes(codes)
        if each is None:
            return sample_weight
        return each[codes] if sample_weight is None else each[codes] * sample_weight

    def _check_sums(self, X: Any) -> None:
        """The leaf values of a row must add up to the library's own output, but for a constant.

        This is what makes everything here true of the model, whichever library and version it is.
        """
        rows = np.arange(min(_CHECKED, n_rows(X)))
        ready = self._read.prepared(take_rows(X, rows))
        everything = columns_of(self._reader)
        leaves = self._reader.leaves(ready)
        summed = summed_values(
            everything, values_of(self._reader, everything), leaves, self._reader.n_outputs
        )
        apart = self._reader.margins(ready) - summed
        base = np.median(apart, axis=0)
        if self._base is not None:
            base = self._base
        scale = 1.0 + np.abs(self._reader.values).max() * self._reader.n_trees
        if not np.all(np.abs(apart - base) <= self._reader.tolerance * scale):
            raise ExemplaError(
                f"the leaf values of this {type(self._reader.model).__name__} do not add up to its "
                f"own predictions (they are {np.abs(apart - base).max():.3g} apart): exempla does "
                "not understand this model or this version of its library."
            )
        self._base = base

    def _learn(self, train: TreeExamples) -> None:
        """Fit a regression's scale, and what the learning rate amounts to."""
        if isinstance(self._family, Gaussian | AsymmetricLaplace):
            assert train.codes is not None  # training data have labels
            outputs = np.concatenate([self._outputs(b.leaves) for b in self._batches(train)])
            fitted = self._family.fitted(outputs, train.codes, train.weights)
            size = fitted.variance if isinstance(fitted, Gaussian) else fitted.scale
            if not (size or 0.0) > 1e-20 * float(np.mean(np.abs(train.codes))):
                raise ExemplaError(
                    f"{type(self._reader.model).__name__} fits its training data without any "
                    "residual, so its scores are all zero: use fewer trees or smaller ones."
                )
            self._family = fitted
        self._penalty, left = self._learning_rate_penalty(train)
        self.notes = (_SATURATED,) if left < _SURE and self.share == 1.0 else ()

    def _learning_rate_penalty(self, train: TreeExamples) -> tuple[float, float]:
        n = len(train)
        some = train.take(np.unique(np.linspace(0, n - 1, min(n, _LOOKED_AT)).astype(np.int64)))
        leaves = next(some.batches(len(some))).leaves
        assert self._base is not None
        return learning_rate_penalty(
            self._reader, self._family, self._columns, self._values, self._base,
            leaves, some.weights, n,
        )  # fmt: skip

    # ---- scoring

    def scores(self, examples: TreeExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """One row per example, in order, in batches."""
        self._check_labels(examples, labels)
        for batch in self._batches(examples):
            outputs = self._outputs(batch.leaves)
            y = batch.codes if labels == "true" else self._family.predict(outputs)
            g = self._family.score(outputs, y)
            g = g if batch.weights is None else g * batch.weights[:, None]
            yield ScoreRows(batch.positions, self._factors(batch.leaves, g))

    def fisher_rows(self, examples: TreeExamples) -> Iterator[ScoreRows]:
        """Rows whose outer products sum to each example's Fisher, in batches."""
        for batch in self._batches(examples, self._reader.n_outputs):
            outputs = self._outputs(batch.leaves)
            at, root = self._family.fisher_root(outputs, self._cut)
            if batch.weights is not None:
                root = root * np.sqrt(batch.weights[at])[:, None]
            yield ScoreRows(batch.positions[at], self._factors(batch.leaves[at], root))

    def predict(self, examples: TreeExamples) -> np.ndarray:
        """The model's own predictions, in the user's label vocabulary."""
        found = [self._family.predict(self._outputs(b.leaves)) for b in self._batches(examples)]
        codes, classes = np.concatenate(found), self._reader.classes
        return codes if classes is None else classes[codes]

    def log_likelihood(self, examples: TreeExamples) -> np.ndarray:
        """log p(y | x, θ̂) of each example under its given label."""
        self._check_labels(examples, "true")
        batches = self._batches(examples)
        return np.concatenate(
            [self._family.log_prob(self._outputs(b.leaves), b.codes) for b in batches]
        )

    def _outputs(self, leaves: np.ndarray) -> np.ndarray:
        summed = summed_values(self._columns, self._values, leaves, self._reader.n_outputs)
        return summed + self._base

    def _factors(self, leaves: np.ndarray, g: np.ndarray) -> tuple[LeafFactors, ...]:
        kept = [self._columns[i] for i in self._kept]
        return tuple(LeafFactors(c.inputs(leaves), g[:, c.outputs]) for c in kept)

    def _check_labels(self, examples: TreeExamples, labels: Labels) -> None:
        if labels == "true" and examples.codes is None:
            raise ExemplaError(
                "These examples have no labels: give (X, y), or ask for labels='predicted'."
            )
        if labels == "predicted" and not self._family.discrete:
            raise ExemplaError(
                f"Under its own prediction a {self.likelihood} model's score is zero, so there is "
                "nothing to explain: give the true values as (X, y)."
            )

    def _batches(self, examples: TreeExamples, copies: int = 1) -> Iterator[TreeBatch]:
        """Batches whose factors, `copies` rows per example, stay within BATCH_BYTES."""
        size = BATCH_BYTES // (12 * copies * self._reader.n_trees)
        return examples.batches(max(1, size))


def _is_booster(model: Any) -> bool:
    """Whether this is a library's own trained object, which cannot be fitted again."""
    return not hasattr(model, "fit")


def agreed(own: Likelihood, wanted: Likelihood | None, name: str) -> Likelihood:
    """The model's own likelihood, unless the user fixed a Gaussian's variance."""
    if wanted is None or (wanted.discrete and own.discrete):
        return own
    if wanted.name != own.name:
        raise ExemplaError(
            f"{name} was fitted under the {own.name} likelihood, so likelihood={wanted.name!r} "
            "would not give its scores: leave it at 'auto'."
        )
    return wanted


def earlier_stages(model: Any, shares: Sequence[float] = (0.2, 0.4, 0.6, 0.8)) -> list[TreeOracle]:
    """The ensemble with only these shares of its trees, for `Explainer([model, *stages])`.

    A model that has become sure of its training data shows little of what it learnt from; its
    earlier stages still do. The kernels of all of them are averaged.

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.ensemble import HistGradientBoostingClassifier
    >>> import exempla
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> model = HistGradientBoostingClassifier(max_iter=20).fit(X[:300], y[:300])
    >>> stages = earlier_stages(model, (0.25, 0.5))
    >>> explainer = exempla.Explainer([model, *stages], progress=False).fit((X[:300], y[:300]))
    >>> explainer.influence((X[300:305], y[300:305])).shape
    (300, 5)
    """
    last = unwrap(model)[1]
    if not is_boosted(last):
        raise UnsupportedModelError(
            f"{type(last).__name__} is not boosted, so it has no stages: give a boosted ensemble."
        )
    if not shares or not all(0 < share <= 1 for share in shares):
        raise ExemplaError(f"shares are {list(shares)}: give shares of the trees, such as 0.5.")
    return [TreeOracle(model, share=float(share)) for share in shares]


_SIZES = ("n_estimators", "iterations", "num_boost_round", "num_trees")


def keep_size(fresh: Any, model: Any) -> None:
    """Give an unfitted copy of a boosted model the number of trees the model stopped at, in place.

    >>> from sklearn.ensemble import GradientBoostingClassifier
    >>> model = GradientBoostingClassifier()
    >>> keep_size(model, model)  # it was not stopped early: nothing changes
    """
    last, new = unwrap(model)[1], unwrap(fresh)[1]
    if not is_boosted(last) or not hasattr(new, "set_params"):
        return
    kept = _stopped_at(last)
    if kept is None:
        return
    given = new.get_params()
    size = next((name for name in _SIZES if name in given), _SIZES[0])
    changes: dict[str, Any] = {size: kept}
    for name in ("early_stopping_rounds", "early_stopping_round"):
        if given.get(name) is not None:
            changes[name] = None
    if given.get("use_best_model"):
        changes["use_best_model"] = False
    new.set_params(**changes)


def _stopped_at(model: Any) -> int | None:
    """Trees (rounds) after which early stopping on rows set aside by the caller ended training.

    scikit-learn's own sets rows aside by itself, and will again.
    """
    library = type(model).__module__.partition(".")[0]
    if library == "lightgbm":
        best = model.best_iteration_ if _trained(model) else None
        return int(best) if best else None
    if library == "xgboost" and getattr(model, "early_stopping_rounds", None) is not None:
        best = model.get_booster().attr("best_iteration") if _trained(model) else None
        return None if best is None else int(best) + 1
    if library == "catboost" and model.is_fitted() and model.get_best_iteration() is not None:
        return int(model.tree_count_)
    return None


def _trained(model: Any) -> bool:
    return bool(model.__sklearn_is_fitted__())
