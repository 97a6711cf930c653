"""The training set as every model of a list embeds it, in memory or in a store."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from exempla.embedding.stored import embed_into_store
from exempla.embedding.whole import Embedding, embed_training_set
from exempla.oracles import is_checkpoint
from exempla.oracles.base import Oracle
from exempla.progress import memory_said

__all__ = ["embed_models"]


def embed_models(
    models: list[Any],
    oracles: list[Oracle],
    data: Any,
    *,
    fisher: str,
    sketch: str | int,
    seed: int,
    store: Path | None = None,
    part: tuple[int, int] | None = None,
    **options: Any,
) -> list[Embedding]:
    """The training set as each model embeds it; its rows in the folder `store`, if one is given.

    With `part` = (i, n) only the i-th of n parts is added to the store, and nothing comes back.
    `options` are what else the scores depend on.
    """
    if store is not None:
        chosen: Any = {"fisher": fisher, "sketch": sketch, "seed": seed}
        made = embed_into_store(models, oracles, data, store, part=part, **chosen, **options)
        return of_one_run(made, models)
    fitted = []
    for i, oracle in enumerate(oracles):
        with memory_said() if i else nullcontext():  # the first says what all of them will take
            fitted.append(
                embed_training_set(
                    oracle, data, fisher=fisher, sketch=sketch, seed=seed, models=len(oracles)
                )
            )
    return of_one_run(fitted, models)


def of_one_run(fitted: list[Embedding], models: list[Any]) -> list[Embedding]:
    """Where some of the models are earlier weights of another, each knows of the weights at the
    end of the training."""
    earlier = [is_checkpoint(model) for model in models]
    if not fitted or not any(earlier) or all(earlier):
        return fitted
    last = fitted[earlier.index(False)].evidence.weight_square
    return [
        replace(e, evidence=replace(e.evidence, weight_square=last, of_run=True)) for e in fitted
    ]
