"""Put weights trained elsewhere into a scikit-learn perceptron."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.neural_network import MLPClassifier

from exempla.errors import ExemplaError

__all__ = ["mlp_classifier_from_weights"]


def mlp_classifier_from_weights(
    weights: Sequence[tuple[Any, Any]],
    classes: Any,
    *,
    activation: str = "relu",
    alpha: float = 0.0,
) -> MLPClassifier:
    """An MLPClassifier with these (W, b) per layer, W being (d_out, d_in) as torch keeps it.

    Two classes are one output (the log-odds of the second), more are one output each. `alpha` is
    the penalty of a fit on all rows at once: λ = alpha / n, so alpha = weight_decay · n.

    >>> import numpy as np
    >>> layers = [(np.eye(2), np.zeros(2)), (np.array([[1.0, -1.0]]), np.zeros(1))]
    >>> mlp_classifier_from_weights(layers, ["no", "yes"]).predict([[3.0, 1.0], [1.0, 3.0]])
    array(['yes', 'no'], dtype='<U3')
    """
    classes = np.unique(np.asarray(classes))
    matrices = [(np.asarray(W, dtype=np.float64), np.asarray(b, np.float64)) for W, b in weights]
    expected = 1 if len(classes) == 2 else len(classes)
    if len(matrices) < 2 or len(matrices[-1][1]) != expected:
        raise ExemplaError(
            f"{len(classes)} classes need at least two layers, the last with {expected} output(s)."
        )
    hidden = tuple(len(b) for _, b in matrices[:-1])
    model = MLPClassifier(
        hidden, activation=activation, solver="lbfgs", alpha=alpha, max_iter=1, random_state=0
    )
    # one step on a placeholder lets scikit-learn set up whatever `predict` needs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(np.zeros((len(classes), matrices[0][0].shape[1])), classes)
    for i, (W, b) in enumerate(matrices):
        if W.T.shape != model.coefs_[i].shape or b.shape != model.intercepts_[i].shape:
            raise ExemplaError(
                f"Layer {i} has a {W.shape} matrix and {b.shape} biases, but a "
                f"{model.coefs_[i].T.shape} matrix and {model.intercepts_[i].shape} biases fit."
            )
    model.coefs_ = [W.T for W, _ in matrices]
    model.intercepts_ = [b for _, b in matrices]
    return model.set_params(max_iter=200)
