"""Which of very many classes' labels are wrong, in memory that does not grow with rows × classes.

Labels such as `animal/dog/terrier` are a hierarchy: of each suspect it is said at which level the
given and the suggested class part (1 is the first).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from exempla.checks import check_ids, check_k, check_seed
from exempla.errors import ExemplaError
from exempla.progress import say_memory
from exempla.tasks.fix_labels.memory import row_bytes
from exempla.tasks.fix_labels.problem import read_problem
from exempla.tasks.label_jobs.from_predictions import (
    Labels,
    check_classifier,
    folds_of,
    judged,
    judged_from,
)
from exempla.tasks.label_jobs.predictions import room
from exempla.tasks.label_jobs.results import ClassFixes
from exempla.tasks.label_jobs.softmax import SoftmaxRegression, weight_bytes
from exempla.tasks.retrain import Fit
from exempla.version import __version__

__all__ = ["fix_many_classes", "levels_apart"]

SEPARATORS = ("/", ">", "::", "|")


def fix_many_classes(
    model: Any,
    train: Any,
    curated: Any = None,
    k: int | None = None,
    *,
    fit: Fit | None = None,
    seed: int = 0,
    ids: Any = None,
    probabilities: Any = None,
) -> ClassFixes:
    """Rank rows by how likely their labels are wrong; see `exempla.fix_labels`."""
    problem = read_problem(train, curated)
    n, seed = problem.n_train, check_seed(seed)
    k = None if k is None else check_k(k, n, "training rows")
    names = check_ids(problem.ids if ids is None else ids, n)
    known = np.arange(len(problem)) >= n
    fold = folds_of(np.arange(len(problem)), problem.codes, seed)
    given = Labels(problem.X, problem.codes, problem.classes, known, fold, problem.weights)
    what = f"{len(problem):,} labels of {len(problem.classes):,} classes"
    say_memory(expected_bytes(given, model), what)
    if probabilities is not None:
        if curated is not None:
            raise ExemplaError("probabilities are of the training rows: leave curated out.")
        found = judged_from(probabilities, given)
    else:
        model = SoftmaxRegression(random_state=seed) if model is None else model
        check_classifier(model, fit)
        found = judged(model, given, seed)
    p = found.probabilities[:n]
    order = np.lexsort((-found.evidence[:n], -np.where(p > 0.5, p, 0.0)))[:k]
    labels = problem.classes[problem.codes[order]]
    suggested = problem.classes[found.suggested[order]]
    return ClassFixes(
        indices=order.astype(np.int64),
        ids=None if names is None else names[order],
        probabilities=p[order],
        given=labels,
        suggested=suggested,
        alternative=problem.classes[found.alternatives[order]],
        level=levels_apart(labels, suggested),
        expected_errors=found.expected_errors,
        interval=found.interval,
        method="predictions",
        k=n if k is None else k,
        n_train=n,
        n_labels=n,
        n_trusted=len(problem) - n,
        seed=seed,
        version=__version__,
    )


def expected_bytes(given: Labels, model: Any = None) -> float:
    """A fold's rows, the kept predictions and a block of all classes, and the weights of a linear
    model; a model of the caller's may take more."""
    n, C = len(given.codes), len(given.classes)
    columns = given.X.shape[1] if len(getattr(given.X, "shape", ())) == 2 else 0
    return row_bytes(given.X) * n + room(n, C) + weight_bytes(columns, C) + 40.0 * n


def levels_apart(given: np.ndarray, suggested: np.ndarray) -> np.ndarray:
    """At which level each pair of classes parts; 0 where they are the same.

    >>> levels_apart(np.array(["a/b/c", "a/b/c"]), np.array(["a/d/c", "a/b/c"]))
    array([2, 0])
    """
    texts = [str(label) for label in (*given, *suggested)]
    mark = next((m for m in SEPARATORS if texts and all(m in t for t in texts)), None)
    out = np.zeros(len(given), dtype=np.int64)
    for row, (a, b) in enumerate(zip(given, suggested, strict=True)):
        if a == b:
            continue
        parts = [str(label).split(mark) if mark else [str(label)] for label in (a, b)]
        same = [x == y for x, y in zip(*parts, strict=False)]
        out[row] = 1 + (same.index(False) if False in same else len(same))
    return out
