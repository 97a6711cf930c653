"""Scores of forests: out-of-bag weights (RF-GAP) for a kernel, times residuals.

Rhodes, Cutler and Moon (2023): with M_t(i) the rows that tree t drew into the leaf of row i, c_t(j)
how often it drew row j, and S_i the trees that did not draw row i (for a new row, all),

    GAP(i, j) = 1/|S_i| Σ_{t ∈ S_i} c_t(j) [same leaf] / M_t(i)

and Σ_j GAP(i, j) y_j is the prediction: the weights are exact. Without row j the forest would
predict less by GAP(i, j)·(y_j − p_j), about, p_j being what the other trees say of row j. That is
an analogy to the score of a likelihood and no derivative: a forest maximises none, and other rows
would grow other trees.

The kernel needs no metric. A training row has c_t(j)/√M in its leaves, a questioned row 1/(T√M);
their product is GAP.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from scipy.sparse import csr_array

from exempla.data import n_rows, plain_labels, refuse_data, take_rows, unpack
from exempla.errors import ExemplaError
from exempla.oracles.base import Examples, Labels, Layer, Oracle, ScoreRows
from exempla.oracles.factors import Factors
from exempla.oracles.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood, resolve
from exempla.oracles.sklearn.anatomy import keep_layers
from exempla.oracles.sklearn.families import class_weights, encode
from exempla.oracles.sklearn.unwrap import is_fitted, require_fitted, unwrap
from exempla.oracles.trees.columns import refused
from exempla.oracles.trees.leaves import ForestLeaves, not_its_data
from exempla.oracles.trees.oracle import agreed

__all__ = ["ForestExamples", "ForestOracle"]

_CHECKED = 256
_BATCH = 1024
EXACT = 6144
"""Up to so many training rows the leaves are columns of their own, of which the dual form needs dot
products only; beyond, they are hashed to HASHED parameters, and products hold on average."""
_HASHED = 4096
_NOTE = (
    "a forest's out-of-bag weights are exact, being what it predicts with; times the residual they "
    "stand for a row's influence by analogy, as a forest has no likelihood's score."
)


@dataclass(frozen=True)
class ForestExamples(Examples):
    """Checked rows: in which leaves they count for how much, and what is predicted for them."""

    leaves: np.ndarray
    """(n, T)"""
    counts: np.ndarray | None
    """(n, T) how often a training row was drawn for each tree; None for questioned rows."""
    outputs: np.ndarray
    """(n, outputs): log-odds, logits or means; of training rows, by the trees that did not draw
    them."""
    codes: np.ndarray | None = None
    weights: np.ndarray | None = None
    labels: np.ndarray | None = None
    ids: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.leaves)

    def take(self, positions: np.ndarray) -> ForestExamples:
        """The examples at these positions, in this order."""
        names = ("leaves", "counts", "outputs", "codes", "weights", "labels", "ids")
        parts = {name: getattr(self, name) for name in names}
        some = {name: None if part is None else part[positions] for name, part in parts.items()}
        return replace(self, **some)


class ForestOracle(Oracle):
    """RF-GAP weights times residuals, as scores whose metric is the identity.

    >>> from sklearn.datasets import load_iris
    >>> from sklearn.ensemble import RandomForestClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> oracle = ForestOracle(RandomForestClassifier(20, random_state=0).fit(X, y))
    >>> len(oracle.read((X, y), role="train")), oracle.likelihood
    (150, 'categorical')
    """

    whitened = True
    notes = (_NOTE,)
    fisher_note = "none: out-of-bag weights are the kernel"

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
    ) -> None:
        self.model = model
        auto = isinstance(likelihood, str) and likelihood == "auto"
        self._wanted = None if auto else resolve(likelihood)
        keep_layers(["leaves"], parameters)
        self._n_train = 0
        self.layers: tuple[Layer, ...] = ()
        self.likelihood = "auto" if self._wanted is None else self._wanted.name
        if is_fitted(model):
            self._bind()

    def _bind(self) -> None:
        require_fitted(self.model)
        self._transform, last = unwrap(self.model)
        self._reader = ForestLeaves(last)
        classes = self._reader.classes
        own: Likelihood = Gaussian()
        if classes is not None:
            own = Bernoulli() if len(classes) == 2 else Categorical()
        self._family = agreed(own, self._wanted, type(last).__name__)
        self.likelihood = self._family.name
        self._outputs = 1 if classes is None or len(classes) == 2 else len(classes)

    @property
    def classes(self) -> np.ndarray | None:
        """The labels, in the order of their codes; None for a regression."""
        return self._reader.classes

    @property
    def family(self) -> Likelihood:
        """The likelihood that turns what is predicted and labels into residuals."""
        return self._family

    # ---- reading

    def read(self, data: Any, *, role: Literal["train", "test"]) -> ForestExamples:
        """Check the data: training data must be the forest's own."""
        if role == "train" or not hasattr(self, "_reader"):
            self._bind()
        problems: list[str] = []
        given = unpack(data, problems)
        labels = None if given.y is None else plain_labels(given.y)
        codes = None
        if labels is not None:
            codes = encode(labels, self._reader.classes, 1, self._family, role, problems)
        if given.y is None and role == "train" and not problems:
            problems.append("labels are missing: give (X, y)")
        refuse_data(problems, role)
        try:
            leaves = self._leaves(given.X)
        except ExemplaError:
            raise
        except Exception as error:  # whatever the library raises, the cause is the data
            raise refused(error) from error
        counts = self._counts(leaves, codes, given.weights) if role == "train" else None
        outputs = self._as_outputs(self._predicted(leaves, counts))
        examples = ForestExamples(
            leaves, counts, outputs, codes, given.weights if role == "train" else None, labels,
            given.ids,
        )  # fmt: skip
        if role == "train":
            self._learn(examples)
        return examples

    def _leaves(self, X: Any) -> np.ndarray:
        ready = X if self._transform is None else self._transform(X)
        ready = np.asarray(ready) if isinstance(ready, list) else ready
        leaves = self._reader.leaves(ready).astype(np.int32)
        some = np.arange(min(_CHECKED, n_rows(ready)))
        own = self._reader.predictions(take_rows(ready, some))
        if not np.allclose(self._predicted(leaves[some], None), own, rtol=1e-9, atol=1e-9):
            raise ExemplaError(
                f"the leaves of this {type(self._reader.model).__name__} do not average to its own "
                "predictions: exempla does not understand this version of scikit-learn."
            )
        return leaves

    def _counts(
        self, leaves: np.ndarray, codes: np.ndarray | None, weights: np.ndarray | None
    ) -> np.ndarray:
        """(n, T) what each training row weighs in each tree; checked against the trees."""
        counts = self._reader.drawn(len(leaves)).astype(np.float32)
        each = np.ones(len(leaves)) if weights is None else weights
        wanted = getattr(self._reader.model, "class_weight", None)
        if wanted is not None and codes is not None and self._reader.classes is not None:
            each = each * class_weights(wanted, self._reader.classes, codes, None)[codes]
        # newer scikit-learn draws rows by their weight, older weighs those it has drawn
        for weighed in (counts, counts * each[:, None]):
            if self._reader.made_of(leaves, weighed, codes):
                return weighed
        raise not_its_data(self._reader.model)

    def _predicted(self, leaves: np.ndarray, counts: np.ndarray | None) -> np.ndarray:
        """Mean over the trees of what their leaves hold; of training rows, over the trees that did
        not draw them (over all, for the rare row that every tree drew)."""
        n, reader = len(leaves), self._reader
        use = np.ones(leaves.shape, dtype=bool) if counts is None else counts == 0
        use[~use.any(axis=1)] = True
        total = np.zeros((n, reader.values.shape[1]))
        for tree in range(reader.n_trees):
            total += use[:, tree, None] * reader.values[reader.starts[tree] + leaves[:, tree]]
        return total / use.sum(axis=1)[:, None]

    def _as_outputs(self, predicted: np.ndarray) -> np.ndarray:
        if self._reader.classes is None:
            return predicted
        # T trees cannot tell a smaller probability from zero
        p = np.clip(predicted, 0.5 / self._reader.n_trees, None)
        logs = np.log(p / p.sum(axis=1, keepdims=True))
        return logs[:, 1:] - logs[:, :1] if logs.shape[1] == 2 else logs

    def _learn(self, train: ForestExamples) -> None:
        self._n_train = len(train)
        if isinstance(self._family, Gaussian):
            assert train.codes is not None
            self._family = self._family.fitted(train.outputs, train.codes, train.weights)
        width = int(self._reader.sizes.sum())
        self._hashed = len(train) > EXACT
        if self._hashed:
            width = _HASHED // self._outputs
            rng = np.random.default_rng(0)
            self._place = rng.integers(0, width, len(self._reader.totals)).astype(np.int32)
            self._sign = rng.choice([-1.0, 1.0], len(self._reader.totals))
        self.layers = (Layer("leaves", width, self._outputs, np.zeros(width)),)

    # ---- scoring

    def scores(self, examples: ForestExamples, labels: Labels = "true") -> Iterator[ScoreRows]:
        """One row per example, in order, in batches."""
        if not self._n_train:
            raise ExemplaError("a forest's scores need its training data: read them first.")
        self._check_labels(examples, labels)
        for start in range(0, len(examples), _BATCH):
            rows = np.arange(start, min(start + _BATCH, len(examples)))
            part = examples.take(rows)
            y = part.codes if labels == "true" else self._family.predict(part.outputs)
            g = self._family.score(part.outputs, y)
            yield ScoreRows(rows, (Factors(self._inputs(part), g),))

    def fisher_rows(self, examples: ForestExamples) -> Iterator[ScoreRows]:
        """The scores themselves: the metric is the identity, and only their span is asked for."""
        return self.scores(examples)

    def _inputs(self, part: ForestExamples) -> csr_array:
        reader, n = self._reader, len(part)
        columns = part.leaves + reader.starts.astype(np.int32)
        scale = np.sqrt(self._n_train / reader.totals)  # √n: kernels are divided by n later
        values = scale[columns]
        values *= 1.0 / reader.n_trees if part.counts is None else part.counts
        rows = np.repeat(np.arange(n), reader.n_trees)
        columns, values = columns.ravel(), values.ravel()
        width = len(reader.totals)
        if self._hashed:
            columns, values = self._place[columns], values * self._sign[columns]
            width = self.layers[0].d_in
        return csr_array((values, (rows, columns)), shape=(n, width))

    def predict(self, examples: ForestExamples) -> np.ndarray:
        """The forest's predictions, in the user's label vocabulary."""
        found, classes = self._family.predict(examples.outputs), self._reader.classes
        return found if classes is None else classes[found]

    def log_likelihood(self, examples: ForestExamples) -> np.ndarray:
        """log p(y | x) of each example under its given label."""
        self._check_labels(examples, "true")
        return self._family.log_prob(examples.outputs, examples.codes)

    def _check_labels(self, examples: ForestExamples, labels: Labels) -> None:
        if labels == "true" and examples.codes is None:
            raise ExemplaError(
                "These examples have no labels: give (X, y), or ask for labels='predicted'."
            )
        if labels == "predicted" and not self._family.discrete:
            raise ExemplaError(
                "Under its own prediction a regression's residual is zero, so there is nothing to "
                "explain: give the true values as (X, y)."
            )
