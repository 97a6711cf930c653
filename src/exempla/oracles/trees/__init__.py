"""Ensembles of trees as oracles.

Modules: leaves (leaf indicators as sparse inputs), readers (one per boosting library), oracle
(boosting), forest, xgboost_labels.
Imports: oracles.base, oracles.sklearn, data, errors. No boosting library is imported here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from exempla.oracles.base import Oracle
    from exempla.oracles.likelihoods import Likelihood

__all__ = ["is_trees", "tree_oracle"]


def is_trees(model: Any) -> bool:
    """Return True if this model, without its wrappers, is an ensemble of trees.

    >>> from sklearn.ensemble import GradientBoostingClassifier
    >>> from sklearn.linear_model import Ridge
    >>> is_trees(GradientBoostingClassifier()), is_trees(Ridge())
    (True, False)
    """
    from exempla.oracles.sklearn.unwrap import unwrap
    from exempla.oracles.trees.readers import is_boosted, is_forest

    last = unwrap(model).model
    return is_boosted(last) or is_forest(last)


def tree_oracle(
    model: Any, likelihood: str | Likelihood = "auto", parameters: Sequence[str] | None = None
) -> Oracle:
    """Return the oracle of an ensemble of trees, fitted or not.

    >>> from sklearn.ensemble import GradientBoostingRegressor
    >>> model = GradientBoostingRegressor(n_estimators=3).fit([[0.0], [1.0]], [0, 1])
    >>> tree_oracle(model).likelihood
    'gaussian'
    """
    from exempla.oracles.sklearn.unwrap import unwrap
    from exempla.oracles.trees.forest import ForestOracle
    from exempla.oracles.trees.oracle import TreeOracle
    from exempla.oracles.trees.readers import is_forest

    if is_forest(unwrap(model).model):
        return ForestOracle(model, likelihood, parameters)
    return TreeOracle(model, likelihood, parameters)
