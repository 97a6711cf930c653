"""Find wrong labels: which rows to check first, what they should say, and how sure that is.

The files, in the order in which they build on each other:

    problem        the question, checked
    label_blind    what of the model never looks at labels, done once
    learner        how the model is fitted again, and what it then says of each label
    crossfit       what models say that have not seen a row
    nearby/        rows that lie close together, and what they say of each other
    fisher         whether a row pushes the model the way trusted rows do
    recorded       how a recorded training came to terms with each label
    evidence       all of it, each kind gathered when it is first needed
    noise/         what kind of mistakes there are, and how far the evidence carries
    calibrated     the default: probabilities, order and suggestions
    learn          the probabilities again, after some rows have been decided
    calibration    a calibrator of one signal, and the share of wrong labels
    sbq            the paper's ranking
    contradicting  the examples that contradict a suspect's label
    memory         how much of it the job will take
    result         what comes back

What the job takes beside what its caller holds: said before the many trainings begin.

N rows in all, n of them for training, m calibration rows; C classes; x bytes of X and p numbers of
a score a row; float64 unless said otherwise. Counted array by array, in bytes a row:

    rows         x if curated rows are stacked below the others, 8 codes
    view         12p + 52                scores as float64 and as unit rows in float32
    predictions  4 × 8C                  one a view, and one by the model that learned the labels
    supports     4 × 8C                  what each view speaks for
    noise        8 × 8C                  the likelihood's arrays and their slopes
    neighbours   12 × 10, and x          ten a row, found among unit rows

With a fold's part of X and its fit on top while models are trained. Scoring takes three arrays of
N × p for a moment. Comparing goes by blocks of BLOCK × m cosines of 18 bytes, whatever N is. SBQ
takes unit rows in float64 and, for k picks, 60k² + 24kp bytes for them and their Gram matrix.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from exempla import __version__
from exempla.arrays import TIE, first_largest, is_sparse
from exempla.checks import check_choice, check_flag, check_folder, check_ids, check_k, check_seed
from exempla.errors import ExemplaError
from exempla.kernel.damping import check_damping
from exempla.kernel.sketch import check_sketch
from exempla.memory import announce
from exempla.progress import showing
from exempla.selection.selectors import check_noise
from exempla.tasks.labels.calibrate import calibrated
from exempla.tasks.labels.crossfit import FOLDS
from exempla.tasks.labels.evidence import BLOCK, LIGHT, Evidence
from exempla.tasks.labels.jobs import other_job
from exempla.tasks.labels.problem import make_learner, read_problem, without_blind_steps
from exempla.tasks.labels.result import LabelFixes
from exempla.tasks.labels.sbq import MIDDLE_DAMPING, MOST_PICKS, ContradictingExamples, rank_by_sbq
from exempla.tasks.retrain import Fit

_SLACK = 1.05
"""What the allocator cannot use again."""
_LIBRARIES = 24e6
"""What the parts of scikit-learn and SciPy take that judging labels is the first to load."""


def expected_peak(evidence: Evidence, method: str, k: int | None) -> float:
    """Bytes, most of all at one time."""
    problem, p = evidence.problem, evidence.score_width
    N, m = len(problem), len(evidence.calibration_rows)
    rows = row_bytes(problem.X) * evidence.trusted + 8.0
    view = 12.0 * p + 52.0 if p else 0.0
    scoring = 24.0 * p + 40.0
    fixed = 24.0 * p**2
    if method == "sbq":
        picks = min(problem.n_train if k is None else k, MOST_PICKS)
        predictions = 0.0 if evidence.trusted else 8.0 * len(problem.classes)
        ranking = view + 8.0 * p + 60.0
        fixed += 60.0 * picks**2 + 24.0 * picks * p
        return _SLACK * (N * (rows + predictions + max(scoring, ranking)) + fixed)
    p = min(p, LIGHT) if evidence.sketch == "auto" else p
    fixed = 24.0 * p**2
    view = 12.0 * p + 52.0 if p else 0.0
    scoring = 24.0 * p + 40.0 if p else 0.0
    held = rows + 48.0 * len(problem.classes) + 160.0 + row_bytes(problem.X)
    judging = 90.0 * len(problem.classes) + 60.0
    fit = row_bytes(problem.X) * (FOLDS - 1) / FOLDS + 8.0 + 27.0 * len(problem.classes)
    showing = max(scoring, view + 18.0 * BLOCK * m / N)
    return _SLACK * (N * (held + max(judging, fit, showing)) + fixed) + _LIBRARIES


def row_bytes(X: Any) -> float:
    """Bytes a row of X takes in memory, on average; 0 if it does not say."""
    if is_sparse(X):
        parts = [getattr(X, name, None) for name in ("data", "indices", "indptr", "row", "col")]
        size = sum(part.nbytes for part in parts if isinstance(part, np.ndarray))
    elif hasattr(X, "iloc"):
        size = int(np.sum(X.memory_usage(index=False)))
    else:
        size = int(getattr(X, "nbytes", 0))
    return size / max(len(X) if not hasattr(X, "shape") else X.shape[0], 1)


_NOISE = 10.0
_METHODS = ("calibrated", "sbq")


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
) -> Any:
    """Rank training rows by how likely their labels are wrong.

    Parameters
    ----------
    model : scikit-learn classifier or Pipeline, fitted or not, or a torch module with `fit`
        Copied and refitted several times; the object itself is never changed.
    train : (X, y) or (X, y, sample_weight)
        Labels under suspicion. X is whatever the model accepts, raw text included.
    curated : (X, y)
        Rows, not among `train`, whose labels are right; a few hundred do much. Without them
        mistakes on hard rows cannot be told from classes that overlap, and are not counted.
    k : int
        How many suspects to list; all rows if not given.
    method : {"calibrated", "sbq"}
        All evidence, weighed as it proves itself on the curated rows, or the paper's SBQ ranking.
    fit : callable(module, X, y, sample_weight) -> module
        How a torch module is trained. It is given a copy with freshly drawn parameters each time.
    seed, progress, sketch
        Seed of every random choice, whether to show progress, and `Explainer`'s sketch.
    store : path
        A folder for the training rows' scores, where they should live on disk (method
        "calibrated"); see `Explainer`.
    noise, damping
        Of method "sbq"; the damping is "auto", chosen from data, or a number.
    ids : sequence
        Your own names of the training rows.
    original_labels : sequence
        The labels the curated rows had before they were put right, one each, where they are known:
        what kind of mistakes there are is then learnt from them directly.
    recorded : path, or list of paths
        Folders that a `Recorder` filled while this very model learnt these labels: how long the
        training took to accept each label is then evidence too, if it helps.
    task : {"auto", "classes", "regression", "multi-label", "tokens"}
        What the labels are. By itself: numbers if the model is a regressor, several labels a row
        if y is a table of zeros and ones, labels of tokens if X and y are lists of lists, else
        classes. Classes bring a `LabelFixes` (1,000 and more a `ClassFixes`), numbers a
        `NumberFixes`, several labels and tokens a `PartFixes`.
    probabilities : array, or list of arrays
        What a model that has not seen a label says of every class, in the order of the sorted
        classes: an array for rows, one array for each list of tokens. Then no model is trained.

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
    """
    others = {"fit": fit, "seed": seed, "progress": progress, "ids": ids}
    others |= {"probabilities": probabilities, "original_labels": original_labels}
    job = other_job(task, model, train, curated, k, **others)
    if job is not None:
        return job
    if check_folder("store", store) is not None and method == "sbq":
        raise ExemplaError("method='sbq' ranks rows in memory: leave store= out, or 'calibrated'.")
    evidence = gather(
        model, train, curated, fit=fit, seed=seed, sketch=sketch, store=store, recorded=recorded
    )
    with showing(check_flag("progress", progress)):
        return fix_labels_from(
            evidence, k, method, noise=noise, damping=damping, ids=ids,
            original_labels=original_labels,
        )  # fmt: skip


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
    """The checked question, ready to collect evidence; methods and baselines can share one."""
    problem = read_problem(train, curated)
    learner = make_learner(model, problem.classes, fit)
    last, rows = without_blind_steps(model, problem.X, check_seed(seed))
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
    """`fix_labels` on evidence that has been gathered already."""
    check_choice("method", method, _METHODS)
    check_damping("auto" if damping is None else damping)
    check_noise(noise)
    n = evidence.problem.n_train
    k = None if k is None else check_k(k, n, "training rows")
    names = check_ids(evidence.problem.ids if ids is None else ids, n)
    once = None if original_labels is None else evidence.problem.once(original_labels)
    what = f"{len(evidence.problem):,} labels, {len(evidence.calibration_rows):,} to calibrate on"
    with announce(expected_peak(evidence, method, k), what):
        if method == "sbq":
            return _from_sbq(evidence, k, noise, damping, names)
        return _from_calibrated(evidence, k, names, once)


def _from_calibrated(
    evidence: Evidence, k: int | None, ids: np.ndarray | None, once: np.ndarray | None
) -> LabelFixes:
    found = calibrated(evidence, once)
    order = found.order[:k]
    p = found.probabilities[order]
    total = float(found.probabilities.sum())
    view = evidence.light_view
    seen = {"damping": 0.0, "damping_rule": "no Fisher evidence", "share": 0.0}
    alignment = np.zeros(len(order))
    if view is not None:
        damping = view.dampings()[MIDDLE_DAMPING]
        alignment = view.compare(order, evidence.reference, damping)[:, 0].astype(np.float64)
        seen = {
            "damping": damping,
            "damping_rule": "10 x per-row, for the examples that contradict a label",
            "share": view.embedding.evidence.share,
        }
    classes = evidence.problem.classes
    return LabelFixes(
        weights=p,
        explained=float(p.sum()) / total if total > 0 else 0.0,
        variance=float(np.sum(p * (1 - p))),
        selector="calibrated evidence",
        alignment=alignment,
        method="calibrated",
        suggested=classes[found.suggested[order]],
        alternative=classes[found.other[order]],
        alternative_chance=np.exp(found.log_q[order, found.other[order]]),
        given_chance=np.exp(found.log_q[order, evidence.problem.codes[order]]),
        expected_errors_interval=(found.spread.low, found.spread.high),
        informed=found.informed,
        kind_told=found.spread.told,
        evidence_used=found.used,
        conflicts=tuple(evidence.conflicts),
        **seen,
        **_common(evidence, order, found.probabilities, k, ids),
    )


def _from_sbq(
    evidence: Evidence,
    k: int | None,
    noise: float,
    damping: str | float | None,
    ids: np.ndarray | None,
) -> LabelFixes:
    ranking = rank_by_sbq(evidence, k, noise, damping)
    order = ranking.order[:k]
    picked = ranking.selection
    beyond = np.zeros(max(len(order) - len(picked), 0))
    wrong = ranking.probabilities > 0.5 + TIE
    n, given = evidence.problem.n_train, evidence.problem.codes[: evidence.problem.n_train]
    others = evidence.cross_fitted[:n].copy()
    others[np.arange(n), given] = -np.inf
    best = np.where(wrong, first_largest(others), given)
    other = first_largest(others)
    total = float(ranking.probabilities.sum())
    assert evidence.view is not None  # rank_by_sbq has seen to it
    return LabelFixes(
        weights=np.concatenate([picked.weights, beyond])[: len(order)],
        explained=picked.explained,
        variance=picked.variance,
        damping=ranking.damping,
        damping_rule=ranking.damping_rule,
        share=evidence.view.embedding.evidence.share,
        selector=picked.selector,
        noise=noise,
        alignment=ranking.alignment[order],
        method="sbq",
        suggested=evidence.problem.classes[best[order]],
        alternative=evidence.problem.classes[other[order]],
        alternative_chance=np.exp(evidence.cross_fitted[order, other[order]]),
        given_chance=np.exp(evidence.cross_fitted[order, given[order]]),
        expected_errors_interval=(0.0, max(2.0 * total, float(n) / 2)),
        kind_told=False,
        conflicts=tuple(evidence.conflicts),
        **_common(evidence, order, ranking.probabilities, k, ids),
    )


def _common(
    evidence: Evidence,
    order: np.ndarray,
    probabilities: np.ndarray,
    k: int | None,
    ids: np.ndarray | None,
) -> dict[str, Any]:
    """What every method reports alike."""
    n = evidence.problem.n_train
    return {
        "indices": order.astype(np.int64),
        "k": n if k is None else int(k),
        "n_train": n,
        "n_trusted": len(evidence.calibration_rows),
        "trusted": evidence.trusted,
        "seed": evidence.seed,
        "version": __version__,
        "ids": None if ids is None else ids[order],
        "probabilities": probabilities[order],
        "given": evidence.problem.labels(order),
        "expected_errors": float(probabilities.sum()),
        "contradicting": ContradictingExamples(evidence, order),
    }
