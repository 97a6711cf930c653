"""Choose the default model for a table by cross-validation.

The candidates, simplest first, are regularised linear or logistic regression (with TF-IDF for text)
and histogram gradient boosting. Each is fitted to the same folds and compared by its loss on the
held-out rows (−log p of the label, or the squared error). **The simplest candidate within one
standard error of the best is chosen.** Only models that exempla can explain are candidates.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import pandas as pd
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, TransformerMixin, is_classifier, is_regressor
from sklearn.base import clone as _clone
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import KFold, StratifiedKFold
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler
from threadpoolctl import threadpool_limits

from exempla.data import take_rows
from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles import make_oracle
from exempla.progress import track
from exempla.tables.infer import FEATURES, Column, label_of, label_values
from exempla.tables.split import feature_frame
from exempla.tables.table import Table
from exempla.tasks.labels.crossfit import SoftmaxRegression
from exempla.tasks.labels.fix_labels import MANY_CLASSES

_SUREST = 1e-6
"""Smallest probability in a loss, so that no single row decides a comparison."""


_BASELINES = ("the majority-class baseline", "predicting the mean")


class CrossValidation(NamedTuple):
    """Cross-validated accuracy, its standard error, and the majority-class baseline.

    For a regression: R², its standard error over the folds, and 0, the R² of predicting the mean.
    """

    mean: float
    se: float
    majority: float

    @property
    def warning(self) -> str:
        """A sentence if the model does not clearly beat the baseline, otherwise ""."""
        if self.mean > self.majority + 2 * self.se:
            return ""
        return (
            f"The model is hardly better than {_BASELINES[self.majority == 0]} ({self.mean:.3f} ± "
            f"{self.se:.3f} against {self.majority:.3f}), so its explanations say little about the "
            "data; give better columns or your own model."
        )


def cross_validated_accuracy(
    model: Any, X: Any, y: Any, *, folds: int = 5, max_rows: int = 20_000, seed: int = 0
) -> CrossValidation:
    """Return the cross-validated accuracy (R² for a regressor).

    At most `max_rows` rows are used; the model then learns from fewer rows than it will have, and
    the estimate is low.
    """
    return _cross_validated(model, X, y, folds, max_rows, seed)[0]


def _cross_validated(
    model: Any, X: Any, y: Any, folds: int, max_rows: int, seed: int, what: str = "the model"
) -> tuple[CrossValidation, np.ndarray]:
    """Return the cross-validated accuracy and the loss of each held-out row (see `_row_losses`)."""
    y = np.asarray(y)
    if len(y) < 4:
        raise ExemplaError(f"{len(y)} rows are too few for cross-validation; give at least four.")
    if len(y) > max_rows:
        some = np.sort(np.random.default_rng(seed).choice(len(y), max_rows, replace=False))
        X, y = take_rows(X, some), y[some]
    numbers = _predicts_numbers(model, y)
    parts = _make_folds(y, folds, classes=not numbers, seed=seed)
    if not parts:
        raise ExemplaError("Every class has a single row, so cross-validation is impossible.")
    losses, right = [], []
    for train, test in track(parts, f"cross-validating {what}", len(parts)):
        fitted, unseen = clone(model).fit(take_rows(X, train), y[train]), take_rows(X, test)
        losses.append(_row_losses(fitted, unseen, y[test], numbers))
        if not numbers:
            right.append(np.asarray(fitted.predict(unseen)) == y[test])
    every = np.concatenate(losses)
    if numbers:
        spread = max(float(np.var(y)), 1e-300)
        r2 = 1 - np.array([each.mean() for each in losses]) / spread
        se = float(np.std(r2, ddof=1) / np.sqrt(len(r2)))
        return CrossValidation(1 - float(every.mean()) / spread, se, 0.0), every
    judged = y[np.concatenate([test for _, test in parts])]
    mean = float(np.concatenate(right).mean())
    majority = float(np.unique(judged, return_counts=True)[1].max() / len(judged))
    se = float(np.sqrt(max(mean * (1 - mean), 1e-12) / len(judged)))
    return CrossValidation(mean, se, majority), every


def _row_losses(
    model: Any, X: Any, y: np.ndarray, numbers: bool, least: float = _SUREST
) -> np.ndarray:
    """Return the loss of each row: −log p, 0/1 without probabilities, or the squared error."""
    if numbers:
        return (np.asarray(model.predict(X)).ravel() - y) ** 2
    if not hasattr(model, "predict_proba"):
        return (np.asarray(model.predict(X)) != y).astype(np.float64)
    own = np.asarray(model.classes_)[None, :] == y[:, None]
    sure = np.where(own, model.predict_proba(X), 0.0).sum(axis=1)
    return -np.log(sure.clip(min=least))


def _make_folds(
    y: np.ndarray, folds: int, *, classes: bool, seed: int
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return (training rows, test rows) of each fold, stratified by class.

    The only row of a class is in every training part and in no test part, because a model trained
    without it cannot know its class. The list is empty if every class has a single row.
    """
    if not classes:
        return list(KFold(min(folds, len(y)), shuffle=True, random_state=seed).split(y))
    _, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    if counts.max() < 2:
        return []
    alone = np.flatnonzero(counts[codes] == 1)
    several = np.flatnonzero(counts[codes] > 1)
    cut = StratifiedKFold(min(folds, int(counts.max())), shuffle=True, random_state=seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a class with fewer rows than folds
        parts = list(cut.split(several, codes[several]))
    return [(np.sort(np.append(several[train], alone)), several[test]) for train, test in parts]


def _predicts_numbers(model: Any, y: np.ndarray) -> bool:
    try:
        return is_regressor(model) or (y.dtype.kind == "f" and not is_classifier(model))
    except AttributeError:  # a model without scikit-learn tags
        return y.dtype.kind == "f" and not hasattr(model, "predict_proba")


clone: Any = _clone
"""`sklearn.base.clone`, typed to return an estimator."""

_STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)
"""Regularisation strengths: C of logistic regression, 1/α of ridge regression."""
_SEARCH_ROWS = 10_000
"""Rows used to tune C. C is the prior variance of a coefficient, so the best value for a sample is
good for all rows; unlike 1/(C·n), it does not depend on n."""
_FULL_HESSIAN, _HESSIAN_WORK = 600, 2e10
_TEXT_FEATURES = 50_000
_TOP_LEVELS = 1_000


def default_model(
    table: Table,
    columns: Collection[Column],
    *,
    rows: np.ndarray | None = None,
    seed: int = 0,
) -> Pipeline:
    """Return an unfitted Pipeline for `feature_frame(table, columns)`, with tuned regularisation.

    Parameters
    ----------
    rows
        Training rows, from which C is chosen (default: all labelled rows).
    """
    target = label_of(columns)
    labelled = np.flatnonzero(~table.missing(target.name))
    rows = labelled if rows is None else np.intersect1d(rows, labelled)
    few = np.random.default_rng(seed).permutation(rows)[:_SEARCH_ROWS]
    X = feature_frame(table, columns, few)
    y = label_values(table, target.name, target.detail, few)
    prepare = preparation(columns, X)
    start: Any = Ridge()
    if target.detail == "classes":
        start = _classifier(clone(prepare).fit_transform(X), y, len(rows))
    return Pipeline([("prepare", prepare), ("model", _best(start, prepare, X, y, seed))])


def _classifier(X: Any, y: np.ndarray, rows: int) -> LogisticRegression:
    """Return a logistic regression for this many rows like X, with the fastest solver.

    L-BFGS took 20 times as long as Newton-CG on 16,000 sentences × 33,000 n-grams. The tolerance
    bounds the mean gradient: it must be below the gradient of the penalty, w/(C·n).
    """
    classes = len(np.unique(y))
    size = X.shape[1] * (1 if classes == 2 else classes)
    solver, tol = ("newton-cg", 1e-6) if issparse(X) else ("lbfgs", 1e-4 if rows > 1e5 else 1e-5)
    if size <= _FULL_HESSIAN and rows * size**2 <= _HESSIAN_WORK:
        solver, tol = "newton-cholesky", 1e-6
    return LogisticRegression(solver=cast(Any, solver), tol=tol, max_iter=1000)


def preparation(columns: Collection[Column], X: pd.DataFrame) -> ColumnTransformer:
    """Return the ColumnTransformer with one step per kind of column."""
    texts = sum(column.kind == "text" for column in columns)
    levels = OneHotEncoder(
        handle_unknown="infrequent_if_exist", min_frequency=2, max_categories=_TOP_LEVELS + 1
    )
    dates = Pipeline([("parts", date_parts()), *numbers_ready().steps])
    steps = {"number": numbers_ready(), "category": levels, "date": dates}
    return _by_kind(columns, steps, lambda name: _text(X[name], texts))


def _by_kind(
    columns: Collection[Column],
    transformers: dict[str, Any],
    text: Callable[[str], TfidfVectorizer] | None,
    **options: Any,
) -> Any:
    """Return a ColumnTransformer with one step per kind and one per text column; None if empty."""
    names = {kind: [c.name for c in columns if c.kind == kind] for kind in FEATURES}
    steps = [(kind, step, names[kind]) for kind, step in transformers.items() if names[kind]]
    # With a single column name (no list), the vectoriser gets strings, not a frame.
    steps += [(f"text_{i}", text(name), name) for i, name in enumerate(names["text"]) if text]
    prefixes = {"verbose_feature_names_out": len(steps) > 1}
    return ColumnTransformer(steps, **prefixes, **options) if steps else None


def numbers_ready() -> Pipeline:
    """Return a pipeline that imputes numbers, marks missing ones, and scales."""
    impute = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    return Pipeline([("impute", impute), ("scale", StandardScaler())])


def _text(values: pd.Series, columns: int) -> TfidfVectorizer:
    made = TfidfVectorizer(
        ngram_range=(1, 2), min_df=2, max_features=_TEXT_FEATURES // columns, sublinear_tf=True
    )
    if len(values) >= 1000:
        return made
    # In very few rows no word may occur twice; then every word is used.
    seen = pd.Series([w for text in values for w in set(made.build_analyzer()(text))], dtype=object)
    if (seen.value_counts() >= 2).sum() < 20:
        made.set_params(min_df=1)
    if seen.empty:
        made.set_params(min_df=1, analyzer="char", ngram_range=(1, 2))
    return made


def tuned_classifier(X: Any, y: Any, seed: int = 0) -> LogisticRegression:
    """Return a logistic regression on these features with C tuned by cross-validation."""
    few = np.random.default_rng(seed).permutation(len(y))[:_SEARCH_ROWS]
    X, y = take_rows(X, few), np.asarray(y)[few]
    return _best(_classifier(X, y, len(y)), None, X, y, seed)


_CLEARLY_WORSE = 1.05
"""Regularisation is weakened until the loss is more than this many times the least so far."""


def _best(model: Any, prepare: ColumnTransformer | None, X: Any, y: np.ndarray, seed: int) -> Any:
    """Return the model with the regularisation strength of least cross-validated loss."""
    classes = isinstance(model, LogisticRegression)
    strengths = [{"C": each} if classes else {"alpha": 1 / each} for each in _STRENGTHS]
    folds = []
    for train, test in _make_folds(y, 3, classes=classes, seed=seed):
        if classes and len(np.unique(y[test])) < 2:
            continue  # only one class can be tested, which says nothing about C
        inside, outside = take_rows(X, train), take_rows(X, test)
        if prepare is not None:
            ready = clone(prepare)
            inside, outside = ready.fit_transform(inside), ready.transform(outside)
        # each fit starts from the last one, of the next stronger regularisation
        trial = clone(model).set_params(**({"warm_start": True} if classes else {}))
        folds.append((trial, inside, y[train], outside, y[test]))
    losses = np.full(len(strengths), np.inf if folds else 0.0)
    for place, strength in enumerate(track(strengths, "tuning regularisation", len(strengths))):
        if not folds or (place and losses[place - 1] > _CLEARLY_WORSE * losses.min()):
            break
        losses[place] = sum(
            _row_losses(
                trial.set_params(**strength).fit(inside, own), outside, held, not classes, 1e-13
            ).mean()
            for trial, inside, own, outside, held in folds
        )
    # Ties go to the middle: with perfect folds all strengths are equally good.
    order = sorted(range(len(strengths)), key=lambda i: abs(i - len(strengths) // 2))
    best = min(order, key=lambda i: round(losses[i], 9))
    return clone(model).set_params(**strengths[best])


def _encode_dates(X: pd.DataFrame) -> np.ndarray:
    """Return (n, 20 × columns); a missing date has no days and no indicator."""
    blocks = []
    for name in X.columns:
        dates = pd.DatetimeIndex(X[name])
        days = dates.to_numpy().astype("datetime64[s]").astype(np.int64) / 86_400
        missing = dates.isna()
        days = np.where(missing, 0.0 if missing.all() else np.nan, days)
        month = dates.month.to_numpy()[:, None] == np.arange(1, 13)
        weekday = dates.day_of_week.to_numpy()[:, None] == np.arange(7)
        blocks += [days[:, None], month.astype(float), weekday.astype(float)]
    return np.hstack(blocks)


def _date_names(_: Any, columns: Any) -> list[str]:
    """Return column_days, column_month_1, …, column_weekday_sun."""
    parts = ["days", *(f"month_{m}" for m in range(1, 13))]
    parts += [f"weekday_{d}" for d in ("mon", "tue", "wed", "thu", "fri", "sat", "sun")]
    return [f"{name}_{part}" for name in columns for part in parts]


def date_parts() -> FunctionTransformer:
    """Return an encoder of dates: days since 1970 and indicators of month and weekday."""
    return FunctionTransformer(_encode_dates, feature_names_out=_date_names)


class _KnownNumbers(TransformerMixin, BaseEstimator):
    """Keep missing numbers; fill only columns without any value, which trees cannot bin."""

    def fit(self, X: Any, y: Any = None) -> _KnownNumbers:
        self.n_features_in_ = np.shape(X)[1]
        self.feature_names_in_ = np.asarray(getattr(X, "columns", range(self.n_features_in_)))
        self.empty_ = np.isnan(np.asarray(X, dtype=np.float64)).all(axis=0)
        return self

    def transform(self, X: Any) -> np.ndarray:
        return np.where(self.empty_, 0.0, np.asarray(X, dtype=np.float64))

    def get_feature_names_out(self, input_features: Any = None) -> np.ndarray:
        return np.asarray(self.feature_names_in_, dtype=object)


_WORDS = 300
"""Words of a text column that trees may split on; each is a dense column."""


def tree_columns(
    columns: Collection[Column], words: bool, levels: int | None = None
) -> ColumnTransformer | None:
    """Return the preparation for trees, or None if there is no column for it.

    Numbers are neither scaled nor imputed, because trees handle both. Categories come first, so
    that their positions are known before fitting; at most `levels` of each get their own code.
    """
    numbered = OrdinalEncoder(
        handle_unknown="use_encoded_value",
        unknown_value=np.nan,
        encoded_missing_value=np.nan,
        max_categories=levels,
    )
    steps = {"category": numbered, "number": _KnownNumbers(), "date": date_parts()}

    def count_words(_: str) -> TfidfVectorizer:
        return TfidfVectorizer(max_features=_WORDS, sublinear_tf=True)

    return _by_kind(columns, steps, count_words if words else None, sparse_threshold=0.0)


_ROUNDS = 100
"""Rounds of boosting."""
_LEVELS = 254
"""Levels of a category with their own code; histograms have 255 bins."""


def boosted_model(columns: Collection[Column], seed: int = 0) -> Pipeline | None:
    """Return an unfitted boosting Pipeline for `feature_frame(table, columns)`; None for text only.

    Missing numbers stay missing, categories are split as sets, and text is not used.
    """
    prepare = tree_columns(columns, words=False, levels=_LEVELS)
    if prepare is None:
        return None
    classes = label_of(columns).detail == "classes"
    kind = HistGradientBoostingClassifier if classes else HistGradientBoostingRegressor
    sets = list(range(sum(column.kind == "category" for column in columns))) or None
    model = kind(max_iter=_ROUNDS, categorical_features=cast(Any, sets), random_state=seed)
    return Pipeline([("prepare", prepare), ("model", model)])


_MOST_ROWS, _FEWEST_ROWS = 20_000, 1_000
_CELLS = 2_000_000
"""Rows × columns × classes of a comparison; larger files are sampled."""
_FOLDS = 5


@dataclass(frozen=True)
class Compared:
    """A candidate with its cross-validated score and loss."""

    name: str
    model: Any
    accuracy: CrossValidation
    loss: float
    se: float
    """Standard error of the mean loss."""

    def to_dict(self) -> dict[str, Any]:
        """Return the entry for explanation.json."""
        score = self.accuracy.mean
        return {"model": self.name, "loss": self.loss, "loss_se": self.se, "score": score}


@dataclass(frozen=True)
class Chosen:
    """The chosen model, and the candidates it was compared with, if any."""

    model: Any
    compared: tuple[Compared, ...] = ()
    place: int = 0
    rows: int = 0
    """Rows used for the comparison."""
    regression: bool = False

    @property
    def accuracy(self) -> CrossValidation | None:
        """The score of the chosen model; None without a comparison."""
        return self.compared[self.place].accuracy if self.compared else None

    def table(self) -> str:
        """Return a table of the scores with the choice and its rule."""
        name, unit = ("squared error", "R²") if self.regression else ("log loss", "accuracy")
        width = max(len(one.name) for one in self.compared)
        form = ".3f" if self.regression else ".1%"
        lines = [
            f"  {one.name:{width}}  {f'{one.loss:.4g} ± {one.se:.2g}':>18}  "
            f"{one.accuracy.mean:>8{form}}{'  <- chosen' if place == self.place else ''}"
            for place, one in enumerate(self.compared)
        ]
        return "\n".join(
            [
                f"{len(lines)} models, {_FOLDS}-fold cross-validation on {self.rows:,} rows:",
                f"  {'model':{width}}  {name:>18}  {unit:>8}",
                *lines,
                "The simplest model within one standard error of the best is chosen.",
            ]
        )


def choose_model(
    table: Table,
    columns: Collection[Column],
    X: pd.DataFrame,
    y: np.ndarray,
    *,
    rows: np.ndarray,
    seed: int = 0,
    linear: bool = False,
) -> Chosen:
    """Return the model for these training rows; with `linear`, only linear models compete."""
    regression = label_of(columns).detail == "regression"
    if not regression and len(np.unique(y)) >= MANY_CLASSES:
        # tuning with thousands of classes would take hours and (rows × classes) of memory
        few = Pipeline([("prepare", preparation(columns, X)), ("model", SoftmaxRegression())])
        return Chosen(few)
    first = default_model(table, columns, rows=rows, seed=seed)
    candidates = [("ridge regression" if regression else "logistic regression", first)]
    size = _compared_rows(X, y, regression)
    boosted = None if linear or size is None else boosted_model(columns, seed)
    if boosted is not None and can_explain(boosted):
        candidates.append(("histogram gradient boosting", boosted))
    if len(candidates) == 1 or size is None:
        return Chosen(first, regression=regression)
    found = compare(candidates, X, y, max_rows=size, seed=seed)
    place = _simplest(found)
    return Chosen(found[place].model, tuple(found), place, min(size, len(y)), regression)


def _compared_rows(X: pd.DataFrame, y: np.ndarray, regression: bool) -> int | None:
    """Return the rows for a comparison; None if it is impossible or would cost too much."""
    counts = np.unique(y, return_counts=True)[1]
    if len(y) < _FOLDS or (not regression and counts.max() < 2):
        return None
    outputs = 1 if regression or len(counts) == 2 else len(counts)
    affordable = _CELLS // max(1, X.shape[1] * outputs)
    return None if affordable < _FEWEST_ROWS else min(affordable, _MOST_ROWS)


def can_explain(model: Any) -> bool:
    """Return True if exempla can explain this model, fitted or not."""
    try:
        make_oracle(model)
    except UnsupportedModelError:
        return False
    return True


def compare(
    candidates: Sequence[tuple[str, Any]], X: Any, y: Any, *, max_rows: int, seed: int
) -> list[Compared]:
    """Cross-validate every candidate, a name and an unfitted model, on the same folds."""
    found = []
    for name, model in candidates:
        # with so few rows one thread is faster, especially on a busy machine
        with threadpool_limits(1, user_api="openmp"):
            accuracy, losses = _cross_validated(model, X, y, _FOLDS, max_rows, seed, name)
        se = float(losses.std(ddof=1) / np.sqrt(len(losses)))
        found.append(Compared(name, model, accuracy, float(losses.mean()), se))
    return found


def _simplest(compared: Sequence[Compared]) -> int:
    """Return the position of the first candidate within one standard error of the best."""
    best = min(compared, key=lambda one: one.loss)
    return next(i for i, one in enumerate(compared) if one.loss <= best.loss + best.se)
