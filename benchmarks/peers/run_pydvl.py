"""pyDVL: EK-FAC. Up-weighting influence ⟨H⁻¹∇ℓ_test, ∇ℓ_train⟩, larger = helpful.

Its EK-FAC knows Linear layers only: others are frozen, which is how pyDVL is told to leave them.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from job import Method, main
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# isort: split
# user code
from pydvl.influence.torch import EkfacInfluence
from torch.utils.data import DataLoader


def ekfac(
    model: nn.Module,
    train: TensorDataset,
    test: TensorDataset,
    dampings: list[float],
    update_diagonal: bool,
) -> Iterator[Tensor]:
    for module in model:
        module.requires_grad_(isinstance(module, nn.Linear))
    influence = EkfacInfluence(model, update_diagonal=update_diagonal)
    influence = influence.fit(DataLoader(train, batch_size=256))
    for damping in dampings:
        influence.hessian_regularization = damping
        yield influence.influences(*test.tensors, *train.tensors).T


# end of user code

if __name__ == "__main__":
    sweep = (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
    main(
        {
            "K-FAC": Method(partial(ekfac, update_diagonal=False), 0.0, sweep),
            "EK-FAC": Method(partial(ekfac, update_diagonal=True), 0.0, sweep),
        }
    )
