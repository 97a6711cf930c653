"""What embedding a language model's training set costs beside an epoch of training it.

    python -m benchmarks.language_cost [--shapes llama qwen gpt2] [--sizes 3M 124M 1.1B]
        [--device cuda] [--dtype bfloat16] [--examples 200] [--length 128] [--batch 8]
        [--sketch auto] [--once] [--csv FILE]

Each figure comes from a process of its own. "epoch" is forward + backward over all the data in
batches of --batch, without an optimiser, in processor seconds on a CPU; "scores" is the scoring
pass of `Explainer.fit`, "fit" all of it, given a loader of the same batches, from which exempla
takes batches of a size of its own. Memory is what a process takes at its peak beyond the model and
the data: of the main memory (Linux), or of the GPU. Weights and tokens are random: no step looks at
what they say.

"explain" asks about four texts, for the first time and again; a second fit, too, is timed.
"error" and "correlation" are those of the sketch's own products against `influence`, whose products
of what the sketch leaves out are exact, for a few questions about fresh tokens.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

import exempla
import exempla.memory
from exempla.arrays import products

__all__ = ["SIZES", "Shape", "build", "measured"]

WANTED = {"scores": 1.5, "fit": 3.0, "memory": 2.0}
"""What `docs/studies/scaling.md` promises, in epochs and in an epoch's memory."""


@dataclass(frozen=True)
class Shape:
    """A transformer's measures."""

    layers: int
    width: int
    inner: int
    heads: int
    vocabulary: int


QUESTIONS = 4
SIZES = {
    "3M": Shape(4, 128, 344, 4, 8_000),
    "10M": Shape(6, 192, 512, 6, 16_000),
    "124M": Shape(12, 768, 2048, 12, 32_000),
    "1.1B": Shape(22, 2048, 5632, 32, 32_000),
}


def build(shape: str, size: str, length: int, checkpointing: bool = False) -> Any:
    """A model of that family with random weights."""
    import transformers

    s = SIZES[size]
    tied = shape in ("qwen", "gpt2")  # one table is table and head: twice the words then
    words = 50_257 if (shape, size) == ("gpt2", "124M") else s.vocabulary
    common: dict[str, Any] = {"vocab_size": words * (2 if tied and size == "3M" else 1)}
    if shape == "gpt2":
        config: Any = transformers.GPT2Config(
            n_layer=s.layers, n_embd=s.width, n_head=s.heads, n_positions=length, **common
        )
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        common |= {
            "hidden_size": s.width,
            "intermediate_size": s.inner,
            "num_hidden_layers": s.layers,
            "num_attention_heads": s.heads,
            "num_key_value_heads": max(1, s.heads // (4 if size == "1.1B" else 2)),
            "max_position_embeddings": length,
        }
        if shape == "qwen":  # biases on queries, keys and values; the head tied to the table
            config = transformers.Qwen2Config(tie_word_embeddings=True, **common)
            model = transformers.Qwen2ForCausalLM(config)
        elif shape == "mixtral":  # each token takes two of four experts
            config = transformers.MixtralConfig(
                num_local_experts=4, num_experts_per_tok=2, **common
            )
            model = transformers.MixtralForCausalLM(config)
        else:
            model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**common))
    model.config.use_cache = False
    if checkpointing:
        model.gradient_checkpointing_enable()
    return model.eval()


# ---- one process


def epoch(model: Any, tokens: torch.Tensor, batch: int) -> None:
    model.train()
    for part in tokens.split(batch):
        model.zero_grad(set_to_none=True)
        model(input_ids=part, labels=part).loss.backward()
    model.zero_grad(set_to_none=True)
    model.eval()


def alone(given: argparse.Namespace) -> dict[str, Any]:
    """Do one job here, and say what it took."""
    torch.manual_seed(0)
    (shape,), (size,) = given.shapes, given.sizes
    torch.set_default_dtype(getattr(torch, given.dtype))  # no weight is ever held wider
    with torch.device(given.device):
        model = build(shape, size, given.length, given.checkpointing)
    torch.set_default_dtype(torch.float32)
    count = sum(p.numel() for p in model.parameters())
    tokens = torch.randint(0, model.config.vocab_size, (given.examples, given.length))
    tokens = tokens.to(given.device)
    epoch(model, tokens[:2], 2)  # warm up
    if given.alone == "epoch":
        taken = clocked(lambda: epoch(model, tokens, given.batch), given.device)
        return {"parameters": count, "seconds": taken[0], "memory": taken[1]}
    exempla.memory.MIN_ANNOUNCED_BYTES = 0  # print the forecast however small it is
    sketch = int(given.sketch) if given.sketch.isdigit() else given.sketch
    loader = DataLoader(TensorDataset(tokens, tokens), batch_size=given.batch)
    explainer = exempla.Explainer(model, likelihood="causal_lm", sketch=sketch)
    seconds, memory, _ = clocked(lambda: explainer.fit(loader), given.device)
    embedding = explainer.embeddings[0]
    fresh = torch.randint(0, model.config.vocab_size, (QUESTIONS, given.length)).to(given.device)
    few = min(50, given.examples // 4)
    asking = [
        clocked(lambda: explainer.explain((fresh, fresh), few), given.device)[0] for _ in range(2)
    ]
    again = exempla.Explainer(model, likelihood="causal_lm", sketch=sketch, progress=False)
    second, _, _ = clocked(lambda: again.fit(loader), given.device)
    error, correlation = products_of_the_sketch(explainer, (fresh, fresh))
    return {
        "error": error,
        "correlation": correlation,
        "parameters": count,
        "seconds": seconds,
        "second_fit": second,
        "asking": asking,
        "memory": memory,
        "stages": embedding.seconds,
        "share": embedding.evidence.share,
        "note": embedding.sketch.note,
        "batch": embedding.oracle.batch_size,
    }


def products_of_the_sketch(explainer: exempla.Explainer, asked: Any) -> tuple[float, float]:
    """Relative error and correlation of the sketch's products against whole ones."""
    (embedding,), damping = explainer.embeddings, explainer.features.damping
    rows, _ = embedding.embed(embedding.oracle.read(asked, role="test"), "true")
    alone = products(embedding.rows, embedding.metric.solve(rows, damping)) / len(embedding.train)
    whole = explainer.influence(asked)
    error = np.linalg.norm(alone - whole) / np.linalg.norm(whole)
    return float(error), float(np.corrcoef(alone.ravel(), whole.ravel())[0, 1])


def clocked(work: Callable[[], Any], device: str) -> tuple[float, float, Any]:
    """Seconds, bytes at the peak beyond what was there, and the result."""
    gpu = device.startswith("cuda")
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.synchronize()
    else:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = torch.cuda.memory_allocated() if gpu else resident("VmRSS")
    clock = perf_counter if gpu else process_time  # others may use the same processor
    start = clock()
    result = work()
    if gpu:
        torch.cuda.synchronize()
    seconds = clock() - start
    peak = torch.cuda.max_memory_allocated() if gpu else resident("VmHWM")
    return seconds, peak - before, result


def resident(which: str) -> int:
    with open("/proc/self/status") as file:
        return next(1024 * int(line.split()[1]) for line in file if line.startswith(which))


# ---- all of them


def measured(job: str, shape: str, size: str, given: argparse.Namespace) -> dict[str, Any]:
    """One job in a fresh process; what it says of its plan comes with it."""
    command = [sys.executable, "-W", "ignore", "-m", "benchmarks.language_cost", "--alone", job]
    command += ["--shapes", shape, "--sizes", size, "--device", given.device]
    for name in ("examples", "length", "batch", "sketch", "dtype"):
        command += [f"--{name}", str(getattr(given, name))]
    command += ["--checkpointing"] if given.checkpointing else []
    run = subprocess.run(command, capture_output=True, text=True, env=dict(os.environ))
    if run.returncode:
        raise RuntimeError(run.stderr)
    return {**json.loads(run.stdout.splitlines()[-1]), "said": run.stderr}


def row(shape: str, size: str, given: argparse.Namespace) -> dict[str, Any]:
    """An epoch, a fit, an epoch again (unless once is enough): the faster epoch counts."""
    first = measured("epoch", shape, size, given)
    fit = measured("fit", shape, size, given)
    second = first if given.once else measured("epoch", shape, size, given)
    seconds = min(first["seconds"], second["seconds"])
    memory = min(first["memory"], second["memory"])
    whole = sum(fit["stages"].values())  # these are wall time: their shares count
    stages = {name: fit["seconds"] * part / whole for name, part in fit["stages"].items()}
    return {
        "shape": shape,
        "size": size,
        "parameters": fit["parameters"],
        "device": given.device,
        "dtype": given.dtype,
        "examples": given.examples,
        "length": given.length,
        "batch": given.batch,
        "batch_of_fit": fit["batch"],
        "sketch": fit["note"],
        "share": round(fit["share"], 4),
        "error": round(fit["error"], 3),
        "correlation": round(fit["correlation"], 3),
        "epoch_s": round(seconds, 2),
        **{f"{stage}_s": round(value, 2) for stage, value in stages.items()},
        "fit_s": round(fit["seconds"], 2),
        "fit_again_s": round(fit["second_fit"], 2),
        "explain_s": round(fit["asking"][0], 2),
        "explain_again_s": round(fit["asking"][1], 2),
        "epoch_gib": round(memory / 2**30, 3),
        "fit_gib": round(fit["memory"] / 2**30, 3),
        "scores_times": round(stages["scores"] / seconds, 2),
        "fit_times": round(fit["seconds"] / seconds, 2),
        "memory_times": round(fit["memory"] / memory, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shapes", nargs="+", default=["llama", "qwen", "gpt2"])
    parser.add_argument("--sizes", nargs="+", choices=list(SIZES), default=["3M"])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8, help="of the epoch that is compared with")
    parser.add_argument("--sketch", default="auto")
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing")
    parser.add_argument("--once", action="store_true", help="one epoch, not two")
    parser.add_argument("--csv", type=Path, help="the rows are added to this file")
    parser.add_argument("--alone", choices=["epoch", "fit"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.alone:
        print(json.dumps(alone(given)))
        return
    for size in given.sizes:
        for shape in given.shapes:
            found = row(shape, size, given)
            print(
                f"{shape} {size} ({found['parameters']:,} parameters), {given.examples} × "
                f"{given.length} tokens: epoch {found['epoch_s']} s, {found['epoch_gib']} GiB; "
                f"{found['sketch']}, batches of {found['batch_of_fit']}\n"
                f"  basis {found['basis_s']} s, Fisher {found['fisher_s']} s, scores "
                f"{found['scores_s']} s",
                flush=True,
            )
            for what, most in WANTED.items():
                times = found[f"{what}_times"]
                print(f"  {what:7} {times:6.2f} × (wanted ≤ {most})", flush=True)
            if given.csv:
                fresh = not given.csv.exists()
                with given.csv.open("a", newline="") as file:
                    writer = csv.DictWriter(file, list(found))
                    if fresh:
                        writer.writeheader()
                    writer.writerow(found)


if __name__ == "__main__":
    main()
