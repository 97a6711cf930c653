"""traker: TRAK. The score of a training example for a target's margin, larger = helpful.

On a CPU the library takes its BasicProjector by itself. Its default is half precision; the other
methods here are single precision, for the ridge `lambda_reg` is lost in half. By default it
projects to 2048 dimensions; where these are more than the training examples, its matrix is singular
without a ridge, so it is also run with 512. Several models, or moments of one training, are TRAK's
own ensemble: one `model_id` each.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from functools import partial

import torch
from job import Method, main
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# isort: split
# user code
from torch.utils.data import DataLoader
from trak import TRAKer


def trak(
    models: list[nn.Module],
    train: TensorDataset,
    test: TensorDataset,
    dampings: list[float],
    half: bool = False,
    dimensions: int = 2048,
) -> Iterator[Tensor]:
    with tempfile.TemporaryDirectory() as folder:
        traker = TRAKer(
            models[0],
            task="image_classification",
            train_set_size=len(train),
            save_dir=folder,
            device="cpu",
            proj_dim=dimensions,
            use_half_precision=half,
        )
        states = [{k: v.clone() for k, v in m.state_dict().items()} for m in models]
        for model_id, state in enumerate(states):
            traker.load_checkpoint(state, model_id=model_id)
            for batch in DataLoader(train, batch_size=512):
                traker.featurize(batch, num_samples=len(batch[0]))
        for damping in dampings:
            traker.score_computer.lambda_reg = damping
            for model_id in range(len(models)):  # sweep
                traker.saver.model_ids[model_id]["is_finalized"] = 0  # sweep
            traker.finalize_features()
            for model_id, state in enumerate(states):
                traker.start_scoring_checkpoint(str(damping), state, model_id, len(test))
                for batch in DataLoader(test, batch_size=512):
                    traker.score(batch, num_samples=len(batch[0]))
            yield torch.as_tensor(traker.finalize_scores(str(damping)).copy())


# end of user code

if __name__ == "__main__":
    sweep = (1e-2, 1e-1, 1.0, 1e1, 1e2, 1e3, 1e4)
    main(
        {
            "TRAK, half precision": Method(partial(trak, half=True), 0.0, many=True),
            "TRAK": Method(trak, 0.0, sweep, many=True),
            "TRAK, 512 dimensions": Method(partial(trak, dimensions=512), 0.0, sweep, many=True),
        }
    )
