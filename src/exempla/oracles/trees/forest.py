"""Scores of forests: out-of-bag weights (RF-GAP) as kernel, times residuals.

Rhodes, Cutler and Moon (2023): let M_t(i) be the number of rows that tree t drew into the leaf of
row i, c_t(j) how often it drew row j, and S_i the trees that did not draw row i (for a new row, all
trees). Then

    GAP(i, j) = 1/|S_i| Σ_{t ∈ S_i} c_t(j) [same leaf] / M_t(i),

and Σ_j GAP(i, j) y_j is exactly the prediction. Without row j the forest would predict less by
about GAP(i, j)·(y_j − p_j), where p_j is the prediction of the trees that did not draw row j. This
is an analogy to the score of a likelihood, not a derivative: a forest maximises no likelihood, and
other rows would grow other trees.

The kernel needs no metric: a training row has entries c_t(j)/√M in its leaves and a test row
1/(T√M), and their product is GAP.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.sparse import csr_array

from exempla.errors import ExemplaError
from exempla.oracles.base import Factors, Layer, RowExamples, ScoreRows
from exempla.oracles.likelihoods import Bernoulli, Categorical, Gaussian, Likelihood
from exempla.oracles.sklearn.base import class_weights, keep_layers
from exempla.oracles.sklearn.oracle import OutputOracle
from exempla.oracles.trees.oracle import refusing_rows
from exempla.oracles.trees.readers import number_leaves, refuse

_MAX_EXACT_ROWS = 6144
"""Training rows up to which every leaf has its own column. Beyond, leaves are hashed to
`_HASHED_SIZE` parameters, and products are right on average."""
_HASHED_SIZE = 4096
_NOTE = (
    "a forest's out-of-bag weights are exact, because it predicts with them; multiplied by the "
    "residual they measure a row's influence by analogy, as a forest has no likelihood"
)


def _refuse_unsupported(model: Any) -> None:
    """Raise if a forest's out-of-bag weights are not its kernel."""
    name, criterion = type(model).__name__, getattr(model, "criterion", None)
    per_tree = getattr(model, "class_weight", None) == "balanced_subsample"
    refuse(
        {
            f"{name}(bootstrap=False) grows every tree on all rows, so no row is out of bag: "
            f"use {name}(bootstrap=True).": not model.bootstrap,
            f"This {name} predicts several outputs at once: explain one model per "
            "output.": model.n_outputs_ > 1,
            f"{name}(class_weight='balanced_subsample') has different class weights in every "
            "tree: use class_weight='balanced'.": per_tree,
            f"{name}(criterion={criterion!r}) does not predict weighted means of its rows: "
            "use criterion='squared_error'.": criterion in ("absolute_error", "poisson"),
        }
    )


def _not_its_data(model: Any) -> ExemplaError:
    return ExemplaError(
        f"These are not the rows, labels and weights that this {type(model).__name__} was fitted "
        "on, in the same order. A forest is explained by the rows that each tree drew: give its "
        "own training data."
    )


@dataclass(frozen=True)
class _ForestExamples(RowExamples):
    """Checked rows: X holds their (n, T) leaves."""

    counts: np.ndarray | None = None
    """(n, T) weight of each training row in each tree; None for test rows."""
    outputs: Any = None
    """(n, outputs) log-odds, logits or means; for training rows, those of the trees that did not
    draw them."""

    per_row: ClassVar[tuple[str, ...]] = (*RowExamples.per_row, "counts", "outputs")


class ForestOracle(OutputOracle):
    """RF-GAP weights times residuals, as scores whose metric is the identity."""

    trees = True
    whitened = True
    fisher_note = "none: out-of-bag weights are the kernel"

    def _inspect(self, model: Any) -> None:
        keep_layers(["leaves"], self._parameters)
        _refuse_unsupported(model)
        trees = [one.tree_ for one in model.estimators_]
        self._is_leaf = [tree.children_left < 0 for tree in trees]
        pairs = list(zip(trees, self._is_leaf, strict=True))
        self._n_trees, sizes = len(trees), np.array([leaf.sum() for leaf in self._is_leaf])
        self._starts = (np.cumsum(sizes) - sizes).astype(np.int32)
        # (leaves, classes) class frequencies in a leaf, or (leaves, 1) means
        self._values = np.concatenate([tree.value[leaf, 0, :] for tree, leaf in pairs])
        # (leaves,) weight of the rows in each leaf; a row drawn twice counts twice
        weights = [tree.weighted_n_node_samples[leaf] for tree, leaf in pairs]
        self._totals = np.concatenate(weights)
        own: Likelihood = Gaussian()
        if self.classes is not None:
            self._values = self._values / self._values.sum(axis=1, keepdims=True)
            own = Bernoulli() if len(self.classes) == 2 else Categorical()
            self._n_outputs = 1 if len(self.classes) == 2 else len(self.classes)
        self._set_family(own)
        self.notes = self._remarks(_NOTE)

    # ---- reading

    def _check_rows(self, X: Any, problems: list[str]) -> Any:
        return X  # scikit-learn checks them, see `_examples`

    def _examples(self, X: Any, role: str, **fields: Any) -> _ForestExamples:
        with refusing_rows():
            ready = X if self._transform is None else self._transform(X)
            ready = np.asarray(ready) if isinstance(ready, list) else ready
            leaves = number_leaves(self._last.apply(ready), self._is_leaf).astype(np.int32)
        counts, weights = None, fields.pop("weights")  # weights are part of the counts
        if role == "train":
            counts = self._counts(leaves, fields["codes"], weights)
        outputs = self._as_outputs(self._mean_values(leaves, counts))
        if role == "train":
            self.family = self.family.fitted(outputs, fields["codes"], weights)
        return _ForestExamples(leaves, counts=counts, outputs=outputs, **fields)

    def _counts(
        self, leaves: np.ndarray, codes: np.ndarray | None, weights: np.ndarray | None
    ) -> np.ndarray:
        """Return the (n, T) weight of each training row in each tree, checked against the trees."""
        n = len(leaves)
        counts = np.zeros((n, self._n_trees), dtype=np.float32)
        for tree, rows in enumerate(self._last.estimators_samples_):
            if len(rows) and rows.max() >= n:
                raise _not_its_data(self._last)
            counts[:, tree] = np.minimum(np.bincount(rows, minlength=n), 255)
        each = np.ones(n) if weights is None else weights
        if codes is not None:
            wanted = getattr(self._last, "class_weight", None)
            factors = class_weights(wanted, self.classes, codes)
            each = each if factors is None else each * factors[codes]
        # newer versions of scikit-learn draw rows by weight, older ones weight the rows drawn
        for weighted in (counts, counts * each[:, None]):
            if self._are_made_of(leaves, weighted, codes):
                return weighted
        raise _not_its_data(self._last)

    def _are_made_of(self, leaves: np.ndarray, weights: np.ndarray, y: np.ndarray | None) -> bool:
        """Return True if the leaves hold the sums of these rows' weights and labels."""
        flat, size = (leaves + self._starts).ravel(), len(self._totals)

        def summed(each: np.ndarray) -> np.ndarray:
            return np.bincount(flat, weights=(weights * each[:, None]).ravel(), minlength=size)

        total = summed(np.ones(len(leaves)))
        if y is None or not np.allclose(total, self._totals, rtol=1e-5):
            return False
        parts = [y] if self.classes is None else [y == k for k in range(len(self.classes))]
        return all(
            np.allclose(summed(part) / total, self._values[:, k], rtol=1e-5, atol=1e-8)
            for k, part in enumerate(parts)
        )

    def _mean_values(self, leaves: np.ndarray, counts: np.ndarray | None) -> np.ndarray:
        """Return the mean over trees of the leaf values.

        For training rows the mean is over the trees that did not draw them, or over all trees if
        every tree drew the row.
        """
        use = np.ones(leaves.shape, dtype=bool) if counts is None else counts == 0
        use[~use.any(axis=1)] = True
        total = np.zeros((len(leaves), self._values.shape[1]))
        for tree, start in enumerate(self._starts):
            total += use[:, tree, None] * self._values[start + leaves[:, tree]]
        return total / use.sum(axis=1)[:, None]

    def _as_outputs(self, predicted: np.ndarray) -> np.ndarray:
        if self.classes is None:
            return predicted
        # T trees cannot distinguish smaller probabilities from zero
        p = np.clip(predicted, 0.5 / self._n_trees, None)
        logs = np.log(p / p.sum(axis=1, keepdims=True))
        return logs[:, 1:] - logs[:, :1] if logs.shape[1] == 2 else logs

    def _learn(self, train: _ForestExamples, mean_weight: float) -> None:
        self._n_train, width = len(train), len(self._totals)
        self._hashed = len(train) > _MAX_EXACT_ROWS
        if self._hashed:
            rng, width = np.random.default_rng(0), _HASHED_SIZE // self._n_outputs
            self._place = rng.integers(0, width, len(self._totals)).astype(np.int32)
            self._sign = rng.choice([-1.0, 1.0], len(self._totals))
        self.layers = (Layer("leaves", width, self._n_outputs, np.zeros(width)),)

    # ---- scoring

    def _forward(self, part: _ForestExamples) -> tuple[np.ndarray, Any]:
        return part.outputs, part

    def fisher_rows(self, examples: _ForestExamples) -> Iterator[ScoreRows]:
        """Yield the scores themselves: the metric is the identity, and only their span is used."""
        return self.scores(examples)

    def _factors(self, state: Any, g: np.ndarray, at: np.ndarray | None) -> tuple[Factors, ...]:
        n, columns = len(state), state.X + self._starts
        values = np.sqrt(self._n_train / self._totals)[columns]  # √n: kernels are divided by n
        values *= 1.0 / self._n_trees if state.counts is None else state.counts
        rows = np.repeat(np.arange(n), self._n_trees)
        columns, values = columns.ravel(), values.ravel()
        if self._hashed:
            columns, values = self._place[columns], values * self._sign[columns]
        return (Factors(csr_array((values, (rows, columns)), shape=(n, self.layers[0].d_in)), g),)
