"""The special case the paper starts from: influence functions, for one test point or many.

    influence[i, j] = s_iᵀ M⁻¹ s_j / n

is what test point j's log-likelihood loses, to first order, when training point i is removed.
With M the Hessian of the mean penalised loss this is Koh and Liang's influence; with M the model's
own Fisher it is the Fisher kernel over n. For models with a canonical link the two are one, at any
θ; elsewhere (a perceptron) they differ, and the Fisher is the one that is always positive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from exempla.arrays import Array, as_like, products, to_numpy
from exempla.embedding import Embedding
from exempla.errors import ExemplaError
from exempla.fisher import check_damping
from exempla.fisher.conjugate import conjugate_gradients
from exempla.oracles import make_oracle
from exempla.oracles.base import Examples, Labels, Oracle
from exempla.progress import say, track
from exempla.sketch.identity import IdentitySketch
from exempla.sketch.kronecker import KroneckerSketch
from exempla.target import shares

__all__ = [
    "SetInfluence",
    "hessian",
    "hessian_influence",
    "refuse_overflow",
    "self_influence",
    "set_influence",
]

CG_STEPS, CG_TOLERANCE = 25, 1e-2
"""Passes over the data that conjugate gradients may take, and the residual they stop at."""
HESSIAN_LIMIT = 4096
"""Most parameters whose Hessian is written out."""


def self_influence(train_rows: Array) -> np.ndarray:
    """Influence of every whitened training row on itself, (n_train,).

    >>> import numpy as np
    >>> self_influence(np.array([[2.0, 0.0], [0.0, 1.0]]))
    array([2. , 0.5])
    """
    return to_numpy((train_rows * train_rows).sum(1)) / len(train_rows)


@dataclass(frozen=True)
class SetInfluence:
    """Influence of every training example on a set of predictions as one, and how it was found."""

    values: np.ndarray
    """(n_train,): what the set's mean log-likelihood loses if a training example is removed."""
    solver: str
    """In words: the sketch, or conjugate gradients and how well they solve."""
    residual: float
    """‖b − M x‖ / ‖b‖ with the Fisher of all parameters, of the worst model: 0 where the embedding
    is exact, infinite where it was not measured."""
    steps: int
    """Passes over the training set that solving took, all models together."""


def set_influence(
    embeddings: list[Embedding],
    examples: list[Examples],
    labels: Labels,
    dampings: list[float],
    weights: Any = None,
    limit: int = CG_STEPS,
) -> SetInfluence:
    """Influence on the (weighted) mean log-likelihood of a set, averaged over the models.

    It is taken with the Fisher of all parameters, not of the sketch alone: the damped equations
    (F + δ) x = Σ_j w_j s_j are solved by conjugate gradients. The sketch is the first guess and the
    preconditioner, so that a few passes over the data are enough. An exact embedding needs none,
    and a model without such an operator (one that is not of torch) has only its sketch.
    """
    share = shares(weights, len(examples[0]))
    if share.ndim != 1:
        raise ExemplaError("a set is one question: give one weight per questioned example.")
    each = [
        one_influence(e, x, labels, share, d, limit)
        for e, x, d in zip(embeddings, examples, dampings, strict=True)
    ]
    worst = max(each, key=lambda found: found.residual)
    return replace(
        worst,
        values=np.mean([found.values for found in each], axis=0),
        steps=sum(found.steps for found in each),
    )


def one_influence(
    embedding: Embedding,
    examples: Examples,
    labels: Labels,
    weights: np.ndarray,
    damping: float,
    limit: int,
) -> SetInfluence:
    """Of one model."""
    n, sketch = len(embedding.train), embedding.sketch
    operator = None
    if isinstance(sketch, KroneckerSketch) and embedding.metric.name == "full":
        operator = embedding.oracle.gauss_newton(embedding.train)
    if operator is None:
        rows, _ = embedding.embed(examples, labels)
        solved = embedding.metric.solve(as_like(weights[None, :], rows) @ rows, damping)
        values = products(embedding.rows_near_model(), solved)[:, 0] / n
        said = "exact" if sketch.exact else f"the sketch alone ({sketch.note})"
        return SetInfluence(values, said, 0.0 if sketch.exact else np.inf, 0)
    steps = conjugate_gradients(
        lambda v: operator.product(v) + damping * v,
        operator.score_sum(examples, labels, weights),
        sketch_inverse(embedding, damping),
        CG_TOLERANCE,
        limit,
    )
    steps = track(steps, "solving, a pass over the training set a step", limit)
    found = deque(steps, maxlen=1).pop()
    said = f"conjugate gradients, {found.steps} passes, residual {found.residual:.1e}"
    say(f"influence on the set by {said}")
    return SetInfluence(operator.along_scores(found.x) / n, said, found.residual, found.steps)


def sketch_inverse(embedding: Embedding, damping: float) -> Callable[[Any], Any]:
    """v ↦ about (F + δ)⁻¹ v: the sketch's inverse inside it, one mean eigenvalue outside."""
    sketch, evidence = embedding.sketch, embedding.evidence
    assert isinstance(sketch, KroneckerSketch)
    others = max(evidence.parameters - sketch.width, 1)
    beyond = damping + (1.0 - evidence.share) * evidence.trace / others

    def near(v: Any) -> Any:
        inside = sketch.coordinates(v)
        solved = as_like(to_numpy(embedding.metric.solve(inside[None], damping))[0], v)
        return sketch.lifted(solved - inside / beyond) + v / beyond

    return near


def refuse_overflow(values: np.ndarray, what: str) -> np.ndarray:
    """The values, if all of them are numbers."""
    if not np.isfinite(values).all():
        raise ExemplaError(f"{what} overflows: are the inputs of all examples scaled alike?")
    return values


def hessian(oracle: Oracle, train: Examples, step: float = 1e-5) -> np.ndarray:
    """Hessian of the mean penalised loss at the model's parameters, (P, P).

    Central differences of the mean score: no assumption on the model, 2P passes over the data.
    """
    theta = oracle.theta
    if len(theta) > HESSIAN_LIMIT:
        raise ExemplaError(
            f"a Hessian of {len(theta)} parameters is too large to write out (the limit is "
            f"{HESSIAN_LIMIT}): use Explainer.influence, whose metric is the Fisher."
        )
    columns = []
    for j in range(len(theta)):
        shift = np.zeros_like(theta)
        shift[j] = step * max(1.0, abs(theta[j]))
        up = mean_score(oracle.at(theta + shift), train)
        down = mean_score(oracle.at(theta - shift), train)
        columns.append((down - up) / (2 * shift[j]))
    curvature = np.stack(columns, axis=1)
    return (curvature + curvature.T) / 2 + np.diag(IdentitySketch(oracle.layers).penalty)


def mean_score(oracle: Oracle, examples: Examples) -> np.ndarray:
    """(1/n) Σ s_i, summed batch by batch."""
    total = sum(batch.sum(0) for batch in written_out(oracle, examples))
    return np.asarray(total) / len(examples)


def written_out(oracle: Oracle, examples: Examples) -> Iterator[np.ndarray]:
    """The scores in full, (n, P) a batch."""
    write = IdentitySketch(oracle.layers).project
    return (to_numpy(write(batch)) for batch in oracle.scores(examples))


def hessian_influence(model: Any, train: Any, test: Any, damping: float = 0.0) -> np.ndarray:
    """Koh and Liang's influence, with the Hessian itself as the metric: (n_train, n_test).

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import StandardScaler
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = StandardScaler().fit_transform(X)
    >>> model = LogisticRegression().fit(X[:200], y[:200])
    >>> hessian_influence(model, (X[:200], y[:200]), (X[200:203], y[200:203])).shape
    (200, 3)
    """
    added = check_damping(damping)
    if isinstance(added, str):
        raise ExemplaError(f"damping={damping!r}: beside a Hessian it is a number, 0 by default.")
    oracle = make_oracle(model)
    train_examples = oracle.read(train, role="train")
    H = hessian(oracle, train_examples)
    H[np.diag_indices_from(H)] += added
    rows = np.concatenate(list(written_out(oracle, train_examples)))
    targets = np.concatenate(list(written_out(oracle, oracle.read(test, role="test"))))
    try:
        found = rows @ np.linalg.solve(H, targets.T) / len(rows)
    except np.linalg.LinAlgError:
        raise ExemplaError("the Hessian has no inverse: give a damping above zero.") from None
    return refuse_overflow(found, "influence")
