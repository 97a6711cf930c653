"""TRAK: random projections of the gradients of each text's log-likelihood.

    PYTHON run_traker.py FOLDER     reads job.npz and weights.pt there, writes its scores

Its tasks are for classifiers; a text is given to it as one model output, the mean log-odds of its
tokens, with the loss gradient 1 − p that goes with it, as its documentation does for language
models.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import torch
from model import IGNORED, Decoder
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from trak import TRAKer
from trak.modelout_functions import AbstractModelOutput


class TextOutput(AbstractModelOutput):
    @staticmethod
    def log_odds(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        counts = labels[1:] != IGNORED
        wanted = labels[1:].masked_fill(~counts, 0)
        logp = logits[:-1].log_softmax(-1).gather(1, wanted[:, None])[:, 0]
        odds = logp - torch.log1p(-logp.exp().clamp(max=1 - 1e-6))
        return odds, counts

    @staticmethod
    def get_output(model, weights, buffers, ids, labels):
        logits = torch.func.functional_call(model, (weights, buffers), (ids[None],))[0]
        odds, counts = TextOutput.log_odds(logits, labels)
        return (odds * counts).sum()

    def get_out_to_loss_grad(self, model, weights, buffers, batch):
        ids, labels = batch
        logits = torch.func.functional_call(model, (weights, buffers), (ids,))
        counts = labels[:, 1:] != IGNORED
        wanted = labels[:, 1:].masked_fill(~counts, 0)
        p = logits[:, :-1].softmax(-1).gather(2, wanted[..., None])[..., 0]
        mean = (p * counts).sum(1) / counts.sum(1)
        return (1 - mean).clone().detach()[:, None]


def main(folder: Path) -> None:
    job = np.load(folder / "job.npz")
    train, test = (
        TensorDataset(torch.tensor(job[f"{part}_ids"]), torch.tensor(job[f"{part}_labels"]))
        for part in ("train", "test")
    )
    model = Decoder(int(job["words"])).eval()
    model.load_state_dict(torch.load(folder / "weights.pt", weights_only=True))
    state = {k: v.clone() for k, v in model.state_dict().items()}
    traker = TRAKer(
        model,
        task=TextOutput(),
        train_set_size=len(train),
        save_dir=str(folder / "trak"),
        device="cpu",
        proj_dim=2048,
        use_half_precision=False,
    )
    traker.load_checkpoint(state, model_id=0)
    for batch in DataLoader(train, batch_size=16):
        traker.featurize(batch, num_samples=len(batch[0]))
    traker.finalize_features()
    traker.start_scoring_checkpoint("facts", state, 0, len(test))
    for batch in DataLoader(test, batch_size=16):
        traker.score(batch, num_samples=len(batch[0]))
    np.save(folder / "traker.npy", traker.finalize_scores("facts"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
