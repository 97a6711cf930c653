"""kronfluence's EK-FAC on the truths of `benchmarks.sketch_truths`; needs kronfluence installed.

    EXEMPLA_DATA=… python -m benchmarks.sketch_kronfluence --folder FOLDER

Writes FOLDER/NAME-ekfac.npz: (n_train, n_test) scores at each damping, larger = more helpful. It
follows linear layers and convolutions; tables of embeddings and norms it leaves out.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np
import torch
from kronfluence.analyzer import Analyzer, prepare_model
from kronfluence.arguments import ScoreArguments
from kronfluence.task import Task
from kronfluence.utils.dataset import DataLoaderKwargs
from torch.utils.data import TensorDataset

from benchmarks.sketch_truths import TRUTHS, load, log_prob

DAMPINGS = (None, 1e-8, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""None is its own rule, a tenth of a layer's mean eigenvalue; 1e-8 its default."""


class LogLikelihood(Task):
    """−log p of the labels, or of labels drawn from the model."""

    def compute_train_loss(self, batch, model, sample=False):
        inputs, labels = batch
        outputs = model(inputs)
        if sample:
            with torch.no_grad():
                p = outputs.softmax(-1).flatten(0, -2)
                drawn = torch.multinomial(p, 1).view(outputs.shape[:-1])
                labels = torch.where(labels == -100, labels, drawn)
        return -log_prob(outputs, labels).sum()

    def compute_measurement(self, batch, model):
        return self.compute_train_loss(batch, model)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=TRUTHS, default=list(TRUTHS))
    given = parser.parse_args()
    for name in given.only:
        truth = load(given.folder, name)
        torch.manual_seed(0)
        task, found = LogLikelihood(), {}
        model = prepare_model(truth.model(), task)
        train = TensorDataset(truth.X, truth.y)
        test = TensorDataset(truth.X_test, truth.y_test)
        with tempfile.TemporaryDirectory() as folder:
            analyzer = Analyzer("job", model, task, cpu=True, output_dir=folder, disable_tqdm=True)
            analyzer.set_dataloader_kwargs(DataLoaderKwargs(num_workers=0))
            analyzer.fit_all_factors("ekfac", train, per_device_batch_size=200)
            for damping in DAMPINGS:
                analyzer.compute_pairwise_scores(
                    scores_name=str(damping),
                    factors_name="ekfac",
                    query_dataset=test,
                    train_dataset=train,
                    per_device_query_batch_size=80,
                    per_device_train_batch_size=200,
                    score_args=ScoreArguments(damping_factor=damping),
                )
                scores = analyzer.load_pairwise_scores(str(damping))["all_modules"].T
                found[str(damping)] = scores.numpy()
        np.savez_compressed(given.folder / f"{name}-ekfac.npz", **found)
        print(name, "done", flush=True)


if __name__ == "__main__":
    main()
