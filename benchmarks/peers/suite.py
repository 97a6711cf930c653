"""exempla and two peers on the truths of `benchmarks.truths`: one model, and moments of its run.

    python -m benchmarks.peers.suite --folder TRUTHS [--out docs/experiments/peers_truths.csv]
                                     [--only SETTING,…] [--workers 1] [--python PYTHON]

Who takes part: kronfluence, the strongest peer for one model on the digits truth, and TRAK, made
for several. Both are run as they come, kronfluence also with the damping it chooses from data, TRAK
also with fewer dimensions than examples; and both at the best of these and seven more dampings,
looked up on the very outcomes that are reported: a mark above what a user could reach. exempla
looks nothing up.

Each script runs in a process of its own with one thread. `seconds` are those of one answer at the
first damping, of the processor, without imports. `lead` is exempla's LDS, given as many moments,
less this one.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

import exempla
from benchmarks.peers.answers import OURS, Asked, Kept, Question, add_options, answer_all
from benchmarks.peers.intervals import interval
from benchmarks.truths.settings import settings_of
from benchmarks.truths.table import MASKS, MOMENTS, ONE, RUN, Truth, load_truth

COLUMNS = (
    "setting", "part", "outcome", "method", "checkpoints", "damping", "LDS", "low", "high",
    "lead", "lead low", "lead high", "seconds", "measured on",
)  # fmt: skip
DAMPINGS = {"default": "default", "none": "its own choice from data"}

ASKED = tuple(
    asked
    for models in ("run", "one")
    for asked in (
        Asked("traker", "TRAK", models, ("default", "sweep")),
        Asked("kronfluence", "EK-FAC", models, ("default", "none", "sweep")),
        RUN if models == "run" else ONE,
        Asked("traker", "TRAK, 512 dimensions", models, ("default", "sweep")),
    )
)
"""The longest first, so that several workers end together."""


def job_of(truth: Truth) -> dict[str, np.ndarray]:
    """What the scripts read: the data, the trained network, and all moments of its training."""
    job = dict(truth.data) | {"kind": np.array(truth.setting.network)}
    for moment in MOMENTS:
        state = truth.network(0, moment).state_dict()
        job |= {f"run/{moment}/{name}": value.numpy() for name, value in state.items()}
    state = truth.network().state_dict()
    return job | {f"0/{name}": value.numpy() for name, value in state.items()}


def question_of(truth: Truth) -> Question:
    subsets = {outcome: -truth.removals[outcome][0] for outcome in MASKS}
    return Question(truth.setting.name, partial(job_of, truth), subsets)


@dataclass(frozen=True)
class Scored:
    """One method's ranks for one outcome, and what they are worth."""

    asked: Asked
    damping: str
    ranks: np.ndarray
    lds: float
    kept: Kept


def scored(truth: Truth, outcome: str, answers: Path) -> Iterator[Scored]:
    """Every answer at the default damping, at the library's choice, and at the best of all."""
    after = truth.removals[outcome][1]
    one = np.eye(len(after))
    for asked in ASKED:
        file = answers / f"{truth.setting.name}-{asked.name}.npz"
        if not file.exists():
            continue
        kept = Kept.load(file)
        found = kept.ranks[outcome]
        lds = [exempla.metrics.lds(line, one, after) for line in found]
        fixed = [DAMPINGS[name] for name in asked.dampings if name != "sweep"]
        if asked.library == OURS:
            fixed = ["automatic"]
        for name, line, score in zip(fixed, found, lds, strict=False):
            yield Scored(asked, name, line, score, kept)
        if len(lds) > len(fixed):
            best = int(np.argmax(lds))
            value = "its own" if np.isnan(kept.dampings[best]) else f"{kept.dampings[best]:g}"
            name = f"best of {len(lds)} ({value})"
            yield Scored(asked, name, found[best], lds[best], kept)


def lines(truth: Truth, answers: Path) -> list[dict[str, str]]:
    made = []
    for outcome in MASKS:
        after, found = truth.removals[outcome][1], list(scored(truth, outcome, answers))
        ours = {one.asked.models: one for one in found if one.asked.library == OURS}
        for one in found:
            rival, lead = ours.get(one.asked.models), (np.nan, np.nan, np.nan)
            if rival is not None and rival is not one:
                lead = rival.lds - one.lds, *interval(rival.ranks, after, one.ranks)
            figures = (one.lds, *interval(one.ranks, after), *lead)
            made.append(
                {
                    "setting": truth.setting.name,
                    "part": truth.setting.part,
                    "outcome": outcome,
                    "method": f"{one.asked.library}, {one.asked.method}",
                    "checkpoints": str(len(MOMENTS) if one.asked.models == "run" else 1),
                    "damping": one.damping,
                }
                | {
                    name: "" if np.isnan(value) else f"{value:.3f}"
                    for name, value in zip(COLUMNS[6:12], figures, strict=True)
                }
                | {
                    "seconds": f"{one.kept.first_seconds:.1f}",
                    "measured on": one.kept.machine,
                }
            )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="of the truths")
    parser.add_argument("--out", type=Path, default=Path("docs/experiments/peers_truths.csv"))
    parser.add_argument("--only", default=",".join(s.name for s in settings_of()))
    parser.add_argument("--libraries", default=f"{OURS},kronfluence,traker", help="asked now")
    parser.add_argument("--models", default="run,one", help="asked now")
    add_options(parser)
    options = parser.parse_args()
    wanted = options.only.split(",")
    truths = [load_truth(options.folder, s) for s in settings_of() if s.name in wanted]
    libraries, models = options.libraries.split(","), options.models.split(",")
    now = [a for a in ASKED if a.library in libraries and a.models in models]
    answer_all([(question_of(truth), asked) for asked in now for truth in truths], options)
    if options.answers_only:
        return
    with ProcessPoolExecutor(options.workers) as pool:
        made = list(pool.map(partial(lines, answers=options.answers), truths))
    with options.out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(line for some in made for line in some)


if __name__ == "__main__":
    main()
