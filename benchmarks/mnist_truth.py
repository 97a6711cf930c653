"""A second faithfulness truth: a small CNN on MNIST, 100 half-subsets × 3 retrainings.

    EXEMPLA_DATA=… python -m benchmarks.mnist_truth --out FOLDER      (about a minute on one GPU)

Writes FOLDER/mnist_truth.npz: which 5 000 training and 500 test images of MNIST were used, five
models trained on all of them (their weights, by name), the subsets, and each retrained model's
log-likelihood and margin at every test image.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np
import torch
import torch.multiprocessing as mp
from torch import Tensor, nn

from experiments.paper_cnn import as_images, load_mnist

N_TRAIN, N_TEST, N_SUBSETS, RETRAININGS, MODELS = 5000, 500, 100, 3, 5
EPOCHS, BATCH, LEARNING_RATE = 12, 64, 1e-3


def small_cnn() -> nn.Sequential:
    """About 30 000 parameters, 98 % on the test set."""
    return nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(12, 24, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24 * 16, 48),
        nn.ReLU(),
        nn.Linear(48, 10),
    )


def chosen_images(data: Path) -> tuple[np.ndarray, ...]:
    """Train and test images of the truth, in [0, 1], and their labels."""
    rng = np.random.default_rng(0)
    digits = load_mnist(data)
    train = rng.choice(len(digits.train_x), N_TRAIN, replace=False)
    test = rng.choice(len(digits.test_x), N_TEST, replace=False)
    images = (as_images(digits.train_x[train]).numpy(), as_images(digits.test_x[test]).numpy())
    labels = (digits.train_y[train].astype(np.int64), digits.test_y[test].astype(np.int64))
    return images[0], labels[0], images[1], labels[1]


def train(X: Tensor, y: Tensor, seed: int) -> nn.Sequential:
    """One model; the seed decides its start and the order of the batches."""
    torch.manual_seed(seed)
    model = small_cnn().to(X.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=LEARNING_RATE, fused=X.is_cuda)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(X), generator=generator).to(X.device).split(BATCH):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.cross_entropy(model(X[batch]), y[batch]).backward()
            optimizer.step()
    return model.eval()


def retrain(jobs: list[tuple[int, int]], data: Path, subsets: np.ndarray, queue: mp.Queue) -> None:
    """One worker's share of the retrainings."""
    torch.set_num_threads(1)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X, y, X_test, _ = (torch.from_numpy(a).to(device) for a in chosen_images(data))
    for subset, repeat in jobs:
        rows = torch.from_numpy(subsets[subset]).to(device)
        model = train(X[rows], y[rows], seed=1000 * (repeat + 1) + subset)
        with torch.no_grad():
            queue.put((subset, repeat, model(X_test).cpu().numpy()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=8)
    parser.add_argument("--subsets", type=int, default=N_SUBSETS)
    options = parser.parse_args()
    data, start = Path(os.environ["EXEMPLA_DATA"]) / "mnist", time.time()
    rng = np.random.default_rng(123)
    halves = [rng.choice(N_TRAIN, N_TRAIN // 2, replace=False) for _ in range(options.subsets)]
    subsets = np.sort(np.stack(halves), axis=1)
    jobs = [(s, r) for s in range(options.subsets) for r in range(RETRAININGS)]
    context = mp.get_context("spawn")
    queue = context.Queue()
    workers = [
        context.Process(target=retrain, args=(jobs[w :: options.workers], data, subsets, queue))
        for w in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    logits = np.zeros((options.subsets, RETRAININGS, N_TEST, 10), np.float32)
    for _ in jobs:
        subset, repeat, values = queue.get()
        logits[subset, repeat] = values
    for worker in workers:
        worker.join()
    save(options.out, data, subsets, logits)
    print(f"{len(jobs)} retrainings in {time.time() - start:.0f} s")


def save(out: Path, data: Path, subsets: np.ndarray, logits: np.ndarray) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    X, y, X_test, y_test = (torch.from_numpy(a).to(device) for a in chosen_images(data))
    weights = {}
    for seed in range(MODELS):
        model = train(X, y, seed)
        with torch.no_grad():
            accuracy = (model(X_test).argmax(1) == y_test).float().mean().item()
        print(f"model {seed}: test accuracy {accuracy:.4f}")
        weights |= {f"model{seed}.{k}": v.cpu().numpy() for k, v in model.state_dict().items()}
    truth = y_test.cpu().numpy()
    log_p = torch.log_softmax(torch.from_numpy(logits), -1).numpy()[..., np.arange(N_TEST), truth]
    margin = log_p - np.log1p(-np.exp(np.minimum(log_p, -1e-7)))
    out.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        out / "mnist_truth.npz", subsets=subsets, log_likelihood=log_p, margin=margin, **weights
    )


if __name__ == "__main__":
    main()
