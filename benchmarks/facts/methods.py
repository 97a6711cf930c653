"""Scores of every line for every fact, larger where the line taught it: exempla and baselines.

Nothing here has a setting that was tried out: exempla and the peers run as they come, BM25 with
its usual constants.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap

import exempla
from benchmarks.facts.model import Decoder, token_losses
from exempla import Completions

__all__ = ["bm25", "gradient_cosine", "hidden_states", "influence", "picked"]

BATCH = 16


def influence(model: Any, train: Completions, asked: Completions) -> np.ndarray:
    """`Explainer.influence` of a model, or of it and its recorded run, settings automatic."""
    explainer = exempla.Explainer(model, likelihood="causal_lm", progress=False).fit(train)
    return explainer.influence(asked)


def picked(model: Decoder, train: Completions, asked: Completions, k: int) -> list[np.ndarray]:
    """`explain_each(side="proponents")`: the k lines picked for every fact, in order."""
    explainer = exempla.Explainer(model, likelihood="causal_lm", progress=False).fit(train)
    return [answer.indices for answer in explainer.explain_each(asked, k, side="proponents")]


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


def gradient_cosine(
    model: Decoder,
    train: tuple[Tensor, Tensor],
    asked: tuple[Tensor, Tensor],
    say: Callable[[str], None],
) -> np.ndarray:
    """Cosine of the gradients of all parameters, as they are."""
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(values: dict[str, Tensor], ids: Tensor, labels: Tensor) -> Tensor:
        logits = functional_call(model, values, (ids[None],))
        return token_losses(logits, labels[None]).sum()

    gradients = vmap(grad(loss), in_dims=(None, 0, 0))

    def rows(ids: Tensor, labels: Tensor) -> Tensor:
        found = gradients(parameters, ids, labels)
        return torch.nn.functional.normalize(torch.cat([g.flatten(1) for g in found.values()], 1))

    questions = torch.cat([rows(*part) for part in zip(*(x.split(BATCH) for x in asked))])
    out = []
    for i, part in enumerate(zip(*(x.split(BATCH) for x in train), strict=True)):
        out.append(rows(*part) @ questions.T)
        if i % 50 == 0:
            say(f"gradient cosine: line {i * BATCH}")
    return torch.cat(out).numpy()
