"""Steps of a Pipeline that never look at labels are fitted once, not once per training.

Judging labels trains the model a dozen times over. Where all steps before the last are known to
ignore labels (TF-IDF, scaling, one-hot), what they make of a row tells nothing about its label, so
nothing is lost by fitting them to all rows at once; for text that is most of the time. Any other
step may have learnt from the labels under suspicion, and the Pipeline is then trained as a whole.
"""

from __future__ import annotations

from typing import Any

from sklearn.base import clone
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA, TruncatedSVD
from sklearn.feature_extraction import DictVectorizer, FeatureHasher
from sklearn.feature_extraction.text import (
    CountVectorizer,
    HashingVectorizer,
    TfidfTransformer,
    TfidfVectorizer,
)
from sklearn.feature_selection import VarianceThreshold
from sklearn.impute import MissingIndicator, SimpleImputer
from sklearn.pipeline import FeatureUnion, Pipeline
from sklearn.preprocessing import (
    Binarizer,
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    MinMaxScaler,
    Normalizer,
    OneHotEncoder,
    OrdinalEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    RobustScaler,
    SplineTransformer,
    StandardScaler,
)

from exempla.tasks.retrain import seeded

__all__ = ["without_blind_steps"]

BLIND = frozenset(
    {
        Binarizer, CountVectorizer, DictVectorizer, FeatureHasher, FunctionTransformer,
        HashingVectorizer, KBinsDiscretizer, MaxAbsScaler, MinMaxScaler, MissingIndicator,
        Normalizer, OneHotEncoder, OrdinalEncoder, PCA, PolynomialFeatures, PowerTransformer,
        QuantileTransformer, RobustScaler, SimpleImputer, SplineTransformer, StandardScaler,
        TfidfTransformer, TfidfVectorizer, TruncatedSVD, VarianceThreshold,
    }
)  # fmt: skip
"""scikit-learn's own, by name: a class of the caller's that extends one may look at anything."""


def without_blind_steps(model: Any, X: Any, seed: int) -> tuple[Any, Any]:
    """The last step of a Pipeline and the rows it sees, if no other step looks at labels.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> model = make_pipeline(CountVectorizer(), LogisticRegression())
    >>> last, rows = without_blind_steps(model, ["a word", "another word"], seed=0)
    >>> last, rows.shape
    (LogisticRegression(), (2, 2))
    """
    if type(model) is not Pipeline or len(model.steps) < 2:
        return model, X
    if not all(_is_blind(step) for _, step in model.steps[:-1]):
        return model, X
    try:
        with seeded(seed):
            steps: Any = clone(model[:-1])
            return model.steps[-1][1], steps.fit_transform(X)
    except Exception:  # it will be told when the Pipeline is trained as a whole
        return model, X


def _is_blind(step: Any) -> bool:
    if step is None or isinstance(step, str):  # "passthrough", "drop"
        return True
    if type(step) is Pipeline:
        return all(_is_blind(inner) for _, inner in step.steps)
    if type(step) is FeatureUnion:
        return all(_is_blind(inner) for _, inner in step.transformer_list)
    if type(step) is ColumnTransformer:
        inner = [part for _, part, _ in step.transformers]
        return all(_is_blind(part) for part in [*inner, step.remainder])
    return type(step) in BLIND
