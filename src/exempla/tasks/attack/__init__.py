"""How few changes to the training data undo a prediction: attacks in the Fisher RKHS.

What an attack takes beside the model and the data as given.

n training rows of x bytes each, in the type they are computed in. Kept: the rows as an array of
their own and, of a linear model, once more as its inputs. To find the rows of most reach all of
them are moved to the best corner of their box, which takes five more for a moment; an attack on
rows that are named, or on the target, is content with two.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator
from sklearn.pipeline import Pipeline

from exempla.arrays import is_sparse
from exempla.checks import (
    check_choice,
    check_flag,
    check_ids,
    check_number,
    check_rows,
    check_seed,
    check_times,
    renamed_options,
    whole_number,
)
from exempla.data import arrays_of, index_of, n_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.kernel.damping import FisherEvidence, check_damping, resolve_damping
from exempla.memory import announce
from exempla.oracles import make_oracle
from exempla.oracles.base import Examples, Oracle
from exempla.oracles.trees import is_trees
from exempla.progress import showing, track
from exempla.tasks.attack.ascent import (
    Box,
    InputScores,
    ascend,
    distance_objective,
    influence_objective,
    loss_objective,
    valid_range,
)
from exempla.tasks.attack.relabel import Relabelling, relabel
from exempla.tasks.attack.result import Attack, with_rows
from exempla.tasks.verify import Fit, check_fit, refit

__all__ = ["Attack", "Relabelling", "attack", "input_scores", "weak_points", "expected_peak"]


LOADED = 10 * 2**20
"""Bytes that modules loaded on the way take."""
NUMBERS = 8
"""Numbers besides for each row: codes, probabilities, products."""
SEARCHING, NAMED = 7, 4


def expected_peak(X: Any, itemsize: int, searched: bool) -> float:
    """Bytes, most of all at one time.

    >>> round(expected_peak(np.zeros((1000, 2000)), 8, searched=True) / 2**20)
    117
    """
    n = n_rows(X)
    shape = np.shape(X) if is_sparse(X) or hasattr(X, "shape") else np.shape(X[:1])
    row = itemsize * float(np.prod(shape[1:]))
    copies = SEARCHING if searched else NAMED
    return LOADED + n * (copies * row + 8 * NUMBERS)


OBJECTIVES = {"influence": influence_objective, "distance": distance_objective}
SAMPLE = 2048
"""Training examples from which the metric of a network is estimated, at most."""


@renamed_options(side="perturb")
def attack(
    model: Any,
    train: Any,
    target: Any,
    *,
    points: Any = 2,
    perturb: str = "train",
    objective: str = "influence",
    budget: float = 0.1,
    steps: int = 20,
    step: float | None = None,
    bounds: Any = "auto",
    damping: str | float = "auto",
    parameters: Any = None,
    fit: Fit | None = None,
    rounds: int = 1,
    ids: Any = None,
    seed: int = 0,
    progress: bool = True,
) -> Attack:
    """Perturb a few training points so that a set of target predictions gets worse.

    For your own models, to see how fragile they are. The target is a set: its mean score μ is
    attacked at once, by projected gradient ascent on how far each chosen training point pushes
    against μ in the Fisher RKHS. Nothing of the caller's is changed; copies are returned.

    Parameters
    ----------
    model : fitted LogisticRegression, or a torch classifier that returns logits
        With perturb="labels", any classifier of scikit-learn's kind that exempla scores, trees too.
    train, target : (X, y)
        The labels of the target are the ones to be made unlikely; X alone takes the predicted.
    points : int or indices
        How many training points to perturb (those with the most reach, see `weak_points`), or
        which.
    perturb : {"train", "test", "labels"}
        Perturb training points, or, for comparison, the target points themselves. One test-side
        step is FGSM, several are PGD. "labels" moves nothing and gives training rows the wrong
        label that harms most: a `Relabelling` comes back. It is the one attack on trees, which
        answer in steps and have no gradient in their inputs.
    objective : {"influence", "distance"}
        Koh and Liang's −k(z, μ), or the paper's ‖μ − z‖_H, which adds k(z, z).
    budget, steps, step, bounds
        ℓ∞ radius, number of sign steps and their size (by default they add up to 2.5 budgets; a
        single one is a whole budget), valid range of the inputs ("auto": what the training data
        show).
    damping, parameters
        As for `Explainer`. For a model trained with weight decay λ, damping=λ is the exact one.
    fit, rounds
        With several rounds (of `steps` each) the model is trained on the perturbed data after
        each, the attack goes on from there, and what in truth harmed the target most is returned.
        A torch module needs `fit` for that.
    ids : sequence
        Your own names of the training examples.
    seed, progress
        Seed of every random choice, and whether to show progress on long work.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = scale(X)
    >>> model = LogisticRegression().fit(X[:200], y[:200])
    >>> found = attack(model, (X[:200], y[:200]), (X[300:310], y[300:310]), points=2, budget=0.5)
    >>> found.X.shape, found.expected < 0, bool(abs(found.delta).max() <= 0.5 + 1e-12)
    ((2, 30), True, True)
    """
    check_choice("perturb", perturb, ("train", "test", "labels"))
    _check(objective, budget, steps, rounds)
    if perturb == "labels":
        with showing(progress):
            return cast(
                Any,
                relabel(
                    model, train, target, points=points, damping=damping, parameters=parameters,
                    fit=fit, ids=ids, seed=check_seed(seed),
                ),
            )  # fmt: skip
    given = _unweighted(train)
    names = check_ids(index_of(*given) if ids is None else ids, n_rows(given[1]))
    if rounds > 1:
        check_fit(model, fit)
    with showing(check_flag("progress", progress)):
        itemsize = 8 if isinstance(model, BaseEstimator) else 4
        searched = perturb == "train" and whole_number(points)
        announce(expected_peak(given[0], itemsize, searched), f"{n_rows(given[1])} training rows")
        scores = input_scores(model, given, damping, parameters, check_seed(seed))
        X, y = scores.encode(*given)
        target, tx, ty = _target(scores, target)
        lowest, highest = valid_range(bounds, X)
        size = _step(step, budget, steps * rounds)
        if perturb == "test":
            return _on_test_side(scores, tx, ty, Box(tx, budget, lowest, highest), steps, size)
        v = scores.solve(scores.mean_score(tx, ty))
        rows = _rows(points, scores, X, y, v, (budget, lowest, highest))
        box = Box(X[rows], budget, lowest, highest)
        labels = y[rows]

        def trained_on(moved: np.ndarray) -> InputScores:
            changed = with_rows(given[0], rows, moved)
            again = refit(model, changed, given[1], None, fit, seed)
            return input_scores(again, (changed, given[1]), damping, parameters, seed)

        chosen = OBJECTIVES[objective]
        moved = ascend(chosen(scores, labels, v), X[rows], box, steps, size)
        if rounds > 1:
            moved = _in_rounds(
                moved, trained_on, chosen, (tx, ty, labels), box, steps, size, rounds
            )
        before, _ = scores.pull(X[rows], labels, v)
        after, _ = scores.pull(moved, labels, v)
    return Attack(
        indices=rows,
        ids=None if names is None else names[rows],
        X=moved,
        original=X[rows],
        perturbed="train",
        objective=objective,
        budget=float(budget),
        steps=steps * rounds,
        before=before / len(X),
        after=after / len(X),
        box=box,
        damping=scores.damping,
        seed=int(seed),
        context=(model, given, target, fit),
    )


def _in_rounds(
    moved: np.ndarray,
    trained_on: Callable[[np.ndarray], InputScores],
    objective: Any,
    target: tuple[np.ndarray, np.ndarray, np.ndarray],
    box: Box,
    steps: int,
    size: float,
    rounds: int,
) -> np.ndarray:
    """Train on what was found, go on from there; return what harmed the target most in truth.

    The first order overshoots: a point moved far gains leverage and is then simply fitted.
    """
    tx, ty, labels = target
    best, worst_loss = moved, -np.inf
    for turn in track(range(rounds), "training on the moved points", rounds):
        scores = trained_on(moved)
        loss = float(scores.loss(tx, ty)[0].mean())
        if loss > worst_loss:
            best, worst_loss = moved, loss
        if turn < rounds - 1:
            v = scores.solve(scores.mean_score(tx, ty))
            moved = ascend(objective(scores, labels, v), moved, box, steps, size)
    return best


def weak_points(
    model: Any,
    train: Any,
    target: Any,
    *,
    budget: float = 0.1,
    bounds: Any = "auto",
    damping: str | float = "auto",
    parameters: Any = None,
    seed: int = 0,
) -> pd.DataFrame:
    """The defence view: training points by how much moving each could harm the target.

    `reach` is the largest first-order drop of the target's mean log-likelihood that moving this
    point alone within the budget can make. Points on top are the cheapest to attack, and the ones
    to protect or to look at first.

    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = scale(X)
    >>> model = LogisticRegression().fit(X[:200], y[:200])
    >>> table = weak_points(model, (X[:200], y[:200]), (X[300:310], y[300:310]))
    >>> list(table.columns), len(table)
    (['index', 'label', 'reach'], 200)
    """
    given = _unweighted(train)
    check_number("budget", budget)
    scores = input_scores(model, given, damping, parameters, check_seed(seed))
    X, y = scores.encode(*given)
    _, tx, ty = _target(scores, target)
    v = scores.solve(scores.mean_score(tx, ty))
    reach = _reach(scores, X, y, v, (budget, *valid_range(bounds, X)))
    order = np.argsort(-reach, kind="stable")
    columns = {"index": order, "label": y[order], "reach": reach[order]}
    return pd.DataFrame(columns)


def input_scores(
    model: Any, train: Any, damping: str | float, parameters: Any = None, seed: int = 0
) -> InputScores:
    """The model as attacks see it."""
    if is_trees(model):
        raise UnsupportedModelError(
            "trees answer in steps: a feature moved a little changes nothing until it crosses a "
            "split, so there is no gradient to follow; use perturb='labels', which gives training "
            "rows wrong labels instead."
        )
    if isinstance(model, Pipeline):
        raise UnsupportedModelError(
            "attack moves the inputs of the model itself: give the last step of the Pipeline, and "
            "data as the steps before it leave them."
        )
    oracle = make_oracle(model, parameters=parameters)
    examples = oracle.read(train, role="train")
    value = _damping(oracle, examples, damping, seed)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from exempla.tasks.attack.ascent import NetworkScores

        sample = _sample(len(examples), seed)
        return NetworkScores(oracle, model, train, value, parameters, sample)
    from exempla.oracles.sklearn.oracle import SklearnOracle
    from exempla.tasks.attack.ascent import LinearScores

    if not isinstance(oracle, SklearnOracle):
        raise UnsupportedModelError("attack takes logistic regression and torch classifiers.")
    return LinearScores(oracle, train, value)


def _damping(oracle: Oracle, examples: Examples, wanted: str | float, seed: int) -> float:
    """Return the damping: the number given, or that of the rule."""
    wanted = check_damping(wanted)
    if not isinstance(wanted, str):
        return float(wanted)
    examples = examples.take(_sample(len(examples), seed))
    energy = np.concatenate([rows.norm2() for rows in oracle.fisher_rows(examples)])
    evidence = FisherEvidence(
        trace=float(energy.sum()) / len(examples),
        rows=len(energy),
        energy2=float((energy**2).sum()),
        squared_norm=0.0,
        examples=len(examples),
        parameters=oracle.n_parameters,
    )
    return resolve_damping(wanted, evidence, use="attack").value


def _sample(n: int, seed: int) -> np.ndarray:
    if n <= SAMPLE:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, SAMPLE, replace=False))


def _unweighted(train: Any) -> tuple[Any, Any]:
    """X and y of the training data: what an attack does to weighted rows is not worked out."""
    X, y, weights = arrays_of(train, "training data")
    if weights is not None:
        raise ExemplaError("attack takes no sample_weight: give the training data as (X, y).")
    return X, y


def _check(objective: str, budget: float, steps: int, rounds: int) -> None:
    check_choice("objective", objective, tuple(OBJECTIVES))
    check_number("budget", budget)
    check_times("steps", steps)
    check_times("rounds", rounds)


def _step(step: float | None, budget: float, steps: int) -> float:
    if step is not None:
        return check_number("step", step)
    return budget if steps == 1 else 2.5 * budget / steps


def _target(scores: InputScores, target: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """The target with labels; the predicted ones if none were given."""
    scores.oracle.read(target, role="test")  # says what is wrong with it, if anything is
    if isinstance(target, tuple) and len(target) > 1 and target[1] is not None:
        return target[:2], *scores.encode(*target[:2])
    X: Any = next(iter(target)) if isinstance(target, tuple) else target
    classes = getattr(scores, "classes", np.arange(1_000_000))
    tx, _ = scores.encode(X, np.full(n_rows(X), classes[0]))
    codes = scores.predict(tx)
    return (X, classes[codes]), tx, codes


def _reach(scores: InputScores, X: np.ndarray, y: np.ndarray, v: Any, limits: Any) -> np.ndarray:
    _, gradient = influence_objective(scores, y, v)(X)
    return Box(X, *limits).reach(gradient) / len(X)


def _rows(
    points: Any, scores: InputScores, X: np.ndarray, y: np.ndarray, v: Any, limits: Any
) -> np.ndarray:
    """Which training rows to perturb."""
    n = len(X)
    if whole_number(points):
        if not 1 <= points <= n:
            raise ExemplaError(f"points is {points}: give a number from 1 to {n}, or row numbers.")
        return np.argsort(-_reach(scores, X, y, v, limits), kind="stable")[:points]
    return check_rows(points, n, "points", "training rows")


def _on_test_side(
    scores: InputScores, X: np.ndarray, y: np.ndarray, box: Box, steps: int, size: float
) -> Attack:
    """FGSM (one step) or PGD on the target points themselves."""
    before, _ = scores.loss(X, y)
    moved = ascend(loss_objective(scores, y), X, box, steps, size)
    after, _ = scores.loss(moved, y)
    return Attack(
        indices=np.arange(len(X)),
        X=moved,
        original=X,
        perturbed="test",
        objective="fgsm" if steps == 1 else "pgd",
        budget=box.budget,
        steps=steps,
        before=-before,
        after=-after,
        box=box,
        flipped=scores.predict(moved) != scores.predict(X),
    )
