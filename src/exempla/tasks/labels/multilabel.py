"""Which of a row's labels are wrong, where a row may have several: missing ones or too many.

Each label is judged by itself, as present or absent, by models that have not seen the row.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla.arrays import is_sparse
from exempla.data import listing
from exempla.errors import ExemplaError
from exempla.memory import announce
from exempla.progress import track
from exempla.tasks.labels.crossfit import Learner, check_classifier, view_bytes
from exempla.tasks.labels.evidence import Evidence, assess_predictions
from exempla.tasks.labels.neighbours import Neighbours
from exempla.tasks.labels.problem import LabelProblem, LabelRequest, Rows, read_rows
from exempla.tasks.labels.result import LabelFixes
from exempla.tasks.labels.wrong import Assessment

_WRAPPED = ("OneVsRestClassifier", "MultiOutputClassifier", "ClassifierChain")
"""Several labels at once by a model for each, which is what is asked here anyway."""


def fix_label_sets(asked: LabelRequest) -> LabelFixes:
    """Rank (row, label) pairs by how likely they are wrong; see `exempla.fix_labels`."""
    names = _names(asked.train)

    def same_labels(train: Rows, curated: Rows | None, problems: list[str]) -> None:
        if not problems and curated is not None:
            others = _names(asked.curated)
            if list(others) != list(names):
                problems.append(
                    f"curated: the labels are {', '.join(map(str, others[:5]))}, not those of "
                    "train; give both the same columns, in the same order"
                )

    given = read_rows(_dense(asked.train), _dense(asked.curated), _checked_table, same_labels)
    Y, n = given.y, given.n_train
    L = Y.shape[1]
    k, row_names = asked.listed(n * L, "labels"), asked.names(n, given.ids)
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
        problem = LabelProblem(given.X, codes, np.array([0, 1]), n, given.weights)
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


def _dense(data: Any) -> Any:
    if isinstance(data, tuple) and len(data) > 1 and is_sparse(data[1]):
        return (data[0], data[1].toarray(), *data[2:])
    return data


def _names(data: Any) -> np.ndarray:
    """The names of the labels: column names, or numbers."""
    Y = data[1] if isinstance(data, tuple) and len(data) > 1 else None
    shape = np.shape(Y) if Y is not None else ()
    named = np.asarray(getattr(Y, "columns", ()))
    return named if len(named) else np.arange(shape[1] if len(shape) > 1 else 1)


def _checked_table(y: np.ndarray, found: list[str]) -> np.ndarray:
    y = y.reshape(len(y), -1)
    if len(bad := np.flatnonzero(~np.isin(y, (0, 1)).all(axis=1))):
        found.append(f"Y must hold zeros and ones, and holds something else in {listing(bad)}")
        return np.array([])
    return y.astype(np.int64)
