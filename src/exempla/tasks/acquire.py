"""Choose what to add: the examples of a pool that should correct the queried predictions.

Let M be the mean Fisher of the n training examples plus penalty and damping, so that the parameters
are known up to a covariance A = (nM)⁻¹, and let s_q be the mean score of the queried predictions.

**Labels known.** Adding example j moves the queried log-likelihood by s_jᵀ A s_q. The candidates
are the examples' own scores, and only those that help (a positive product) are picked; texts by
their cosine with the query.

**Labels unknown.** With B the square-root Fisher rows of a candidate, √p_c ∇log p_c for each class,
the variance of the queried log-likelihood falls by

    ‖(I + B A Bᵀ)^(−½) B A s_q‖²  =  max_w (wᵀ B A s_q)² / (1 + wᵀ B A Bᵀ w),   ‖w‖ = 1

(c-optimal design). The right-hand side is the gain of one row h = Bᵀw, the *contrast* of the
candidate towards the query. In whitened coordinates A = I/n, and the gain of h is SBQ's own,
c²/(‖h‖² + noise − ‖Qᵀh‖²)/n with noise n. So the exact selector picks contrasts, chosen once, at
the first pick; with two classes there is only one, and every gain is exact.

A part of the picks (`breadth`) can be made towards random combinations of all test predictions,
whatever the labels: rows picked for their labels alone would bias the model. With `breadth="auto"`
the share of random rows that predicts held-out queries best is taken as well.
"""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, Unpack

import numpy as np

from exempla.arrays import real_numbers
from exempla.checks import check_ids, check_k, check_seed, is_real
from exempla.data import arrays_of, count_examples, stack_rows, take_examples, take_rows, unpack
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.explainer import Explainer, KernelOptions
from exempla.oracles import make_oracle
from exempla.progress import showing
from exempla.results import Answer
from exempla.selection import Selector
from exempla.tasks.candidates import CandidatePool, Candidates
from exempla.tasks.question import check_ask, queried_rows
from exempla.tasks.retrain import check_fit, fitted, refit
from exempla.tasks.verify import judge_rows

BREADTH, LABELLED_BREADTH = 0.0, 0.5
"""Default share of picks made for all test predictions: without and with labels in the pool."""
_MAX_QUERIES = 1000
"""Queried examples that make up the target; a random sample of more."""
_RANDOM_DRAWS = 20
_RANDOM_SHARES = (0.0, 0.5, 1.0)
"""Shares of random rows that are compared where the pool has labels."""
_MIN_HELD_OUT, _MAX_CHOICE_SECONDS = 20, 60.0
"""Queried examples that such a comparison needs, and seconds that it may take."""


@dataclass(frozen=True, kw_only=True, repr=False)
class Acquisition(Answer):
    """Rows of the pool to label or to train on, most useful first.

    Attributes
    ----------
    indices : int64 array
        Rows of the pool.
    weights : float array
        Each row's share of the gain that all of them bring.
    gains : float array
        How much each pick lowered the variance of the queried log-likelihood when it was made;
        zero for rows that were picked for breadth.
    helps : (k, ≤ 3) int64 array
        Positions (in the test data) of the queried examples that each row bears on most.
    predicted : dict
        Expected gain in the mean log-likelihood of the queried examples ("gain"), its 90 % interval
        ("low", "high"), and the same for as many random rows ("random", "random_sd").
    labelled : bool
        Whether the pool's labels were known.
    random_share : float
        Share of the rows that were drawn at random (see `breadth`).

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from sklearn.linear_model import LogisticRegression
    >>> import exempla
    >>> X, y = load_digits(return_X_y=True)
    >>> model = LogisticRegression(max_iter=300).fit(X[:60] / 16, y[:60])
    >>> found = exempla.acquire(
    ...     model, (X[:60] / 16, y[:60]), X[60:900] / 16, (X[900:] / 16, y[900:]), k=10,
    ...     progress=False)
    >>> len(found), found.labelled, found.predicted["gain"] > found.predicted["random"]
    (10, False, True)
    """

    weights: np.ndarray
    gains: np.ndarray
    helps: np.ndarray
    predicted: dict[str, float]
    labelled: bool
    n_train: int
    n_pool: int
    n_queried: int
    damping: float
    damping_rule: str
    seed: int
    random_share: float = 0.0
    request: Any = field(default=None, repr=False, compare=False)

    @property
    def finding(self) -> str:
        """What adding these rows should do, in one sentence."""
        action = "Training on" if self.labelled else "Labelling"
        said = {name: _likelier(value) for name, value in self.predicted.items()}
        return (
            f"{action} these {len(self):,} of {self.n_pool:,} rows should make the correct answers "
            f"to the {self.n_queried:,} queried predictions {said['gain']} likely (90 % interval "
            f"{said['low']} to {said['high']}; {len(self):,} random rows: {said['random']})."
        )

    def _columns(self) -> dict[str, Any]:
        return {"weight": self.weights, "gain": self.gains, "helps": self.helps[:, 0]}

    def verify(self, labels: Any = None, fit: Any = None, seeds: int = 3) -> AcquisitionCheck:
        """Retrain with these rows and with the same number of random rows, and compare.

        Parameters
        ----------
        labels : array, optional
            Labels of the whole pool, or of the picked rows in their order; needed where the pool
            had none. Random rows are only compared where the whole pool is labelled.
        fit : callable(module, X, y, sample_weight) -> module
            How a torch module is trained; scikit-learn models need none.
        seeds : int
            Retrainings per arm.

        Returns
        -------
        AcquisitionCheck
        """
        request = self.request if fit is None else self.request._replace(fit=fit)
        check_fit(request.first, request.fit)
        values = unpack(request.pool, []).y if labels is None else labels
        if values is None:
            raise ExemplaError("The pool has no labels: give labels= to verify the picks.")
        if len(values) not in (len(self), self.n_pool):
            raise ExemplaError(
                f"labels has {len(values)} entries: give one for each of the {self.n_pool} pool "
                f"rows or of the {len(self)} picked rows."
            )
        whole, values = len(values) == self.n_pool, np.asarray(values)
        own, runs = values[self.indices] if whole else values, []
        for seed in range(seeds):
            arms = [(self.indices[:0], own[:0]), (self.indices, own)]
            if whole:
                drawn = np.random.default_rng(seed).choice(self.n_pool, len(self), replace=False)
                arms.append((drawn, values[drawn]))
            runs.append([request.judged(*arm, seed) for arm in arms])
        means = np.full((3, 3), np.nan)
        means[: len(runs[0])] = np.mean(runs, axis=0)
        return AcquisitionCheck(*map(tuple, means.T.tolist()))


class AcquisitionCheck(NamedTuple):
    """What retraining showed: shares of correct predictions, each (before, with these, random)."""

    queried: tuple[float, float, float]
    all: tuple[float, float, float]
    log_likelihood: tuple[float, float, float]
    """Mean log-likelihood of the queried predictions."""

    def __str__(self) -> str:
        def arms(shares: tuple[float, float, float]) -> str:
            random = "" if np.isnan(shares[2]) else f", {shares[2]:.1%} with random rows"
            return f"{shares[0]:.1%} before, {shares[1]:.1%} with these rows{random}"

        return (
            f"Queried predictions that are correct: {arms(self.queried)}. "
            f"All test predictions: {arms(self.all)}."
        )


class _Request(NamedTuple):
    model: Any
    train: Any
    pool: Any
    test: Any
    queried: np.ndarray
    fit: Any

    @property
    def first(self) -> Any:
        """The model, or the first of several."""
        return self.model[0] if isinstance(self.model, list | tuple) else self.model

    def trained(self, rows: np.ndarray, labels: np.ndarray, seed: int) -> Any:
        """Return the model trained on the training set and these rows of the pool."""
        X, y, weights = arrays_of(self.train, "training")
        if len(rows):
            more = take_rows(unpack(self.pool, []).X, rows)
            X, y = stack_rows(X, more), np.concatenate([y, labels])
            weights = None if weights is None else np.append(weights, np.ones(len(rows)))
        return refit(self.first, X, y, weights, self.fit, seed)

    def judged(self, rows: np.ndarray, labels: np.ndarray, seed: int) -> tuple[float, float, float]:
        """Return the shares of correct predictions among the queried and all with these rows, and
        the queried mean log-likelihood."""
        values, right = judge_rows(self.trained(rows, labels, seed), arrays_of(self.test, "test"))
        likelihood = np.maximum(values, np.log(1e-12))[self.queried]
        right = np.full(len(values), np.nan) if right is None else right
        return float(right[self.queried].mean()), float(right.mean()), float(likelihood.mean())


def acquire(
    model: Any,
    train: Any,
    pool: Any,
    test: Any,
    k: int,
    *,
    ask: Any = "errors",
    costs: Any = None,
    selector: Selector | None = None,
    breadth: float | Literal["auto"] | None = None,
    ids: Any = None,
    fit: Any = None,
    **options: Unpack[KernelOptions],
) -> Acquisition:
    """Return the k rows of a pool that should improve the queried predictions most.

    Parameters
    ----------
    model : model, fitted or not yet, or a list of them
        Never changed. The kernels of several models are averaged.
    train : (X, y) or a data set
        What the model was trained on. A pool row that repeats what the training set already says
        is worth little.
    pool : X, (X, y) or a data set
        The candidates. With labels their own scores count (data selection); without labels the
        expectation over the model's predictions does (what to label next).
    test : (X, y) or a data set
        Labelled examples among which the model's errors are found.
    k : int
        Number of pool rows to return. Copies of a row count once.
    ask : {"errors", "all"}, "errors:TRUE->SAID", indices or boolean mask
        Which test predictions should improve.
    costs : (n_pool,) array of positive numbers, optional
        Cost of each row; gains then count per unit of cost.
    selector : Selector, optional
        `SBQ(noise=0.1 * n_train)` by default; for texts `TopInfluence()` on rows of unit length.
    breadth : float or "auto", optional
        Share of the picks made for what all test predictions depend on, whatever the labels: 0 by
        default, 0.5 where the pool has labels (picking by labels alone would bias them), unless
        they are the tokens of texts. "auto", for pools with labels and models that are quickly
        retrained: 0.5, and a share of random rows (`random_share`) where queried examples that the
        picks were not made for are then predicted better, as where the target is like the pool.
    ids : sequence
        Your own names of the pool rows.
    fit : callable(module, X, y, sample_weight) -> module
        How a torch module is trained, for `.verify()`.
    **options
        Kernel options, as for `Explainer`; `normalize` applies to texts.

    Returns
    -------
    Acquisition

    Raises
    ------
    ExemplaError
        If k, costs, breadth or the data are unusable, or the model makes no errors.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.linear_model import LogisticRegression
    >>> rng = np.random.default_rng(0)
    >>> X = rng.normal(size=(300, 4)); y = X[:, 0] + X[:, 1] > 0
    >>> model = LogisticRegression().fit(X[:20], y[:20])
    >>> found = acquire(model, (X[:20], y[:20]), X[20:200], (X[200:], y[200:]), 5, progress=False)
    >>> found.verify(labels=y[20:200]).queried[1] > 0.2
    True
    """
    if breadth not in (None, "auto") and (not is_real(breadth) or not 0 <= breadth <= 1):
        raise ExemplaError(f"breadth must be a number between 0 and 1 or 'auto', not {breadth!r}.")
    check_ask(ask)
    n_pool = count_examples(pool) or 0
    k, names = check_k(k, n_pool, "rows of the pool"), check_ids(ids, n_pool)
    root_costs = _check_costs(costs, n_pool)
    if fit is not None:
        check_fit(model, fit)
    models = model if isinstance(model, list | tuple) else [model]
    seed = check_seed(options.get("seed", 0))
    explainer = Explainer([fitted(m, train, seed) for m in models], **options).fit(train)
    rng, random_share = np.random.default_rng(seed), 0.0
    with showing(explainer.progress):
        asked = queried_rows(explainer, test, ask)
        queried = used = np.arange(count_examples(test) or 0) if asked is None else asked
        if len(queried) > _MAX_QUERIES:
            used = np.sort(rng.choice(queried, _MAX_QUERIES, False))
        request = _Request(model, train, pool, test, queried, fit)
        seen, query = (
            CandidatePool(explainer, pool, test, selector, root_costs),
            take_examples(test, used),
        )
        by_labels = seen.labelled and not seen.is_text
        usual = LABELLED_BREADTH if by_labels else BREADTH
        towards = seen.towards(query)
        order, gains = seen.pick(towards, k, usual if breadth in (None, "auto") else breadth, rng)
        if breadth == "auto" and by_labels:
            random_share = _best_random_share(seen, request, used, len(order), seed)
            mixed = _with_random(order, random_share, n_pool, rng)
            order, gains = mixed, np.where(mixed == order, gains, 0.0)
        predicted = _predicted(towards, order, explainer, query, seen.labelled, rng)
    notes = [*dict.fromkeys(note for e in explainer.embeddings for note in e.oracle.notes)]
    if len(order) < k:
        others = "are copies or do not help" if seen.labelled else "are copies"
        notes.append(f"Only {len(order)} of {k} rows were picked: the others {others}.")
        warnings.warn(notes[-1], ExemplaWarning, stacklevel=2)
    kernel = explainer.kernel("influence")
    bearing = np.abs(towards.plain[order] @ towards.single.T)
    return Acquisition(
        indices=order.astype(np.int64),
        ids=None if names is None else names[order],
        warnings=tuple(notes),
        weights=gains / gains.sum() if gains.sum() > 0 else gains,
        gains=gains,
        helps=used[np.argsort(-bearing, axis=1, kind="stable")[:, :3]],
        predicted=predicted,
        labelled=seen.labelled,
        n_train=explainer.n_train,
        n_pool=n_pool,
        n_queried=len(queried),
        damping=kernel.damping,
        damping_rule=kernel.dampings[0].rule,
        seed=seed,
        random_share=random_share,
        request=request,
    )


def _with_random(order: np.ndarray, share: float, n: int, rng: np.random.Generator) -> np.ndarray:
    """Replace the last of the picks by random rows."""
    picked = order[: len(order) - round(share * len(order))]
    others = rng.permutation(np.setdiff1d(np.arange(n), picked))
    return np.concatenate([picked, others[: len(order) - len(picked)]])


def _best_random_share(
    pool: CandidatePool, request: _Request, used: np.ndarray, k: int, seed: int
) -> float:
    """Return the share of random rows with which the model predicts held-out queries best.

    Rows are picked for one half of the queried examples, and the model trained with them is judged
    on the other half; both ways. 0 if the queries are few or the model is not quickly retrained.
    """
    if len(used) < _MIN_HELD_OUT:
        return 0.0
    halves, started = ((used[::2], used[1::2]), (used[1::2], used[::2])), time.perf_counter()
    losses = np.zeros(len(_RANDOM_SHARES))
    try:
        check_fit(request.first, request.fit)
        labels = np.asarray(arrays_of(request.pool, "pool")[1])
        for own, other in halves:
            rng = np.random.default_rng(seed)
            towards = pool.towards(take_examples(request.test, own))
            order, _ = pool.pick(towards, k, LABELLED_BREADTH, rng)
            for i, share in enumerate(_RANDOM_SHARES):
                rows = _with_random(order, share, len(towards.rows), rng)
                oracle = make_oracle(request.trained(rows, labels[rows], seed))
                examples = oracle.read(take_examples(request.test, other), role="test")
                losses[i] -= _floored(oracle, examples).mean()
                if time.perf_counter() - started > _MAX_CHOICE_SECONDS:
                    return 0.0
    except ExemplaError:  # a model that cannot be retrained, or data that are not arrays
        return 0.0
    return _RANDOM_SHARES[int(np.argmin(losses))]


def _floored(oracle: Any, examples: Any) -> np.ndarray:
    """Return log-likelihoods, none of which decides a mean."""
    return np.maximum(oracle.log_likelihood(examples), np.log(1e-12))


def _predicted(
    towards: Candidates, order: np.ndarray, explainer: Explainer, query: Any, labelled: bool,
    rng: np.random.Generator,
) -> dict[str, float]:  # fmt: skip
    """Return the expected change of the queried examples' mean log-likelihood, beside random rows'.

    Labels known: the Newton step that the rows' scores make. Unknown: the rows resolve a share of
    the variance of the queried log-likelihood; the gain is that share of `gap`, by which the true
    labels are less likely than the predicted ones. No gain exceeds `most`, where the true labels
    are certain.
    """
    rows, target, n = towards.plain, towards.single.mean(0), explainer.n_train
    before, oracle = float(target @ target) / n, explainer.embeddings[0].oracle
    examples = oracle.read(query, role="test")
    gap = most = float(-_floored(oracle, examples).mean())
    if isinstance(query, tuple):
        answers = (unpack(query, []).X, oracle.predict(examples))
        gap += float(oracle.log_likelihood(oracle.read(answers, role="test")).mean())

    def effect(chosen: np.ndarray) -> tuple[float, float]:
        picked = rows[chosen]
        inner = picked @ picked.T + n * np.eye(len(chosen))
        solved = np.linalg.solve(inner, picked @ target)
        variance = float(picked @ target @ solved) / n
        if labelled:
            total = picked.sum(0)
            step = (total - picked.T @ np.linalg.solve(inner, picked @ total)) / n
            return float(step @ target), variance
        return gap * variance / before if before > 0 else 0.0, variance

    gain, variance = effect(order)
    others = [
        effect(rng.choice(len(rows), len(order), replace=False))[0] for _ in range(_RANDOM_DRAWS)
    ]
    spread = 1.645 * variance**0.5
    return {
        "gain": min(gain, most), "low": min(gain, most) - spread, "high": min(gain + spread, most),
        "random": min(float(np.mean(others)), most), "random_sd": float(np.std(others)),
    }  # fmt: skip


def _check_costs(costs: Any, n_pool: int) -> np.ndarray | None:
    if costs is None:
        return None
    values = real_numbers(costs, "costs")
    if values.shape != (n_pool,) or not np.isfinite(values).all() or not (values > 0).all():
        raise ExemplaError(f"costs must hold a positive number for each of the {n_pool} pool rows.")
    return np.sqrt(values / values.mean())


def _likelier(gain: float) -> str:
    """A change of log-likelihood in words, such as "11 % more" or "2.7 times as"."""
    if gain > np.log(2):
        return f"{np.exp(min(gain, 7.0)):.2g} times as"
    change = np.expm1(gain)
    return f"{abs(change) * 100:.0f} % {'more' if change >= 0 else 'less'}"
