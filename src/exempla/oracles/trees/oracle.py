"""Scores of boosted trees: a generalised linear model on leaf indicators.

With the structure of the trees fixed, outputs = base + Φθ with Φ the leaf indicators and θ the leaf
values. The score of an example is its residual times the indicators of its leaves, and the Fisher
is ΦᵀWΦ with the likelihood's weights. Trees that contribute to the same output form one layer; if
leaves hold a value for every output, all trees form one layer. Indicator matrices are never dense.
That other data would grow other trees is not modelled;
docs/studies/trees.md measures how much this matters.

**Damping.** A leaf's step η·G/(H + l2), with G and H its sums of gradients and Hessians when its
tree was grown, is the optimum of that tree alone under the penalty (H + l2)/η on the leaf's value.
The mean of this penalty over all leaves is the ridge δ under which a joint refit of all leaves
would stop where boosting stopped. In the mean-loss objective

    δ = (mean over leaves of H/n + l2/n) / η,    Σ_leaves H/n = mean Hessian of an example,

so single leaves need not be visited.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from exempla.data import n_rows, take_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import is_boosted
from exempla.oracles.base import Factors, Layer, Pairs, RowExamples
from exempla.oracles.likelihoods import Likelihood
from exempla.oracles.sklearn.base import BATCH_BYTES, keep_layers, unwrap_estimator
from exempla.oracles.sklearn.losses import AsymmetricLaplace
from exempla.oracles.sklearn.oracle import OutputOracle
from exempla.oracles.trees.readers import LeafReader, read_leaves

_CHUNK_BYTES = 2**26
"""Memory of the leaves that the library computes at a time, at eight bytes each."""
_TREES_AT_A_TIME = 48
"""Trees whose rows of a basis are summed together: they fit in the processor's cache."""
_N_STAGES = 20
"""Stages of boosting at which the mean Hessian is computed; it changes slowly."""
_CHECKED_ROWS = 256
"""Rows whose summed leaf values are compared with the library's outputs at every reading."""
_PENALTY_ROWS = 2048
"""Training rows from which the penalty is computed."""
_MIN_HESSIAN_SHARE = 1e-3
"""An ensemble is saturated if its Hessian falls below this fraction of its mean over the stages."""
_CHECKED_ROUNDS = 8
"""Rounds whose leaf values are compared with the Newton steps of the training rows."""
_MIN_AGREEMENT, _MAX_NOISE = 0.9, 4.0
"""A model is refused if the cosine of its leaf values with the Newton steps is below the first, and
their squared difference above the second, in units of the sampling variance of the steps. Subsets
and bootstrap samples of the training rows stay below 2 units; offsets were above 7."""
_SATURATED = (
    "the trees fit nearly every training row with certainty, so their final residuals carry little "
    "information about what they learnt: add earlier_stages(model), from "
    "exempla.oracles.trees.oracle, to the models"
)


@dataclass(frozen=True)
class _LeafColumns:
    """The trees of one layer, and the columns of their leaves."""

    trees: np.ndarray
    """Positions among all trees."""
    sizes: np.ndarray
    """Number of leaves of each."""
    outputs: np.ndarray
    """The outputs that they add to."""
    values: Any = None
    """What the leaves add, (width, outputs of the layer)."""

    @staticmethod
    def layers(reader: LeafReader, share: float = 1.0) -> list[_LeafColumns]:
        """Return the layers of an ensemble, restricted to the first `share` of its trees."""
        found, each = [], np.split(reader.values, reader.starts[1:])
        for output in np.unique(reader.outputs):
            trees = np.flatnonzero(reader.outputs == output)
            trees = trees[: max(1, round(share * len(trees)))]
            adds_to = np.arange(reader.n_outputs) if output < 0 else np.array([output])
            values = np.concatenate([each[tree] for tree in trees])
            found.append(_LeafColumns(trees, reader.sizes[trees], adds_to, values))
        return found

    @property
    def width(self) -> int:
        return int(self.sizes.sum())

    @cached_property
    def starts(self) -> np.ndarray:
        return np.cumsum(self.sizes) - self.sizes

    def inputs(self, leaves: np.ndarray) -> csr_array:
        """Return the (n, width) indicators of (n, T) leaves of all trees."""
        here = leaves if len(self.trees) == leaves.shape[1] else leaves[:, self.trees]
        return _indicators(here + self.starts.astype(np.int32), self.width)


def _indicators(columns: np.ndarray, width: int, dtype: Any = np.float64) -> csr_array:
    """Return a matrix with ones at these columns, the same number in every row."""
    ends = np.arange(0, columns.size + 1, columns.shape[1], dtype=np.int32)
    columns = columns.astype(np.int32, copy=False).ravel()
    return csr_array((np.ones(len(columns), dtype), columns, ends), shape=(len(ends) - 1, width))


def _summed_values(
    columns: list[_LeafColumns], leaves: np.ndarray, outputs: int, stage: int | None = None
) -> np.ndarray:
    """Return the sum of each row's leaf values, (n, outputs), over all or the first rounds."""
    total = np.zeros((len(leaves), outputs))
    for c in columns:
        c = c if stage is None else replace(c, trees=c.trees[:stage], sizes=c.sizes[:stage])
        if len(c.trees):
            total[:, c.outputs] += c.inputs(leaves) @ c.values[: c.width]
    return total


class _LeafFactors(Factors):
    """Scores whose inputs are leaf indicators.

    Their projection onto a sketch is a sum of rows of its basis, computed in single precision, some
    trees at a time; exact products stay in double precision.
    """

    def project_pairs(self, basis_in: Any, basis_out: Any, pairs: Pairs) -> Any:
        leaves = self.a.indices.reshape(len(self), -1)  # one per tree, each with value 1
        table = np.asarray(basis_in, dtype=np.float32)
        inputs = np.zeros((len(self), table.shape[1]), dtype=np.float32)
        for start in range(0, leaves.shape[1], _TREES_AT_A_TIME):
            some = leaves[:, start : start + _TREES_AT_A_TIME]
            inputs += _indicators(some, len(table), np.float32) @ table
        outputs = (self.g @ basis_out).astype(np.float32)
        if not np.array_equal(pairs.inputs, np.arange(inputs.shape[1])):
            inputs = inputs[:, pairs.inputs]
        inputs *= outputs if outputs.shape[1] == 1 else outputs[:, pairs.outputs]
        return inputs

    def take(self, positions: np.ndarray) -> Factors:
        return _LeafFactors(self.a[positions], self.g[positions])


class TreeOracle(OutputOracle):
    """Scores of a boosted ensemble with respect to its leaf values.

    `share` keeps only the first trees, this fraction of them: an earlier stage of boosting.
    """

    trees = True

    def __init__(
        self,
        model: Any,
        likelihood: str | Likelihood = "auto",
        parameters: Sequence[str] | None = None,
        share: float = 1.0,
    ) -> None:
        self.share = share
        self._base: np.ndarray | None = None
        super().__init__(model, likelihood, parameters)

    def _inspect(self, model: Any) -> None:
        self._reader = read_leaves(model)
        self.classes, self._n_outputs = self._reader.classes, self._reader.n_outputs
        self._base = None
        self._set_family(self._reader.family)
        self._columns = _LeafColumns.layers(self._reader, self.share)
        names = ["leaves"]
        if len(self._columns) > 1:
            names = [f"leaves{int(c.outputs[0])}" for c in self._columns]
        self._kept = keep_layers(names, self._parameters)
        self._drop_rare_classes(self._n_outputs > 1)
        self.layers = tuple(
            Layer(names[i], c.width, len(c.outputs), np.zeros(c.width))
            for i, c in enumerate(self._columns)
            if i in self._kept
        )

    # ---- parameters

    def _blocks(self) -> list[np.ndarray]:
        return [self._columns[i].values for i in self._kept]

    def _set_blocks(self, blocks: list[np.ndarray]) -> None:
        self._columns = list(self._columns)
        for i, block in zip(self._kept, blocks, strict=True):
            self._columns[i] = replace(self._columns[i], values=block)

    # ---- reading

    def _check_rows(self, X: Any, problems: list[str]) -> Any:
        return X  # the library checks them, see `_examples`

    def _class_weights(self, codes: Any, weights: np.ndarray | None) -> np.ndarray | None:
        return self._reader.weight_of_classes(codes)

    def _examples(self, X: Any, role: str, **fields: Any) -> RowExamples:
        """Return the (n, T) leaves of the rows."""
        reader = self._reader
        with refusing_rows():
            X = X if self._transform is None else self._transform(X)
            X = np.asarray(X) if isinstance(X, list) else X
            self._check_sums(take_rows(X, np.arange(min(_CHECKED_ROWS, n_rows(X)))))
            n, step = n_rows(X), max(1, _CHUNK_BYTES // (8 * reader.n_trees))
            leaves = np.empty((n, reader.n_trees), np.min_scalar_type(int(reader.sizes.max()) - 1))
            for start in range(0, n, step):
                rows = np.arange(start, min(start + step, n))
                leaves[rows] = reader.leaves(take_rows(X, rows))
        return RowExamples(leaves, made_bytes=leaves.nbytes, **fields)

    def _check_sums(self, X: Any) -> None:
        """Check that leaf values add up to the library's own outputs, up to a constant.

        This makes the oracle correct for every library and version, or an error.
        """
        reader, layers = self._reader, _LeafColumns.layers(self._reader)
        margins = np.asarray(reader.margins(X), dtype=np.float64).reshape(-1, self._n_outputs)
        offset = margins - _summed_values(layers, reader.leaves(X), self._n_outputs)
        base = np.median(offset, axis=0) if self._base is None else self._base
        scale = 1.0 + np.abs(reader.values).max() * reader.n_trees
        if not np.all(np.abs(offset - base) <= reader.tolerance * scale):
            raise ExemplaError(
                f"The leaf values of this {type(reader.model).__name__} do not add up to its own "
                "predictions: exempla does not support it, or not this version of its library."
            )
        self._base = base

    def _learn(self, train: RowExamples, mean_weight: float) -> None:
        """Estimate the likelihood's scale and the penalty equivalent to the learning rate."""
        self.family = self._fit_family(train, "use fewer or smaller trees")
        if not self._moved:
            self._check_steps(train)
        n = len(train)
        some = train.take(np.unique(np.linspace(0, n - 1, min(n, _PENALTY_ROWS)).astype(np.int64)))
        used = sum(
            len(np.unique(some.X[:, c.trees] + c.starts)) * len(c.outputs) for c in self._columns
        )
        rounds = max(len(c.trees) for c in self._columns)
        stages = np.unique(np.linspace(0, rounds - 1, _N_STAGES).astype(np.int64))
        mean = float(np.mean([self._mean_hessian(some, s) for s in stages]))
        ridge = self._reader.l2 / self.family.loss_scale
        # the ridge that a learning rate is equivalent to
        self.implicit_penalty = (mean * rounds / used + ridge / n) / self._reader.rate
        left = self._mean_hessian(some, rounds) / mean
        saturated = self.share == 1.0 and left < _MIN_HESSIAN_SHARE
        self.notes = self._remarks(_SATURATED if saturated else "")

    def _check_steps(self, train: RowExamples) -> None:
        """Raise if the leaf values are not Newton steps of the likelihood on these rows.

        Fitted models record neither offsets nor custom objectives of the native interfaces nor
        sample weights. All of them show in the leaf values: without them, those of a round are
        proportional to Σ s / (Σ h + l2), with the scores s and Hessians h of the rows in a leaf.
        """
        if not self._reader.newton_steps or isinstance(self.family, AsymmetricLaplace):
            return  # for the latter, leaf values are quantiles
        value, step, H, noise = self.newton_steps(train)
        norms = np.sqrt((H @ value**2) * (H @ step**2))
        if not norms > 0:
            return
        factor = (H @ (value * step)) / (H @ step**2)
        agreement = (H @ (value * step)) / norms
        excess = (H @ (value - factor * step) ** 2) / max(factor**2 * (H @ noise), 1e-300)
        if agreement < _MIN_AGREEMENT and excess > _MAX_NOISE:
            raise ExemplaError(
                f"The leaf values of this {type(self._reader.model).__name__} do not follow from "
                f"these training rows (agreement {agreement:.2f}, expected 1). Likely causes: an "
                "offset (init_score, base_margin, baseline) or a native custom objective, which "
                "exempla cannot explain; sample weights, which you can pass as (X, y, "
                "sample_weight); or other rows or labels than those it was trained on."
            )

    def newton_steps(self, train: RowExamples) -> np.ndarray:
        """Compare the large leaves of the first rounds with Newton steps on the training rows.

        Returns one column per leaf: its value, the Newton step Σ s / (Σ h + l2), Σ h, and the
        sampling variance of the step.
        """
        leaves, l2 = train.X, self._reader.l2 / self.family.loss_scale
        rounds = max(len(c.trees) for c in self._columns)
        parts: list[Any] = [np.zeros((4, 0))]
        for stage in range(1, min(rounds, _CHECKED_ROUNDS)):  # the first may include the start
            s, h = self.newton_terms(self._outputs(leaves, stage), train)
            for c in self._columns:
                if stage >= len(c.trees):
                    continue
                leaf, first = leaves[:, c.trees[stage]].astype(np.int64), int(c.starts[stage])
                size = int(c.sizes[stage])
                large = np.bincount(leaf, minlength=size) >= 5
                for j, o in enumerate(c.outputs):
                    G, H = (np.bincount(leaf, each[:, o], size) for each in (s, h))
                    D = np.maximum(H + l2, 1e-300)
                    left = s[:, o] - (G / D)[leaf] * h[:, o]
                    noise = np.bincount(leaf, left**2, size) / D / D  # D**2 is 0 in an empty leaf
                    value = c.values[first : first + size, j]
                    parts.append(np.stack([value, G / D, H, noise])[:, large])
        return np.concatenate(parts, axis=1)

    def newton_terms(self, outputs: np.ndarray, train: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the weighted scores and diagonal Hessians of training rows at these outputs."""
        at, root = self.family.curvature_root(outputs, train.codes)
        h = np.zeros_like(outputs)
        np.add.at(h, at, root**2)
        s = self.family.score(outputs, train.codes)
        w = 1.0 if train.weights is None else train.weights[:, None]
        return s * w, h * w

    def _mean_hessian(self, train: RowExamples, stage: int) -> float:
        """Return the mean trace of the output Fisher after the first `stage` rounds."""
        _, h = self.newton_terms(self._outputs(train.X, stage), train)
        return float(h.sum(axis=1).mean())

    # ---- scoring

    def _outputs(self, leaves: np.ndarray, stage: int | None = None) -> np.ndarray:
        """Return the ensemble's outputs, after all rounds or after the first ones."""
        return _summed_values(self._columns, leaves, self._n_outputs, stage) + self._base

    def _forward(self, part: RowExamples) -> tuple[np.ndarray, Any]:
        return self._outputs(part.X), part.X

    def _factors(
        self, state: Any, g: np.ndarray, at: np.ndarray | None
    ) -> tuple[_LeafFactors, ...]:
        leaves = state if at is None else state[at]
        kept = [self._columns[i] for i in self._kept]
        return tuple(_LeafFactors(c.inputs(leaves), g[:, c.outputs]) for c in kept)

    def _batch_rows(self, examples: RowExamples, copies: int = 1) -> int:
        return max(1, BATCH_BYTES // (12 * copies * self._reader.n_trees))


@contextmanager
def refusing_rows() -> Iterator[None]:
    """Turn what a library raises against the user's rows into an error with its first line."""
    try:
        yield
    except ExemplaError:
        raise
    except Exception as error:  # whatever the library raises, the data cause it
        lines = str(error).strip().splitlines()
        reason = lines[0].rstrip(".") if lines else type(error).__name__
        raise ExemplaError(f"The model refuses X ({reason}).") from error


def earlier_stages(model: Any, shares: Sequence[float] = (0.2, 0.4, 0.6, 0.8)) -> list[TreeOracle]:
    """Return the ensemble at earlier stages of boosting, for `Explainer([model, *stages])`.

    A model that fits its training data with certainty has almost no residuals left; its earlier
    stages still do. The explainer averages the kernels of all of them.

    Parameters
    ----------
    model : estimator
        A fitted boosted ensemble, possibly inside a Pipeline.
    shares : sequence of float
        Fractions of the trees to keep.

    Returns
    -------
    list of TreeOracle
        One oracle per share.

    Examples
    --------
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
    last = unwrap_estimator(model).model
    if not is_boosted(last):
        raise UnsupportedModelError(
            f"{type(last).__name__} is not boosted, so it has no stages: give a boosted ensemble."
        )
    if not shares or not all(0 < share <= 1 for share in shares):
        raise ExemplaError(f"shares are {list(shares)}: give fractions of the trees, such as 0.5.")
    return [TreeOracle(model, share=float(share)) for share in shares]
