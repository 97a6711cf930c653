"""From a model to its oracle: each framework is imported only when a model of it arrives.

Inside: base (what an oracle promises), sklearn/, trees/, torch/, scores (your own gradients).
Imports: data, likelihoods, factors, arrays, errors.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exempla.errors import UnsupportedModelError
from exempla.oracles.base import Oracle

if TYPE_CHECKING:
    from exempla.likelihoods import Likelihood

__all__ = ["is_checkpoint", "make_oracle", "make_oracles"]


def make_oracle(
    model: Any,
    likelihood: str | Likelihood = "auto",
    parameters: Sequence[str] | None = None,
    device: Any = None,
) -> Oracle:
    """The oracle that scores this model; raises UnsupportedModelError if there is none.

    >>> from sklearn.linear_model import LogisticRegression
    >>> make_oracle(LogisticRegression().fit([[0.0], [1.0]], ["no", "yes"])).likelihood
    'bernoulli'
    """
    if isinstance(model, Oracle):
        return model
    # a module of torch cannot exist unless torch has been imported
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(model, torch.nn.Module):
        from exempla.oracles.torch.oracle import torch_oracle

        return torch_oracle(model, likelihood, parameters, device)
    from exempla.oracles.scores import ArrayOracle, ArrayScores, ScoreModel

    if isinstance(model, ArrayScores | ScoreModel):
        return ArrayOracle(model)
    from exempla.oracles.trees import is_trees, tree_oracle

    if is_trees(model):
        return tree_oracle(model, likelihood, parameters)
    if hasattr(model, "fit") or hasattr(model, "get_params"):
        from exempla.oracles.sklearn.oracle import sklearn_oracle

        return sklearn_oracle(model, likelihood, parameters)
    from exempla.oracles.sklearn.anatomy import SUPPORTED

    raise UnsupportedModelError(
        f"{type(model).__name__} is not a model exempla can score. It takes a torch.nn.Module, "
        "boosted trees of LightGBM, XGBoost, CatBoost and scikit-learn, its forests, "
        f"scikit-learn's {SUPPORTED}, or any gradient: a ScoreModel(score=...) for a function, "
        "ArrayScores() for a matrix of scores."
    )


def is_checkpoint(model: Any) -> bool:
    """Whether this is an earlier moment of another model in a list: a state dict, a file of one, an
    ensemble with only its first trees.

    >>> is_checkpoint({"weight": 0}), is_checkpoint("epoch3.pt"), is_checkpoint(object())
    (True, True, False)
    """
    return isinstance(model, Mapping | str | Path) or getattr(model, "share", 1.0) < 1.0


def make_oracles(
    models: list[Any],
    likelihood: str | Likelihood = "auto",
    parameters: Sequence[str] | None = None,
    device: Any = None,
) -> list[Oracle]:
    """One oracle per model; beside a torch module, state dicts and files of them count as models.

    >>> from sklearn.linear_model import LogisticRegression
    >>> models = [LogisticRegression(C=c).fit([[0.0], [1.0]], [0, 1]) for c in (1, 10)]
    >>> len(make_oracles(models))
    2
    """
    torch = sys.modules.get("torch")
    if torch is not None and any(isinstance(m, torch.nn.Module) for m in models):
        from exempla.oracles.torch.inputs.checkpoints import with_checkpoints

        models = with_checkpoints(models)
    return [make_oracle(model, likelihood, parameters, device) for model in models]
