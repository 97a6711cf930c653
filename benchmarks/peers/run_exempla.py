"""exempla: nothing to choose; larger = helpful."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from job import Method, main
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# isort: split
# user code
import exempla


def influence(
    models: list[nn.Module], train: TensorDataset, test: TensorDataset, dampings: list[float]
) -> Iterator[Tensor]:
    explainer = exempla.Explainer(models if len(models) > 1 else models[0], progress=False)
    yield torch.as_tensor(explainer.fit(train).influence(test))


# end of user code


def of_run(
    moments: list[nn.Module], train: TensorDataset, test: TensorDataset, dampings: list[float]
) -> Iterator[Tensor]:
    """The moments of one training, the last one first, as `Recorder` keeps them."""
    last, *earlier = moments
    explainer = exempla.Explainer([last, *(m.state_dict() for m in earlier)], progress=False)
    yield torch.as_tensor(explainer.fit(train).influence(test))


if __name__ == "__main__":
    main(
        {
            "automatic": Method(influence, 0.0, many=True),
            "recorded run": Method(of_run, 0.0, many=True),
        }
    )
