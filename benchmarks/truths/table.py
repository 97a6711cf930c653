"""What exempla makes of every truth: LDS at the automatic damping, at the best, of whole runs.

    python -m benchmarks.truths.table --folder FOLDER [--out truths.csv] [--only NAME,…]
                                      [--answers .peers/answers]

The best damping is the best of `exact.DAMPINGS` and the automatic value, looked up on the very
subsets that are reported: a mark that no rule can pass. `exact` is the exact Gauss–Newton
influence, written out by `benchmarks.truths.make`; `run` is the automatic answer given eight
moments of the same training, taken from the answers `benchmarks.peers.suite` kept where it has
asked already.
"""

from __future__ import annotations

import argparse
import csv
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from torch import nn

import exempla
from benchmarks.peers.answers import OURS, Asked, Kept, Question, keep
from benchmarks.peers.job import machine, peak_memory
from benchmarks.peers.scripts import Answer
from benchmarks.truths.data import load_set
from benchmarks.truths.exact import DAMPINGS
from benchmarks.truths.networks import make_network
from benchmarks.truths.settings import Setting, settings_of

COLUMNS = (
    "setting", "part", "parameters", "train accuracy", "outcome", "damping", "automatic", "best",
    "regret", "exact best", "run",
)  # fmt: skip
MOMENTS = range(8)
ONE, RUN = Asked(OURS, "automatic"), Asked(OURS, "recorded run", "run")
MASKS = ("half, mean of seeds", "5 %, mean of seeds")


@dataclass(frozen=True)
class Truth:
    """One setting's networks and what retraining did."""

    setting: Setting
    stored: dict[str, np.ndarray]
    data: dict[str, np.ndarray]

    def network(self, reference: int = 0, moment: int = -1) -> nn.Module:
        moment = moment % len(MOMENTS)
        words = int(self.data["words"])
        shape, classes = self.data["X"].shape[1:], int(self.data["y"].max()) + 1
        made = make_network(self.setting.network, tuple(shape), classes, words)
        start = f"weights/{reference}/{moment}/"
        state = {k.removeprefix(start): v for k, v in self.stored.items() if k.startswith(start)}
        made.load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
        return made.eval()

    @cached_property
    def removals(self) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """By kind of outcome: which rows were left out, and log-likelihoods afterwards."""
        n = len(self.data["y"])
        half, few = (
            1.0 - np.unpackbits(self.stored[name], axis=1, count=n) for name in ("half", "few")
        )
        after_half, after_few = self.stored["after_half"], self.stored["after_few"]
        return {
            "half, mean of seeds": (half, after_half.mean(1)),
            "half, one seed": (half, after_half[:, 0]),
            "5 %, mean of seeds": (few, after_few.mean(1)),
            "5 %, one seed": (few, after_few[:, 0]),
        }

    def lds(self, influence: np.ndarray, outcome: str) -> float:
        removed, after = self.removals[outcome]
        return exempla.metrics.lds(-influence, removed.astype(bool), after)

    def lds_of_ranks(self, kept: Kept, outcome: str) -> float:
        """The same of an answer kept as ranks, which is all LDS asks for."""
        after = self.removals[outcome][1]
        found = kept.ranks[outcome.replace("one seed", "mean of seeds")][0]  # the same removals
        return exempla.metrics.lds(found, np.eye(len(after)), after)

    def exact_curve(self, outcome: str) -> np.ndarray:
        """LDS of the exact Gauss–Newton influence at each of the dampings."""
        few = len(self.removals["5 %, one seed"][0])
        effects = np.nan_to_num(self.stored["effect/0/7"].astype(np.float64))
        part = effects[:, :-few] if outcome.startswith("half") else effects[:, -few:]
        one, after = np.eye(part.shape[1]), self.removals[outcome][1]
        return np.array([exempla.metrics.lds(effect, one, after) for effect in part])


def load_truth(folder: Path, setting: Setting) -> Truth:
    with np.load(folder / f"{setting.name}.npz", allow_pickle=False) as stored:
        return Truth(setting, dict(stored), load_set(folder, setting.data))


def ask(truth: Truth, asked: Asked, answers: Path) -> exempla.Explainer:
    """The automatic answer, kept where `benchmarks.peers.suite` looks, so that none is asked twice;
    and the explainer that gave it."""
    X, y, *test = (torch.from_numpy(truth.data[k]) for k in ("X", "y", "X_test", "y_test"))
    earlier = MOMENTS[:-1] if asked == RUN else ()
    models = [truth.network(), *(truth.network(0, moment).state_dict() for moment in earlier)]
    started = time.process_time()
    explainer = exempla.Explainer(models, progress=False).fit((X, y))
    matrix = np.asarray(explainer.influence(tuple(test)))
    seconds = time.process_time() - started
    subsets = {kind: -truth.removals[kind][0] for kind in MASKS}
    found = (np.zeros(1), matrix[None], seconds, seconds, seconds)
    answers.mkdir(parents=True, exist_ok=True)
    keep(
        Question(truth.setting.name, dict, subsets),
        Answer(*found, peak_memory() / 2**20, machine()),
        kept_at(truth, asked, answers),
    )
    return explainer


def kept_at(truth: Truth, asked: Asked, answers: Path) -> Path:
    return answers / f"{truth.setting.name}-{asked.name}.npz"


def lines(truth: Truth, answers: Path, runs: bool) -> list[dict[str, object]]:
    test = tuple(torch.from_numpy(truth.data[name]) for name in ("X_test", "y_test"))
    last = ask(truth, ONE, answers)
    damping = last.features.damping
    single = {wanted: last.set_damping(wanted).influence(test) for wanted in DAMPINGS}
    if runs and not kept_at(truth, RUN, answers).exists():
        ask(truth, RUN, answers)
    automatic = Kept.load(kept_at(truth, ONE, answers))
    run = kept_at(truth, RUN, answers)
    whole, made = Kept.load(run) if run.exists() else None, []
    for outcome in truth.removals:
        lds = truth.lds_of_ranks(automatic, outcome)
        best = max(lds, *(truth.lds(matrix, outcome) for matrix in single.values()))
        figures = {
            "automatic": lds, "best": best, "regret": best - lds,
            "exact best": truth.exact_curve(outcome).max(),
            "run": truth.lds_of_ranks(whole, outcome) if whole else np.nan,
        }  # fmt: skip
        made.append(
            {
                "setting": truth.setting.name,
                "part": truth.setting.part,
                "parameters": last.oracles[0].n_parameters,
                "train accuracy": f"{truth.stored['accuracy'][0]:.3f}",
                "outcome": outcome,
                "damping": f"{damping:.3g}",
            }
            | {name: "" if np.isnan(v) else f"{v:.3f}" for name, v in figures.items()}
        )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/experiments/truths.csv"))
    parser.add_argument("--only", default=",".join(s.name for s in settings_of()))
    parser.add_argument("--answers", type=Path, default=Path(".peers/answers"))
    parser.add_argument("--no-runs", action="store_true", help="only those kept already")
    options = parser.parse_args()
    with options.out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        for setting in settings_of():
            if setting.name in options.only.split(","):
                made = lines(
                    load_truth(options.folder, setting), options.answers, not options.no_runs
                )
                writer.writerows(made)
                stream.flush()
                print(*made[0].values(), sep="  ", flush=True)


if __name__ == "__main__":
    main()
