"""Which damping rule loses least on the truths? What "trust" and its constants were chosen by.

    python -m benchmarks.truths.rules --folder FOLDER [--out docs/experiments/truths_rules.csv]

The exact Gauss–Newton influence of each truth is stored at the dampings of `exact.DAMPINGS`; the
LDS in between is interpolated in the logarithm. A rule's regret is the best LDS less the LDS at its
damping, which it finds from the training data alone.
"""

from __future__ import annotations

import argparse
import csv
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

import exempla
from benchmarks.truths.exact import DAMPINGS
from benchmarks.truths.settings import settings_of
from benchmarks.truths.table import Truth, load_truth
from exempla.kernel.damping import RULES, FisherEvidence

MULTIPLES = {"trust": (1.0, 0.5, 2.0)}
"""Of a rule's value that are tried besides: the constant of "trust" is one of them."""


def evidence(truth: Truth) -> FisherEvidence:
    X, y = torch.from_numpy(truth.data["X"]), torch.from_numpy(truth.data["y"])
    explainer = exempla.Explainer(truth.network(), progress=False).fit((X, y))
    found = explainer.embeddings[0].evidence
    if found.weight_square is None:  # one layer: "trust" as it would be, were it asked
        ((size, square),) = explainer.oracles[0].theta_squares or [(1, 1.0)]
        found = replace(found, weight_square=square / size)
    return found


def lines(truth: Truth) -> list[dict[str, str]]:
    seen, made = evidence(truth), []
    for outcome in truth.removals:
        values = truth.exact_curve(outcome)
        for rule, formula in RULES.items():
            for times in MULTIPLES.get(rule, (1.0,)):
                damping = times * formula(seen).value
                reached = float(np.interp(np.log(damping), np.log(DAMPINGS), values))
                made.append(
                    {
                        "setting": truth.setting.name,
                        "part": truth.setting.part,
                        "outcome": outcome,
                        "rule": rule if times == 1.0 else f"{times:g} × {rule}",
                        "damping": f"{damping:.3g}",
                        "best": f"{values.max():.3f}",
                        "regret": f"{values.max() - reached:.3f}",
                    }
                )
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/experiments/truths_rules.csv"))
    options = parser.parse_args()
    made: list[dict[str, str]] = []
    for setting in settings_of():
        made += lines(load_truth(options.folder, setting))
    with options.out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(made[0]))
        writer.writeheader()
        writer.writerows(made)
    for part in ("choose", "report", "confirm"):
        for rule in dict.fromkeys(line["rule"] for line in made):
            own = [x for x in made if x["part"] == part and x["rule"] == rule]
            worst = {
                outcome: max(float(x["regret"]) for x in own if x["outcome"] == outcome)
                for outcome in dict.fromkeys(x["outcome"] for x in own)
            }
            print(part, rule, *(f"{outcome} {value:.3f}" for outcome, value in worst.items()))


if __name__ == "__main__":
    main()
