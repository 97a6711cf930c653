"""Attacks: how few changes to the training data undo a prediction?

Memory, beside the model and the data as given: with n training rows of x bytes each, an attack
keeps the rows as an array of its own and, for a linear model, once more as the model's inputs. The
Fisher matrix takes a weighted copy of them for a moment. To find the rows with the largest reach, a
block of rows at a time is moved to the best corner of its box.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

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
    check_seed,
    check_times,
)
from exempla.data import arrays_of, index_of, n_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.kernel.damping import FisherEvidence, check_damping, resolve_damping
from exempla.memory import IMPORT_BYTES, announce
from exempla.oracles import make_oracle
from exempla.oracles.base import Examples, Oracle
from exempla.progress import showing, track
from exempla.tasks.attack.ascent import (
    Box,
    InputScores,
    ascend,
    distance_objective,
    influence_objective,
    valid_range,
)
from exempla.tasks.attack.relabel import attacked_rows, relabel, with_labels
from exempla.tasks.attack.result import Attack, Relabelling, with_rows
from exempla.tasks.retrain import Fit, check_fit, refit

__all__ = ["Attack", "Relabelling", "attack", "expected_peak", "input_scores", "weak_points"]

_NUMBERS_PER_ROW = 8
"""Codes, probabilities and products of each row."""
_REACH_ROWS, _BLOCK_COPIES = 8192, 7
"""Rows that are moved to the best corner of their box at a time, and copies of them that takes."""


def expected_peak(X: Any, itemsize: int) -> float:
    """Return the bytes at the peak.

    >>> round(expected_peak(np.zeros((1000, 2000)), 8) / 2**20)
    153
    """
    n = n_rows(X)
    shape = np.shape(X) if is_sparse(X) or hasattr(X, "shape") else np.shape(X[:1])
    row = itemsize * float(np.prod(shape[1:]))
    temporary = max(n, _BLOCK_COPIES * min(n, _REACH_ROWS)) * row
    return IMPORT_BYTES + n * (2 * row + 8 * _NUMBERS_PER_ROW) + temporary


_OBJECTIVES = {"influence": influence_objective, "distance": distance_objective}
_MAX_SAMPLE = 2048
"""Most training examples from which the metric of a network is estimated."""


def attack(
    model: Any,
    train: Any,
    test: Any,
    k: Any = 2,
    *,
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
    """Perturb a few training points so that a set of test predictions gets worse.

    Use it on your own models to see how fragile they are. The test points are attacked together:
    projected gradient ascent increases how far each chosen training point pushes against their mean
    score μ in the Fisher RKHS. The caller's data are not changed; perturbed copies are returned.

    Parameters
    ----------
    model : fitted LogisticRegression, or a torch classifier that returns logits
        With perturb="labels", any scikit-learn classifier that exempla supports, trees included.
    train, test : (X, y)
        The attack makes the labels of `test` unlikely; without y, the predicted labels.
    k : int or indices
        How many training points to perturb (those with the largest reach, see `weak_points`), or
        which ones.
    perturb : {"train", "test", "labels"}
        Perturb training points or, for comparison, the test points themselves: one step is FGSM,
        several are PGD. "labels" moves nothing, gives training rows the most harmful wrong label
        and returns a `Relabelling`. It is the only attack on trees, whose predictions have no
        gradient in the inputs.
    objective : {"influence", "distance"}
        Koh and Liang's −k(z, μ), or the paper's ‖μ − z‖_H, which adds k(z, z).
    budget, steps, step, bounds
        ℓ∞ radius, number of sign steps and their size (by default they add up to 2.5 budgets; a
        single step is a whole budget), and valid range of the inputs ("auto": the range of the
        training data).
    damping, parameters
        As for `Explainer`. For a model trained with weight decay λ, damping=λ is exact.
    fit, rounds
        With several rounds (of `steps` each) the model is retrained on the perturbed data after
        each round and the attack continues from there; the points that did most harm after
        retraining are returned. A torch module needs `fit` for that.
    ids : sequence
        Your own names of the training examples.
    seed, progress
        Seed of every random choice, and whether to show progress.

    Returns
    -------
    Attack, or Relabelling with perturb="labels"

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = scale(X)
    >>> model = LogisticRegression().fit(X[:200], y[:200])
    >>> found = attack(model, (X[:200], y[:200]), (X[300:310], y[300:310]), k=2, budget=0.5)
    >>> found.X.shape, found.expected < 0, bool(abs(found.delta).max() <= 0.5 + 1e-12)
    ((2, 30), True, True)
    """
    check_choice("perturb", perturb, ("train", "test", "labels"))
    check_choice("objective", objective, tuple(_OBJECTIVES))
    check_number("budget", budget)
    check_times("steps", steps)
    check_times("rounds", rounds)
    size = budget if steps * rounds == 1 else 2.5 * budget / (steps * rounds)
    size = size if step is None else check_number("step", step)
    if perturb == "labels":
        with showing(progress):
            relabelled: Any = relabel(
                model, train, test, k=k, damping=damping, parameters=parameters, fit=fit, ids=ids,
                seed=check_seed(seed),
            )  # fmt: skip
            return relabelled
    given = _unweighted(train)
    names = check_ids(index_of(*given) if ids is None else ids, n_rows(given[1]))
    if rounds > 1:
        check_fit(model, fit)
    with showing(check_flag("progress", progress)):
        itemsize = 8 if isinstance(model, BaseEstimator) else 4
        announce(expected_peak(given[0], itemsize), f"{n_rows(given[1])} training rows")
        scores = input_scores(model, given, damping, parameters, check_seed(seed))
        X, y = scores.encode(*given)
        test = with_labels(scores.oracle, test)
        tx, ty = scores.encode(*test)
        lowest, highest = valid_range(bounds, X)
        if perturb == "test":
            return _on_test_side(scores, tx, ty, Box(tx, budget, lowest, highest), steps, size)
        v = scores.solve(scores.mean_score(tx, ty))
        limits = (budget, lowest, highest)
        rows = attacked_rows(k, len(X), lambda: _reach(scores, X, y, v, limits))
        box = Box(X[rows], budget, lowest, highest)
        labels = y[rows]

        def trained_on(moved: np.ndarray) -> InputScores:
            changed = with_rows(given[0], rows, moved)
            again = refit(model, changed, given[1], None, fit, seed)
            return input_scores(again, (changed, given[1]), damping, parameters, seed)

        chosen = _OBJECTIVES[objective]
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
        context=(model, (*given, None), test, fit),
    )


def _in_rounds(
    moved: np.ndarray,
    trained_on: Callable[[np.ndarray], InputScores],
    objective: Any,
    test: tuple[np.ndarray, np.ndarray, np.ndarray],
    box: Box,
    steps: int,
    size: float,
    rounds: int,
) -> np.ndarray:
    """Retrain on the moved points and continue from there; return those that did most harm.

    First-order steps overshoot: a point that is moved far gains leverage and is then fitted.
    """
    tx, ty, labels = test
    best, worst_loss = moved, -np.inf
    for turn in track(range(rounds), "retraining on the moved points", rounds):
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
    test: Any,
    *,
    budget: float = 0.1,
    bounds: Any = "auto",
    damping: str | float = "auto",
    parameters: Any = None,
    seed: int = 0,
) -> pd.DataFrame:
    """Rank training points by how much moving each one could harm the test predictions.

    `reach` is the largest first-order drop of their mean log-likelihood that moving this point
    alone within the budget can cause. The first points are the cheapest to attack: protect or
    inspect them first.

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
    tx, ty = scores.encode(*with_labels(scores.oracle, test))
    v = scores.solve(scores.mean_score(tx, ty))
    reach = _reach(scores, X, y, v, (budget, *valid_range(bounds, X)))
    order = np.argsort(-reach, kind="stable")
    columns = {"index": order, "label": y[order], "reach": reach[order]}
    return pd.DataFrame(columns)


def input_scores(
    model: Any, train: Any, damping: str | float, parameters: Any = None, seed: int = 0
) -> InputScores:
    """Return the model as a function of its inputs."""
    from exempla.oracles.sklearn.unwrap import is_trees

    if is_trees(model):
        raise UnsupportedModelError(
            "trees predict in steps: moving a feature a little changes nothing until it crosses a "
            "split, so there is no gradient to follow; use perturb='labels', which gives training "
            "rows wrong labels instead."
        )
    if isinstance(model, Pipeline):
        raise UnsupportedModelError(
            "attack moves the inputs of the model itself: give the last step of the Pipeline, and "
            "the data as transformed by the steps before it."
        )
    oracle = make_oracle(model, parameters=parameters)
    examples = oracle.read(train, role="train")
    value = _damping(oracle, examples, damping, seed)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from exempla.tasks.attack.network import NetworkScores

        sample = _sample(len(examples), seed)
        return NetworkScores(oracle, model, train, value, parameters, sample)
    from exempla.oracles.sklearn.oracle import SklearnOracle
    from exempla.tasks.attack.ascent import LinearScores

    if not isinstance(oracle, SklearnOracle):
        raise UnsupportedModelError("attack supports logistic regression and torch classifiers.")
    return LinearScores(oracle, train, value)


def _damping(oracle: Oracle, examples: Examples, wanted: str | float, seed: int) -> float:
    """Return the given damping, or that of a rule; many parameters get the larger rule."""
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
    if n <= _MAX_SAMPLE:
        return np.arange(n)
    return np.sort(np.random.default_rng(seed).choice(n, _MAX_SAMPLE, replace=False))


def _unweighted(train: Any) -> tuple[Any, Any]:
    """Return X and y of the training data; weighted rows are not supported."""
    X, y, weights = arrays_of(train, "training data")
    if weights is not None:
        raise ExemplaError("attack takes no sample_weight: give the training data as (X, y).")
    return X, y


def _reach(scores: InputScores, X: np.ndarray, y: np.ndarray, v: Any, limits: Any) -> np.ndarray:
    """Return the reach of every row, computed a block of rows at a time."""
    budget, *bounds = limits
    low, high = (np.broadcast_to(bound, X.shape) for bound in bounds)
    out = np.empty(len(X))
    for start in range(0, len(X), _REACH_ROWS):
        here = slice(start, start + _REACH_ROWS)
        _, gradient = influence_objective(scores, y[here], v)(X[here])
        out[here] = Box(X[here], budget, low[here], high[here]).reach(gradient)
    return out / len(X)


def _on_test_side(
    scores: InputScores, X: np.ndarray, y: np.ndarray, box: Box, steps: int, size: float
) -> Attack:
    """Run FGSM (one step) or PGD on the test points themselves."""
    before, _ = scores.loss(X, y)
    moved = ascend(lambda rows: scores.loss(rows, y), X, box, steps, size)
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
