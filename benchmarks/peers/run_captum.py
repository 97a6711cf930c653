"""captum: Arnoldi influence and TracInCP. Score = ∇ℓ_testᵀ (H⁻¹) ∇ℓ_train, larger = helpful.

The Hessian here is the sum over the training data, so `hessian_reg` is n times what others call
damping. By default it keeps 50 directions out of a Krylov space of 200; it is also run with 300
out of 450. TracInCP gets the one checkpoint everybody gets, or with --checkpoints those of one
training, each weighed alike.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from functools import partial

import torch
from captum.influence._core import arnoldi_influence_function as arnoldi_module
from job import Method, main
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# isort: split
# user code
from captum.influence import TracInCP
from captum.influence._core.arnoldi_influence_function import ArnoldiInfluenceFunction


def arnoldi(
    model: nn.Module,
    train: TensorDataset,
    test: TensorDataset,
    dampings: list[float],
    rank: int = 50,
    krylov: int = 200,
) -> Iterator[Tensor]:
    with tempfile.NamedTemporaryFile(suffix=".pt") as checkpoint:
        torch.save(model.state_dict(), checkpoint.name)
        for damping in dampings:
            influence = ArnoldiInfluenceFunction(
                model,
                train,
                checkpoint.name,
                loss_fn=nn.CrossEntropyLoss(reduction="sum"),
                batch_size=500,
                sample_wise_grads_per_batch=True,
                projection_dim=rank,
                arnoldi_dim=krylov,
                hessian_reg=damping,
            )
            yield influence.influence(test.tensors).T


# end of user code


def tracin(
    model: nn.Module, train: TensorDataset, test: TensorDataset, dampings: list[float]
) -> Iterator[Tensor]:
    with tempfile.NamedTemporaryFile(suffix=".pt") as checkpoint:
        torch.save(model.state_dict(), checkpoint.name)
        influence = TracInCP(
            model,
            train,
            [checkpoint.name],
            loss_fn=nn.CrossEntropyLoss(reduction="sum"),
            batch_size=500,
            sample_wise_grads_per_batch=True,
        )
        for _ in dampings:
            yield influence.influence(test.tensors).T


def keep_krylov_basis() -> None:
    """The Krylov basis does not depend on `hessian_reg`: keep it, so that a sweep is affordable."""
    compute = arnoldi_module._parameter_arnoldi
    kept: dict[str, object] = {}

    def once(*arguments: object, **named: object) -> object:
        if "basis" not in kept:
            kept["basis"] = compute(*arguments, **named)
        return kept["basis"]

    arnoldi_module._parameter_arnoldi = once


if __name__ == "__main__":
    sweep = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3)
    if "sweep" in sys.argv and not {"--models", "--checkpoints"} & set(sys.argv):
        keep_krylov_basis()
    wide = partial(arnoldi, rank=300, krylov=450)
    main(
        {
            "Arnoldi": Method(arnoldi, 1e-3, sweep),
            "Arnoldi, rank 300": Method(wide, 1e-3, sweep),
            "TracInCP": Method(tracin, 0.0),
        }
    )
