"""Which of a row's labels are wrong, where a row may have several: missing ones or too many.

Each label is judged by itself, as present or absent, by models that have not seen the row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla.arrays import is_sparse
from exempla.data import listing, n_rows, stack_rows, unpack
from exempla.errors import ExemplaError
from exempla.memory import announce
from exempla.progress import track
from exempla.tasks.labels.crossfit import view_bytes
from exempla.tasks.labels.evidence import Evidence, assess_predictions
from exempla.tasks.labels.neighbours import Neighbours
from exempla.tasks.labels.problem import (
    LabelProblem,
    LabelRequest,
    Learner,
    check_classifier,
    stack_weights,
)
from exempla.tasks.labels.result import LabelFixes
from exempla.tasks.labels.wrong import Assessment

_WRAPPED = ("OneVsRestClassifier", "MultiOutputClassifier", "ClassifierChain")
"""Several labels at once by a model for each, which is what is asked here anyway."""


def fix_label_sets(asked: LabelRequest) -> LabelFixes:
    """Rank (row, label) pairs by how likely they are wrong; see `exempla.fix_labels`."""
    X, Y, names, weights, own_ids = _read(asked.train, "train")
    n, L = Y.shape
    if asked.curated is not None:
        Xc, Yc, others, wc, _ = _read(asked.curated, "curated")
        if list(names) != list(others):
            raise ExemplaError(
                f"the curated rows have the labels {', '.join(map(str, others[:5]))}, not those of "
                "the training rows; give both the same columns, in the same order."
            )
        X, Y = stack_rows(X, Xc), np.vstack([Y, Yc])
        weights = stack_weights((n, weights), (len(Yc), wc))
    k, row_names = asked.listed(n * L, "labels"), asked.names(n, own_ids)
    model = asked.model
    model = model.estimator if type(model).__name__ in _WRAPPED else model
    if asked.probabilities is None:
        check_classifier(model, asked.fit)
    announce(view_bytes(len(Y), 2) + 80.0 * n * L, f"{n:,} rows of {L:,} labels")
    found: dict[int, Assessment] = {}
    warnings: list[str] = []
    near: Neighbours | None = None
    for place in track(range(L), "judging label by label", L):
        codes = Y[:, place]
        if (few := np.bincount(codes[:n], minlength=2).min()) < 2:
            same = "always" if codes[:n].mean() > 0.5 else "never"
            what = f"{same} given" if few == 0 else f"{same} given but once"
            warnings.append(f"The label {names[place]} is {what}: it was not judged.")
            continue
        problem = LabelProblem(X, codes, np.array([0, 1]), n, weights)
        if asked.probabilities is not None:
            found[place] = assess_predictions(_two(asked.probabilities, place, Y.shape), problem)
            continue
        evidence = Evidence(Learner(model, problem.classes), problem, seed=asked.seed + place)
        if found:  # the same rows for every label
            evidence.neighbours = near
        near = evidence.neighbours
        found[place] = evidence.assess()
    joined = _joined(found, Y[:n])
    order = np.argsort(-joined.score, kind="stable")[:k]
    row, place = order // L, order % L
    return LabelFixes(
        part=np.asarray(names)[place],
        name=np.asarray(names)[place].astype(str),
        parts="labels",
        task="multi-label",
        warnings=tuple(warnings),
        **joined.listed(order, np.array([0, 1])),
        **asked.fields(row, row_names, n, n * L, len(Y) - n),
    )


def _joined(found: dict[int, Assessment], Y: np.ndarray) -> Assessment:
    """Return one assessment of all (row, label) pairs; those not judged come last."""

    def table(field: str, missing: float) -> np.ndarray:
        values = np.full(Y.shape, missing)
        for place, one in found.items():
            values[:, place] = getattr(one, field)
        return values.ravel()

    given, p = Y.ravel(), table("probabilities", 0.0)
    # the counts err for the same reason, that overlap may look like mistakes: the ends are added
    low, high = (sum(one.interval[end] for one in found.values()) for end in (0, 1))
    return Assessment(
        probabilities=p,
        score=table("score", -np.inf),
        flipped=table("flipped", 0.0),
        given=given,
        alternative=1 - given,
        given_chance=table("given_chance", np.nan),
        alternative_chance=table("alternative_chance", np.nan),
        expected_errors=float(p.sum()),
        interval=(float(low), float(min(high, Y.size))),
        used=tuple(dict.fromkeys(name for one in found.values() for name in one.used)),
    )


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
