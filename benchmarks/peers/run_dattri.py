"""dattri: EK-FAC, Arnoldi and TRAK. Score = ∇ℓ_testᵀ H⁻¹ ∇ℓ_train, larger = helpful.

Its EK-FAC knows Linear layers only, and takes others as absent.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from dattri.algorithm.influence_function import IFAttributorArnoldi
from dattri.algorithm.trak import TRAKAttributor
from job import Method, main
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# isort: split
# user code
from dattri.algorithm.influence_function import IFAttributorEKFAC
from dattri.task import AttributionTask
from torch.utils.data import DataLoader


def task_of(model: nn.Module) -> AttributionTask:
    def loss(params, batch):
        inputs, labels = batch
        logits = torch.func.functional_call(model, params, inputs)
        return nn.functional.cross_entropy(logits, labels)

    return AttributionTask(loss_func=loss, model=model, checkpoints=model.state_dict())


def ekfac(
    model: nn.Module, train: TensorDataset, test: TensorDataset, dampings: list[float]
) -> Iterator[Tensor]:
    attributor = IFAttributorEKFAC(task_of(model), device="cpu")
    attributor.cache(DataLoader(train, batch_size=500))
    for damping in dampings:
        attributor.damping = damping
        with torch.no_grad():
            yield attributor.attribute(
                DataLoader(train, batch_size=500), DataLoader(test, batch_size=500)
            )


# end of user code


def arnoldi(
    model: nn.Module, train: TensorDataset, test: TensorDataset, dampings: list[float]
) -> Iterator[Tensor]:
    for damping in dampings:
        attributor = IFAttributorArnoldi(task_of(model), device="cpu", regularization=damping)
        attributor.cache(DataLoader(train, batch_size=len(train)))
        with torch.no_grad():
            yield attributor.attribute(
                DataLoader(train, batch_size=500), DataLoader(test, batch_size=500)
            )


def trak(
    models: list[nn.Module], train: TensorDataset, test: TensorDataset, dampings: list[float]
) -> Iterator[Tensor]:
    model = models[0]

    def probability(params, batch):
        inputs, label = batch
        logits = torch.func.functional_call(model, params, inputs.unsqueeze(0))
        return logits.softmax(-1)[0].gather(0, label.unsqueeze(0))[0]

    def margin(params, batch):
        p = probability(params, batch)
        return torch.log(p) - torch.log1p(-p.clamp(max=1 - 1e-7))

    for damping in dampings:
        task = AttributionTask(
            loss_func=margin, model=model, checkpoints=[m.state_dict() for m in models]
        )
        attributor = TRAKAttributor(task, probability, device="cpu", regularization=damping)
        with torch.no_grad():
            attributor.cache(DataLoader(train, batch_size=500))
            yield attributor.attribute(DataLoader(test, batch_size=500))


if __name__ == "__main__":
    dampings = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    main(
        {
            "EK-FAC": Method(ekfac, 0.0, dampings),
            "Arnoldi": Method(arnoldi, 0.0, dampings),
            "TRAK": Method(trak, 0.0, (1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4), many=True),
        }
    )
