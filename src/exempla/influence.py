"""The special case the paper starts from: influence functions, for one test point or many.

    influence[i, j] = s_iᵀ M⁻¹ s_j / n

is what test point j's log-likelihood loses, to first order, when training point i is removed.
With M the Hessian of the mean penalised loss this is Koh and Liang's influence; with M the model's
own Fisher it is the Fisher kernel over n. For models with a canonical link the two are one, at any
θ; elsewhere (a perceptron) they differ, and the Fisher is the one that is always positive.

What removing some training examples is predicted to do to the questioned predictions.

Removing training examples S takes their scores and their part of the Fisher away. One Newton step
from the trained weights to those of the rest is, with M the metric and R the Fisher rows of S,

    Δθ = −(nM − RᵀR)⁻¹ Σ_S s_i = −(x + M⁻¹Rᵀ(n − R M⁻¹Rᵀ)⁻¹ R x)/n,    x = M⁻¹ Σ_S s_i

whose first term alone is the sum of the influences; the second matters where many examples go that
share a direction. For a model of classes the change is carried over in log-odds, so that no
probability passes 1. As many rows drawn by chance are the measure of how much that is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from exempla.arrays import Array, as_like, concatenate, products, to_numpy
from exempla.errors import ExemplaError
from exempla.kernel.basis import IdentitySketch, KroneckerSketch
from exempla.kernel.damping import check_damping
from exempla.kernel.embed import Embedding, squares
from exempla.kernel.query import Scored, shares
from exempla.kernel.residual import conjugate_gradients, counts, kernel_with
from exempla.oracles import make_oracle
from exempla.oracles.base import Examples, Labels, Oracle
from exempla.progress import say, track
from exempla.store import StoredRows

_CG_STEPS, _CG_TOLERANCE = 25, 1e-2
"""Passes over the data that conjugate gradients may take, and the residual they stop at."""
LEVELLING = 0.5
"""How far the moments of one training are made equal in size: 0 a plain mean, 1 one vote each.
Chosen out of five on the `choose` half of the truths (`benchmarks.truths.moments`)."""
_TINY = 1e-30
BLOCK_BYTES = 2**28
"""What the columns solved together may take, ten numbers a parameter and column."""
_HESSIAN_LIMIT = 4096
"""Most parameters whose Hessian is written out."""


def self_influence(train_rows: Array | StoredRows) -> np.ndarray:
    """Influence of every whitened training row on itself, (n_train,).

    >>> import numpy as np
    >>> self_influence(np.array([[2.0, 0.0], [0.0, 1.0]]))
    array([2. , 0.5])
    """
    return squares(train_rows) / len(train_rows)


def relative_influence(values: np.ndarray, own: np.ndarray) -> np.ndarray:
    """Influence of each training example over the root of its own influence; 0 where it has none.

    Of all examples that would move the model as far as this one, how much does it bear on the
    question (Barshan, Brunet and Dziugaite 2020)? Over the root of the questioned example's own
    influence too, which changes no order, it is the cosine of the Fisher kernel.

    >>> import numpy as np
    >>> relative_influence(np.array([[4.0], [1.0], [0.0]]), np.array([16.0, 0.25, 0.0])).ravel()
    array([1., 2., 0.])
    """
    root = np.sqrt(own)[:, None]
    return np.divide(values, root, out=np.zeros_like(values), where=root > 0)


def self_outside(embeddings: list[Embedding], dampings: list[float]) -> np.ndarray | float:
    """What the scores have outside the sketches adds to self-influence, (n_train,): a pass over the
    training set for each model whose sketch leaves out enough to count."""
    total: np.ndarray | float = 0.0
    for e, damping in zip(embeddings, dampings, strict=True):
        if counts(e):
            total = total + e.outside_energy * e.metric.outside(e.left_out_scale, damping)
    return total / (len(embeddings) * len(embeddings[0].train))


@dataclass(frozen=True)
class SetInfluence:
    """Influence of every training example on a set of predictions as one, and how it was found."""

    values: np.ndarray
    """(n_train,): what the set's mean log-likelihood loses if a training example is removed; a
    column for each where several were asked."""
    solver: str
    """In words: the sketch and what was done about what it leaves out, or conjugate gradients and
    how well they solve."""
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
    limit: int = _CG_STEPS,
) -> SetInfluence:
    """Influence on the (weighted) mean log-likelihood of a set, averaged over the models."""
    share = shares(weights, len(examples[0]))
    if share.ndim != 1:
        raise ExemplaError("a set is one question: give one weight per questioned example.")
    found = _past_the_sketch(embeddings, examples, labels, dampings, share[:, None], limit)
    return replace(found, values=found.values[:, 0])


def sketch_influence(
    embeddings: list[Embedding],
    examples: list[Examples],
    labels: Labels,
    dampings: list[float],
    mix: np.ndarray | None = None,
) -> SetInfluence:
    """Return the influence on every test example, (n_train, n_test), without solving a system: the
    sketch, and one mean eigenvalue for its residual (`exempla.kernel.residual`). With `mix`
    (n_test, T), on T weighted sums of test examples."""
    each = zip(embeddings, examples, dampings, strict=True)
    found = (_by_the_sketch(e, x, labels, d, mix) for e, x, d in each)
    return average(found, _of_network_run(embeddings))


def each_influence(
    embeddings: list[Embedding], examples: list[Examples], labels: Labels, dampings: list[float]
) -> SetInfluence:
    """Influence on every questioned example by itself, (n_train, n_test), as `set_influence`."""
    count = len(examples[0])
    parameters = max(e.evidence.parameters for e in embeddings)
    width = int(np.clip(BLOCK_BYTES // (40 * parameters), 1, count))
    blocks = [np.arange(start, min(start + width, count)) for start in range(0, count, width)]
    parts = [
        _past_the_sketch(
            embeddings, [x.take(block) for x in examples], labels, dampings, np.eye(len(block)),
            _CG_STEPS,
        )
        for block in blocks
    ]  # fmt: skip
    worst = max(parts, key=lambda found: found.residual)
    return replace(
        worst,
        values=np.concatenate([found.values for found in parts], axis=1),
        steps=sum(found.steps for found in parts),
    )


def _past_the_sketch(
    embeddings: list[Embedding],
    examples: list[Examples],
    labels: Labels,
    dampings: list[float],
    mix: np.ndarray,
    limit: int,
) -> SetInfluence:
    """Influence on each of the sums Σ_j mix_jb s_j, with the Fisher of all parameters.

    The damped equations (F + δ) X = S mix are solved by conjugate gradients. The sketch is the
    first guess and the preconditioner, so that a few passes over the data are enough. An exact
    embedding needs none, and a model without such an operator (one that is not of torch) has its
    sketch, and one mean eigenvalue for what that leaves out.
    """
    each = zip(embeddings, examples, dampings, strict=True)
    found = (_one_influence(e, x, labels, mix, d, limit) for e, x, d in each)
    return average(found, _of_network_run(embeddings))


def _of_network_run(embeddings: list[Embedding]) -> bool:
    """Whether these are moments of one network's training: that was looked at, not the stages of
    a boosted model nor those of a linear one."""
    evidence = embeddings[0].evidence
    return evidence.of_run and evidence.weight_square is not None


def average(found: Iterable[SetInfluence], of_run: bool) -> SetInfluence:
    """Over the models, one at a time; how it was found is told of the worst.

    Moments of one training differ in how large their effects on a question are, by how unsure the
    model was of it then. Where they are summed as they are, the largest decides alone; each is
    taken by a power of its size instead, and the sum has the size of the plain mean.
    """
    total, scale, size, count, worst, steps = 0.0, 0.0, 0.0, 0, None, 0
    for one in found:
        own = sizes(one.values) if of_run else np.ones(one.values.shape[1])
        power = own**-LEVELLING
        total = total + one.values * power
        scale, size, count = scale + own * power, size + own, count + 1
        worst = one if worst is None or one.residual > worst.residual else worst
        steps += one.steps
    assert worst is not None
    return replace(worst, values=total * (size / scale / count), steps=steps)


def sizes(values: np.ndarray) -> np.ndarray:
    """Root of the mean square of each column; next to nothing for one of zeros."""
    squares = np.einsum("ij,ij->j", values, values, dtype=np.float64)
    return np.maximum(np.sqrt(squares / len(values)), _TINY)


def _by_the_sketch(
    embedding: Embedding,
    examples: Examples,
    labels: Labels,
    damping: float,
    mix: np.ndarray | None = None,
) -> SetInfluence:
    """Of one model, by its embedding: on every questioned example, or on mixes of them."""
    found = kernel_with(embedding, examples, damping, labels, mix)
    exact = embedding.sketch.exact
    if not exact:
        say(f"influence by {found.said}")
    residual = 0.0 if exact else np.inf
    return SetInfluence(found.values / len(embedding.train), found.said, residual, 0)


def _one_influence(
    embedding: Embedding,
    examples: Examples,
    labels: Labels,
    mix: np.ndarray,
    damping: float,
    limit: int,
) -> SetInfluence:
    """Of one model."""
    operator = _operator_of(embedding)
    if operator is None:
        return _by_the_sketch(embedding, examples, labels, damping, mix)
    steps = conjugate_gradients(
        lambda v: operator.product(v) + damping * v,
        operator.score_sums(examples, labels, mix),
        _sketch_inverse(embedding, damping),
        _CG_TOLERANCE,
        limit,
    )
    steps = track(steps, "solving, a pass over the training set a step", limit)
    found = deque(steps, maxlen=1).pop()
    said = f"conjugate gradients, {found.steps} passes, residual {found.residual:.1e}"
    say(f"influence past the sketch by {said}")
    values = operator.along_scores(found.x) / len(embedding.train)
    return SetInfluence(values, said, found.residual, found.steps)


def _operator_of(embedding: Embedding) -> Any:
    """The Fisher of all parameters as an operator, where a sketch leaves some out; else None."""
    if isinstance(embedding.sketch, KroneckerSketch) and embedding.metric.name == "full":
        return embedding.oracle.gauss_newton(embedding.train)
    return None


def _sketch_inverse(embedding: Embedding, damping: float) -> Callable[[Any], Any]:
    """V ↦ about (F + δ)⁻¹ V: the sketch's inverse inside it, one mean eigenvalue outside."""
    sketch, evidence = embedding.sketch, embedding.evidence
    assert isinstance(sketch, KroneckerSketch)
    others = max(evidence.parameters - sketch.width, 1)
    beyond = damping + (1.0 - evidence.share) * evidence.trace / others

    def near(v: Any) -> Any:
        inside = concatenate([sketch.coordinates(column)[None] for column in v.T])
        solved = as_like(to_numpy(embedding.metric.solve(inside, damping)), v)
        rest = solved - inside / beyond
        return concatenate([sketch.lifted(row)[:, None] for row in rest], axis=1) + v / beyond

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
    if len(theta) > _HESSIAN_LIMIT:
        raise ExemplaError(
            f"a Hessian of {len(theta)} parameters is too large to write out (the limit is "
            f"{_HESSIAN_LIMIT}): use Explainer.influence, whose metric is the Fisher."
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


CLASSES = ("bernoulli", "categorical")
"""Likelihoods of one class out of several."""
MOST_ROWS = 2048
"""Fisher rows of the removed examples that the second term is worked out for."""
_SURE = 1e-9
"""Closest that a probability comes to 0 and 1 where its log-odds are taken."""


@dataclass(frozen=True)
class Effect:
    """Predicted effect of a removal; `verify` retrains and measures it."""

    removed: int
    """Training examples removed."""
    log_likelihood: float
    """Change of the queried predictions' mean log-likelihood."""
    random_baseline: float
    """The same for as many random training examples: the mean over draws …"""
    random_sd: float
    """… and the standard deviation."""
    n_fixed: int | None = None
    """Wrong predictions that would become right; None unless labels are classes."""
    n_broken: int | None = None
    """Right predictions that would become wrong."""


def predicted_effect(
    embeddings: list[Embedding],
    asked: Scored,
    examples: Examples,
    labels: Labels,
    dampings: list[float],
    shares: np.ndarray,
    picked: np.ndarray,
    scale: float = 1.0,
) -> Effect:
    """Predict the effect of removing `picked` on test examples that count by `shares`.

    `asked` holds their rows by each model, `examples` the examples as the first model reads them.
    Several models are averaged, as their kernels are. `scale` multiplies the change of each score
    (of the log-odds, for classes): a correction of the size.
    """
    if not len(picked):
        return Effect(0, 0.0, 0.0, 0.0)
    n, models = len(embeddings[0].train), len(embeddings)
    change, everyone = np.zeros(len(examples)), np.zeros(n)
    for e, (rows, _), damping in zip(embeddings, asked, dampings, strict=True):
        train = e.rows_near_model()
        change += products(rows, _newton_step(e, train, picked, damping)[None])[:, 0] / models
        together = e.metric.solve(as_like(shares[None, :], rows) @ rows, damping)
        everyone += products(train, together)[:, 0] / (n * models)
    change, everyone = scale * change, scale * everyone
    k = len(picked)
    chance, spread = -k * float(everyone.mean()), float(np.sqrt(k * (1 - k / n)) * everyone.std())
    first = embeddings[0].oracle
    if first.likelihood not in CLASSES or labels != "true" or examples.labels is None:
        return Effect(k, float(shares @ change), chance, spread)
    before = first.log_likelihood(examples)
    p = np.clip(np.exp(before), _SURE, 1 - _SURE)
    odds = np.log(p) - np.log1p(-p)
    moved = odds + change / (1 - p)
    after = -np.logaddexp(0.0, -moved)
    return Effect(
        k,
        float(shares @ (after - np.log(p))),
        chance,
        spread,
        n_fixed=int(np.sum((odds <= 0) & (moved > 0))),
        n_broken=int(np.sum((odds > 0) & (moved <= 0))),
    )


def _newton_step(embedding: Embedding, train: Array, picked: np.ndarray, damping: float) -> Array:
    """Δθ of removing these training examples, in the sketch."""
    solve, n = embedding.metric.solve, len(train)
    x = solve(train[picked].sum(0)[None], damping)[0]
    if embedding.metric.name != "full":
        return x / -n
    parts: list[Array] = []
    for batch in embedding.oracle.fisher_rows(embedding.train.take(picked)):
        parts.append(embedding.sketch.project(batch))
        if sum(map(len, parts)) > MOST_ROWS:
            return x / -n
    R = to_numpy(concatenate(parts))
    solved = to_numpy(solve(as_like(R, x), damping)).astype(np.float64)
    left = n * np.eye(len(R)) - R @ solved.T
    more = np.linalg.solve(left, R @ to_numpy(x)) @ solved
    return as_like(to_numpy(x) + more, x) / -n
