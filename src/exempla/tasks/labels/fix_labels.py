"""`fix_labels`: which labels are probably wrong, what they should be, and how many there are.

The files of this package, in the order in which they build on each other:

    problem      the input, checked
    crossfit     how the model is refitted; cross-validated predictions
    wrong        P(label is wrong), the order and the count
    fisher       the paper's ranking, and the examples that contradict a label
    evidence     all predictions about one problem; duplicates with different labels
    parts, regression, annotators      the other kinds of labels
    decisions    probabilities after some labels have been checked (`exempla review`)
    result       `LabelFixes`
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from sklearn.base import is_regressor

from exempla.arrays import is_sparse, nbytes_of
from exempla.checks import check_choice, check_flag, check_folder, check_seed
from exempla.data import n_rows, plain_labels
from exempla.errors import ExemplaError
from exempla.kernel.damping import check_damping
from exempla.kernel.sketch import check_sketch
from exempla.memory import STORE_BYTES, announce
from exempla.progress import showing
from exempla.selection.selectors import check_noise
from exempla.tasks.labels.annotators import fix_votes, is_votes
from exempla.tasks.labels.crossfit import MAX_CLASSES, SoftmaxRegression, make_learner
from exempla.tasks.labels.evidence import LIGHT, Evidence, assess_predictions
from exempla.tasks.labels.fisher import MOST_PICKS, ContradictingExamples, rank_by_sbq
from exempla.tasks.labels.parts import fix_label_sets, fix_token_labels
from exempla.tasks.labels.problem import LabelRequest, read_problem, without_unsupervised_steps
from exempla.tasks.labels.regression import fix_numbers
from exempla.tasks.labels.result import LabelFixes
from exempla.tasks.labels.wrong import assess
from exempla.tasks.retrain import Fit

MANY_CLASSES = 1000
"""From this number of classes on, the default model is `SoftmaxRegression`."""
_ALLOCATOR_SLACK = 1.05
_LIBRARY_BYTES = 24e6
"""Memory taken by the parts of scikit-learn and SciPy that only this job imports."""
_NOISE = 10.0
_METHODS = ("calibrated", "sbq")
_JOBS: dict[str, Callable[[LabelRequest], LabelFixes]] = {
    "regression": fix_numbers,
    "multi-label": fix_label_sets,
    "tokens": fix_token_labels,
    "votes": fix_votes,
}
_TASKS = ("auto", "classes", *_JOBS)


def fix_labels(
    model: Any,
    train: Any,
    curated: Any = None,
    k: int | None = None,
    method: str = "calibrated",
    *,
    fit: Fit | None = None,
    seed: int = 0,
    progress: bool = True,
    sketch: str | int = "auto",
    store: Any = None,
    noise: float = _NOISE,
    damping: str | float = "auto",
    ids: Any = None,
    original_labels: Any = None,
    recorded: Any = None,
    task: str = "auto",
    probabilities: Any = None,
) -> LabelFixes:
    """Rank training labels by how likely they are wrong.

    Parameters
    ----------
    model : scikit-learn estimator or Pipeline, fitted or not, or a torch module with `fit`
        Copied and refitted several times; the object itself is never changed. None takes a linear
        model, for tokens and for votes without inputs.
    train : (X, y) or (X, y, sample_weight)
        Labels to judge. X is whatever the model accepts, raw text included. y holds one label per
        row, or a table of votes with one column per annotator (NaN, None or −1 where an annotator
        did not vote), or a list of (row, annotator, label) with `task="votes"`.
    curated : (X, y)
        Rows that are not in `train` and whose labels are right; a few hundred help much. Without
        them mistakes on hard rows cannot be distinguished from overlapping classes.
    k : int
        Number of suspects to list; all labels if not given.
    method : {"calibrated", "sbq"}
        Stacked predictions, or the paper's SBQ ranking.
    fit : callable(module, X, y, sample_weight) -> module
        Trains a torch module. It gets a copy with freshly drawn parameters each time.
    seed, progress, sketch
        Seed of every random choice, whether to show progress, and `Explainer`'s sketch.
    store : path
        A folder for the scores of the training rows, to keep them on disk. The same call with the
        same folder continues an interrupted one. Each method needs a folder of its own.
    noise, damping
        Options of method "sbq"; damping is "auto", chosen from data, or a number.
    ids : sequence
        Your own names of the training rows.
    original_labels : sequence
        The labels that the curated rows had before they were corrected, one each. The number of
        wrong ones among them then determines the expected count and its interval.
    recorded : path, or list of paths
        Folders that a `Recorder` filled while this model learned these labels. How long training
        took to accept each label is then used as evidence, if it helps.
    task : {"auto", "classes", "regression", "multi-label", "tokens", "votes"}
        What the labels are. "auto" takes numbers if the model is a regressor, several labels per
        row if y is a table of zeros and ones, votes if y is a table with missing values, token
        labels if X and y are lists of lists, otherwise classes.
    probabilities : array, or list of arrays
        Probabilities of every class by a model that has not seen the label, in the order of the
        sorted classes: one array for rows, one array per list of tokens. No model is trained then.

    Returns
    -------
    LabelFixes
        The labels in order, with probabilities, suggestions and the expected number of mistakes.

    Examples
    --------
    >>> import numpy as np
    >>> from sklearn.datasets import load_breast_cancer
    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.preprocessing import scale
    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X, noisy = scale(X), y.copy()
    >>> noisy[::20] = 1 - noisy[::20]
    >>> train, curated = (X[:400], noisy[:400]), (X[400:], y[400:])
    >>> fixes = fix_labels(LogisticRegression(C=0.1), train, curated, k=20)
    >>> bool(np.mean(fixes.indices % 20 == 0) > 0.7), 10 < fixes.expected_errors < 30
    (True, True)
    >>> len(fixes.contradicting[0].indices) > 0
    True
    >>> fixes.to_frame().columns.tolist()
    ['rank', 'index', 'given', 'suggested', 'probability', 'verdict', 'alignment']
    """
    check_choice("method", method, _METHODS)
    check_flag("progress", progress)
    job = job_of(model, train, check_choice("task", task, _TASKS))
    asked = LabelRequest(model, train, curated, k, fit, seed, ids, probabilities)
    if job != "classes":
        if original_labels is not None:
            raise ExemplaError("original_labels needs one class label per row.")
        if store is not None:
            raise ExemplaError("store= needs one class label per row: leave it out.")
        if job == "regression" and probabilities is not None:
            raise ExemplaError("probabilities= is for classes; leave it out for numbers.")
        with showing(progress):
            return _JOBS[job](asked)
    if probabilities is not None:
        return _from_probabilities(asked)
    evidence = gather(
        model, train, curated, fit=fit, seed=seed, sketch=sketch, store=store, recorded=recorded
    )
    with showing(progress):
        return fix_labels_from(
            evidence, k, method, noise=noise, damping=damping, ids=ids,
            original_labels=original_labels,
        )  # fmt: skip


def job_of(model: Any, train: Any, task: str = "auto") -> str:
    """Return the task, as given or as the data show it."""
    if task != "auto":
        return task
    if not isinstance(train, tuple) or len(train) < 2 or train[1] is None:
        return "classes"
    X, y = train[:2]
    if _is_token_lists(X, y):
        return "tokens"
    if _is_indicator(y):
        return "multi-label"
    with suppress(AttributeError, TypeError):  # not an estimator, or a class
        if is_regressor(model):
            return "regression"
    return "votes" if is_votes(y) else "classes"


def _is_token_lists(X: Any, y: Any) -> bool:
    """Return True if rows are lists of words with as many labels; the first few decide."""
    lists = isinstance(X, list | tuple) and isinstance(y, list | tuple | np.ndarray)
    if not lists or len(X) != len(y) or not len(X):
        return False
    pairs = zip(X[:5], y[:5], strict=True)
    return all(_listed(words) and _listed(labels) and all(isinstance(w, str) for w in words)
               for words, labels in pairs)  # fmt: skip


def _is_indicator(y: Any) -> bool:
    """Return True for a table of zeros and ones with at least two columns."""
    try:
        values = y.data if is_sparse(y) else plain_labels(y)
    except (ExemplaError, TypeError, ValueError):  # reported where labels are read
        return False
    shape = y.shape if is_sparse(y) else values.shape
    table = len(shape) == 2 and shape[1] > 1 and values.dtype.kind in "biuf"
    return table and bool(np.isin(values, (0, 1)).all())


def _listed(value: Any) -> bool:
    return isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1


def gather(
    model: Any,
    train: Any,
    curated: Any = None,
    *,
    fit: Fit | None = None,
    seed: int = 0,
    sketch: str | int = "auto",
    store: Any = None,
    recorded: Any = None,
) -> Evidence:
    """Return the checked problem, ready to collect evidence; methods and baselines can share it."""
    problem, seed = read_problem(train, curated), check_seed(seed)
    if model is None and len(problem.classes) >= MANY_CLASSES:
        model = SoftmaxRegression(seed)
    learner = make_learner(model, problem.classes, fit)
    last, rows = without_unsupervised_steps(model, problem.X, seed)
    return Evidence(
        replace(learner, model=last),
        replace(problem, X=rows),
        seed=seed,
        sketch=check_sketch(sketch),
        as_given=problem.X,
        store=check_folder("store", store),
        recorded=None if recorded is None else (model, recorded),
    )


def fix_labels_from(
    evidence: Evidence,
    k: int | None = None,
    method: str = "calibrated",
    *,
    noise: float = _NOISE,
    damping: str | float = "auto",
    ids: Any = None,
    original_labels: Any = None,
) -> LabelFixes:
    """Return `fix_labels` of evidence that has been gathered already."""
    check_choice("method", method, _METHODS)
    damping = check_damping("auto" if damping is None else damping)
    check_noise(noise)
    problem, n = evidence.problem, evidence.problem.n_train
    asked = LabelRequest(None, None, None, k, None, evidence.seed, ids, None)
    k, names = asked.listed(n, "training rows"), asked.names(n, problem.ids)
    original = None if original_labels is None else problem.original_codes(original_labels)
    what = f"{len(problem):,} labels, {len(evidence.calibration_rows):,} to calibrate on"
    with announce(expected_peak(evidence, method, k), what):
        if method == "sbq":
            order, seen = rank_by_sbq(evidence, k, noise, damping)
            views = {"cross-validated models": evidence.cross_fitted}
            found = assess(views, evidence.columns, n, seed=evidence.seed)
        else:
            found = evidence.assess(original)
            order = found.order[:k]
            seen = _beside_the_order(evidence, found.probabilities, order)
        conflicts = tuple(evidence.conflicts)
    return LabelFixes(
        conflicts=conflicts,
        contradicting=ContradictingExamples(evidence, order),
        **asked.fields(order, names, n, n, len(problem.curated)),
        **found.listed(order, problem.classes) | seen,
    )


def _beside_the_order(evidence: Evidence, p: np.ndarray, order: np.ndarray) -> dict[str, Any]:
    """Return what the listed rows hold of the errors, and how they lie in Fisher space."""
    listed, view, seen = p[order], evidence.light_view, {}
    if view is not None:
        damping = view.damping()
        seen = {
            "alignment": view.similarity(order, evidence.reference, damping),
            "damping": damping,
            "damping_rule": "10 x per-row, for the examples that contradict a label",
            "share": view.embedding.evidence.share,
        }
    variance = float(np.sum(listed * (1 - listed)))
    return seen | {"explained": float(listed.sum() / max(p.sum(), 1e-300)), "variance": variance}


def _from_probabilities(asked: LabelRequest) -> LabelFixes:
    if asked.curated is not None:
        raise ExemplaError("probabilities are of the training rows: leave curated out.")
    problem = read_problem(asked.train, None)
    n = len(problem)
    k, names = asked.listed(n, "training rows"), asked.names(n, problem.ids)
    found = assess_predictions(asked.probabilities, problem.codes, len(problem.classes))
    order = found.order[:k]
    return LabelFixes(**found.listed(order, problem.classes), **asked.fields(order, names, n, n))


def expected_peak(evidence: Evidence, method: str, k: int | None) -> float:
    """Return the peak memory of the job in bytes.

    Per row: x of X, and again while a fold is trained or where curated rows are stacked below;
    48c for the views of c classes, 90c for the stack, 160 for neighbours, 12p for scores of p
    numbers. SBQ takes 8p more, and 36k² + 24kp for k picks. With a store, buffers replace the
    scores.
    """
    problem, p = evidence.problem, evidence.score_width
    if method == "calibrated" and evidence.sketch == "auto":
        p = min(p, LIGHT)
    most = np.inf if evidence.store is None else STORE_BYTES / 2 / len(problem)
    x, c = row_bytes(problem.X), min(len(problem.classes), MAX_CLASSES)
    held, scores = x * evidence.trusted + 8.0, min(12.0 * p, most)
    if method == "sbq":
        picks = min(problem.n_train if k is None else k, MOST_PICKS)
        rows = min(20.0 * p, 2 * most)
        work, fixed = rows + 112.0 + 8.0 * c, 36.0 * picks**2 + 24.0 * picks * p
    else:
        held += x + 48.0 * c + 160.0
        work, fixed = max(90.0 * c + 60.0, x + 27.0 * c, scores + 40.0), _LIBRARY_BYTES
    return _ALLOCATOR_SLACK * (len(problem) * (held + work) + 24.0 * p**2 + fixed)


def row_bytes(X: Any) -> float:
    """Return the bytes that a row of X takes in memory, on average; 0 if that is not known."""
    return nbytes_of(X) / max(n_rows(X), 1)
