"""Scores of models that are dense layers under a likelihood: linear models, kernels, perceptrons.

`OutputOracle` scores models whose outputs feed a likelihood: ∂ log p/∂ outputs times the gradient
of the outputs. `DenseModel` describes a fitted model: its layers, likelihood and penalty. It goes
forward to the outputs and backward to the factors (a, g) of every layer; a linear model has one
layer, and CSR inputs stay CSR. Every penalty is brought to one form: the mean over the n rows of
w_i·(−log p_i), plus Σ λ/2·v² over the weights v. At a fitted optimum therefore
Σ_i w_i s_i = n·λ·v, which the tests check. `_READERS` maps each class of estimators to the short
function that reads it; those of kernel machines are in `instance_based.py`.

`SklearnOracle.layers` carries the penalty, which depends on the number of training rows and, for
least squares, on the residual variance. It is correct once `read(data, role="train")` has returned.
"""

from __future__ import annotations

import inspect
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.utils.class_weight import compute_class_weight

from exempla.arrays import Array, is_sparse
from exempla.errors import ExemplaError, ExemplaWarning, UnsupportedModelError
from exempla.oracles.base import CLASS_CUT, Factors, Labels, Layer, ScoreRows
from exempla.oracles.likelihoods import (
    Bernoulli,
    Categorical,
    Gaussian,
    Likelihood,
    OneVsRest,
    Poisson,
)
from exempla.oracles.sklearn.base import (
    BATCH_BYTES,
    MAX_BATCH_ROWS,
    FittedOracle,
    SklearnExamples,
    class_weights,
    keep_layers,
)
from exempla.oracles.sklearn.losses import AsymmetricLaplace, Huber, Margin, Tube, Tweedie

_ACTIVATIONS: dict[str, tuple[Callable, Callable]] = {
    # φ(z), and φ′(z) written in h = φ(z)
    "identity": (lambda z: z, np.ones_like),
    "logistic": (expit, lambda h: h * (1 - h)),
    "tanh": (np.tanh, lambda h: 1 - h**2),
    "relu": (lambda z: np.maximum(z, 0), lambda h: (h > 0).astype(h.dtype)),
}


@dataclass(frozen=True)
class DenseModel:
    """outputs = W_L φ(… φ(W_1 x + b_1) …) + b_L under a likelihood, with a penalty."""

    blocks: tuple[np.ndarray, ...]
    """One (d_in, d_out) matrix per layer."""
    bias: bool
    """True if the last row of every matrix is the bias, whose input is 1."""
    likelihood: Likelihood
    penalty: float | np.ndarray
    """penalty/2·v² on every weight v is added to the losses; an array has one per input column."""
    added_to: Literal["sum", "mean", "weighted mean"] = "sum"
    """What the penalty is added to: the sum or a mean of the losses."""
    batch: int | None = None
    """Rows per mini-batch, if the sum is over a mini-batch."""
    activation: str = "identity"
    first: Callable[[Array], Array] | None = None
    """Transformation of x before the first layer, without parameters; None: none."""
    n_inputs: int | None = None
    """Columns of x, if there is such a transformation."""
    offset: float = 0.0
    """A constant added to the outputs; not a parameter."""
    intercept_penalty: float = 0.0
    """λ of the intercept, as a multiple of that of the weights."""
    note: str = ""
    """A remark for every explanation: approximations, and what is left out."""
    with_training: Callable[[Any], DenseModel] | None = None
    """Returns the model once its training inputs are known, if its features depend on them."""

    @property
    def n_features(self) -> int:
        return len(self.blocks[0]) - self.bias if self.n_inputs is None else self.n_inputs

    def forward(self, X: Array) -> tuple[list[Array], np.ndarray]:
        """Return the inputs of every layer (with a column of ones for a bias), and the outputs."""
        phi = _ACTIVATIONS[self.activation][0]
        inputs, z = [], X if self.first is None else self.first(X)
        for depth, block in enumerate(self.blocks):
            h = z if depth == 0 else phi(z)
            inputs.append(_with_ones(h) if self.bias else h)
            z = inputs[-1] @ block
        return inputs, z + self.offset if self.offset else z

    def backward(self, inputs: list[Array], g: np.ndarray) -> tuple[Factors, ...]:
        """Return the factors of every layer, given ∂ log p / ∂ outputs."""
        slope = _ACTIVATIONS[self.activation][1]
        factors: list[Factors] = [Factors(inputs[-1], g)]
        for depth in range(len(self.blocks) - 1, 0, -1):
            width = len(self.blocks[depth]) - self.bias
            g = (g @ self.blocks[depth][:width].T) * slope(inputs[depth][:, :width])
            factors.append(Factors(inputs[depth - 1], g))
        return tuple(reversed(factors))

    def penalty_per_row(self, n: int, mean_weight: float) -> float | np.ndarray:
        """Return λ relative to the mean of w_i·loss_i over n rows, before any loss scale."""
        if self.added_to == "sum":
            return self.penalty / min(n, self.batch or n)
        # a weighted mean divides by Σ w_i = n·mean_weight, whereas the objective divides by n
        return self.penalty * (mean_weight if self.added_to == "weighted mean" else 1.0)


def _with_ones(X: Array) -> Array:
    """Append a column of ones to X; CSR stays CSR."""
    ones = np.ones((X.shape[0], 1))
    if is_sparse(X):
        return sp.csr_array(sp.hstack([X, sp.csr_array(ones)], format="csr"))
    return np.hstack([X, ones])


class OutputOracle(FittedOracle):
    """An oracle whose scores are ∂ log p/∂ outputs times the gradient of the outputs.

    Subclasses compute the outputs of a batch in `_forward` and the factors in `_factors`.
    """

    family: Likelihood
    """The likelihood that turns outputs and labels into scores."""
    _cut = 0.0
    """Probability below which a class is dropped from the Fisher."""

    @abstractmethod
    def _forward(self, part: Any) -> tuple[np.ndarray, Any]:
        """Return the outputs of a batch, and what `_factors` needs."""

    @abstractmethod
    def _factors(self, state: Any, g: np.ndarray, at: np.ndarray | None) -> tuple[Factors, ...]:
        """Return the factors of rows with these output gradients, taken at these examples."""

    def _set_family(self, own: Likelihood) -> None:
        """Use the model's own likelihood, or the user's if it only fixes the variance."""
        wanted = self._wanted
        self.family = own if wanted is None or (wanted.discrete and own.discrete) else wanted
        if self.family.name != own.name:
            raise ExemplaError(
                f"{type(self._last).__name__} was fitted under the {own.name} likelihood, so "
                f"likelihood={self.family.name!r} would not give its scores: leave it at 'auto'."
            )
        self.likelihood = self.family.name

    def _drop_rare_classes(self, drop: bool) -> None:
        self._cut = CLASS_CUT if drop else 0.0
        self.fisher_note = f"exact over classes above {CLASS_CUT:g}" if drop else "exact"

    def _fit_family(self, train: Any, advice: str) -> Likelihood:
        """Return the likelihood with its scale estimated from the training residuals."""
        parts = [(self._forward(part)[0], part.codes) for _, part in self._batches(train)]
        outputs, y = (np.concatenate(part) for part in zip(*parts, strict=True))
        fitted = self.family.fitted(outputs, y, train.weights)
        in_squares = isinstance(fitted, Gaussian | Huber | AsymmetricLaplace)
        rounding = 1e-20 * float(np.mean(np.square(y, dtype=np.float64))) if in_squares else 0.0
        if not fitted.loss_scale > rounding:
            raise ExemplaError(
                f"{type(self._last).__name__} fits its training data without any residual, so its "
                f"scores are all zero: {advice}."
            )
        return fitted

    def scores(self, examples: Any, labels: Labels = "true") -> Iterator[ScoreRows]:
        """Yield one row per example, in order, in batches."""
        self._check_labels(examples, labels)
        for positions, part in self._batches(examples):
            outputs, state = self._forward(part)
            y = part.codes if labels == "true" else self.family.predict(outputs)
            g = self.family.score(outputs, y)
            if part.weights is not None:
                g = g * part.weights[:, None]
            yield ScoreRows(positions, self._factors(state, g, None))

    def fisher_rows(self, examples: Any) -> Iterator[ScoreRows]:
        """Yield rows whose outer products sum to each example's Fisher, in batches."""
        for positions, part in self._batches(examples, self._n_outputs):
            outputs, state = self._forward(part)
            at, root = self.family.curvature_root(outputs, part.codes, self._cut)
            if part.weights is not None:
                root = root * np.sqrt(part.weights[at])[:, None]
            counted = None
            if not self._cut:
                counted = len(self.family.curvature_root(outputs, part.codes, CLASS_CUT)[0])
            yield ScoreRows(positions[at], self._factors(state, root, at), counted)

    def _predicted(self, part: Any) -> np.ndarray:
        found = self.family.predict(self._forward(part)[0])
        return found if self.classes is None else self.classes[found]

    def _log_prob(self, part: Any) -> np.ndarray:
        return self.family.log_prob(self._forward(part)[0], part.codes)


class SklearnOracle(OutputOracle):
    """Scores of a model that is a stack of dense layers under a likelihood.

    `parameters` names the layers to keep: "coef" for a linear model, "layer0", "layer1", … for a
    perceptron (globs allowed); None keeps all.
    """

    def _inspect(self, model: Any) -> None:
        self._dense = _read(model)
        self._set_family(self._dense.likelihood)
        depth, self._n_outputs = len(self._dense.blocks), self._dense.blocks[-1].shape[1]
        self._names = ["coef"] if depth == 1 else [f"layer{i}" for i in range(depth)]
        self._kept = keep_layers(self._names, self._parameters)
        # a linear model's Fisher is its Hessian and stays exact; a network's drops rare classes
        self._drop_rare_classes(depth > 1 and isinstance(self.family, Categorical | OneVsRest))
        self.notes = self._all_notes()

    def _all_notes(self) -> tuple[str, ...]:
        words, name = getattr(self.family, "words", ""), type(self._last).__name__
        return self._remarks(self._dense.note, words and _LOSS_NOTE.format(name=name, loss=words))

    @property
    def linear_in_inputs(self) -> bool:
        """True if the first layer sees X as given: no step before it, and no kernel."""
        return self._transform is None and self._dense.first is None

    @property
    def n_features(self) -> int:
        """Number of columns of X that the model sees."""
        return self._dense.n_features

    # ---- parameters

    def _blocks(self) -> list[np.ndarray]:
        return [self._dense.blocks[i] for i in self._kept]

    def _set_blocks(self, blocks: list[np.ndarray]) -> None:
        moved = dict(zip(self._kept, blocks, strict=True))
        every = (moved.get(i, block) for i, block in enumerate(self._dense.blocks))
        self._dense = replace(self._dense, blocks=tuple(every))

    @property
    def theta_squares(self) -> list[tuple[int, float]]:
        return [(block.size, float(np.vdot(block, block))) for block in self._blocks()]

    def penalty_rows(self) -> ScoreRows | None:
        """Return the penalty's gradient, one row per output: column o of a block, against e_o."""
        if not any(layer.penalty.any() for layer in self.layers):
            return None
        factors, first, total = [], 0, sum(layer.d_out for layer in self.layers)
        for layer, block in zip(self.layers, self._blocks(), strict=True):
            g = np.eye(total)[:, first : first + layer.d_out]
            factors.append(Factors(g @ (layer.penalty[:, None] * block).T, g))
            first += layer.d_out
        return ScoreRows(np.full(total, -1), tuple(factors))

    # ---- reading

    def _class_weights(self, codes: Any, weights: np.ndarray | None) -> np.ndarray | None:
        by_weight = _BALANCED_BY_WEIGHT and isinstance(self._last, LogisticRegression)
        given = getattr(self._last, "class_weight", None)
        return class_weights(given, self.classes, codes, weights if by_weight else None)

    def _learn(self, train: SklearnExamples, mean_weight: float) -> None:
        """Estimate the likelihood's scale and express the penalty as λ of the mean loss."""
        if self._dense.with_training is not None and not self._moved:
            self._dense = self._dense.with_training(train.X)
        self.family = self._fit_family(
            train, "give it a penalty, or a variance with likelihood=Gaussian(variance=...)"
        )
        dense, layers = self._dense, []
        # −log p is the model's loss divided by loss_scale (σ² for squares), and so is its penalty
        lam = dense.penalty_per_row(len(train), mean_weight) / self.family.loss_scale
        for i in self._kept:
            d_in, d_out = dense.blocks[i].shape
            penalty = np.zeros(d_in)
            penalty[: d_in - dense.bias] = lam
            if dense.bias and dense.intercept_penalty:
                penalty[-1] = lam * dense.intercept_penalty
            layers.append(Layer(self._names[i], d_in, d_out, penalty))
        self.layers = tuple(layers)
        self.notes = self._all_notes()

    # ---- scoring

    def _forward(self, part: SklearnExamples) -> tuple[np.ndarray, Any]:
        activations, outputs = self._dense.forward(part.X)
        return outputs, activations

    def _factors(self, state: Any, g: np.ndarray, at: np.ndarray | None) -> tuple[Factors, ...]:
        inputs = state if at is None else [a[at] for a in state]
        factors = self._dense.backward(inputs, g)
        return tuple(factors[i] for i in self._kept)

    def _batch_rows(self, examples: SklearnExamples, copies: int = 1) -> int:
        width = sum(sum(block.shape) for block in self._dense.blocks)
        if is_sparse(examples.X):
            width += examples.X.nnz // max(1, len(examples)) - self._dense.n_features
        return int(np.clip(BATCH_BYTES // (8 * copies * max(1, width)), 1, MAX_BATCH_ROWS))


# ---- readers

_BALANCED_BY_WEIGHT = "sample_weight" in inspect.signature(compute_class_weight).parameters
"""Newer versions of scikit-learn's logistic regression balance classes by weight."""

_LOSS_NOTE = (
    "{name} minimises a loss without a likelihood: scores are minus the gradient of its {loss}, "
    "and the metric is the curvature of that loss at the given labels"
)


def _read(model: Any) -> DenseModel:
    """Read a fitted model as dense layers under a likelihood."""
    # the nearest ancestor that has a reader
    known = next((kind.__name__ for kind in type(model).__mro__ if kind.__name__ in _READERS), None)
    if known is not None:
        return _READERS[known](model)
    from exempla.oracles.sklearn.instance_based import read_kernel

    return read_kernel(model)


def _linear(model: Any, likelihood: Likelihood, penalty: Any, **fields: Any) -> DenseModel:
    """Return coef_ and intercept_ as a model of one layer."""
    # copy, because some models are refitted in place
    block = np.atleast_2d(np.array(model.coef_, dtype=np.float64)).T
    if model.fit_intercept:
        block = np.vstack([block, np.broadcast_to(np.ravel(model.intercept_), block.shape[1])])
    if getattr(model, "solver", "liblinear") == "liblinear" and hasattr(model, "intercept_scaling"):
        # liblinear appends a constant feature of this value and penalises its weight b / scaling
        fields["intercept_penalty"] = 1 / float(model.intercept_scaling) ** 2
    return DenseModel((block,), model.fit_intercept, likelihood, penalty, **fields)


# ---- classifiers


def _logistic(model: Any) -> DenseModel:
    multi_class = getattr(model, "multi_class", "auto")  # gone since scikit-learn 1.8
    two = len(model.classes_) == 2
    if two and multi_class == "multinomial":
        raise UnsupportedModelError(
            "LogisticRegression(multi_class='multinomial') doubles the log-odds of two classes: "
            "leave multi_class at its default."
        )
    one_vs_rest = multi_class == "ovr" or (
        model.solver == "liblinear" and multi_class != "multinomial"
    )
    several: Likelihood = OneVsRest() if one_vs_rest else Categorical()
    return _linear(model, Bernoulli() if two else several, _logistic_penalty(model))


def _logistic_penalty(model: Any) -> float:
    """Return the L2 part of the penalty 1/C."""
    if hasattr(model, "C_"):  # LogisticRegressionCV
        # with a C for each class, their geometric mean
        strength = float(1 / np.exp(np.mean(np.log(model.C_))))
        ratios = [r for r in np.ravel(model.l1_ratio_) if r is not None]
        ratio = float(np.mean(np.asarray(ratios, dtype=np.float64))) if ratios else 0.0
    else:
        strength, ratio = 1 / model.C, float(getattr(model, "l1_ratio", 0) or 0)
    penalty = getattr(model, "penalty", "deprecated")
    if penalty is None:
        return 0.0
    if penalty in ("l1", "l2"):  # the old argument overrides l1_ratio
        ratio = float(penalty == "l1")
    return _l2_part(model, strength, ratio)


def _l2_part(model: Any, strength: float, l1_ratio: float) -> float:
    """Return the L2 part of a penalty; warn if there is an L1 part."""
    if l1_ratio > 0 and strength > 0:
        warnings.warn(
            f"{type(model).__name__} has an L1 penalty, which has no curvature: only the L2 part "
            f"({1 - l1_ratio:.0%} of the penalty) enters the Fisher metric.",
            ExemplaWarning,
            stacklevel=2,
        )
    return strength * (1 - l1_ratio)


def _sgd_penalty(model: Any) -> float:
    shares = {"l2": 0.0, "l1": 1.0, "elasticnet": model.l1_ratio}
    return 0.0 if model.penalty is None else _l2_part(model, model.alpha, shares[model.penalty])


def _sgd(model: Any) -> DenseModel:
    count = len(model.classes_)
    likelihood: Likelihood = Bernoulli() if count == 2 else OneVsRest()
    if model.loss != "log_loss":
        likelihood = Margin.one_vs_rest(model.loss, count)
    return _linear(model, likelihood, _sgd_penalty(model), added_to="mean")


def _linear_svc(model: Any) -> DenseModel:
    if model.multi_class != "ovr":
        raise UnsupportedModelError(
            f"LinearSVC(multi_class={model.multi_class!r}) couples all classes in one margin: "
            "leave multi_class at 'ovr'."
        )
    margin = Margin.one_vs_rest(model.loss, len(model.classes_))
    return _linear(model, margin, _l2_part(model, 1 / model.C, float(model.penalty == "l1")))


# ---- regressions


def _least_squares(model: Any) -> DenseModel:
    alpha = getattr(model, "alpha_", getattr(model, "alpha", 0.0))
    if np.ptp(alpha) > 0:
        raise UnsupportedModelError(
            f"{type(model).__name__} has a different alpha per output: fit one model each."
        )
    return _linear(model, Gaussian(), float(np.mean(alpha)))


def _lasso(model: Any) -> DenseModel:
    """Minimises mean(r²)/2 + α·(ρ‖w‖₁ + (1 − ρ)‖w‖²/2), smooth in the nonzero coefficients."""
    alpha = float(getattr(model, "alpha_", getattr(model, "alpha", 0.0)))
    ratio = float(getattr(model, "l1_ratio_", getattr(model, "l1_ratio", 1.0)))
    return _active(model, Gaussian(), alpha * (1 - ratio), added_to="weighted mean")


def _active(model: Any, *args: Any, **fields: Any) -> DenseModel:
    """Return the model restricted to columns with a nonzero coefficient."""
    whole, name = _linear(model, *args, **fields), type(model).__name__
    block, n_features = whole.blocks[0], whole.n_features
    if block.shape[1] > 1:
        raise UnsupportedModelError(
            f"{name} has several outputs: use MultiOutputRegressor({name}())."
        )
    columns = np.flatnonzero(block[:n_features])
    if not len(columns) and not whole.bias:
        raise UnsupportedModelError(
            f"{name} set every coefficient to zero, so nothing has influence: use a smaller alpha."
        )
    note = (
        f"{name}: only the {len(columns)} nonzero of {n_features} coefficients are scored; the "
        "L1 penalty keeps the others at zero"
    )
    first = partial(_take_columns, columns=columns)
    block = np.concatenate([block[columns], block[n_features:]])
    penalty = whole.penalty
    penalty = penalty[columns] if isinstance(penalty, np.ndarray) else penalty
    return replace(
        whole, blocks=(block,), penalty=penalty, first=first, n_inputs=n_features, note=note
    )


def _take_columns(X: Array, columns: np.ndarray) -> Array:
    return X[:, columns]


def _bayesian_ridge(model: Any) -> DenseModel:
    # minimises α/2·Σr² + λ/2·‖w‖², with noise precision α
    noise = 1 / float(model.alpha_)
    return _linear(model, Gaussian(noise), float(model.lambda_) * noise)


def _ard(model: Any) -> DenseModel:
    noise = 1 / float(model.alpha_)
    return _active(model, Gaussian(noise), noise * np.asarray(model.lambda_, dtype=np.float64))


def _tweedie(model: Any, power: float | None = None) -> DenseModel:
    """Also the Poisson and Gamma regressions, which are Tweedie models of power 1 and 2."""
    power = float(model.power) if power is None else power
    link = getattr(model, "link", "log")
    if link == "auto":
        link = "identity" if power <= 0 else "log"
    if power < 0:
        raise UnsupportedModelError(
            f"TweedieRegressor(power={power:g}) has no density: use a power of 0 or from 1 on."
        )
    family: Likelihood = Tweedie(power, link == "log")
    if (power, link) == (1.0, "log"):
        family = Poisson()
    elif (power, link) == (0.0, "identity"):
        family = Gaussian()
    return _linear(model, family, model.alpha, added_to="weighted mean")


def _huber(model: Any) -> DenseModel:
    # n·σ + 2σ·Σh(r)/σ² + α‖w‖², with h(r) quadratic up to εσ; divided by 2σ that is −log p
    sigma = float(model.scale_)
    family = Huber(float(model.epsilon) * sigma, scale=sigma**2)
    return _linear(model, family, float(model.alpha) * sigma)


def _sgd_regressor(model: Any) -> DenseModel:
    epsilon = float(model.epsilon)
    family: Likelihood = Tube(epsilon, squared=model.loss.startswith("squared"))
    if model.loss in ("squared_error", "huber"):
        family = Huber(epsilon) if model.loss == "huber" else Gaussian()
    # half the squared error, as in −log p; the squared tube is not halved
    return _linear(model, family, _sgd_penalty(model), added_to="mean")


def _linear_svr(model: Any) -> DenseModel:
    tube = Tube(float(model.epsilon), model.loss.startswith("squared"))
    return _linear(model, tube, 1 / model.C)


# ---- perceptrons


def _mlp(model: Any) -> DenseModel:
    pairs = zip(model.coefs_, model.intercepts_, strict=True)
    blocks = tuple(np.vstack(pair, dtype=np.float64) for pair in pairs)
    if not hasattr(model, "classes_"):
        counts = getattr(model, "loss", "squared_error") == "poisson"
        likelihood: Likelihood = Poisson() if counts else Gaussian()
    else:
        logistic = model.out_activation_ == "logistic"
        likelihood = Bernoulli() if logistic else Categorical()
        if logistic and blocks[-1].shape[1] > 1:
            raise UnsupportedModelError(
                "MLPClassifier was fitted on multilabel data: fit one model per label."
            )
    # the gradient adds alpha·W before dividing by the number of rows *it was computed on*:
    # all n for lbfgs, a mini-batch for sgd and adam
    batch = 200 if model.batch_size == "auto" else int(model.batch_size)
    batch = None if model.solver == "lbfgs" else batch
    return DenseModel(
        blocks, True, likelihood, model.alpha, batch=batch, activation=model.activation
    )


_READERS: dict[str, Callable[[Any], DenseModel]] = {
    name: reader
    for names, reader in {
        "LogisticRegression": _logistic,  # LogisticRegressionCV is one too
        "SGDClassifier": _sgd,
        "LinearSVC": _linear_svc,
        "LinearRegression Ridge RidgeCV": _least_squares,
        # Lasso is an ElasticNet
        "ElasticNet ElasticNetCV LassoCV LassoLars LassoLarsCV LassoLarsIC": _lasso,
        "BayesianRidge": _bayesian_ridge,
        "ARDRegression": _ard,
        "PoissonRegressor": partial(_tweedie, power=1.0),
        "GammaRegressor": partial(_tweedie, power=2.0),
        "TweedieRegressor": _tweedie,
        "HuberRegressor": _huber,
        "SGDRegressor": _sgd_regressor,
        "LinearSVR": _linear_svr,
        "MLPClassifier MLPRegressor": _mlp,
    }.items()
    for name in names.split()
}
