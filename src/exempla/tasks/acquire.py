"""Choose what to add: the examples of a pool that should correct the queried predictions.

`explain` asks which training examples a set of predictions rests on; `acquire` asks which new ones
it needs. Both use the same kernel. Let M be the mean Fisher of the n training examples plus
penalty and damping, so that the parameters are known up to a covariance A = (nM)⁻¹, and let s_q be
the mean score of the queried predictions under their true labels.

**Labels known.** Adding example j moves the queried log-likelihood by s_jᵀ A s_q. The candidates
are the examples' own scores, and only those that help (a positive product) are picked.

**Labels unknown.** Under the model's own labels that product is zero on average; what counts is how
much the label would teach. With B the square-root Fisher rows of a candidate (√p_c ∇log p_c, one
per class), the variance of the queried log-likelihood falls by

    ‖(I + B A Bᵀ)^(−½) B A s_q‖²  =  max_w (wᵀ B A s_q)² / (1 + wᵀ B A Bᵀ w),   ‖w‖ = 1

(c-optimal design). The right-hand side is the gain of one row h = Bᵀw, the *contrast* of the
candidate towards the query. In whitened coordinates A = I/n, and the gain of h is SBQ's own,
c²/(‖h‖² + noise − ‖Qᵀh‖²)/n with noise n. So the exact selector picks contrasts, and rows that the
training set already explains gain little. The contrast is chosen once, at the first pick; with two
classes there is only one, and every gain is exact.

A part of the picks (`breadth`) can be made towards random combinations of all test predictions
instead. Where labels are known half of them are, and these ignore the labels: rows picked for
their labels alone would bias the model.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Unpack

import numpy as np

from exempla.arrays import real_numbers, to_numpy
from exempla.checks import check_ids, check_k, check_seed, is_real
from exempla.data import arrays_of, n_rows, stack_rows, take_examples, take_rows, unpack
from exempla.errors import ExemplaError, ExemplaWarning
from exempla.explainer import Explainer, KernelOptions
from exempla.kernel.basis import IdentitySketch
from exempla.kernel.embed import Embedding
from exempla.oracles.base import ScoreRows
from exempla.progress import showing, track_rows
from exempla.results import Answer
from exempla.selection import SBQ, Selector, select
from exempla.tasks.mistakes import check_ask, queried_rows
from exempla.tasks.retrain import check_fit, fitted, refit

BREADTH, LABELLED_BREADTH = 0.0, 0.5
"""Default share of picks made for all test predictions: without and with labels in the pool."""
NOISE_SHARE = 0.1
"""Noise of the default selector as a share of n. At 1 the gains are the exact variance reductions
if all labels were observed with the model's own label noise; less noise asks for more diversity."""
MAX_QUERIES = 1000
"""Queried examples that make up the target; a random sample of more."""
_PROBES, _PROBE_EXAMPLES = 4, 256
_RANDOM_DRAWS = 20
_GROUP_DIGITS = 5
"""Rows whose directions agree to this many decimals are copies of each other."""


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
    request: Any = field(default=None, repr=False, compare=False)

    @property
    def finding(self) -> str:
        """What adding these rows should do, in one sentence."""
        action = "Training on" if self.labelled else "Labelling"
        low, high = _likelier(self.predicted["low"]), _likelier(self.predicted["high"])
        return (
            f"{action} these {len(self):,} of {self.n_pool:,} rows should make the correct answers "
            f"to the {self.n_queried:,} queried predictions "
            f"{_likelier(self.predicted['gain'])} likely (90 % interval {low} to {high}; "
            f"{len(self):,} random rows: {_likelier(self.predicted['random'])})."
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
        return _verify(self, labels, fit, seeds)


class AcquisitionCheck(NamedTuple):
    """What retraining showed: shares of correct predictions, each (before, with these, random)."""

    queried: tuple[float, float, float]
    all: tuple[float, float, float]
    log_likelihood: tuple[float, float, float]
    """Mean log-likelihood of the queried predictions."""

    def __str__(self) -> str:
        def arms(shares: tuple[float, float, float]) -> str:
            before, mine, chance = (f"{x:.1%}" for x in shares)
            random = "" if np.isnan(shares[2]) else f", {chance} with random rows"
            return f"{before} before, {mine} with these rows{random}"

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
    breadth: float | None = None,
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
        `SBQ(noise=0.1 * n_train)` by default.
    breadth : float, optional
        Share of the picks made for what all test predictions depend on, whatever the labels: 0 by
        default, 0.5 where the pool has labels (picking by labels alone would bias them), unless
        they are the tokens of texts.
    ids : sequence
        Your own names of the pool rows.
    fit : callable(module, X, y, sample_weight) -> module
        How a torch module is trained, for `.verify()`.
    **options
        Kernel options, as for `Explainer`.

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
    if breadth is not None and (not is_real(breadth) or not 0 <= breadth <= 1):
        raise ExemplaError(f"breadth must be a number between 0 and 1, not {breadth!r}.")
    check_ask(ask)
    n_pool = _count(pool)
    k, names = check_k(k, n_pool, "rows of the pool"), check_ids(ids, n_pool)
    root_costs = _check_costs(costs, n_pool)
    if fit is not None:
        check_fit(model, fit)
    models = model if isinstance(model, list | tuple) else [model]
    seed = check_seed(options.get("seed", 0))
    explainer = Explainer([fitted(m, train, seed) for m in models], **options).fit(train)
    with showing(explainer.progress):
        return _acquire(explainer, _Request(model, train, pool, test, np.zeros(0), fit), k, ask,
                        root_costs, selector, breadth, names)  # fmt: skip


def _acquire(
    explainer: Explainer,
    request: _Request,
    k: int,
    ask: Any,
    root_costs: np.ndarray | None,
    selector: Selector | None,
    breadth: float | None,
    names: np.ndarray | None,
) -> Acquisition:
    rng = np.random.default_rng(explainer.seed)
    first = explainer.embeddings[0].oracle
    asked = queried_rows(explainer, request.test, ask)
    queried = np.arange(_count(request.test)) if asked is None else asked
    used = (
        np.sort(rng.choice(queried, MAX_QUERIES, False)) if len(queried) > MAX_QUERIES else queried
    )
    query = take_examples(request.test, used)
    labelled = first.read(request.pool, role="test").labels is not None
    pool = _Pool(explainer, request.pool, labelled, root_costs)
    target, rows, targets = pool.towards_scores(query)
    noise = NOISE_SHARE * explainer.n_train
    chosen = SBQ(noise=noise) if selector is None else selector
    side = "proponents" if labelled else "both"
    keep = _first_of_copies(rows)
    is_text = getattr(first, "likelihood", "") == "causal_lm"  # the label is the text itself
    usual = LABELLED_BREADTH if labelled and not is_text else BREADTH
    general = round((usual if breadth is None else breadth) * k)
    order, gains = np.zeros(0, np.int64), np.zeros(0)
    if k > general:
        picked = _quiet_select(rows[keep], target, min(k - general, len(keep)), chosen, side)
        order, gains = keep[picked.indices], np.asarray(picked.gains)
    if general:
        order, gains = _with_breadth(pool, request.test, rng, order, gains, keep, k, chosen)
    notes = [*dict.fromkeys(note for e in explainer.embeddings for note in e.oracle.notes)]
    if len(order) < k:
        notes.append(f"Only {len(order)} of {k} rows were picked: the others are copies"
                     + (" or do not help." if labelled else "."))  # fmt: skip
        warnings.warn(notes[-1], ExemplaWarning, stacklevel=4)
    damping = explainer.kernel("influence").dampings
    share = gains / gains.sum() if gains.sum() > 0 else gains
    bearing = np.abs(rows[order] @ targets.T)
    return Acquisition(
        indices=order.astype(np.int64),
        ids=None if names is None else names[order],
        warnings=tuple(notes),
        weights=share,
        gains=gains,
        helps=used[np.argsort(-bearing, axis=1, kind="stable")[:, :3]],
        predicted=_predicted(
            rows, order, target, explainer.n_train, *_gap(explainer, query), labelled, rng
        ),
        labelled=labelled,
        n_train=explainer.n_train,
        n_pool=len(rows),
        n_queried=len(queried),
        damping=float(np.mean([d.value for d in damping])),
        damping_rule=damping[0].rule,
        seed=explainer.seed,
        request=request._replace(queried=queried),
    )


class _Target(NamedTuple):
    """A combination of score rows, seen by one model."""

    embedding: Embedding
    damping: float
    rows: ScoreRows
    mix: np.ndarray
    inside: np.ndarray
    """In sketch space."""
    length: float
    """Of the part that the sketch does not represent; 0 where it represents everything."""
    scale: float
    """1 / metric in the residual."""

    @staticmethod
    def of(embedding: Embedding, damping: float, rows: ScoreRows, mix: np.ndarray) -> _Target:
        inside = mix @ _float64(embedding.sketch.project(rows))
        if isinstance(embedding.sketch, IdentitySketch):
            return _Target(embedding, damping, rows, mix, inside, 0.0, 0.0)
        square = float(mix @ rows.gram(rows) @ mix - inside @ inside)
        penalty = embedding.sketch.residual_penalty
        penalty = embedding.residual_eigenvalue if penalty is None else penalty
        scale = embedding.metric.residual_inverse(penalty, damping)
        return _Target(embedding, damping, rows, mix, inside, max(square, 0.0) ** 0.5, scale)

    def vector(self) -> np.ndarray:
        """The target, whitened, with its length in the residual as the last coordinate."""
        return np.append(self.whiten(self.inside[None])[0], np.sqrt(self.scale) * self.length)

    def whiten(self, rows: np.ndarray) -> np.ndarray:
        return _float64(self.embedding.metric.whiten(rows, self.damping))

    def features(self, batch: ScoreRows, inside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whitened rows with one coordinate along the target's residual, and each row's squared
        length in the rest of the residual, which no other row is compared in.

        `inside` are the rows in sketch space.
        """
        white = self.whiten(inside)
        if not self.scale:
            return np.column_stack([white, np.zeros(len(white))]), np.zeros(len(white))
        along = np.zeros(len(white))
        if self.length > 0:
            along = (batch.gram(self.rows) @ self.mix - inside @ self.inside) / self.length
        rest = batch.norm2() - np.einsum("ij,ij->i", inside, inside) - along**2
        return (
            np.column_stack([white, np.sqrt(self.scale) * along]),
            self.scale * np.maximum(rest, 0.0),
        )


class _Pool:
    """The candidates: one row each towards a given target, whitened, all models side by side."""

    def __init__(
        self, explainer: Explainer, pool: Any, labelled: bool, root_costs: np.ndarray | None
    ) -> None:
        self.embeddings, self.labelled, self.root_costs = explainer.embeddings, labelled, root_costs
        chosen = explainer.kernel("influence").dampings
        self.dampings = [d.value for d in chosen]
        self.n_train = explainer.n_train
        self.examples = [e.oracle.read(pool, role="test") for e in explainer.embeddings]

    def towards_scores(self, query: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The mean score of the queried examples, a row for every candidate, and the queried
        examples one by one."""
        made, single = [], []
        for e, damping in zip(self.embeddings, self.dampings, strict=True):
            examples = e.oracle.read(query, role="test")
            scores = ScoreRows.join(list(e.oracle.scores(examples)))
            made.append(_Target.of(e, damping, scores, np.full(len(scores), 1.0 / len(scores))))
            inside = _float64(e.sketch.project(scores))
            single.append(made[-1].features(scores, inside)[0])
        (found,) = self._towards([made], self.labelled, np.float64)
        return *found, np.hstack(single) / np.sqrt(len(single))

    def towards_samples(
        self, test: Any, count: int, rng: np.random.Generator
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Random combinations of the test examples' Fisher rows, each with a row per candidate."""
        targets = []
        for _ in range(count):
            size = _count(test)
            drawn = np.sort(rng.choice(size, min(size, _PROBE_EXAMPLES), replace=False))
            some, made = take_examples(test, drawn), []
            for e, damping in zip(self.embeddings, self.dampings, strict=True):
                rows = ScoreRows.join(list(e.oracle.fisher_rows(e.oracle.read(some, role="test"))))
                signs = rng.choice([-1.0, 1.0], len(rows)) / np.sqrt(len(drawn))
                made.append(_Target.of(e, damping, rows, signs))
            targets.append(made)
        return self._towards(targets, False, np.float32)

    def _towards(
        self, targets: list[list[_Target]], labelled: bool, dtype: Any
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """The vector of each target and a row per candidate; one pass over the pool per model."""
        found, root = [], np.sqrt(len(self.embeddings))
        parts = [
            self._rows([made[i] for made in targets], examples, labelled, dtype)
            for i, examples in enumerate(self.examples)
        ]
        for place, made in enumerate(targets):
            rows = np.hstack([part[place] for part in parts]) / root
            if self.root_costs is not None:
                rows /= self.root_costs[:, None]
            found.append((np.concatenate([t.vector() for t in made]) / root, rows))
        return found

    def _rows(
        self, targets: list[_Target], examples: Any, labelled: bool, dtype: Any
    ) -> list[np.ndarray]:
        embedding, goals = targets[0].embedding, [target.vector() for target in targets]
        oracle = embedding.oracle
        out = [np.zeros((len(examples), len(goal)), dtype) for goal in goals]
        batches = oracle.scores(examples) if labelled else oracle.fisher_rows(examples)
        for batch in track_rows(batches, "scoring the pool", len(examples)):
            inside = _float64(embedding.sketch.project(batch))
            for target, goal, made in zip(targets, goals, out, strict=True):
                features, private = target.features(batch, inside)
                for rows in _by_example(batch.sample):
                    contrast, alone = _contrast(features[rows], private[rows], goal, self.n_train)
                    # a private variance d beside the shared noise n: divide by √(1 + d/n)
                    scale = np.sqrt(1 + alone / self.n_train)
                    made[batch.sample[rows[:, 0]]] = contrast / scale[:, None]
        return out


def _contrast(
    block: np.ndarray, private: np.ndarray, goal: np.ndarray, n: float
) -> tuple[np.ndarray, np.ndarray]:
    """Reduce blocks of rows (m, c, p) to the unit combination that gains most towards the goal.

    Returns the rows (m, p) and their private variances (m,).
    """
    if block.shape[1] == 1:
        return block[:, 0], private[:, 0]
    inner = block @ block.transpose(0, 2, 1) / n
    inner += np.eye(block.shape[1]) + private[:, :, None] * np.eye(block.shape[1]) / n
    w = np.linalg.solve(inner, (block @ goal)[..., None])[..., 0]
    w /= np.maximum(np.linalg.norm(w, axis=1, keepdims=True), np.finfo(float).tiny)
    return np.einsum("mc,mcp->mp", w, block), np.einsum("mc,mc->m", w**2, private)


def _by_example(sample: np.ndarray) -> Iterator[np.ndarray]:
    """Positions of each example's rows, examples with equally many rows together."""
    order = np.argsort(sample, kind="stable")
    _, starts, counts = np.unique(sample[order], return_index=True, return_counts=True)
    for count in np.unique(counts):
        yield order[starts[counts == count][:, None] + np.arange(count)]


def _first_of_copies(rows: np.ndarray) -> np.ndarray:
    """Positions of the first row in every direction; rows of no length at all are left out."""
    length = np.linalg.norm(rows, axis=1)
    alive = np.flatnonzero(length > 0)
    unit = rows[alive] / length[alive, None]
    draws = np.random.default_rng(0).normal(size=(rows.shape[1], 4))
    cells = np.column_stack(
        [np.round(unit @ draws, _GROUP_DIGITS), np.round(np.log(length[alive]), 3)]
    )
    return alive[np.sort(np.unique(cells, axis=0, return_index=True)[1])]


def _with_breadth(
    pool: _Pool, test: Any, rng: np.random.Generator, order: np.ndarray, gains: np.ndarray,
    keep: np.ndarray, k: int, selector: Selector,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Picks for all test predictions, spread evenly among those for the query."""
    general = min(k, len(keep)) - len(order)
    probes = min(_PROBES, general)
    found: list[int] = []
    for i, (goal, rows) in enumerate(pool.towards_samples(test, probes, rng)):
        share = general * (i + 1) // probes
        wanted = min(len(keep), len(order) + len(found) + share)
        candidates = keep[_quiet_select(rows[keep], goal, wanted, selector, "both").indices]
        fresh = [int(j) for j in candidates if j not in order and j not in found]
        found += fresh[: share - len(found)]
    places = np.linspace(0, len(order), len(found) + 1)[1:].astype(int)
    return np.insert(order, places, found), np.insert(gains, places, 0.0)


def _predicted(
    rows: np.ndarray, order: np.ndarray, target: np.ndarray, n: int, gap: float, most: float,
    labelled: bool, rng: np.random.Generator,
) -> dict[str, float]:  # fmt: skip
    """Expected change of the queried examples' mean log-likelihood, and that of random rows.

    Labels known: the Newton step that the rows' scores make. Unknown: the rows resolve a share of
    the variance of the queried log-likelihood; the gain is that share of `gap`, by which the true
    labels are less likely than the predicted ones. No gain exceeds `most`, where the true labels
    are certain.
    """
    before = float(target @ target) / n

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


def _gap(explainer: Explainer, query: Any) -> tuple[float, float]:
    """Return by how much the true labels are less likely than the predicted ones, and than certain.

    Both are differences of the mean log-likelihood.
    """
    oracle = explainer.embeddings[0].oracle
    examples = oracle.read(query, role="test")
    likelihood = np.maximum(oracle.log_likelihood(examples), np.log(1e-12))
    X = unpack(query, []).X if isinstance(query, tuple) else None
    if X is None:
        return float(-likelihood.mean()), float(-likelihood.mean())
    best = oracle.log_likelihood(oracle.read((X, oracle.predict(examples)), role="test"))
    return float(np.mean(best - likelihood)), float(-likelihood.mean())


def _verify(found: Acquisition, labels: Any, fit: Any, seeds: int) -> AcquisitionCheck:
    request: _Request = found.request
    fit = request.fit if fit is None else fit
    models = request.model if isinstance(request.model, list | tuple) else [request.model]
    check_fit(models[0], fit)
    X, y, weights = arrays_of(request.train, "training")
    pool_X, pool_y = _pool_arrays(request.pool)
    values = pool_y if labels is None else np.asarray(labels)
    if values is None:
        raise ExemplaError("The pool has no labels: give labels= to verify the picks.")
    if len(values) not in (len(found), found.n_pool):
        raise ExemplaError(
            f"labels has {len(values)} entries: give one for each of the {found.n_pool} pool rows "
            f"or of the {len(found)} picked rows."
        )
    whole = len(values) == found.n_pool
    test_X, test_y, _ = arrays_of(request.test, "test")
    arms: dict[str, list[tuple[float, float, float]]] = {"before": [], "with": [], "random": []}
    for seed in range(seeds):
        drawn = np.random.default_rng(seed).choice(found.n_pool, len(found), replace=False)
        own = values[found.indices] if whole else values
        added: dict[str, Any] = {"before": None, "with": (found.indices, own)}
        if whole:
            added["random"] = (drawn, values[drawn])
        for arm, more in added.items():
            data = (X, y, weights)
            if more is not None:
                joined = stack_rows(X, take_rows(pool_X, more[0])), np.concatenate([y, more[1]])
                extra = None if weights is None else np.append(weights, np.ones(len(more[0])))
                data = (*joined, extra)
            trained = refit(models[0], *data, fit, seed)
            arms[arm].append(_judged(trained, test_X, np.asarray(test_y), request.queried))
    if not whole:
        arms["random"].append((np.nan, np.nan, np.nan))
    means = [np.mean(arms[a], axis=0) for a in ("before", "with", "random")]
    queried, every, likelihood = (tuple(float(m[i]) for m in means) for i in range(3))
    return AcquisitionCheck(queried, every, likelihood)  # type: ignore[arg-type]


def _judged(model: Any, X: Any, y: np.ndarray, queried: np.ndarray) -> tuple[float, float, float]:
    """Shares of correct predictions among the queried and all, and the queried log-likelihood."""
    from exempla.oracles import make_oracle

    oracle = make_oracle(model)
    examples = oracle.read((X, y), role="test")
    right = np.asarray(oracle.predict(examples)) == y
    likelihood = np.maximum(oracle.log_likelihood(examples)[queried], np.log(1e-12))
    return float(right[queried].mean()), float(right.mean()), float(likelihood.mean())


def _pool_arrays(pool: Any) -> tuple[Any, Any]:
    given = unpack(pool, [])
    return given.X, None if given.y is None else np.asarray(given.y)


def _count(data: Any) -> int:
    """Number of examples in what a user gave."""
    if isinstance(data, tuple | list) and len(data) in (2, 3) and hasattr(data[0], "__len__"):
        return n_rows(data[0])
    return n_rows(data)


def _check_costs(costs: Any, n_pool: int) -> np.ndarray | None:
    if costs is None:
        return None
    values = real_numbers(costs, "costs")
    if values.shape != (n_pool,) or not np.isfinite(values).all() or not (values > 0).all():
        raise ExemplaError(f"costs must hold a positive number for each of the {n_pool} pool rows.")
    return np.sqrt(values / values.mean())


def _quiet_select(rows: np.ndarray, goal: np.ndarray, k: int, selector: Selector, side: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExemplaWarning)
        return select(rows, goal, k, selector, side=side)


def _likelier(gain: float) -> str:
    """A change of log-likelihood in words.

    >>> _likelier(0.1), _likelier(-0.1), _likelier(1.0)
    ('11 % more', '10 % less', '2.7 times as')
    """
    if gain > np.log(2):
        return f"{np.exp(min(gain, 7.0)):.2g} times as"
    change = np.expm1(gain)
    return f"{abs(change) * 100:.0f} % {'more' if change >= 0 else 'less'}"


def _float64(array: Any) -> np.ndarray:
    return np.asarray(to_numpy(array), dtype=np.float64)
