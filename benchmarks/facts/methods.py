"""Scores of every line for every fact, larger where the line taught it: exempla and baselines.

Of exempla, widths of the sketch (2048, 4096, 8192), dampings (a tenth, one, ten and a hundred times
the automatic one), plain and relative influence, cosines at the damping of selection and ways to
add up moments were looked at on seed 0: some 30 settings in all. The automatic damping and the way
to add up stayed; the widths are below. BM25 has its usual constants, the peers run as they come.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.func import functional_call, grad, vmap

import exempla
from benchmarks.facts.model import Decoder, token_losses
from benchmarks.facts.texts import Arrays, Job
from exempla import Completions
from exempla.recorder.snapshots import read_run

__all__ = ["bm25", "fitted", "gradient_cosine", "hidden_states", "moments", "picked"]

BATCH = 16
WIDTH, RUN_WIDTH = 8192, 2048
"""Directions of the sketch: what fits into half a minute of one core, for one model and for seven
moments. The automatic choice is exact here, at 176 seconds a model."""


def fitted(model: Decoder, lines: Completions, sketch: str | int = WIDTH) -> exempla.Explainer:
    """Of the model as it is at the end."""
    asked = exempla.Explainer(model, likelihood="causal_lm", sketch=sketch, progress=False)
    return asked.fit(lines)


def fitted_run(model: Decoder, run: Path, lines: Completions) -> exempla.Explainer:
    """Of the model and its recorded run."""
    both = [model, run]
    asked = exempla.Explainer(both, likelihood="causal_lm", sketch=RUN_WIDTH, progress=False)
    return asked.fit(lines)


def picked(explainer: exempla.Explainer, asked: Completions, k: int) -> list[np.ndarray]:
    """`explain_each(side="proponents")`: the k lines picked for every fact, in order."""
    return [answer.indices for answer in explainer.explain_each(asked, k, side="proponents")]


def moments(model: Decoder, run: Path) -> list[Decoder]:
    """The networks of the recorded run; the last one is the model itself."""
    out = []
    for snapshot in read_run(run).snapshots:
        moment = Decoder(model.head.out_features).eval()
        moment.load_state_dict(load_file(snapshot.checked(run)))
        out.append(moment)
    return out


def bm25(lines: list[str], questions: list[str], k1: float = 1.2, b: float = 0.75) -> np.ndarray:
    """Okapi's BM25 of every line for prompt and completion together."""
    words = [Counter(line.split()) for line in lines]
    lengths = np.array([sum(each.values()) for each in words], dtype=float)
    found = Counter(word for each in words for word in each)
    out = np.zeros((len(lines), len(questions)))
    for j, question in enumerate(questions):
        for word in set(question.split()) & set(found):
            idf = math.log(1 + (len(lines) - found[word] + 0.5) / (found[word] + 0.5))
            times = np.array([each[word] for each in words], dtype=float)
            norm = k1 * (1 - b + b * lengths / lengths.mean())
            out[:, j] += idf * times * (k1 + 1) / (times + norm)
    return out


def hidden_states(model: Decoder, train: Completions, asked: Completions) -> np.ndarray:
    """Cosine of the model's own last hidden states, averaged over each text."""

    def states(texts: Completions) -> Tensor:
        with torch.no_grad():
            rows = [
                model.hidden(torch.tensor([texts[i]["input_ids"]]))[0].mean(0)
                for i in range(len(texts))
            ]
        return torch.nn.functional.normalize(torch.stack(rows))

    return (states(train) @ states(asked).T).numpy()


def gradient_cosine(models: list[Decoder], job: Job, say: Callable[[str], None]) -> np.ndarray:
    """Cosine of the gradients of all parameters, as they are; the mean over the models."""
    total = np.zeros((len(job.train[0]), len(job.questions[0])))
    for i, model in enumerate(models):
        total += gradient_cosine_of(model, job.train, job.questions)
        say(f"gradient cosine: {i + 1} of {len(models)}")
    return total / len(models)


def gradient_cosine_of(model: Decoder, train: Arrays, asked: Arrays) -> np.ndarray:
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values: dict[str, Tensor], ids: Tensor, labels: Tensor) -> Tensor:
        logits = functional_call(model, values, (ids[None],))
        return token_losses(logits, labels[None]).sum()

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))

    def rows(ids: Tensor, labels: Tensor) -> Tensor:
        found = gradients(parameters, ids, labels)
        return torch.nn.functional.normalize(torch.cat([g.flatten(1) for g in found.values()], 1))

    def blocks(arrays: Arrays) -> Iterator[Tensor]:
        ids, labels = arrays
        return (rows(*part) for part in zip(ids.split(BATCH), labels.split(BATCH), strict=True))

    questions = torch.cat(list(blocks(asked)))
    return torch.cat([block @ questions.T for block in blocks(train)]).numpy()
