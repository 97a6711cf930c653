"""Which of a row's labels are wrong, where a row may have several: missing ones or too many.

Each label is judged by itself, as present or absent, by models that have not seen the row."""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla import __version__
from exempla.arrays import is_sparse
from exempla.checks import check_ids, check_k, check_seed
from exempla.data import listing, n_rows, stack_rows, unpack
from exempla.errors import ExemplaError
from exempla.memory import announce
from exempla.progress import track
from exempla.tasks.labels.crossfit import view_bytes
from exempla.tasks.labels.evidence import Evidence, assess_predictions
from exempla.tasks.labels.neighbours import Neighbours
from exempla.tasks.labels.problem import LabelProblem, Learner, check_classifier
from exempla.tasks.labels.result import LabelFixes
from exempla.tasks.labels.wrong import Assessment
from exempla.tasks.retrain import Fit

_WRAPPED = ("OneVsRestClassifier", "MultiOutputClassifier", "ClassifierChain")
"""Several labels at once by a model for each, which is what is asked here anyway."""


def fix_label_sets(
    model: Any,
    train: Any,
    curated: Any = None,
    k: int | None = None,
    *,
    fit: Fit | None = None,
    seed: int = 0,
    ids: Any = None,
    probabilities: Any = None,
) -> LabelFixes:
    """Rank (row, label) pairs by how likely they are wrong; see `exempla.fix_labels`."""
    X, Y, names, weights, own_ids = _read(train, "train")
    n, L = Y.shape
    if curated is not None:
        Xc, Yc, others, wc, _ = _read(curated, "curated")
        if list(names) != list(others):
            raise ExemplaError(
                f"the curated rows have the labels {', '.join(map(str, others[:5]))}, not those of "
                "the training rows; give both the same columns, in the same order."
            )
        X, Y = stack_rows(X, Xc), np.vstack([Y, Yc])
        if weights is not None or wc is not None:
            both = ((n, weights), (len(Yc), wc))
            weights = np.concatenate([np.ones(c) if w is None else w for c, w in both])
    k = None if k is None else check_k(k, n * L, "labels")
    ids = check_ids(own_ids if ids is None else ids, n)
    model = model.estimator if type(model).__name__ in _WRAPPED else model
    if probabilities is None:
        check_classifier(model, fit)
    seed, warnings = check_seed(seed), []
    announce(view_bytes(len(Y), 2) + 80.0 * n * L, f"{n:,} rows of {L:,} labels")
    found: dict[int, Assessment] = {}
    near: Neighbours | None = None
    for place in track(range(L), "judging label by label", L):
        codes = Y[:, place]
        if (few := np.bincount(codes[:n], minlength=2).min()) < 2:
            same = "always" if codes[:n].mean() > 0.5 else "never"
            what = f"{same} given" if few == 0 else f"{same} given but once"
            warnings.append(f"The label {names[place]} is {what}: it was not judged.")
            continue
        problem = LabelProblem(X, codes, np.array([0, 1]), n, weights)
        if probabilities is not None:
            found[place] = assess_predictions(_two(probabilities, place, Y.shape), problem)
            continue
        evidence = Evidence(Learner(model, problem.classes), problem, seed=seed + place)
        if found:  # the same rows for every label
            evidence.neighbours = near
        near = evidence.neighbours
        found[place] = evidence.assess()
    shape = (n, L)
    p, score = np.zeros(shape), np.full(shape, -np.inf)
    chance, ambiguous = np.full((n, L, 2), np.nan), np.zeros(shape, dtype=bool)
    for place, one in found.items():
        p[:, place], score[:, place], ambiguous[:, place] = (
            one.probabilities,
            one.score,
            one.ambiguous,
        )
        chance[:, place, 0], chance[:, place, 1] = one.given_chance, one.alternative_chance
    order = np.argsort(-score.ravel(), kind="stable")[:k]
    row, place = order // L, order % L
    given, wrong = Y[row, place], p[row, place]
    verdict = np.where(ambiguous[row, place], "ambiguous", "right")
    counts = [(one.expected_errors, *one.interval) for one in found.values()]
    return LabelFixes(
        indices=row.astype(np.int64),
        ids=None if ids is None else ids[row],
        part=np.asarray(names)[place],
        name=np.asarray(names)[place].astype(str),
        parts="labels",
        task="multi-label",
        probabilities=wrong,
        given=given,
        suggested=np.where(wrong > 0.5, 1 - given, given),
        alternative=1 - given,
        given_chance=chance[row, place, 0],
        alternative_chance=chance[row, place, 1],
        verdict=np.where(wrong > 0.5, "wrong", verdict),
        n_ambiguous=int(ambiguous.sum()),
        expected_errors=float(p.sum()),
        interval=_together(counts, n * L),
        warnings=tuple(warnings),
        method="calibrated",
        k=n * L if k is None else k,
        n_train=n,
        n_labels=n * L,
        n_trusted=len(Y) - n,
        trusted=len(Y) > n,
        seed=seed,
        version=__version__,
    )


def _together(counts: list[tuple[float, float, float]], most: int) -> tuple[float, float]:
    """Return the interval of a sum of counts, each (mean, low, high).

    They err for the same reason, that overlap may look like mistakes: the ends are added.
    """
    if not counts:
        return 0.0, 0.0
    _, low, high = np.array(counts).T
    return float(low.sum()), float(min(high.sum(), most))


def _two(probabilities: Any, place: int, shape: tuple[int, int]) -> np.ndarray:
    """(n, 2): of one label, absent and present."""
    values = np.asarray(probabilities)
    if values.shape != shape:
        raise ExemplaError(
            f"probabilities have shape {values.shape}; give that of every label to be present, "
            f"{shape}."
        )
    return np.column_stack([1.0 - values[:, place], values[:, place]])


def _read(
    data: Any, whose: str
) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]:
    """X, the indicator matrix, the labels' names, weights and ids."""
    if not isinstance(data, tuple) or len(data) < 2 or data[1] is None:
        raise ExemplaError(f"{whose} has no labels: give (X, Y) as {whose}.")
    Y = data[1]
    named = np.asarray(getattr(Y, "columns", ()))
    values = Y.toarray() if is_sparse(Y) else np.asarray(Y.to_numpy() if hasattr(Y, "iloc") else Y)
    problems: list[str] = []
    if values.ndim != 2 or values.shape[1] < 1:
        problems.append(f"Y must be a table of zeros and ones, but has shape {values.shape}")
    elif len(bad := _odd(values)):
        problems.append(f"Y must hold zeros and ones, and holds something else in {listing(bad)}")
    elif len(values) != n_rows(data[0]):
        problems.append(f"X has {n_rows(data[0]):,} rows but Y has {len(values):,}")
    given = None if problems else unpack((data[0], values[:, 0], *data[2:]), problems)
    if problems or given is None:
        raise ExemplaError(f"the labels cannot be checked: {whose}: {'; '.join(problems)}.")
    names = named if len(named) == values.shape[1] else np.arange(values.shape[1])
    return given.X, values.astype(np.int64), names, given.weights, given.ids


def _odd(values: np.ndarray) -> np.ndarray:
    return np.flatnonzero(~np.isin(values, (0, 1)).all(axis=1))
