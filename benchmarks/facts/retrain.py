"""What the named lines did: the model is trained again without them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.facts.corpus import Corpus
from benchmarks.facts.model import Decoder, token_losses, train
from benchmarks.facts.texts import Arrays, Job

__all__ = ["Fall", "falls", "log_probabilities", "references"]

COLUMNS = ["method", "left_out", "sum", "fall", "still_known"]
Fall = tuple[int, float, float]
"""Lines left out; by how much the facts' mean log-probability fell; share of facts still known."""


def log_probabilities(model: Decoder, asked: Arrays) -> np.ndarray:
    """log p of each completion."""
    with torch.no_grad():
        return -token_losses(model(asked[0]), asked[1]).sum(1).numpy()


def references(corpus: Corpus, first: int, seed: int) -> dict[str, list[np.ndarray]]:
    """What to compare with: lines drawn at random, and all that state the facts."""
    rng = np.random.default_rng(seed)
    drawn = [rng.choice(len(corpus.lines), first, replace=False) for _ in corpus.facts]
    return {
        "random lines": drawn,
        "lines that state it": [np.array(fact.stated) for fact in corpus.facts],
    }


def falls(
    named: dict[str, list[np.ndarray]], job: Job, known: np.ndarray, seed: int, kept: Path,
    say: Callable[[str], None],
) -> dict[str, Fall]:  # fmt: skip
    """For every method, the fall when all of its lines are left out together.

    A training takes its time: what was found is kept in a file, and a stopped run goes on there.
    """
    done = pd.read_csv(kept).to_numpy().tolist() if kept.exists() else []
    found: dict[str, Fall] = {}
    for method, lines in named.items():
        left_out = np.unique(np.concatenate(lines))
        # the sum of their numbers tells one set of lines from another
        key = [method, len(left_out), int(left_out.sum())]
        before = next((line for line in done if line[:3] == key), None)
        if before is None:
            rest = torch.as_tensor(np.setdiff1d(np.arange(len(job.train[0])), left_out))
            again = train(job.train[0][rest], job.train[1][rest], job.words, seed)
            now = log_probabilities(again, job.questions)
            before = [*key, float(np.mean(known - now)), float(np.mean(now > np.log(0.5)))]
            done.append(before)
            pd.DataFrame(done, columns=COLUMNS).to_csv(kept, index=False)
            say(f"without the {len(left_out)} lines of {method}: falls by {before[3]:.3f}")
        found[method] = len(left_out), float(before[3]), float(before[4])
    return found
