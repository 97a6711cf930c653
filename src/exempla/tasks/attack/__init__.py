"""Attacks: how few changes to the training data undo a prediction?

`attack` moves training points (or test points, for comparison), or gives training rows wrong
labels. For labels, let μ be the mean score of the attacked predictions and v = M⁻¹μ. A training row
j under label c contributes s_j(c)ᵀv / n to their mean log-likelihood. Label c instead of y changes
that by (s_j(c) − s_j(y))ᵀv / n to first order. No input is moved, so the model needs no gradient in
its inputs: trees have none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
from sklearn.pipeline import Pipeline

from exempla import __version__
from exempla.arrays import is_tensor, nbytes_of, to_numpy
from exempla.checks import (
    check_choice,
    check_flag,
    check_ids,
    check_number,
    check_rows,
    check_seed,
    check_times,
    whole_number,
)
from exempla.data import arrays_of, index_of, n_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.kernel.damping import FisherEvidence, check_damping, resolve_damping
from exempla.kernel.embed import EmbeddingOptions, embed_training_set
from exempla.memory import IMPORT_BYTES, announce
from exempla.oracles import is_trees, make_oracle
from exempla.oracles.base import Examples, Oracle
from exempla.progress import showing, track
from exempla.results import Answer
from exempla.tasks.attack.ascent import (
    Box,
    InputScores,
    LinearScores,
    ascend,
    training_objective,
    valid_range,
)
from exempla.tasks.retrain import Fit, check_fit, is_module, refit
from exempla.tasks.verify import arm_table

__all__ = ["Attack", "attack", "input_scores", "weak_points"]

_MAX_SAMPLE = 2048
"""Most training examples from which the metric of a network is estimated."""
_COPIES = 8
"""Copies of the training rows at the peak of memory, those of the best corners included."""
_ARMS = ("untouched", "attacked", "random direction")


@dataclass(frozen=True, kw_only=True, repr=False)
class Attack(Answer):
    """Changed copies of some rows, what they should do, and how to check it.

    Attributes
    ----------
    indices : int64 array
        The changed rows: of the training data, or of the test data if `perturbed` is "test".
    perturbed : str
        "train", "test" or "labels".
    X, original : arrays
        The rows after and before the attack. If `perturbed` is "labels": their wrong and their
        given labels, which are also `labels` and `given`.
    budget : float
        ℓ∞ radius.
    before, after : arrays
        Training side: k(z, μ)/n of each row, its first-order contribution to the mean
        log-likelihood of the attacked predictions. Test side: log p(y | x).
    flipped : array
        Test side only: whose prediction changed.

    Examples
    --------
    See `attack`.
    """

    perturbed: str
    X: np.ndarray = field(repr=False)
    original: np.ndarray = field(repr=False)
    before: np.ndarray
    after: np.ndarray
    objective: str = "influence"
    budget: float | None = None
    steps: int = 0
    damping: float = 0.0
    damping_rule: str = "auto"
    seed: int = 0
    version: str = __version__
    flipped: np.ndarray | None = None
    box: Box | None = field(default=None, repr=False)
    every: Any = field(default=None, repr=False)
    """With labels, for all training rows: the most harmful other label, and its effect."""
    context: Any = field(default=None, repr=False, compare=False)
    """The model, (X, y, weights) of the training data, the test data, and the user's `fit`."""

    @property
    def expected(self) -> float:
        """First-order change of the mean log-likelihood of the attacked predictions."""
        return float(self.effect.mean() if self.perturbed == "test" else self.effect.sum())

    @property
    def effect(self) -> np.ndarray:
        """The part of it that is due to each row."""
        return self.after - self.before

    @property
    def finding(self) -> str:
        what = f"Giving {len(self):,} training rows wrong labels"
        if self.perturbed != "labels":
            which = "training" if self.perturbed == "train" else "test"
            what = f"Moving {len(self):,} {which} points by at most {self.budget:g}"
        return (
            f"{what} should change the mean log-likelihood of the attacked predictions by "
            f"{self.expected:.3g}."
        )

    @property
    def labels(self) -> np.ndarray:
        """The wrong labels, if `perturbed` is "labels"."""
        return self.X

    @property
    def given(self) -> np.ndarray:
        """The labels before the attack, if `perturbed` is "labels"."""
        return self.original

    def _columns(self) -> dict[str, Any]:
        if self.perturbed == "labels":
            return {"given": self.given, "label": self.labels, "effect": self.effect}
        return {"before": self.before, "after": self.after}

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values; `weights` is what changing each row costs."""
        out = {**super().to_dict(), "side": "opponents", "weights": (-self.effect).tolist()}
        if self.perturbed == "labels":
            parts = {"given": self.given, "labels": self.labels, "effect": self.effect}
            out |= {name: part.tolist() for name, part in parts.items()}
        return {**out, "expected": self.expected}

    @property
    def delta(self) -> np.ndarray:
        """The perturbation."""
        return self.X - self.original

    def apply(self, data: Any) -> Any:
        """Return a copy of X, or of the labels, with the changed rows in place."""
        return with_rows(data, self.indices, self.X)

    def weak_points(self) -> pd.DataFrame:
        """Return all training rows by how much a wrong label of each would harm."""
        labels, effect = self.every
        order = np.argsort(effect, kind="stable")
        return pd.DataFrame({"index": order, "label": labels[order], "reach": -effect[order]})

    def random_copy(self, seed: int) -> np.ndarray:
        """Return the rows moved as far in random directions, within the same box."""
        signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=self.original.shape)
        box: Any = self.box
        return box.project(self.original + box.budget * signs)

    def _at_random(self, X: Any, y: Any, seed: int) -> tuple[Any, Any]:
        """Return the training data with as many rows changed at random."""
        if self.perturbed != "labels":
            return with_rows(X, self.indices, self.random_copy(seed).astype(self.X.dtype)), y
        rng, labels = np.random.default_rng(seed), np.asarray(y)
        rows = rng.choice(len(labels), len(self), replace=False)
        classes, codes = np.unique(labels, return_inverse=True)
        other = (codes[rows] + rng.integers(1, len(classes), len(rows))) % len(classes)
        return X, with_rows(labels, rows, classes[other])

    def verify(self, fit: Fit | None = None, seeds: int = 5) -> AttackCheck:
        """Retrain on untouched, attacked and randomly changed rows, and count flipped predictions.

        Examples
        --------
        >>> from sklearn.datasets import load_breast_cancer
        >>> from sklearn.linear_model import LogisticRegression
        >>> from sklearn.preprocessing import scale
        >>> import exempla
        >>> X, y = load_breast_cancer(return_X_y=True)
        >>> X = scale(X)
        >>> model = LogisticRegression().fit(X[:200], y[:200])
        >>> found = exempla.attack(model, (X[:200], y[:200]), (X[300:310], y[300:310]), budget=1.0)
        >>> check = found.verify(seeds=2)
        >>> lower = check.mean("attacked", "log_likelihood")
        >>> lower < check.mean("random direction", "log_likelihood")
        True
        """
        if self.context is None:
            raise ExemplaError("a test-side attack changes no training: look at .flipped instead.")
        model, (X, y, weights), test, remembered = self.context
        fit = remembered if fit is None else fit
        check_fit(model, fit)
        lines = []
        for seed in range(check_times("seeds", seeds)):
            attacked = (X, self.apply(y)) if self.perturbed == "labels" else (self.apply(X), y)
            data = ((X, y), attacked, self._at_random(X, y, seed))
            untouched: Any = None
            for arm, (inputs, labels) in zip(_ARMS, data, strict=True):
                oracle = make_oracle(refit(model, inputs, labels, weights, fit, seed))
                examples = oracle.read(test, role="test")
                predicted = oracle.predict(examples)
                untouched = predicted if untouched is None else untouched
                flips = float(np.mean(predicted != untouched))
                lines.append((arm, seed, flips, float(np.mean(oracle.log_likelihood(examples)))))
        columns = ["arm", "seed", "flipped", "log_likelihood"]
        return AttackCheck(pd.DataFrame(lines, columns=columns), self.finding)


@dataclass(frozen=True)
class AttackCheck:
    """Share of the attacked predictions that flip after retraining, per arm and seed."""

    runs: pd.DataFrame
    what: str

    def mean(self, arm: str, measure: str = "flipped") -> float:
        """Return the mean of one measure over the seeds."""
        return float(self.runs.loc[self.runs.arm == arm, measure].mean())

    @property
    def table(self) -> pd.DataFrame:
        """Mean of each arm, with a 95 % interval over the seeds."""
        return arm_table(self.runs, ["arm"], ("flipped", "log_likelihood"))

    def __str__(self) -> str:
        return f"{self.what}\n" + self.table.to_string(index=False, float_format="%.4f")


def with_rows(X: Any, rows: np.ndarray, values: np.ndarray) -> Any:
    """Return a copy of X, or of labels, with these values in place of these rows."""
    if is_tensor(X):
        out = X.detach().clone()
        out[rows] = out.new_tensor(values)
        return out
    out = np.array(X)
    out = out if out.dtype == object else out.astype(np.result_type(out.dtype, values.dtype))
    out[rows] = values
    return out


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
        several are PGD. "labels" moves nothing and gives training rows the most harmful wrong
        label. It is the only attack on trees, whose predictions have no
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
    Attack

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
    check_choice("objective", objective, ("influence", "distance"))
    check_number("budget", budget)
    check_times("steps", steps)
    check_times("rounds", rounds)
    check_seed(seed)
    size = budget if steps * rounds == 1 else 2.5 * budget / (steps * rounds)
    size = size if step is None else check_number("step", step)
    X, y, weights = arrays_of(train, "training data")
    names = check_ids(index_of(X, y) if ids is None else ids, n_rows(y))
    with showing(check_flag("progress", progress)):
        if perturb == "labels":
            given: Any = X, y, weights
            return _relabel(model, given, test, k, names, fit, damping, parameters, seed)
        if rounds > 1:
            check_fit(model, fit)
        announce(IMPORT_BYTES + _COPIES * nbytes_of(X), f"{n_rows(y)} training rows")
        scores = input_scores(model, train, damping, parameters, seed)
        rows_X, codes = scores.encode(X, y)
        test = _with_labels(scores.oracle, test)
        tx, ty = scores.encode(*test)
        limits = (budget, *valid_range(bounds, rows_X))
        if perturb == "test":
            return _on_test_side(scores, tx, ty, Box(tx, *limits), steps, size)
        v = scores.solve(scores.mean_score(tx, ty))
        rows = _attacked_rows(k, len(codes), lambda: _reach(scores, rows_X, codes, v, limits))
        box, labels = Box(rows_X[rows], *limits), codes[rows]

        def ascent(at: InputScores, start: np.ndarray) -> np.ndarray:
            along = v if at is scores else at.solve(at.mean_score(tx, ty))
            goal = training_objective(at, labels, along, objective == "distance")
            return ascend(goal, start, box, steps, size)

        moved, worst = ascent(scores, box.centre), -np.inf
        best = moved
        # first-order steps overshoot: a point that is moved far gains leverage and is then fitted
        for turn in track(
            range(rounds if rounds > 1 else 0), "retraining on the moved points", rounds
        ):
            changed = with_rows(X, rows, moved)
            again = refit(model, changed, y, None, fit, seed)
            retrained = input_scores(again, (changed, y), damping, parameters, seed)
            loss = float(retrained.loss(tx, ty)[0].mean())
            if loss > worst:
                best, worst = moved, loss
            if turn < rounds - 1:
                moved = ascent(retrained, moved)
        before, after = (scores.pull(each, labels, v)[0] for each in (box.centre, best))
    return Attack(
        indices=rows,
        ids=None if names is None else names[rows],
        X=best,
        original=box.centre,
        perturbed="train",
        objective=objective,
        budget=float(budget),
        steps=steps * rounds,
        before=before / len(codes),
        after=after / len(codes),
        box=box,
        damping=scores.damping,
        damping_rule=damping if isinstance(damping, str) else "given",
        seed=int(seed),
        context=(model, (X, y, None), test, fit),
    )


def _on_test_side(
    scores: InputScores, X: np.ndarray, y: np.ndarray, box: Box, steps: int, size: float
) -> Attack:
    """Run FGSM (one step) or PGD on the test points themselves."""
    moved = ascend(lambda rows: scores.loss(rows, y), X, box, steps, size)
    return Attack(
        indices=np.arange(len(X)),
        X=moved,
        original=X,
        perturbed="test",
        objective="fgsm" if steps == 1 else "pgd",
        budget=box.budget,
        steps=steps,
        before=-scores.loss(X, y)[0],
        after=-scores.loss(moved, y)[0],
        box=box,
        flipped=scores.predict(moved) != scores.predict(X),
    )


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
    check_number("budget", budget)
    scores = input_scores(model, train, damping, parameters, check_seed(seed))
    X, y = scores.encode(*arrays_of(train, "training data")[:2])
    tx, ty = scores.encode(*_with_labels(scores.oracle, test))
    v = scores.solve(scores.mean_score(tx, ty))
    reach = _reach(scores, X, y, v, (budget, *valid_range(bounds, X)))
    order = np.argsort(-reach, kind="stable")
    return pd.DataFrame({"index": order, "label": y[order], "reach": reach[order]})


def _reach(scores: InputScores, X: np.ndarray, y: np.ndarray, v: Any, limits: Any) -> np.ndarray:
    """Return the reach of every row."""
    _, gradient = training_objective(scores, y, v)(X)
    return Box(X, *limits).reach(gradient) / len(X)


def input_scores(
    model: Any, train: Any, damping: str | float, parameters: Any = None, seed: int = 0
) -> InputScores:
    """Return the model as a function of its inputs."""
    X, y, weights = arrays_of(train, "training data")
    if weights is not None:
        raise ExemplaError("attack takes no sample_weight: give the training data as (X, y).")
    if is_trees(model):
        raise UnsupportedModelError(
            "trees predict in steps, so there is no gradient in the inputs to follow: use "
            "perturb='labels', which gives training rows wrong labels instead."
        )
    if isinstance(model, Pipeline):
        raise UnsupportedModelError(
            "attack moves the inputs of the model itself: give the last step of the Pipeline, and "
            "the data as transformed by the steps before it."
        )
    oracle = make_oracle(model, parameters=parameters)
    examples = oracle.read((X, y), role="train")
    rows = np.arange(len(examples))
    if len(rows) > _MAX_SAMPLE:
        rows = np.sort(np.random.default_rng(seed).choice(rows, _MAX_SAMPLE, replace=False))
    sample = examples.take(rows)
    value = _damping(oracle, sample, damping)
    if is_module(model):
        from exempla.tasks.attack.network import NetworkScores

        return NetworkScores(oracle, sample, value)  # pyright: ignore[reportArgumentType]
    return LinearScores(oracle, (X, y), value)


def _damping(oracle: Oracle, sample: Examples, wanted: str | float) -> float:
    """Return the given damping, or that of a rule; many parameters get the larger rule."""
    wanted = check_damping(wanted)
    if not isinstance(wanted, str):
        return float(wanted)
    energy = np.concatenate([rows.norm2() for rows in oracle.fisher_rows(sample)])
    evidence = FisherEvidence(
        trace=float(energy.sum()) / len(sample),
        rows=len(energy),
        energy2=float((energy**2).sum()),
        squared_norm=0.0,
        examples=len(sample),
        parameters=oracle.n_parameters,
    )
    return resolve_damping(wanted, evidence, use="attack").value


def _relabel(
    model: Any, train: Any, test: Any, k: Any, names: np.ndarray | None, fit: Fit | None,
    damping: Any, parameters: Any, seed: int,
) -> Attack:  # fmt: skip
    """Return the training rows whose relabelling harms the test predictions most."""
    oracle: Any = make_oracle(model, parameters=parameters)
    embedding = embed_training_set(oracle, train, EmbeddingOptions(seed=seed))
    codes, classes = getattr(embedding.train, "codes", None), getattr(oracle, "classes", None)
    if codes is None or classes is None:
        raise UnsupportedModelError(
            f"perturb='labels' gives rows another class, but {type(model).__name__} has no "
            "classes in the scikit-learn sense: use perturb='train'."
        )
    queried = _with_labels(oracle, test)
    chosen = resolve_damping(check_damping(damping), embedding.evidence, embedding.metric.name)
    mean = embedding.embed(oracle.read(queried, role="test"), "true")[0].mean(0)
    v = to_numpy(embedding.metric.solve(mean[None, :], chosen.value))[0]
    worth = np.empty((len(codes), len(classes)))  # s_j(c)ᵀv of row j under class c
    for code in range(len(classes)):
        other = replace(embedding.train, codes=np.full(len(codes), code))  # pyright: ignore
        batches = oracle.scores(other)
        worth[:, code] = np.concatenate(
            [to_numpy(embedding.sketch.project(b)) @ v for b in batches]
        )
    rows = np.arange(len(codes))
    own = worth[rows, codes] / len(codes)
    worth[rows, codes] = np.inf  # its own label is no attack
    best = np.argmin(worth, axis=1)
    other = worth[rows, best] / len(codes)
    found = _attacked_rows(k, len(codes), lambda: own - other)
    return Attack(
        indices=found,
        ids=None if names is None else names[found],
        perturbed="labels",
        X=classes[best[found]],
        original=classes[codes[found]],
        before=own[found],
        after=other[found],
        damping=chosen.value,
        damping_rule=chosen.rule,
        seed=int(seed),
        warnings=oracle.notes,
        every=(classes[best], other - own),
        context=(model, train, queried, fit),
    )


def _with_labels(oracle: Oracle, test: Any) -> tuple[Any, np.ndarray]:
    """Return the test data with labels; the predicted ones if none were given."""
    examples = oracle.read(test, role="test")
    X: Any = test[0] if isinstance(test, tuple) else test
    return X, oracle.predict(examples) if examples.labels is None else examples.labels


def _attacked_rows(k: Any, n: int, harm: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the k most harmful of n training rows, or the rows that `k` names."""
    if whole_number(k):
        if not 1 <= k <= n:
            raise ExemplaError(f"k is {k}: give a number from 1 to {n}, or row numbers.")
        return np.argsort(-harm(), kind="stable")[:k].astype(np.int64)
    return check_rows(k, n, "k", "training rows")
