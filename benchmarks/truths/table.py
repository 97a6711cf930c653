"""What exempla makes of every truth: LDS at the automatic damping, at the best, of whole runs.

    python -m benchmarks.truths.table --folder FOLDER [--out truths.csv] [--only NAME,…]
                                      [--answers .peers/answers]

The best damping is looked up on the very subsets that are reported, a mark that no rule can pass:
from the automatic value along `exact.DAMPINGS`, up and down for as long as LDS (half, mean of
seeds) grows. `exact` is the exact Gauss–Newton
influence, written out by `benchmarks.truths.make`; `run` is the automatic answer given eight
moments of the same training, taken from the answers `benchmarks.peers.suite` kept where it has
asked already. Lines of other settings in the file stay as they are.
"""

from __future__ import annotations

import argparse
import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

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
    X, y, *test = arrays(truth, "X", "y", "X_test", "y_test")
    earlier = MOMENTS[:-1] if asked == RUN else ()
    models = [
        truth.network().to(X.device),
        *(truth.network(0, moment).state_dict() for moment in earlier),
    ]
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


def arrays(truth: Truth, *names: str) -> tuple[torch.Tensor, ...]:
    """On a GPU where there is one."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return tuple(torch.from_numpy(truth.data[name]).to(device) for name in names)


def kept_at(truth: Truth, asked: Asked, answers: Path) -> Path:
    return answers / f"{truth.setting.name}-{asked.name}.npz"


def climbed(last: exempla.Explainer, truth: Truth, test: tuple[Any, ...]) -> list[np.ndarray]:
    """Influence at the dampings around the automatic one, on while it predicts better."""
    damping = last.features.damping
    start = truth.lds(last.influence(test), MASKS[0])
    below = [d for d in reversed(DAMPINGS) if d < damping]
    made = []
    for way in (below, [d for d in DAMPINGS if d > damping]):
        reached = start
        for value in way:
            made.append(last.set_damping(value).influence(test))
            score = truth.lds(made[-1], MASKS[0])
            if score <= reached:
                break
            reached = score
    return made


def lines(truth: Truth, answers: Path, runs: bool, best: bool) -> list[dict[str, str]]:
    test = arrays(truth, "X_test", "y_test")
    last = ask(truth, ONE, answers)
    damping = f"{last.features.damping:.3g}"
    single = climbed(last, truth, test) if best else []
    if runs and not kept_at(truth, RUN, answers).exists():
        ask(truth, RUN, answers)
    return told(truth, answers, damping, single)


def told(
    truth: Truth, answers: Path, damping: str = "", single: Sequence[np.ndarray] = ()
) -> list[dict[str, str]]:
    """One line for each outcome, of the answers kept and of influence at other dampings."""
    automatic, run = (kept_at(truth, asked, answers) for asked in (ONE, RUN))
    kept = Kept.load(automatic)
    whole, made = Kept.load(run) if run.exists() else None, []
    for outcome in truth.removals:
        lds = truth.lds_of_ranks(kept, outcome)
        others = [truth.lds(matrix, outcome) for matrix in single]
        reached = max(lds, *others) if others else np.nan
        figures = {
            "automatic": lds, "best": reached, "regret": reached - lds,
            "exact best": truth.exact_curve(outcome).max(),
            "run": truth.lds_of_ranks(whole, outcome) if whole else np.nan,
        }  # fmt: skip
        made.append(
            {
                "setting": truth.setting.name,
                "part": truth.setting.part,
                "parameters": str(sum(w.numel() for w in truth.network().parameters())),
                "train accuracy": f"{truth.stored['accuracy'][0]:.3f}",
                "outcome": outcome,
                "damping": damping,
            }
            | {name: "" if np.isnan(v) else f"{v:.3f}" for name, v in figures.items()}
        )
    return made


def updated(known: list[dict[str, str]], truth: Truth, answers: Path) -> list[dict[str, str]]:
    """The lines known of a truth, with what is kept of its run by now; or lines of what is kept."""
    if not kept_at(truth, ONE, answers).exists():
        return known
    fresh = told(truth, answers)
    if not known:
        return fresh
    return [old | {"run": new["run"]} for old, new in zip(known, fresh, strict=True)]


def read(file: Path) -> list[dict[str, str]]:
    if not file.exists():
        return []
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def write(made: list[dict[str, str]], file: Path) -> None:
    order = [setting.name for setting in settings_of()]
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(sorted(made, key=lambda line: order.index(line["setting"])))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/experiments/truths.csv"))
    parser.add_argument("--only", default=",".join(s.name for s in settings_of()))
    parser.add_argument("--answers", type=Path, default=Path(".peers/answers"))
    parser.add_argument("--no-runs", action="store_true", help="only those kept already")
    parser.add_argument("--no-best", action="store_true", help="the automatic damping alone")
    parser.add_argument("--kept", action="store_true", help="fit nothing: tell what is kept")
    options = parser.parse_args()
    for setting in settings_of():
        if setting.name not in options.only.split(","):
            continue
        truth = load_truth(options.folder, setting)
        known = [x for x in read(options.out) if x["setting"] == setting.name]
        others = [x for x in read(options.out) if x["setting"] != setting.name]
        if options.kept:
            made = updated(known, truth, options.answers)
        else:
            made = lines(truth, options.answers, not options.no_runs, not options.no_best)
        write([*others, *made], options.out)
        if made:
            print(*made[0].values(), sep="  ", flush=True)


if __name__ == "__main__":
    main()
