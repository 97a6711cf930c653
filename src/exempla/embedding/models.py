"""The training set as every model of a list embeds it, in memory."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from exempla.embedding.whole import Embedding, embed_training_set
from exempla.oracles import is_checkpoint
from exempla.oracles.base import Oracle
from exempla.progress import memory_said

__all__ = ["embed_models", "of_one_run"]


def embed_models(
    oracles: list[Oracle], data: Any, *, fisher: str, sketch: str | int, seed: int
) -> list[Embedding]:
    """The training set as each model embeds it, in memory."""
    fitted = []
    for i, oracle in enumerate(oracles):
        with memory_said() if i else nullcontext():  # the first says what all of them will take
            fitted.append(
                embed_training_set(
                    oracle, data, fisher=fisher, sketch=sketch, seed=seed, models=len(oracles)
                )
            )
    return fitted


def of_one_run(fitted: list[Embedding], models: list[Any]) -> list[Embedding]:
    """Where some of the models are earlier weights of another, each knows of the weights at the
    end of the training."""
    earlier = [is_checkpoint(model) for model in models]
    if not any(earlier) or all(earlier):
        return fitted
    last = fitted[earlier.index(False)].evidence.weight_square
    return [
        replace(e, evidence=replace(e.evidence, weight_square=last, of_run=True)) for e in fitted
    ]
