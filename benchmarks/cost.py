"""What an embedding costs beside a training epoch, in one run on one GPU.

    EXEMPLA_DATA=… python -m benchmarks.cost [--gpt2]

"epoch" is forward + backward over all the data, without the optimiser, at the batch size that the
embedding uses. "scores" is the scoring pass alone; "fit" is basis, Fisher and scores.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import nn

import exempla
from exempla.oracles.torch.oracle import torch_oracle
from experiments.paper_cnn import PaperCNN, as_images, load_mnist

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def clocked(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds, peak GiB on the GPU beyond what was there, and the result."""
    synchronize()
    before = memory(reset=True)
    start = perf_counter()
    result = work()
    synchronize()
    return perf_counter() - start, (memory() - before) / 2**30, result


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def memory(reset: bool = False) -> int:
    if DEVICE == "cpu":
        return 0
    if reset:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()
    return torch.cuda.max_memory_allocated()


def epoch(model: nn.Module, batches: Iterator[Any], loss: Callable[[nn.Module, Any], Any]) -> None:
    model.train()
    for batch in batches:
        model.zero_grad(set_to_none=True)
        loss(model, batch).backward()
    model.eval()


def report(name: str, model: nn.Module, data: Any, loss: Any, batch: int, likelihood: str) -> None:
    """Train an epoch, embed, train again (the faster epoch counts), and print the ratios."""
    oracle = lambda: torch_oracle(model, likelihood, batch_size=batch)  # noqa: E731
    fit = lambda: exempla.Explainer(oracle(), progress=False).fit(data)  # noqa: E731
    slices = lambda: zip(*(t.split(batch) for t in data))  # noqa: E731
    few = tuple(t[: 4 * batch] for t in data)
    epoch(model, zip(*(t.split(batch) for t in few)), loss)  # warm up
    exempla.Explainer(oracle(), progress=False).fit(few)
    first, train_memory, _ = clocked(lambda: epoch(model, slices(), loss))
    seconds, fit_memory, explainer = clocked(fit)
    second, _, _ = clocked(lambda: epoch(model, slices(), loss))
    once = min(first, second)
    embedding = explainer.embeddings[0]
    stages = embedding.seconds
    size = embedding.oracle.n_parameters
    print(f"{name}: batches of {batch}, {len(data[0])} examples, {size:,} parameters")
    print(f"  {embedding.sketch.note}; share of the trace {embedding.evidence.share:.3f}; ")
    print(f"  Fisher: {embedding.oracle.fisher_note}, from {embedding.evidence.examples} examples")
    print(f"  epoch {once:.2f} s (runs {first:.2f}, {second:.2f}), {train_memory:.2f} GiB")
    print(f"  basis {stages['basis']:.2f} s, Fisher {stages['fisher']:.2f} s")
    scores = stages["scores"]
    print(f"  scores {scores:.2f} s = {scores / once:.2f} × epoch (wanted ≤ 1.5)")
    print(f"  fit    {seconds:.2f} s = {seconds / once:.2f} × epoch (wanted ≤ 3)")
    ratio = fit_memory / max(train_memory, 1e-9)
    print(f"  memory {fit_memory:.2f} GiB = {ratio:.2f} × training's (wanted ≤ 2)")


def mnist() -> None:
    digits = load_mnist(Path(os.environ["EXEMPLA_DATA"]) / "mnist")
    labels = torch.from_numpy(digits.train_y.astype("int64")).to(DEVICE)
    data = (as_images(digits.train_x, DEVICE), labels)
    if DEVICE == "cpu":
        data = (data[0][:2000], data[1][:2000])
    torch.manual_seed(0)
    model = PaperCNN().to(DEVICE)
    loss = lambda m, b: nn.functional.cross_entropy(m(b[0]), b[1])  # noqa: E731
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for batch in zip(*(t.split(256) for t in data)):  # a trained model: few classes carry mass
        optimizer.zero_grad()
        loss(model, batch).backward()
        optimizer.step()
    for batch in (256, 2048):
        report("MNIST, the paper's CNN", model, data, loss, batch, "categorical")


def gpt2() -> None:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")  # TF32 for both sides, as in ordinary training
    small = DEVICE == "cpu"
    config = GPT2Config(n_layer=2, n_embd=64, n_head=4, vocab_size=500) if small else GPT2Config()
    model = GPT2LMHeadModel(config).to(DEVICE)
    count, length = (16, 32) if small else (2000, 512)
    tokens = torch.randint(0, config.vocab_size, (count, length), device=DEVICE)
    loss = lambda m, b: m(input_ids=b[0], labels=b[0]).loss  # noqa: E731
    report("GPT-2 shape", model, (tokens, tokens), loss, 16, "causal_lm")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gpt2", action="store_true")
    options = parser.parse_args()
    gpt2() if options.gpt2 else mnist()
