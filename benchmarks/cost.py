"""What an embedding costs beside a training epoch, in one run.

    EXEMPLA_DATA=… python -m benchmarks.cost [--gpt2]                       arrays, on a GPU if any
    EXEMPLA_DATA=… python -m benchmarks.cost --loaders 8 32 256 2048 [--models mlp cnn]
        [--csv docs/experiments/fit_cost.csv] [--label now]                 DataLoaders, on the CPU
    python -m benchmarks.cost --commands digits snapshots5 [--csv …]        see command_cost.py

"epoch" is forward + backward over all the data, without the optimiser; of arrays at the batch size
that the embedding uses, of a DataLoader in its own batches. "scores" is the scoring pass alone;
"fit" is basis, Fisher and scores. A DataLoader's figures come from processes of their own (an
epoch, a fit, an epoch again: the faster counts) and are processor seconds of one thread; memory is
what the process takes at its peak beyond model and data (Linux). What stays after a fit, the rows
and the Fisher, is named apart: an epoch leaves nothing behind.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import exempla
from benchmarks import command_cost
from benchmarks.language_cost import clocked
from exempla.oracles.torch.oracle import TorchOracle
from experiments.paper_cnn import PaperCNN, as_images, load_mnist

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROWS = {"mlp": 60_000, "cnn": 20_000}
"""Images of MNIST that each small model is embedded with."""
Loss = Callable[[nn.Module, Any], Tensor]


def epoch(model: nn.Module, batches: Iterable[Any], loss: Loss) -> None:
    model.train()
    for batch in batches:
        model.zero_grad(set_to_none=True)
        loss(model, batch).backward()
    model.zero_grad(set_to_none=True)
    model.eval()


def cross_entropy(model: nn.Module, batch: Any) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def trained(model: nn.Module, data: tuple[Tensor, Tensor]) -> None:
    """One epoch of Adam: of a trained model few classes carry mass."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch in zip(*(t.split(256) for t in data)):
        optimizer.zero_grad()
        cross_entropy(model, batch).backward()
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)


# ---- arrays, at a batch size that is said


def report(name: str, model: nn.Module, data: Any, loss: Loss, batch: int, likelihood: str) -> None:
    """Train an epoch, embed, train again (the faster epoch counts), and print the ratios."""
    oracle = lambda: TorchOracle(model, likelihood, batch_size=batch)  # noqa: E731
    fit = lambda: exempla.Explainer(oracle(), progress=False).fit(data)  # noqa: E731
    slices = lambda: zip(*(t.split(batch) for t in data))  # noqa: E731
    few = tuple(t[: 4 * batch] for t in data)
    epoch(model, zip(*(t.split(batch) for t in few)), loss)  # warm up
    exempla.Explainer(oracle(), progress=False).fit(few)
    first, train_memory, _ = clocked(lambda: epoch(model, slices(), loss), DEVICE)
    seconds, fit_memory, explainer = clocked(fit, DEVICE)
    second, _, _ = clocked(lambda: epoch(model, slices(), loss), DEVICE)
    once = min(first, second)
    embedding = explainer.embeddings[0]
    stages = embedding.seconds
    size = embedding.oracle.n_parameters
    print(f"{name}: batches of {batch}, {len(data[0])} examples, {size:,} parameters")
    print(f"  {embedding.sketch.note}; share of the trace {embedding.evidence.share:.3f}; ")
    print(f"  Fisher: {embedding.oracle.fisher_note}, from {embedding.evidence.examples} examples")
    print(f"  epoch {once:.2f} s (runs {first:.2f}, {second:.2f}), {train_memory / 2**30:.2f} GiB")
    print(f"  basis {stages['basis']:.2f} s, Fisher {stages['fisher']:.2f} s")
    scores = stages["scores"]
    print(f"  scores {scores:.2f} s = {scores / once:.2f} × epoch (wanted ≤ 1.5)")
    print(f"  fit    {seconds:.2f} s = {seconds / once:.2f} × epoch (wanted ≤ 3)")
    ratio = fit_memory / max(train_memory, 1)
    print(f"  memory {fit_memory / 2**30:.2f} GiB = {ratio:.2f} × training's (wanted ≤ 2)")


def digits_of_mnist(count: int | None = None) -> tuple[Tensor, Tensor]:
    digits = load_mnist(Path(os.environ["EXEMPLA_DATA"]) / "mnist")
    labels = torch.from_numpy(digits.train_y[:count].astype("int64")).to(DEVICE)
    return as_images(digits.train_x[:count], DEVICE), labels


def mnist() -> None:
    data = digits_of_mnist(2000 if DEVICE == "cpu" else None)
    torch.manual_seed(0)
    model = PaperCNN().to(DEVICE)
    trained(model, data)
    for batch in (256, 2048):
        report("MNIST, the paper's CNN", model, data, cross_entropy, batch, "categorical")


def gpt2() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # TF32 for both sides, as in ordinary training
    small = DEVICE == "cpu"
    config = GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=500) if small else GPT2Config()
    made: Any = GPT2LMHeadModel(config)
    model = made.to(DEVICE)
    count, length = (16, 32) if small else (2000, 512)
    tokens = torch.randint(0, config.vocab_size, (count, length), device=DEVICE)
    loss = lambda m, b: m(input_ids=b[0], labels=b[0]).loss  # noqa: E731
    report("GPT-2 shape", model, (tokens, tokens), loss, 16, "causal_lm")


# ---- a DataLoader, in one process


class Pictures(Dataset[tuple[Tensor, int]]):
    """Images read one by one, as those of a folder are."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self.images, self.labels = images, labels.tolist()

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        return self.images[position], self.labels[position]


def small_model(name: str) -> nn.Module:
    if name == "cnn":
        return PaperCNN((8, 16), 128)
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10))


def alone(job: str, name: str, batch: int) -> dict[str, Any]:
    """Do one job here, and say what it took."""
    torch.manual_seed(0)
    data, model = digits_of_mnist(ROWS[name]), small_model(name)
    trained(model, data)
    loader = DataLoader(Pictures(*data), batch_size=batch)
    few = DataLoader(Pictures(data[0][:64], data[1][:64]), batch_size=8)
    epoch(model, few, cross_entropy)  # warm up
    if job == "fit":
        exempla.Explainer(model, progress=False).fit(few)
    give_back()
    if job == "epoch":
        seconds, memory, _ = clocked(lambda: epoch(model, loader, cross_entropy), "cpu")
        return {"seconds": seconds, "memory": memory}
    fit = lambda: exempla.Explainer(model, progress=False).fit(loader)  # noqa: E731
    seconds, memory, explainer = clocked(fit, "cpu")
    embedding = explainer.embeddings[0]
    return {
        "seconds": seconds,
        "memory": memory,
        "kept": embedding.rows.nbytes + 8 * embedding.rows.shape[1] ** 2,
        "stages": embedding.seconds,
        "parameters": embedding.oracle.n_parameters,
        "note": embedding.sketch.note,
        "batch": embedding.oracle.batch_size,
    }


def give_back() -> None:
    """Memory that training took and left, which the next job would use without its showing."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


# ---- all of them


def measured(job: str, name: str, batch: int) -> dict[str, Any]:
    """One job in a fresh process."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.cost", "--alone", job]
    command += ["--models", name, "--loaders", str(batch)]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise RuntimeError(run.stderr)
    return json.loads(run.stdout.splitlines()[-1])


def loader_row(name: str, batch: int, label: str) -> dict[str, Any]:
    """An epoch, a fit, an epoch again: the faster epoch counts."""
    first, fit, second = (measured(job, name, batch) for job in ("epoch", "fit", "epoch"))
    once = min(first["seconds"], second["seconds"])
    memory = min(first["memory"], second["memory"])
    whole = sum(fit["stages"].values())  # these are wall time: their shares count
    stages = {stage: fit["seconds"] * part / whole for stage, part in fit["stages"].items()}
    passing = fit["memory"] - fit["kept"]
    return {
        "code": label,
        "model": name,
        "parameters": fit["parameters"],
        "examples": ROWS[name],
        "loader": batch,
        "batch_of_fit": fit["batch"],
        "sketch": fit["note"],
        "epoch_s": round(once, 2),
        **{f"{stage}_s": round(value, 2) for stage, value in stages.items()},
        "fit_s": round(fit["seconds"], 2),
        "epoch_mib": round(memory / 2**20, 1),
        "fit_mib": round(fit["memory"] / 2**20, 1),
        "kept_mib": round(fit["kept"] / 2**20, 1),
        **{f"{stage}_times": round(value / once, 2) for stage, value in stages.items()},
        "fit_times": round(fit["seconds"] / once, 2),
        "memory_times": round(fit["memory"] / memory, 2),
        "passing_times": round(passing / memory, 2),
    }


def loaders(given: argparse.Namespace) -> None:
    for name in given.models:
        for batch in given.loaders:
            write(loader_row(name, batch, given.label), given.csv)


def write(found: dict[str, Any], csv_file: Path | None) -> None:
    """Print a row, and add it to the file."""
    print(found, flush=True)
    if csv_file:
        fresh = not csv_file.exists()
        with csv_file.open("a", newline="") as file:
            writer = csv.DictWriter(file, list(found), lineterminator="\n")
            if fresh:
                writer.writeheader()
            writer.writerow(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gpt2", action="store_true")
    parser.add_argument("--loaders", type=int, nargs="+", help="batch sizes of DataLoaders")
    parser.add_argument("--models", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--commands", nargs="+", choices=command_cost.NAMES)
    parser.add_argument("--csv", type=Path, help="the rows are added to this file")
    parser.add_argument("--label", default="now", help="what the rows are called in it")
    parser.add_argument("--alone", choices=["epoch", "fit"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(alone(given.alone, given.models[0], given.loaders[0])))
    elif given.commands:
        for name in given.commands:
            write(command_cost.row(name, given.label), given.csv)
    elif given.loaders:
        loaders(given)
    else:
        gpt2() if given.gpt2 else mnist()


if __name__ == "__main__":
    main()
