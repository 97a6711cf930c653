"""Ensembles of trees: one oracle for boosting, one for forests, one reader of leaves per library.

Inside: leaves/ (the readers), oracle (boosting), forest, columns and gather (leaf indicators as
sparse inputs), examples (a user's rows), quantile (a likelihood), stages.
Imports: oracles.base, oracles.sklearn, data, likelihoods, factors, errors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from exempla.oracles.trees.leaves import is_boosted, is_forest

if TYPE_CHECKING:
    from exempla.oracles.base import Oracle
    from exempla.oracles.likelihoods import Likelihood

__all__ = ["is_trees", "tree_oracle"]


def is_trees(model: Any) -> bool:
    """Whether this model, or the last step of this Pipeline, is an ensemble of trees.

    >>> from sklearn.ensemble import GradientBoostingClassifier
    >>> from sklearn.linear_model import Ridge
    >>> is_trees(GradientBoostingClassifier()), is_trees(Ridge())
    (True, False)
    """
    from exempla.oracles.sklearn.unwrap import unwrap

    last = unwrap(model)[1]
    return is_boosted(last) or is_forest(last)


def tree_oracle(
    model: Any, likelihood: str | Likelihood = "auto", parameters: Sequence[str] | None = None
) -> Oracle:
    """The oracle of an ensemble of trees, fitted or not yet.

    >>> from sklearn.ensemble import GradientBoostingRegressor
    >>> model = GradientBoostingRegressor(n_estimators=3).fit([[0.0], [1.0]], [0, 1])
    >>> tree_oracle(model).likelihood
    'gaussian'
    """
    from exempla.oracles.sklearn.unwrap import unwrap
    from exempla.oracles.trees.forest import ForestOracle
    from exempla.oracles.trees.oracle import TreeOracle

    if is_forest(unwrap(model)[1]):
        return ForestOracle(model, likelihood, parameters)
    return TreeOracle(model, likelihood, parameters)
