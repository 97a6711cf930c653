"""Oracles: from a model to its scores. Each framework is imported only when a model needs it.

Modules: base (the interface), factors, likelihoods, scores (user-supplied gradients), sklearn/,
trees/, torch/.
Imports: data, recorder (its files), arrays, checks, errors.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exempla.errors import ExemplaError
from exempla.oracles.base import Oracle

if TYPE_CHECKING:
    from exempla.oracles.likelihoods import Likelihood

__all__ = ["is_checkpoint", "make_oracle", "make_oracles", "unwrap", "with_runs"]


def make_oracle(
    model: Any,
    likelihood: str | Likelihood = "auto",
    parameters: Sequence[str] | None = None,
    device: Any = None,
) -> Oracle:
    """Return the oracle that scores this model, or raise UnsupportedModelError.

    `model` is a torch module or Trainer, a scikit-learn estimator, an ensemble of trees,
    `ArrayScores`, `ScoreModel`, or an oracle, which is returned unchanged. `likelihood` "auto" uses
    the model's own. `parameters` are names or globs of the layers to score; None scores all.

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
    if _is_module(base):
        from exempla.oracles.torch.model import has_weights
    else:
        from exempla.oracles.sklearn.unwrap import has_weights
    paths = [snapshot.checked(folder) for snapshot in run.snapshots]
    return [path for path in paths if not has_weights(base, path)]


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
        from exempla.oracles.sklearn.unwrap import with_checkpoints

        models = with_checkpoints(models)
    return [_array_oracle(model, likelihood, parameters, device) for model in models]


def _array_oracle(model: Any, likelihood: Any, parameters: Any, device: Any) -> Oracle:
    """Return the oracle of a model that computes with NumPy."""
    if isinstance(model, Oracle):
        return model
    if device is not None and str(device) != "cpu":
        raise ExemplaError(f"device={device!r:.60} applies to torch models only: leave it out.")
    from exempla.oracles.scores import ArrayOracle, ArrayScores, ScoreModel

    if isinstance(model, ArrayScores | ScoreModel):
        return ArrayOracle(model)
    from exempla.oracles.sklearn.unwrap import sklearn_oracle

    return sklearn_oracle(model, likelihood, parameters)
