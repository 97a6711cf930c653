"""TRAK: random projections of the gradients of each text's log-likelihood.

    PYTHON run_traker.py FOLDER     reads job.npz and weights.pt there, writes its scores

Its tasks are for classifiers; a text is given to it as one model output, the sum of its tokens'
log-odds, with the loss gradient 1 − p that goes with it, as its documentation does for language
models.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from model import IGNORED, Decoder
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset
from trak import TRAKer
from trak.modelout_functions import AbstractModelOutput

DIRECTIONS = 512
"""Of the projection: fewer than there are lines, or the matrix it inverts would be singular."""
BATCH = 100


class TextOutput(AbstractModelOutput):
    def __init__(self) -> None:
        super().__init__()

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
    weights = torch.load(folder / "weights.pt", weights_only=True)
    model = Decoder(int(job["words"])).eval()
    for name, states in (("traker", [weights["model"]]), ("traker-run", weights["moments"])):
        np.save(folder / f"{name}.npy", scores(model, states, train, test, folder / name))


def scores(
    model: Decoder, states: list[dict[str, Tensor]], train: TensorDataset, test: TensorDataset,
    folder: Path,
) -> np.ndarray:  # fmt: skip
    """(n_train, n_test), averaged over the checkpoints as TRAK does it."""
    shutil.rmtree(folder, ignore_errors=True)
    model.load_state_dict(states[0])
    traker = TRAKer(
        model,
        task=TextOutput(),
        train_set_size=len(train),
        save_dir=str(folder),
        device="cpu",
        proj_dim=DIRECTIONS,
        use_half_precision=False,
    )
    for i, state in enumerate(states):
        traker.load_checkpoint(state, model_id=i)
        for batch in DataLoader(train, batch_size=BATCH):
            traker.featurize(batch, num_samples=len(batch[0]))
    traker.finalize_features()
    for i, state in enumerate(states):
        traker.start_scoring_checkpoint("facts", state, i, len(test))
        for batch in DataLoader(test, batch_size=BATCH):
            traker.score(batch, num_samples=len(batch[0]))
    return np.array(traker.finalize_scores("facts"))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
