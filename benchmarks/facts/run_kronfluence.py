"""kronfluence: EK-FAC of the decoder's linear layers, at its own damping and at 1e-8, its default;
each also divided by the root of a line's own score, as `influence(relative=True)` is.

PYTHON run_kronfluence.py FOLDER     reads job.npz and weights.pt there, writes its scores
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from kronfluence.analyzer import Analyzer, prepare_model
from kronfluence.arguments import ScoreArguments
from kronfluence.task import Task
from kronfluence.utils.dataset import DataLoaderKwargs
from model import IGNORED, Decoder, token_losses
from torch import nn
from torch.utils.data import TensorDataset


class NextToken(Task):
    def compute_train_loss(self, batch, model, sample=False):
        ids, labels = batch
        logits = model(ids)
        if sample:
            with torch.no_grad():
                drawn = torch.multinomial(logits.softmax(-1).flatten(0, 1), 1).view_as(ids)
                drawn = torch.cat([labels[:, :1], drawn[:, :-1]], 1)  # of the token before
                labels = torch.where(labels == IGNORED, labels, drawn)
        return token_losses(logits, labels).sum()

    def compute_measurement(self, batch, model):
        return self.compute_train_loss(batch, model)


def main(folder: Path) -> None:
    job = np.load(folder / "job.npz")
    train, test = (
        TensorDataset(torch.tensor(job[f"{part}_ids"]), torch.tensor(job[f"{part}_labels"]))
        for part in ("train", "test")
    )
    model: nn.Module = Decoder(int(job["words"]))
    model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True)["model"])
    torch.manual_seed(0)
    task = NextToken()
    model = prepare_model(model, task)
    analyzer = Analyzer(
        "facts", model, task, cpu=True, output_dir=str(folder / "kronfluence"), disable_tqdm=True
    )
    analyzer.set_dataloader_kwargs(DataLoaderKwargs(num_workers=0))
    analyzer.fit_all_factors("ekfac", train, per_device_batch_size=64, overwrite_output_dir=True)
    for name, damping in (("own", None), ("default", 1e-8)):
        arguments = ScoreArguments(damping_factor=damping)
        analyzer.compute_pairwise_scores(
            scores_name=name,
            factors_name="ekfac",
            query_dataset=test,
            train_dataset=train,
            per_device_query_batch_size=60,
            per_device_train_batch_size=100,
            score_args=arguments,
            overwrite_output_dir=True,
        )
        scores = analyzer.load_pairwise_scores(name)["all_modules"].T.float()
        np.save(folder / f"kronfluence-{name}.npy", scores.numpy())
        analyzer.compute_self_scores(
            scores_name=f"{name}-self",
            factors_name="ekfac",
            train_dataset=train,
            per_device_train_batch_size=100,
            score_args=arguments,
            overwrite_output_dir=True,
        )
        own = analyzer.load_self_scores(f"{name}-self")["all_modules"].float()
        relative = scores / own.clamp(min=1e-30).sqrt()[:, None]
        np.save(folder / f"kronfluence-{name}-relative.npy", relative.numpy())


if __name__ == "__main__":
    main(Path(sys.argv[1]))
