"""Past the plain mean over the moments of a training: does following the training help?

    python -m benchmarks.truths.unrolled --folder FOLDER --only NAME,… [--out FILE.csv]

Training from one moment to the next pulls the weights towards a minimum of the quadratic seen
there. In time τ = 1/δ an implicit step forgets the share F/(F+δ) of what was before, and moves
what is new by (F+δ)⁻¹ of the score. So what a removed example does at an early moment reaches the
end only through all later steps, as in SOURCE (Bae et al. 2024), with δ in the place of learning
rate × steps. Ways that are compared, each with the exact Gauss–Newton matrix:

* sum          each moment by itself, scores of the questioned examples taken there (the library)
* end          the questioned examples' scores are those at the end
* forgetting   `end`, and the later moments forget
* forgetting 4 the same in four smaller steps a moment, nearer to gradient flow
* both         scores taken at each moment, and the later moments forget
* per example  `sum` with every questioned example's effects of unit size at each moment
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from benchmarks.truths.exact import rows_of
from benchmarks.truths.settings import settings_of
from benchmarks.truths.table import MOMENTS, Truth, load_truth
from exempla.kernel.damping import SNAPSHOT_TRUST_RADIUS
from exempla.kernel.embed import typical_square
from exempla.oracles import make_oracle

MULTIPLES = (0.3, 1.0, 3.0)
"""Of the library's damping."""


class Moment:
    """One moment's scores and damped Gauss–Newton matrix."""

    def __init__(self, truth: Truth, moment: int, weight_square: float, device: str) -> None:
        network = truth.network(0, moment).to(device)
        X, y, X_test, y_test = (
            torch.from_numpy(truth.data[name]).to(device) for name in ("X", "y", "X_test", "y_test")
        )
        fisher, self.scores = rows_of(network, X, y)
        self.targets = rows_of(network, X_test, y_test, fisher=False)[1].double().T
        self.gram = (fisher.T @ fisher / len(X)).double()
        misfit = float((self.scores**2).sum() / len(X) / self.gram.trace())
        self.damping = misfit / (len(X) * SNAPSHOT_TRUST_RADIUS * weight_square)
        self.factors: dict[float, Tensor] = {}

    def factor(self, damping: float) -> Tensor:
        if damping not in self.factors:
            eye = torch.eye(len(self.gram), device=self.gram.device, dtype=self.gram.dtype)
            self.factors[damping] = torch.linalg.cholesky(self.gram + damping * eye)
        return self.factors[damping]

    def effect(self, solved: Tensor) -> np.ndarray:
        return (self.scores.double() @ solved / len(self.scores)).cpu().numpy()


def step(moment: Moment, v: Tensor, times: float, parts: int) -> tuple[Tensor, Tensor]:
    """What reaches the end from this moment (to multiply scores with), and what is left of v."""
    rate = parts * times * moment.damping
    factor, reach, left = moment.factor(rate), torch.zeros_like(v), v
    for _ in range(parts):
        solved = torch.cholesky_solve(left, factor)
        reach, left = reach + solved, rate * solved
    return reach, left


def ways(moments: list[Moment], times: float) -> dict[str, np.ndarray]:
    """Influence (n_train, n_test) of each way."""
    last = moments[-1].targets
    single, at_end = [], []
    for m in moments:
        factor = m.factor(times * m.damping)
        single.append(m.effect(torch.cholesky_solve(m.targets, factor)))
        at_end.append(m.effect(torch.cholesky_solve(last, factor)))
    found = {"sum": sum(single), "end": sum(at_end)}
    found["per example"] = sum(one / (one.std(0) + 1e-30) for one in single)
    for name, parts in (("forgetting", 1), ("forgetting 4", 4)):
        v, total = last, np.zeros_like(single[0])
        for m in reversed(moments):
            reach, v = step(m, v, times, parts)
            total += m.effect(reach)
        found[name] = total
    total = single[-1].copy()
    for place, m in enumerate(moments[:-1]):
        v = m.targets
        for later in reversed(moments[place + 1 :]):
            v = step(later, v, times, 1)[1]
        total += m.effect(step(m, v, times, 1)[0])
    found["both"] = total
    for m in moments:
        m.factors.clear()
    return {name: np.asarray(matrix) for name, matrix in found.items()}


def lines(truth: Truth, device: str) -> list[dict[str, str]]:
    square = typical_square(make_oracle(truth.network()).theta_squares)
    if square is None:
        return []
    moments = [Moment(truth, moment, square, device) for moment in MOMENTS]
    made = []
    for times in MULTIPLES:
        for way, influence in ways(moments, times).items():
            lds = {outcome: truth.lds(influence, outcome) for outcome in truth.removals}
            made.append(
                {"setting": truth.setting.name, "part": truth.setting.part, "way": way}
                | {"damping": f"{times:g} ×"}
                | {outcome: f"{value:.3f}" for outcome, value in lds.items()}
            )
            print(*made[-1].values(), sep="  ", flush=True)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/experiments/truths_unrolled.csv"))
    parser.add_argument("--only", default=",".join(s.name for s in settings_of()))
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    made: list[dict[str, str]] = []
    for setting in settings_of():
        if setting.name in options.only.split(","):
            made += lines(load_truth(options.folder, setting), device)
    with options.out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(made[0]))
        writer.writeheader()
        writer.writerows(made)


if __name__ == "__main__":
    main()
