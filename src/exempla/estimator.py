"""`FisherExplainer`, the scikit-learn door: a model that names the examples it learned from."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, MetaEstimatorMixin, clone, is_regressor
from sklearn.linear_model import LogisticRegression
from sklearn.utils import get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from exempla.errors import ExemplaError
from exempla.explainer import Explainer, Side
from exempla.oracles.base import Labels
from exempla.results import Explanation
from exempla.selection import Selector

__all__ = ["FisherExplainer"]


def _inner_has(method: str) -> Any:
    """Offer a method only where the wrapped model has it."""

    def check(self: FisherExplainer) -> bool:
        getattr(getattr(self, "estimator_", None) or self._inner(), method)
        return True

    return check


def _delegated(name: str, summary: str) -> Any:
    """Return a method that calls the fitted model's own."""

    def method(self: FisherExplainer, X: Any) -> np.ndarray:
        return getattr(self._fitted(), name)(X)

    method.__name__, method.__doc__ = name, summary
    return available_if(_inner_has(name))(method)


def _plain(data: Any) -> Any:
    """What calls itself an array, as one; frames, sparse matrices and lists as they are."""
    known = isinstance(data, np.ndarray) or hasattr(data, "iloc") or issparse(data)
    return np.asarray(data) if hasattr(data, "__array__") and not known else data


def _query(X: Any, y: Any) -> Any:
    return _plain(X) if y is None else (_plain(X), _plain(y))


class FisherExplainer(MetaEstimatorMixin, BaseEstimator):
    """A scikit-learn model together with the means to explain its predictions.

    `fit` clones and fits the model, then embeds the training set; prediction is the model's own.

    Parameters
    ----------
    estimator : classifier or regressor, default LogisticRegression()
        A linear model or perceptron of scikit-learn, or a Pipeline that ends in one. It is cloned,
        never changed.
    fisher, sketch, damping, normalize
        As for `Explainer`.
    seed : int
        Seed of every random choice of the explanation; the model has its own `random_state`.
    progress : bool
        Whether to show progress.

    Attributes
    ----------
    estimator_ : the fitted model
    explainer_ : Explainer
        Fitted on the training set; answers as many questions as you like.
    n_features_in_, feature_names_in_, classes_
        The fitted model's, where it has them.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> X, y = load_iris(return_X_y=True)
    >>> model = FisherExplainer(LogisticRegression(max_iter=500)).fit(X, y)
    >>> round(model.score(X, y), 2)
    0.97
    >>> answer = model.explain(X[70:71], y[70:71], k=3)
    >>> [int(y[i]) for i in answer.indices]
    [2, 2, 2]
    """

    def __init__(
        self,
        estimator: Any = None,
        *,
        fisher: str = "true",
        sketch: str | int = "auto",
        damping: str | float = "auto",
        normalize: bool = True,
        seed: int = 0,
        progress: bool = False,
    ) -> None:
        self.estimator, self.fisher, self.sketch, self.damping = estimator, fisher, sketch, damping
        self.normalize, self.seed, self.progress = normalize, seed, progress

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> FisherExplainer:
        """Fit a clone of the model and embed the training set."""
        X, y = _plain(X), _plain(y)
        sample_weight = None if sample_weight is None else _plain(sample_weight)
        self.estimator_: Any = clone(self._inner())
        weighted = {} if sample_weight is None else {"sample_weight": sample_weight}
        self.estimator_.fit(X, y, **weighted)
        if is_regressor(self.estimator_) and len(np.asarray(y)) == 1:
            raise ExemplaError(
                "A regressor fitted to 1 sample leaves no residual to explain: give two or more."
            )
        for name in ("n_features_in_", "feature_names_in_", "classes_"):
            if hasattr(self.estimator_, name):
                setattr(self, name, getattr(self.estimator_, name))
        options = {
            name: v for name, v in self.get_params(deep=False).items() if name != "estimator"
        }
        data = (X, y) if sample_weight is None else (X, y, sample_weight)
        self.explainer_ = Explainer(self.estimator_, **options).fit(data)
        return self

    def explain(
        self,
        X: Any,
        y: Any = None,
        k: int = 50,
        side: Side = "opponents",
        labels: Labels = "true",
        selector: Selector | None = None,
    ) -> Explanation:
        """Return the k training examples most responsible for the predictions of X.

        Without `y` the question is about the predicted labels.
        """
        return self._explainer().explain(_query(X, y), k, side, labels, selector)

    def influence(self, X: Any, y: Any = None, *, relative: bool = False) -> np.ndarray:
        """Return (n_train, n_test): what each example's log-likelihood loses if a row is removed;
        with `relative`, over the root of the row's own influence."""
        return self._explainer().influence(_query(X, y), relative=relative)

    predict = _delegated("predict", "Return the model's predictions.")
    predict_proba = _delegated("predict_proba", "Return the model's probabilities.")
    predict_log_proba = _delegated("predict_log_proba", "Return the model's log-probabilities.")
    decision_function = _delegated("decision_function", "Return the model's decision function.")

    @available_if(_inner_has("score"))
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The model's score: accuracy for classifiers, R² for regressors."""
        weighted = {} if sample_weight is None else {"sample_weight": sample_weight}
        return float(self._fitted().score(X, y, **weighted))

    def _inner(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _fitted(self) -> Any:
        check_is_fitted(self, "explainer_")
        return self.estimator_

    def _explainer(self) -> Explainer:
        check_is_fitted(self, "explainer_")
        return self.explainer_

    def __sklearn_tags__(self) -> Any:
        tags = get_tags(self._inner())
        tags.array_api_support = False
        return tags
