"""Every supported scikit-learn model, small, with data of its kind."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import TransformedTargetRegressor
from sklearn.discriminant_analysis import (
    LinearDiscriminantAnalysis,
    QuadraticDiscriminantAnalysis,
)
from sklearn.ensemble import (
    BaggingClassifier,
    BaggingRegressor,
    StackingClassifier,
    StackingRegressor,
    VotingClassifier,
    VotingRegressor,
)
from sklearn.gaussian_process import GaussianProcessClassifier, GaussianProcessRegressor
from sklearn.gaussian_process.kernels import RBF
from sklearn.linear_model import (
    ARDRegression,
    BayesianRidge,
    ElasticNet,
    GammaRegressor,
    HuberRegressor,
    Lasso,
    LinearRegression,
    LogisticRegression,
    PoissonRegressor,
    Ridge,
    SGDClassifier,
    SGDRegressor,
    TweedieRegressor,
)
from sklearn.mixture import GaussianMixture
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import (
    ClassifierChain,
    MultiOutputClassifier,
    MultiOutputRegressor,
    RegressorChain,
)
from sklearn.naive_bayes import BernoulliNB, GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR

from tests.oracles.sklearn.case import CODES, NUMBERS, X

CLASSES = np.where(CODES == 2, "yes", "no")
FLIPPED = CLASSES.copy()
FLIPPED[::15] = np.where(CLASSES[::15] == "yes", "no", "yes")
COUNTED = np.round(np.abs(3 * X))
POSITIVE = np.exp(NUMBERS / 3)
SEVERAL = np.c_[CODES == 1, X[:, 1] > 0].astype(int)
NUMBERS_TWO = np.c_[NUMBERS, X[:, 1] + NUMBERS]


class Case(NamedTuple):
    """A model with its data."""

    model: Any
    X: np.ndarray = X
    y: Any = FLIPPED


def case(model: Any, y: Any = FLIPPED, X: np.ndarray = X) -> Case:
    return Case(model, X, y)


LR = LogisticRegression()
CASES = [
    case(LR),
    case(make_pipeline(StandardScaler(), LR)),
    case(SGDClassifier(loss="log_loss", random_state=0)),
    case(SGDClassifier(random_state=0)),
    case(LinearSVC()),
    case(SVC()),
    case(GaussianProcessClassifier(RBF(2.0), optimizer=None)),
    case(MLPClassifier((4,), max_iter=60, random_state=0)),
    case(GaussianNB()),
    case(MultinomialNB(), X=COUNTED),
    case(BernoulliNB()),
    case(LinearDiscriminantAnalysis()),
    case(QuadraticDiscriminantAnalysis()),
    case(KNeighborsClassifier()),
    case(VotingClassifier([("a", LR), ("b", GaussianNB())], voting="soft")),
    case(BaggingClassifier(LR, 3, random_state=0)),
    case(CalibratedClassifierCV(LinearSVC(), cv=3)),
    case(StackingClassifier([("a", LR), ("b", GaussianNB())], LogisticRegression())),
    case(OneVsRestClassifier(LR)),
    case(MultiOutputClassifier(LR), SEVERAL),
    case(ClassifierChain(LR), SEVERAL),
    case(LinearRegression(), NUMBERS),
    case(Ridge(), NUMBERS),
    case(Lasso(0.1), NUMBERS),
    case(ElasticNet(0.1), NUMBERS),
    case(BayesianRidge(), NUMBERS),
    case(ARDRegression(), NUMBERS),
    case(HuberRegressor(), NUMBERS),
    case(PoissonRegressor(), np.round(POSITIVE)),
    case(GammaRegressor(), POSITIVE),
    case(TweedieRegressor(power=1.5), POSITIVE),
    case(SGDRegressor(random_state=0), NUMBERS),
    case(LinearSVR(), NUMBERS),
    case(SVR(), NUMBERS),
    case(GaussianProcessRegressor(RBF(2.0), alpha=0.3, optimizer=None), NUMBERS),
    case(MLPRegressor(hidden_layer_sizes=(4,), max_iter=60, random_state=0), NUMBERS),
    case(KNeighborsRegressor(), NUMBERS),
    case(TransformedTargetRegressor(Ridge(), func=np.log, inverse_func=np.exp), POSITIVE),
    case(VotingRegressor([("a", Ridge()), ("b", Ridge(50.0))]), NUMBERS),
    case(BaggingRegressor(Ridge(), 3, random_state=0), NUMBERS),
    case(StackingRegressor([("a", Ridge()), ("b", SVR())], Ridge()), NUMBERS),
    case(MultiOutputRegressor(Ridge()), NUMBERS_TWO),
    case(RegressorChain(Ridge()), NUMBERS_TWO),
    case(GaussianMixture(2, random_state=0)),
]


def name_of(one: Case) -> str:
    """What a test calls it."""
    last = one.model.steps[-1][1] if hasattr(one.model, "steps") else one.model
    inner = "" if last is one.model else "in a pipeline "
    loss = f"({last.loss})" if isinstance(last, SGDClassifier) else ""
    return f"{inner}{type(last).__name__}{loss}"


def fitted(one: Case) -> Any:
    """The model fitted to every third row left out."""
    from sklearn.base import clone

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return clone(one.model).fit(*train_of(one))


def train_of(one: Case) -> tuple[np.ndarray, Any]:
    """Two thirds of the rows."""
    at = np.arange(len(one.X)) % 3 > 0
    return one.X[at], one.y[at]


def test_of(one: Case) -> tuple[np.ndarray, Any]:
    """The others."""
    at = np.arange(len(one.X)) % 3 == 0
    return one.X[at], one.y[at]


test_of.__test__ = False  # pyright: ignore[reportFunctionMemberAccess]
