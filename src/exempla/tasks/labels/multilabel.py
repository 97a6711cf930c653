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
from exempla.tasks.labels.class_noise import Labels, check_classifier, folds_of, judged, judged_from
from exempla.tasks.labels.crossfit import room
from exempla.tasks.labels.result import PartFixes
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
) -> PartFixes:
    """Rank (row, label) pairs by how likely they are wrong; see `exempla.fix_labels`."""
    X, Y, names, weights, own_ids = _read(train, "train")
    n, L = Y.shape
    known = np.zeros(n, dtype=bool)
    if curated is not None:
        Xc, Yc, others, wc, _ = _read(curated, "curated")
        if list(names) != list(others):
            raise ExemplaError(
                f"the curated rows have the labels {', '.join(map(str, others[:5]))}, not those of "
                "the training rows; give both the same columns, in the same order."
            )
        X, Y = stack_rows(X, Xc), np.vstack([Y, Yc])
        known = np.arange(len(Y)) >= n
        if weights is not None or wc is not None:
            both = ((n, weights), (len(Yc), wc))
            weights = np.concatenate([np.ones(c) if w is None else w for c, w in both])
    k = None if k is None else check_k(k, n * L, "labels")
    ids = check_ids(own_ids if ids is None else ids, n)
    model = model.estimator if type(model).__name__ in _WRAPPED else model
    if probabilities is None:
        check_classifier(model, fit)
    seed, warnings = check_seed(seed), []
    announce(room(len(Y), 2) + 40.0 * n * L, f"{n:,} rows of {L:,} labels")
    p, evidence = np.zeros((n, L)), np.full((n, L), -np.inf)
    counts: list[tuple[float, float, float]] = []
    fold = folds_of(np.arange(len(Y)), None, seed)
    for place in track(range(L), "judging label by label", L):
        codes = Y[:, place]
        if (few := np.bincount(codes[:n], minlength=2).min()) < 2:
            same = "always" if codes[:n].mean() > 0.5 else "never"
            what = f"{same} given" if few == 0 else f"{same} given but once"
            warnings.append(f"The label {names[place]} is {what}: it was not judged.")
            continue
        labels = Labels(X, codes, np.array([0, 1]), known, fold, weights)
        found = (
            judged(model, labels, seed + place)
            if probabilities is None
            else judged_from(_two(probabilities, place, Y.shape), labels)
        )
        p[:, place], evidence[:, place] = found.probabilities[:n], found.evidence[:n]
        counts.append((found.expected_errors, *found.interval))
    # without curated rows how many of each label are wrong is a guess: no label comes first by it
    told = np.where((p > 0.5) & known.any(), p, 0.0).ravel()
    order = np.lexsort((-evidence.ravel(), -told))[:k]
    row, place = order // L, order % L
    given = Y[row, place]
    chance = p[row, place]
    return PartFixes(
        indices=row.astype(np.int64),
        ids=None if ids is None else ids[row],
        part=np.asarray(names)[place],
        name=np.asarray(names)[place].astype(str),
        parts="labels",
        probabilities=chance,
        given=given,
        suggested=np.where(chance > 0.5, 1 - given, given),
        alternative=1 - given,
        expected_errors=float(p.sum()),
        interval=_together(counts, n * L, bool(known.any())),
        warnings=tuple(warnings),
        method="predictions",
        k=n * L if k is None else k,
        n_train=n,
        n_labels=n * L,
        n_trusted=int(known.sum()),
        seed=seed,
        version=__version__,
    )


def _together(
    counts: list[tuple[float, float, float]], most: int, trusted: bool
) -> tuple[float, float]:
    """The interval of a sum of counts, each (mean, low, high): with curated rows they err
    independently; without, all for the same reason, that overlap may be taken for mistakes."""
    if not counts:
        return 0.0, 0.0
    mean, low, high = np.array(counts).T
    if not trusted:
        return float(low.sum()), float(min(high.sum(), most))
    below, above = np.sqrt(((mean - low) ** 2).sum()), np.sqrt(((high - mean) ** 2).sum())
    return float(max(mean.sum() - below, 0.0)), float(min(mean.sum() + above, most))


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
