"""kronfluence: EK-FAC. Score = ∇measurementᵀ H⁻¹ ∇loss; measured by the loss, larger = helpful.

Its default damping is 1e-8; `damping_factor=None` is its own choice from data, a tenth of a
layer's mean eigenvalue. It has no ensembles: the matrices of several models are averaged for it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator

import torch
from job import Method, main
from torch import Tensor, nn
from torch.utils.data import TensorDataset

# isort: split
# user code
from kronfluence.analyzer import Analyzer, prepare_model
from kronfluence.arguments import ScoreArguments
from kronfluence.task import Task
from kronfluence.utils.dataset import DataLoaderKwargs


class Classification(Task):
    def compute_train_loss(self, batch, model, sample=False):
        inputs, labels = batch
        logits = model(inputs)
        if sample:
            with torch.no_grad():
                labels = torch.multinomial(logits.softmax(-1), 1).flatten()
        return nn.functional.cross_entropy(logits, labels, reduction="sum")

    def compute_measurement(self, batch, model):
        return self.compute_train_loss(batch, model)


def ekfac(
    model: nn.Module, train: TensorDataset, test: TensorDataset, dampings: list[float | None]
) -> Iterator[Tensor]:
    torch.manual_seed(0)
    task = Classification()
    model = prepare_model(model, task)
    with tempfile.TemporaryDirectory() as folder:
        analyzer = Analyzer("job", model, task, cpu=True, output_dir=folder, disable_tqdm=True)
        analyzer.set_dataloader_kwargs(DataLoaderKwargs(num_workers=0))
        analyzer.fit_all_factors("ekfac", train, per_device_batch_size=256)
        for damping in dampings:
            analyzer.compute_pairwise_scores(
                scores_name=str(damping),
                factors_name="ekfac",
                query_dataset=test,
                train_dataset=train,
                per_device_query_batch_size=512,
                per_device_train_batch_size=256,
                score_args=ScoreArguments(damping_factor=damping),
            )
            yield analyzer.load_pairwise_scores(str(damping))["all_modules"].T


# end of user code

if __name__ == "__main__":
    default = ScoreArguments().damping_factor
    main({"EK-FAC": Method(ekfac, default, (1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1))})
