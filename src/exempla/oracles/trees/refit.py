"""A model that early stopping kept small is refitted at that size.

Early stopping looks at rows that a refit does not have. What it found out, how many trees are
enough, is kept instead, so that refits differ from the model in their rows alone.
"""

from __future__ import annotations

from typing import Any

from exempla.oracles.sklearn.unwrap import unwrap
from exempla.oracles.trees.leaves import is_boosted

__all__ = ["keep_size"]

_SIZES = ("n_estimators", "iterations", "num_boost_round", "num_trees")


def keep_size(fresh: Any, model: Any) -> None:
    """Give an unfitted copy of a boosted model the number of trees the model stopped at, in place.

    >>> from sklearn.ensemble import GradientBoostingClassifier
    >>> model = GradientBoostingClassifier()
    >>> keep_size(model, model)  # it was not stopped early: nothing changes
    """
    last, new = unwrap(model)[1], unwrap(fresh)[1]
    if not is_boosted(last) or not hasattr(new, "set_params"):
        return
    kept = _stopped_at(last)
    if kept is None:
        return
    given = new.get_params()
    size = next((name for name in _SIZES if name in given), _SIZES[0])
    changes: dict[str, Any] = {size: kept}
    for name in ("early_stopping_rounds", "early_stopping_round"):
        if given.get(name) is not None:
            changes[name] = None
    if given.get("use_best_model"):
        changes["use_best_model"] = False
    new.set_params(**changes)


def _stopped_at(model: Any) -> int | None:
    """Trees (rounds) after which early stopping on rows set aside by the caller ended training.

    scikit-learn's own sets rows aside by itself, and will again.
    """
    library = type(model).__module__.partition(".")[0]
    if library == "lightgbm":
        best = model.best_iteration_ if _trained(model) else None
        return int(best) if best else None
    if library == "xgboost" and getattr(model, "early_stopping_rounds", None) is not None:
        best = model.get_booster().attr("best_iteration") if _trained(model) else None
        return None if best is None else int(best) + 1
    if library == "catboost" and model.is_fitted() and model.get_best_iteration() is not None:
        return int(model.tree_count_)
    return None


def _trained(model: Any) -> bool:
    return bool(model.__sklearn_is_fitted__())
