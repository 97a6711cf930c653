"""Oracles: from a model to its scores. Each framework is imported only when a model needs it.

This module chooses the oracle of a model. Modules: base (the interface and `Factors`),
likelihoods, scores (user-supplied gradients), sklearn/, trees/, torch/.
Imports: data, recorder (its files), arrays, checks, errors.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from exempla.errors import ExemplaError, UnsupportedModelError
from exempla.oracles.base import Oracle

if TYPE_CHECKING:
    from exempla.oracles.likelihoods import Likelihood


def make_oracle(
    model: Any,
    likelihood: str | Likelihood = "auto",
    parameters: Sequence[str] | None = None,
    device: Any = None,
) -> Oracle:
    """Return the oracle that scores this model, or raise UnsupportedModelError.

    `model` is a torch module or Trainer, a scikit-learn estimator, an ensemble of trees,
    `ArrayScores`, `ScoreModel`, or an oracle, which is returned unchanged. `likelihood` "auto" uses
    the model's own. `parameters` are names or globs of the layers to score: "coef" for a linear
    model, "layer0", "layer1", … for a perceptron, "weights", "means", "covariances" for a mixture,
    the module's own names for torch; None scores all.

    >>> from sklearn.linear_model import LogisticRegression
    >>> make_oracle(LogisticRegression().fit([[0.0], [1.0]], ["no", "yes"])).likelihood
    'bernoulli'
    """
    return make_oracles([model], likelihood, parameters, device)[0]


def unwrap(model: Any) -> Any:
    """Return the network inside a Trainer or a pipeline, or inside each model of a list.

    Anything else is returned unchanged.
    """
    if isinstance(model, list):
        return [unwrap(one) for one in model]
    if "torch" not in sys.modules or _is_module(model):
        return model
    if not hasattr(model, "model") and not hasattr(model, "lightning_module"):
        return model
    from exempla.oracles.torch.model import module_of

    inside = module_of(model)
    return model if inside is None else inside


def is_checkpoint(model: Any) -> bool:
    """Return True for an earlier snapshot of another model in a list.

    A snapshot is a state dict, a file of one, or an ensemble restricted to its first trees.
    """
    return isinstance(model, Mapping | str | Path) or getattr(model, "share", 1.0) < 1.0


def with_runs(models: list[Any]) -> list[Any]:
    """Replace every folder of a recorded run in the list by the files of its snapshots.

    A snapshot with the weights of the model itself, as the last one often is, is dropped.
    """
    found: list[Any] = []
    for model in models:
        is_folder = isinstance(model, str | Path) and Path(model).is_dir()
        found += _snapshots(Path(model), models) if is_folder else [model]
    return found


def _snapshots(folder: Path, models: list[Any]) -> list[Path]:
    """Return the snapshots of a run that differ from the model."""
    from exempla.recorder.snapshots import read_run

    run = read_run(folder)
    base = unwrap(next((model for model in models if not is_checkpoint(model)), None))
    if base is None:
        raise ExemplaError(f"{folder} holds only weights: put their model before it in the list.")
    if not run.snapshots:
        raise ExemplaError(f"the run in {folder} has no snapshot yet.")
    has_weights = _has_weights
    if _is_module(base):
        from exempla.oracles.torch.model import has_weights
    paths = [snapshot.checked(folder) for snapshot in run.snapshots]
    return [path for path in paths if not has_weights(base, path)]


def _has_weights(model: Any, path: Path) -> bool:
    """Return True if the file holds exactly the estimator's weights."""
    from exempla.oracles.sklearn.base import require_fitted, unwrap_estimator
    from exempla.recorder.snapshots import arrays_of, read_arrays

    require_fitted(model)
    own, found = arrays_of(unwrap_estimator(model).model), read_arrays(path)
    return set(own) == set(found) and all(np.array_equal(own[name], found[name]) for name in own)


def _is_module(model: Any) -> bool:
    # no module can exist before torch has been imported
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)


def make_oracles(
    models: list[Any],
    likelihood: str | Likelihood = "auto",
    parameters: Sequence[str] | None = None,
    device: Any = None,
) -> list[Oracle]:
    """Return one oracle per model and per snapshot of it.

    Snapshots are state dicts or files of them for a torch module, and recorded snapshots for
    scikit-learn.
    """
    inside = unwrap(models)
    if any(_is_module(model) for model in inside):
        from exempla.oracles.torch.model import reader_of, with_checkpoints
        from exempla.oracles.torch.oracle import TorchOracle

        reader = next((r for r in map(reader_of, models) if r is not None), None)
        return [
            TorchOracle(model, likelihood, parameters, device, reader=reader)
            for model in with_checkpoints(inside)
        ]
    if len(models) > 1:
        base = next((model for model in models if not isinstance(model, str | Path)), None)
        models = [_load_snapshot(base, m) if isinstance(m, str | Path) else m for m in models]
    return [_array_oracle(model, likelihood, parameters, device) for model in models]


def _load_snapshot(base: Any, path: str | Path) -> Any:
    """Return a copy of an estimator with a snapshot's weights; earlier steps stay the same."""
    from exempla.oracles.sklearn.base import require_fitted, unwrap_estimator
    from exempla.recorder.snapshots import place, read_arrays

    if base is None:
        raise ExemplaError("A list of snapshots needs the model they belong to: put it first.")
    arrays = read_arrays(Path(path))
    require_fitted(base)
    model = copy.deepcopy(base)
    try:
        place(unwrap_estimator(model).model, arrays)
    except ExemplaError as problem:
        raise ExemplaError(f"{path} does not fit {type(base).__name__}: {problem}") from None
    return model


# ---- the oracle of a model that computes with NumPy

SUPPORTED = (
    "LogisticRegression, SGDClassifier, LinearSVC, SVC, GaussianProcessClassifier, MLPClassifier, "
    "GaussianNB, MultinomialNB, BernoulliNB, LinearDiscriminantAnalysis, "
    "QuadraticDiscriminantAnalysis, KNeighborsClassifier; LinearRegression, Ridge, Lasso, "
    "ElasticNet, BayesianRidge, ARDRegression, HuberRegressor, Poisson-, Gamma- and "
    "TweedieRegressor, SGDRegressor, LinearSVR, SVR, GaussianProcessRegressor, MLPRegressor, "
    "KNeighborsRegressor; GaussianMixture; alone, at the end of a Pipeline, inside a search, or in "
    "a voting, stacking, bagging, calibrating, one-vs-rest or multi-output wrapper"
)

_NEAREST = {
    "LogisticRegression": "RidgeClassifier DummyClassifier",
    "LogisticRegressionCV": "RidgeClassifierCV",
    "SGDClassifier(loss='hinge')": "Perceptron PassiveAggressiveClassifier",
    "SGDRegressor(loss='epsilon_insensitive')": "PassiveAggressiveRegressor",
    "SVC": "NuSVC",
    "SVR": "NuSVR",
    "GaussianMixture": "OneClassSVM SGDOneClassSVM BayesianGaussianMixture KernelDensity KMeans",
    "MultinomialNB": "ComplementNB",
    "BernoulliNB on one-hot columns": "CategoricalNB",
    "GaussianNB": "NearestCentroid",
    "KNeighborsClassifier": "RadiusNeighborsClassifier LabelPropagation LabelSpreading",
    "KNeighborsRegressor": "RadiusNeighborsRegressor",
    "HuberRegressor": "QuantileRegressor TheilSenRegressor RANSACRegressor",
    "LassoLarsCV": "Lars LarsCV",
    "LassoCV": "OrthogonalMatchingPursuit OrthogonalMatchingPursuitCV",
    "MultiOutputRegressor(LassoCV())": "MultiTaskLasso MultiTaskLassoCV",
    "MultiOutputRegressor(ElasticNetCV())": "MultiTaskElasticNet MultiTaskElasticNetCV",
    "GaussianProcessRegressor": "KernelRidge",
    "Ridge": "PLSRegression CCA DummyRegressor IsotonicRegression",
    "OneVsRestClassifier": "OneVsOneClassifier OutputCodeClassifier",
}
"""The nearest supported model, and the unsupported ones it stands in for."""
_STAND_INS = {name: stand_in for stand_in, names in _NEAREST.items() for name in names.split()}
_SGD_LOSSES = ("log_loss", "hinge", "squared_hinge", "modified_huber")

_ORACLES = {
    "sklearn.oracle:SklearnOracle": (
        "LogisticRegression SGDClassifier LinearSVC LinearRegression Ridge RidgeCV ElasticNet "
        "ElasticNetCV LassoCV LassoLars LassoLarsCV LassoLarsIC BayesianRidge ARDRegression "
        "PoissonRegressor GammaRegressor TweedieRegressor HuberRegressor SGDRegressor LinearSVR "
        "MLPClassifier MLPRegressor SVC SVR GaussianProcessRegressor GaussianProcessClassifier"
    ),
    "sklearn.wrappers:WrapperOracle": (
        "VotingClassifier VotingRegressor BaggingClassifier BaggingRegressor "
        "CalibratedClassifierCV OneVsRestClassifier MultiOutputClassifier MultiOutputRegressor "
        "ClassifierChain RegressorChain"
    ),
    "sklearn.generative:MixtureOracle": "GaussianMixture",
    "sklearn.generative:GenerativeOracle": (
        "GaussianNB LinearDiscriminantAnalysis QuadraticDiscriminantAnalysis MultinomialNB "
        "BernoulliNB"
    ),
    "sklearn.instance_based:NeighbourOracle": "KNeighborsClassifier KNeighborsRegressor",
    "trees.forest:ForestOracle": "ForestClassifier ForestRegressor",
    "trees.oracle:TreeOracle": (
        "BaseGradientBoosting BaseHistGradientBoosting LGBMModel XGBModel Booster CatBoost"
    ),
}
"""The oracle of each class of models, by the name of the class or of a base class."""
_ORACLE_OF = {name: oracle for oracle, names in _ORACLES.items() for name in names.split()}
_LIBRARIES = ("sklearn", "lightgbm", "xgboost", "catboost")


def _array_oracle(model: Any, likelihood: Any, parameters: Any, device: Any) -> Oracle:
    """Return the oracle of a model that computes with NumPy, and import only its module."""
    if isinstance(model, Oracle):
        return model
    if device is not None and str(device) != "cpu":
        raise ExemplaError(f"device={device!r:.60} applies to torch models only: leave it out.")
    from exempla.oracles.scores import ArrayOracle, ArrayScores, ScoreModel

    if isinstance(model, ArrayScores | ScoreModel):
        return ArrayOracle(model)
    from exempla.oracles.sklearn.base import unwrap_estimator

    last = unwrap_estimator(model).model
    kind = _oracle_name(last)
    if kind is None:
        raise _refusal(last)
    module, name = kind.split(":")
    return getattr(import_module(f"exempla.oracles.{module}"), name)(model, likelihood, parameters)


def is_trees(model: Any) -> bool:
    """Return True if this model, without its wrappers, is an ensemble of trees."""
    from exempla.oracles.sklearn.base import unwrap_estimator

    return (_oracle_name(unwrap_estimator(model).model) or "").startswith("trees.")


def is_boosted(model: Any) -> bool:
    """Return True if an unwrapped model is a boosted ensemble of trees, fitted or not."""
    return _oracle_name(model) == "trees.oracle:TreeOracle"


def _oracle_name(model: Any) -> str | None:
    """Return module and class of the oracle of an unwrapped model; None if it is not supported."""
    if isinstance(model, type) or type(model).__name__ in _STAND_INS:
        return None
    for kind in type(model).__mro__:
        found = _ORACLE_OF.get(kind.__name__)
        if found is None or kind.__module__.partition(".")[0] not in _LIBRARIES:
            continue
        if kind.__name__ == "SGDClassifier" and model.loss not in _SGD_LOSSES:
            return None
        if kind.__name__ == "GaussianProcessClassifier" and len(getattr(model, "classes_", ())) > 2:
            return "sklearn.wrappers:WrapperOracle"  # one process per class
        # what a subclass of a wrapper changes is not known
        return None if "wrappers" in found and kind is not type(model) else found
    return None


def _refusal(model: Any) -> UnsupportedModelError:
    """Return the error for an unsupported model: the reason, and what to use instead."""
    name = type(model).__name__
    if isinstance(model, type):
        why = f"{model.__name__} is a class, not a model: fit {model.__name__}() and pass that"
    elif not hasattr(model, "fit") and not hasattr(model, "get_params"):
        why = (
            f"{name} is not a model exempla can score; it also supports torch.nn.Module, boosted "
            "trees of LightGBM, XGBoost, CatBoost and scikit-learn, forests, and gradients of your "
            "own: ScoreModel(score=...) for a function, ArrayScores() for a matrix of scores"
        )
    elif name in ("RidgeClassifier", "RidgeClassifierCV"):
        why = (
            f"{name} is fitted by least squares on labels −1 and 1, so it gives labels no "
            f"probability and has no score: use {_STAND_INS[name]}"
        )
    elif "SGDClassifier" in [kind.__name__ for kind in type(model).__mro__]:
        why = f"SGDClassifier(loss={model.loss!r}) has no score here: use loss='log_loss'"
    elif name in _STAND_INS:
        why = f"exempla cannot score {name}: the nearest model it can is {_STAND_INS[name]}"
    else:
        why = (
            f"{name} has no parameters with a known likelihood, so exempla cannot score it: "
            "explain a surrogate of it (exempla.surrogate, or --surrogate on the command line), "
            "or give its gradient as exempla.ScoreModel"
        )
    return UnsupportedModelError(f"{why}. Supported scikit-learn models: {SUPPORTED}.")
