"""All evidence about the labels of one problem, each kind gathered when it is first needed.

The *calibration rows* show what right labels look like. They are the curated rows; without any, a
sample of training rows stands in, an unknown share of them wrong themselves. The Fisher kernel
looks at each of them twice, under its given label (right) and under one drawn by chance (wrong).

Fisher evidence: does a row, under a label, push the model the way trusted rows do?

For a version (x, c) of a row, f = the score ∇ log p(c | x) whitened by the damped Fisher and scaled
to unit length. Its cosines with the curated rows' f under their true labels are near zero for
unrelated rows, positive for kin, negative for kin under the wrong label. Two summaries of them:

    mean    (1/m) Σ_j cos_j          every curated row counts
    sharp   (1/m) Σ_j cos_j³         the few that really resemble the row decide

each at several dampings, since no single one suits every problem.

How a recorded training came to terms with each label, and what that says about it.

While a network learns, right labels are learnt early and wrong ones late, if at all. The signal is
the margin of the given label over the next best, averaged over the snapshots of a `Recorder`'s run:

    s_i = mean over snapshots of  log p(y_i | x_i) − max over c ≠ y_i of log p(c | x_i).

The run has seen the label, so curated rows cannot show how much s is worth: their labels were not
learnt. It is read off the training rows themselves. With p_i the probability of a wrong label from
everything else, and h_i what models that have not seen the label hold against it,

    s_i | right ~ N(a₀ + b₀·h_i, σ₀²),     s_i | wrong ~ N(a₁ + b₁·h_i, σ₁²),

fitted by expectation-maximisation with p_i for the prior; the log-odds gain log N₁ − log N₀. Rows
that are hard for every model have a large h and a small s without being wrong: hence the b's. The
signal is dropped if a single regression of s on h makes held-out rows as likely, or if wrong labels
come out with the larger margins. It changes the order; the expected number of wrong labels stays.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import expit, logit

from exempla.arrays import TIE, as_like, concatenate, first_largest, row_squares, to_numpy
from exempla.data import take_rows
from exempla.errors import ExemplaError, ExemplaWarning, UnsupportedModelError
from exempla.kernel.damping import resolve_damping
from exempla.kernel.embed import Embedding, embed_models, embed_training_set, unit_rows
from exempla.kernel.sketch import DUAL_LIMIT, PRIMAL_LIMIT, auto_width
from exempla.oracles import make_oracle, make_oracles, with_runs
from exempla.progress import track
from exempla.store import StoredRows
from exempla.tasks.labels.crossfit import (
    BLOCK_BYTES,
    MAX_CLASSES,
    Columns,
    curated_only,
    fitted_to_all,
    out_of_fold,
    predicted,
    with_regularisation,
)
from exempla.tasks.labels.neighbours import (
    Conflict,
    Neighbours,
    before_last,
    comparable,
    conflicts,
    nearest,
)
from exempla.tasks.labels.problem import LabelProblem, Learner
from exempla.tasks.labels.wrong import Assessment, assess

DAMPINGS = (1.0, 10.0, 100.0)
"""In units of the mean energy of one Fisher row ("per-row")."""
BLOCK = 4096


@dataclass(frozen=True)
class FisherView:
    """Every version (row, label) that is looked at, embedded by one model of the training rows."""

    embedding: Embedding
    rows: np.ndarray
    """Positions in the problem, one per version: training rows, then calibration rows, two each."""
    signs: np.ndarray
    """+1, or −1 where the stored score is that of the other of two labels."""
    lengths: np.ndarray
    """Length of each version's own score; the stored ones have length one."""
    scores: Any
    outside: np.ndarray

    def unit(self, versions: np.ndarray, damping: float) -> np.ndarray:
        """Whitened unit rows of some versions."""
        e = self.embedding
        beyond = None
        if e.sketch.residual_penalty is not None:
            beyond = self.outside[versions] * e.metric.residual_inverse(
                e.sketch.residual_penalty, damping
            )
        unit = unit_rows(e.metric.whiten(self.scores[versions], damping), beyond)
        return to_numpy(unit) * self.signs[versions, None]

    def dampings(self) -> list[float]:
        unit = resolve_damping("auto", self.embedding.evidence, use="labels").value
        return [multiple * unit for multiple in DAMPINGS]

    def similarities(self, reference: np.ndarray) -> np.ndarray:
        """(versions, 2 · dampings): mean and sharpened cosine with the reference versions.

        A row is never compared with itself under any label.
        """
        columns = []
        for damping in self.dampings():
            columns.append(self.compare(np.arange(len(self.rows)), reference, damping))
        return np.concatenate(columns, axis=1)

    def compare(self, versions: np.ndarray, reference: np.ndarray, damping: float) -> np.ndarray:
        """(versions, 2): mean and sharpened cosine of some versions, at one damping."""
        anchors = self.unit(reference, damping)
        blocks = np.split(versions, np.arange(BLOCK, len(versions), BLOCK))
        return np.concatenate([self._compare(v, reference, anchors, damping) for v in blocks])

    def _compare(
        self, versions: np.ndarray, reference: np.ndarray, anchors: np.ndarray, damping: float
    ) -> np.ndarray:
        cosine = self.unit(versions, damping) @ anchors.T
        own = self.rows[versions][:, None] == self.rows[reference][None, :]
        cosine[own] = 0.0
        others = np.maximum(len(reference) - own.sum(1), 1)
        return np.stack([cosine.sum(1) / others, (cosine**3).sum(1) / others], axis=1)


def _view_versions(
    model: Any,
    problem: LabelProblem,
    calibration: np.ndarray,
    codes: np.ndarray,
    *,
    sketch: str | int,
    seed: int,
    store: Path | None = None,
) -> FisherView:
    """Embed the training rows as given, and any calibration rows, each under its codes (m, v).
    The training rows are in the folder `store`, if one is given.

    `model` is fitted to the training rows alone. With two classes the scores of a row under both
    labels point in exactly opposite directions; the longer one gives the direction of both.
    """
    train = problem.train
    data = (problem.inputs(train), problem.labels(train))
    if problem.weights is not None:
        data = (*data, problem.weights_of(train))
    # both kinds of rows by the same score, or their cosines could not be compared
    oracle = make_oracle(model).by_prediction()
    chosen: Any = {"fisher": "true", "sketch": sketch, "seed": seed}
    if store is None:
        embedding = embed_training_set(oracle, data, **chosen)
        given, lengths = _unit_length(embedding.rows, np.zeros(len(train)))
    else:
        embedding = embed_models(
            [model], [oracle], [oracle.read(data, role="train")], data, store=store, **chosen
        )[0]
        lengths = np.sqrt(embedding.rows.squares())
        given = _StoredVersions(embedding.rows, lengths)
    repeated = np.repeat(calibration, codes.shape[1])
    if not len(repeated):
        return FisherView(
            embedding, train, np.ones(len(train)), lengths, below(given), np.zeros(len(train))
        )
    rows, outside = _embed(embedding, problem, repeated, codes.ravel())
    more, more_lengths = _unit_length(rows, outside)
    outside = outside / np.where(more_lengths > 0, more_lengths, 1.0) ** 2
    source, signs = np.arange(len(repeated)), np.ones(len(repeated))
    if len(problem.classes) == 2:
        longer = 2 * (source // 2) + np.repeat(np.argmax(more_lengths.reshape(-1, 2), 1), 2)
        source, signs = longer, np.where(source == longer, 1.0, -1.0)
    return FisherView(
        embedding,
        rows=np.concatenate([train, repeated]),
        signs=np.concatenate([np.ones(len(train)), signs]),
        lengths=np.concatenate([lengths, more_lengths]),
        scores=below(given, _in_single(more)[source]),
        outside=np.concatenate([np.zeros(len(train)), outside[source]]),
    )


@dataclass(frozen=True)
class _StoredVersions:
    """Unit rows of training examples whose scores are on disk, and of versions in memory after
    them; some of them at a time."""

    stored: StoredRows
    lengths: np.ndarray
    more: Any = None

    def __getitem__(self, versions: np.ndarray) -> np.ndarray:
        versions, n = np.asarray(versions), len(self.stored)
        first = versions < n
        out = np.empty((len(versions), self.stored.shape[1]), np.float32)
        length = self.lengths[versions[first]]
        out[first] = self.stored[versions[first]] / np.where(length > 0, length, 1.0)[:, None]
        if not first.all():
            out[~first] = to_numpy(self.more)[versions[~first] - n]
        return out


def below(given: Any, more: Any = None) -> Any:
    """The training rows' versions, then the others, in single precision."""
    if isinstance(given, _StoredVersions):
        return given if more is None else _StoredVersions(given.stored, given.lengths, more)
    return _in_single(given) if more is None else concatenate([_in_single(given), more])


def _unit_length(rows: Any, outside: np.ndarray) -> tuple[Any, np.ndarray]:
    """Rows of length one (before whitening), and the lengths they had.

    Scores of labels the model is sure of are tiny, down to 1e-40: float32 would lose them.
    """
    norm = np.sqrt(row_squares(rows).astype(np.float64) + outside)
    return rows / as_like(np.where(norm > 0, norm, 1.0), rows)[:, None], norm


def _embed(
    embedding: Embedding, problem: LabelProblem, rows: np.ndarray, codes: np.ndarray
) -> tuple[Any, np.ndarray]:
    data = (problem.inputs(rows), problem.classes[codes])
    return embedding.embed(embedding.oracle.read(data, role="test"), "true")


def _in_single(rows: Any) -> Any:
    """Cosines need no more than float32, and half the time goes into whitening."""
    return rows.astype(np.float32) if isinstance(rows, np.ndarray) else rows.float()


_FOLDS = 5
STEPS = 50
_WORTH = 2.0
"""Nats by which held-out rows must become likelier."""
MOST = 4.0
"""Log-odds that the signal may add or take."""
_LIMIT = 1e-9
_LEAST_ROWS = 50
_MARGIN_SHARE = 0.5
"""Weight of the margins in the order."""


def recorded_margins(model: Any, run: Any, X: Any, classes: np.ndarray, codes: Any) -> np.ndarray:
    """s of every row; `run` is a Recorder's folder, or a list of them."""
    folders = [run] if isinstance(run, str | Path) else list(run)
    missing = [str(folder) for folder in folders if not Path(folder).is_dir()]
    if missing or not folders:
        named = ", ".join(missing) or "nothing"
        raise ExemplaError(f"recorded= must name folders that a Recorder filled; got {named}.")
    oracles = make_oracles(with_runs([model, *folders]))
    rows, total = np.arange(len(codes)), np.zeros(len(codes))
    for oracle in track(oracles, "margins of the recorded run", len(oracles)):
        log_p = np.empty((len(codes), len(classes)))
        for code, label in enumerate(classes):
            labels = np.full(len(codes), label)
            log_p[:, code] = oracle.log_likelihood(oracle.read((X, labels), role="test"))
        own = log_p[rows, codes]
        log_p[rows, codes] = -np.inf
        total += own - log_p.max(axis=1)
    return total / len(oracles)


def worth_of_margins(margins: np.ndarray, against: np.ndarray, wrong: np.ndarray) -> np.ndarray:
    """What the margins add to each row's log-odds of a wrong label; zeros if they do not help.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> truth = rng.random(2000) < 0.1
    >>> margins = rng.normal(size=2000) + np.where(truth, -2.0, 2.0)
    >>> doubt = np.full(2000, 0.1)
    >>> gain = worth_of_margins(margins, rng.normal(size=2000), doubt)
    >>> bool(gain[truth].mean() > 1), bool(gain[~truth].mean() < -1)
    (True, True)
    >>> bool(worth_of_margins(rng.normal(size=2000), rng.normal(size=2000), doubt).any())
    False
    """
    if len(margins) < _LEAST_ROWS:
        return np.zeros(len(margins))
    H = np.column_stack([np.ones(len(margins)), _standard(against)])
    s, p = _standard(margins), np.clip(wrong, _LIMIT, 1.0 - _LIMIT)
    fold = np.random.default_rng(0).permutation(len(s)) % _FOLDS
    gain = 0.0
    for f in range(_FOLDS):
        here, rest = fold == f, fold != f
        two = _fit(s[rest], H[rest], p[rest])
        one = _regression(s[rest], H[rest], np.ones(rest.sum()))
        gain += float(
            _mixed(s[here], H[here], p[here], two).sum() - _log(s[here], H[here], one).sum()
        )
    right, wronged = _fit(s, H, p)
    lower = (p @ (H @ (wronged[0] - right[0]))) / p.sum()
    if gain < _WORTH or lower >= 0:
        return np.zeros(len(s))
    return np.clip(_log(s, H, wronged) - _log(s, H, right), -MOST, MOST)


def reordered(wrong: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Return the same probabilities in another order: the largest for the largest score.

    >>> reordered(np.array([0.2, 0.4]), np.array([1.0, -1.0])).tolist()
    [0.4, 0.2]
    """
    out = np.empty_like(wrong)
    out[np.argsort(-score, kind="stable")] = -np.sort(-wrong)
    return out


Line = tuple[np.ndarray, float]
"""Coefficients and variance of a regression."""


def _standard(x: np.ndarray) -> np.ndarray:
    spread = x.std()
    return (x - x.mean()) / (spread if spread > 0 else 1.0)


def _regression(s: np.ndarray, H: np.ndarray, weights: np.ndarray) -> Line:
    """Weighted least squares with a little ridge, and a variance that is never nothing."""
    gram = (H * weights[:, None]).T @ H + 1e-3 * np.eye(H.shape[1])
    b = np.linalg.solve(gram, (H * weights[:, None]).T @ s)
    rest = s - H @ b
    return b, float((weights @ rest**2 + 0.1) / (weights.sum() + 1.0)) + 1e-3


def _log(s: np.ndarray, H: np.ndarray, line: Line) -> np.ndarray:
    b, variance = line
    return -0.5 * ((s - H @ b) ** 2 / variance + np.log(2.0 * np.pi * variance))


def _mixed(s: np.ndarray, H: np.ndarray, p: np.ndarray, lines: tuple[Line, Line]) -> np.ndarray:
    right, wronged = lines
    return np.logaddexp(np.log1p(-p) + _log(s, H, right), np.log(p) + _log(s, H, wronged))


def _fit(s: np.ndarray, H: np.ndarray, p: np.ndarray) -> tuple[Line, Line]:
    """Expectation-maximisation. From the probabilities as they are it would hardly move where they
    say little: it starts with those rows likelier wrong whose margin is below what h leads to
    expect."""
    b, variance = _regression(s, H, np.ones(len(s)))
    r = expit(logit(p) - 2.0 * (s - H @ b) / np.sqrt(variance))
    right, wronged = _regression(s, H, 1.0 - r), _regression(s, H, r)
    for _ in range(STEPS):
        new = expit(logit(p) + _log(s, H, wronged) - _log(s, H, right))
        if np.abs(new - r).max() < 1e-4:
            break
        r = new
        right, wronged = _regression(s, H, 1.0 - r), _regression(s, H, r)
    return right, wronged


_STAND_INS = 1000
"""Training rows that stand in for curated ones."""
_DRAWS = 3
"""Draws of folds that are averaged."""
_MAX_REPEATED_ROWS = 50_000
"""Larger sets are cross-validated once, at the given regularisation."""
_REGULARISATION = {"stronger regularisation": 0.1, "weaker regularisation": 10.0}
_SUSPECT_ODDS = 4.0
"""Models should not learn from a row of which another label is this many times as likely."""
_MAX_FISHER_CLASSES = 1000
"""With more classes, contradicting examples are the nearest rows of another label."""
LIGHT = 128
"""Directions in which contradicting examples are looked for: enough to tell kin from others, where
all would take longer than every training together."""


class Evidence:
    """What is known about a problem's labels."""

    def __init__(
        self,
        learner: Learner,
        problem: LabelProblem,
        *,
        seed: int = 0,
        sketch: str | int = "auto",
        as_given: Any = None,
        store: Path | None = None,
        recorded: tuple[Any, Any] | None = None,
    ) -> None:
        self.learner, self.problem = learner, problem
        self.rows_as_given = problem.X if as_given is None else as_given
        """X as the caller gave it, where the problem holds what steps of a Pipeline made of it."""
        self.recorded = recorded
        """The model whose training was recorded, and the folder of the run."""
        self.seed, self.sketch, self.store = seed, sketch, store
        self.trusted = len(problem.curated) > 0
        rng = np.random.default_rng(seed)
        self.calibration_rows = problem.curated
        if not self.trusted:
            count = min(_STAND_INS, problem.n_train)
            self.calibration_rows = np.sort(rng.choice(problem.n_train, count, replace=False))
        C, m = len(problem.classes), len(self.calibration_rows)
        own = problem.codes[self.calibration_rows]
        self.calibration_codes = np.stack([own, (own + rng.integers(1, C, m)) % C], axis=1)
        """(m, 2): the given label and a wrong one."""
        self.wrong = np.tile([False, True], m)
        """Of the calibration rows' versions, two each: those under the wrong label."""
        self.as_given = problem.n_train + 2 * np.arange(m)
        """Positions of their versions under the given label, after the training rows."""

    # ---- predictions: log p(c | x) of every row, (n + m, columns)

    @cached_property
    def _first_draw(self) -> tuple[np.ndarray, Columns]:
        return self.out_of_fold(self.problem, self.seed)

    @property
    def cross_fitted(self) -> np.ndarray:
        """By models of the other folds, one draw of folds."""
        return self._first_draw[0]

    @property
    def columns(self) -> Columns:
        """The classes that predictions are kept of."""
        return self._first_draw[1]

    @cached_property
    def curated_only(self) -> np.ndarray:
        """By models of curated rows alone, all classes."""
        return curated_only(self.learner, self.problem, self.seed)

    def out_of_fold(
        self, problem: LabelProblem, seed: int, **options: Any
    ) -> tuple[np.ndarray, Columns]:
        """By models of the other folds; see `crossfit.out_of_fold`."""
        return out_of_fold(self.learner, problem, seed, **options)

    @cached_property
    def views(self) -> dict[str, np.ndarray]:
        """All predictions by models that have not seen the row's label, by name."""
        problem, seed, columns = self.problem, self.seed, self.columns
        few = len(problem) <= _MAX_REPEATED_ROWS
        draws = [np.exp(self.cross_fitted)]
        for draw in range(1, _DRAWS if few else 1):
            draws.append(np.exp(self.out_of_fold(problem, seed + 101 * draw, columns=columns)[0]))
        mean = np.log(np.maximum(np.mean(draws, axis=0), 1e-12))
        views = {"cross-validated models": mean}
        for place, (name, factor) in enumerate(_REGULARISATION.items()):
            other = with_regularisation(self.learner, factor) if few else None
            if other is not None:
                views[name] = out_of_fold(
                    other, problem, seed + 303 + place, columns=columns, what=name
                )[0]
        if self.neighbours is not None:
            views["nearest rows"] = self.neighbours.log_votes(problem.codes, columns)
        keep = ~doubted(mean, columns, problem.n_train)
        left = np.bincount(problem.codes[keep], minlength=columns.n_classes)
        if not keep.all() and left.min() >= 2:
            views["models without the suspects"] = self.out_of_fold(
                problem, seed + 505, columns=columns, learn_from=keep
            )[0]
        return views

    def learned(self, problem: LabelProblem) -> np.ndarray:
        """By a model of all rows, all classes."""
        everything = np.arange(len(problem))
        return predicted(self.learner, problem, everything, everything, self.seed)

    @cached_property
    def learned_by_model(self) -> np.ndarray:
        """By the model of the training rows, which learned their labels, (n, columns)."""
        if "model" not in self.__dict__:
            return fitted_to_all(self.learner, self.problem, self.columns, self.seed)
        last, rows = self.last_step
        log_p = self.learner.log_proba(last, rows.inputs(rows.train))
        return self.columns.take(log_p, rows.train)

    @cached_property
    def margins(self) -> np.ndarray | None:
        """(n,): of the given label over the next, averaged over a recorded run; None if none."""
        if self.recorded is None:
            return None
        model, run = self.recorded
        train, problem = self.problem.train, self.problem
        X = take_rows(self.rows_as_given, train) if self.trusted else self.rows_as_given
        return recorded_margins(model, run, X, problem.classes, problem.codes[train])

    def assess(self, original: np.ndarray | None = None) -> Assessment:
        """Assess every training label by all predictions."""
        margins = self.margins
        found = assess(
            self.views, self.columns, self.problem.n_train, learned=self.learned_by_model,
            original=original, seed=self.seed,
        )  # fmt: skip
        if margins is None or not found.has_signal:
            return found
        by = worth_of_margins(margins, found.score, found.probabilities)
        if not by.any():
            return found
        score = found.score + _MARGIN_SHARE * by
        p = reordered(found.probabilities, score)
        suggested = np.where(p > 0.5 + TIE, found.alternative, self.problem.codes[: len(p)])
        return replace(
            found, probabilities=p, score=score, suggested=suggested,
            used=(*found.used, "margins of the recorded run"),
        )  # fmt: skip

    # ---- rows that lie close together

    @cached_property
    def comparable(self) -> Any:
        """Unit rows by which they are compared; None if there is nothing to compare."""
        return comparable(self.last_step[1].X, self.seed)

    @cached_property
    def neighbours(self) -> Neighbours | None:
        """The nearest other rows of each."""
        return None if self.comparable is None else nearest(self.comparable, self.seed)

    @cached_property
    def conflicts(self) -> list[Conflict]:
        """Equal and nearly equal training rows under different labels."""
        train, Z = self.problem.train, self.comparable
        columns = 0 if Z is None else Z.shape[1]
        X = take_rows(self.rows_as_given, train) if self.trusted else self.rows_as_given
        return conflicts(X, self.problem.labels(train), self.neighbours, columns)

    # ---- the Fisher kernel's part

    @cached_property
    def model(self) -> Any:
        """The model of the training rows alone: the curated rows are new to it."""
        train, problem = self.problem.train, self.problem
        weights = problem.weights_of(train)
        return self.learner.fitted(
            problem.inputs(train), problem.labels(train), weights, self.seed, quiet=False
        )

    @cached_property
    def last_step(self) -> tuple[Any, LabelProblem]:
        """The last step of a Pipeline, and the rows as it sees them: the steps before it, which for
        text are most of the work, run once. Of any other model itself, and the rows as given."""
        last, X = before_last(self.model, self.problem.X)
        return last, replace(self.problem, X=X)

    @cached_property
    def score_width(self) -> int:
        """Numbers a score has; 0 if the model has none, or cannot be asked."""
        return score_width(self)

    @cached_property
    def view(self) -> FisherView | None:
        """The versions in Fisher space; None, and said, if the model has no score."""
        return self._view(self.sketch)

    @cached_property
    def light_view(self) -> FisherView | None:
        """The same in few directions, which is enough to show what contradicts a label."""
        if "view" in self.__dict__ or self.sketch != "auto":
            return self.view
        return self._view(LIGHT if self.score_width > LIGHT else "auto")

    def _view(self, sketch: str | int) -> FisherView | None:
        if len(self.problem.classes) > _MAX_FISHER_CLASSES:
            return None
        rows, codes = self.calibration_rows, self.calibration_codes
        last, problem = self.last_step
        try:
            return _view_versions(
                last, problem, rows, codes, sketch=sketch, seed=self.seed, store=self.store
            )
        except UnsupportedModelError as error:
            warnings.warn(
                f"the Fisher evidence is left out, only predictions are weighed: {error}",
                ExemplaWarning,
                stacklevel=4,
            )
            return None

    @cached_property
    def dissimilarity(self) -> np.ndarray:
        """(versions, d): minus the Fisher similarities with the trusted versions."""
        if self.view is None:
            return np.zeros((self.problem.n_train + 2 * len(self.calibration_rows), 0))
        return -self.view.similarities(self.reference)

    @cached_property
    def reference(self) -> np.ndarray:
        """The versions others are compared with: the calibration rows under their given labels.

        Stand-ins count only where models of the other folds agree with their label.
        """
        if self.trusted:
            return self.as_given
        said = first_largest(self.cross_fitted[self.calibration_rows])
        agree = said == self.columns.own[self.calibration_rows]
        return self.as_given[agree] if agree.any() else self.as_given


def assess_problem(
    learner: Learner, problem: LabelProblem, seed: int, *, neighbours: bool = True
) -> Assessment:
    """Return the assessment of one problem, where nothing but that is needed."""
    evidence = Evidence(learner, problem, seed=seed)
    if not neighbours:
        evidence.neighbours = None
    return evidence.assess()


def assess_predictions(probabilities: Any, problem: LabelProblem) -> Assessment:
    """Return the assessment by probabilities of every class that the caller computed."""
    n, C = len(problem), len(problem.classes)
    shape = tuple(getattr(probabilities, "shape", ()))
    if shape != (n, C):
        raise ExemplaError(
            f"probabilities have shape {shape}; give one for each of {n:,} labels and {C:,} "
            "classes, in the order of the sorted classes."
        )
    width = min(C, MAX_CLASSES)
    view, codes = np.empty((n, width)), np.empty((n, width), dtype=np.int32)
    size = max(1, BLOCK_BYTES // (8 * C))
    for start in range(0, n, size):
        rows = np.arange(start, min(start + size, n))
        p = np.asarray(probabilities[start : start + size], dtype=np.float64)
        if not np.isfinite(p).all() or p.min() < 0 or p.max() > 1 + 1e-6:
            raise ExemplaError("probabilities must be numbers from 0 to 1; check your model.")
        log_p = np.log(np.clip(p, 1e-12, 1.0))
        best = Columns.likeliest(log_p, problem.codes[rows])
        view[rows], codes[rows] = best.take(log_p), best.codes
    own = np.argmax(codes == problem.codes[:, None], axis=1)
    return assess({"your probabilities": view}, Columns(codes, own, C), n)


def doubted(view: np.ndarray, columns: Columns, n_train: int) -> np.ndarray:
    """Return the training rows of which another label is far more likely than the given one."""
    own = view[np.arange(len(view)), columns.own]
    out = view.max(axis=1) > own + np.log(_SUSPECT_ODDS)
    out[n_train:] = False
    return out


def score_width(evidence: Evidence) -> int:
    """Numbers a score will have; 0 if the model has none, or cannot be asked."""
    problem = evidence.problem
    few = np.unique(problem.codes[problem.train], return_index=True)[1]  # a row of each class
    try:
        oracle = make_oracle(evidence.model)
        oracle.read((problem.inputs(few), problem.labels(few)), role="train")
    except (RuntimeError, TypeError, ValueError):  # whatever it is, it is told where it is needed
        return 0
    size, n = oracle.n_parameters, problem.n_train  # known once it has read some rows
    if isinstance(evidence.sketch, int):
        return min(size, evidence.sketch)
    if size <= PRIMAL_LIMIT:
        return min(size, n) if n <= DUAL_LIMIT else size
    return n if n <= DUAL_LIMIT else auto_width(n)
