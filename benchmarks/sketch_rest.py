"""Does a sketch that sees the rest stay faithful as it gets narrower? LDS beside other sketches.

    EXEMPLA_DATA=… python -m benchmarks.sketch_rest --folder FOLDER [--out FILE.csv]

Truths are those of `benchmarks.sketch_truths`; answers of kronfluence, where they are in the folder
(`benchmarks.sketch_kronfluence`), are read from there. Ways, each at widths p:

* strongest        p K-FAC directions, the rest dropped
* rest .25 .5 .75  that share of p random directions of the rest instead (`exempla.sketch.rest`)
* mean of the rest p directions, and one mean eigenvalue for exact products outside them
* random           random factored projections of each layer, their p × p Fisher (LoGra's default)
* random, whitened scores whitened by K-FAC, then p random directions, plain products

and without a width: exact (the Fisher of all parameters), EK-FAC of all parameters by these same
scores, and kronfluence's. "auto" is the damping that exempla takes by itself (for kronfluence and
LoGra their own rules); "best" the best of a grid around it, chosen by the answer and so only an
upper bound. Each random way is the mean over `SEEDS` seeds.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import exempla
from benchmarks.sketch_truths import CHOSEN_ON, TRUTHS, SketchTruth, load
from exempla.fisher.damping import resolve_damping
from exempla.influence import sketch_influence
from exempla.oracles.base import ScoreRows, in_float64
from exempla.oracles.torch.oracle import torch_oracle
from exempla.sketch import choose, kronecker
from exempla.sketch.moments import Moments
from exempla.tasks.clean.harm import kernel_with

WIDTHS = (128, 512, 2048, 8192)
SHARES, CHOSEN = (0.25, 0.5, 0.75), 0.75
"""Shares of the rest that were tried, and the one chosen: the best on the truth that rules are
chosen on, at the automatic damping."""
GRID = (0.1, 1.0, 10.0)
SEEDS = 2
WIDE = 2048
"""Beyond this width one seed and the automatic damping alone: the p × p Fishers take long."""
Way = Callable[[float], np.ndarray]
"""Damping → (n_train, n_test)."""


class Study:
    """One truth: scores in K-FAC's eigenbasis, written out (these networks are small)."""

    def __init__(self, truth: SketchTruth) -> None:
        self.truth = truth
        self.oracle = torch_oracle(truth.model(), truth.likelihood)
        self.train = self.oracle.read((truth.X, truth.y), role="train")
        self.test = self.oracle.read((truth.X_test, truth.y_test), role="test")
        moments = Moments.of(self.oracle.layers, self.oracle.fisher_rows(self.train))
        self.sides = [(m.inputs.eigenbasis(), m.outputs.eigenbasis()) for m in moments]
        count = len(self.train)
        self.kfac = np.concatenate(
            [
                np.multiply.outer(a.values, g.values).ravel() * float(m.trace) / count
                for (a, g), m in zip(self.sides, moments, strict=True)
            ]
        )
        self.S = self.written_out(self.oracle.scores(self.train))
        self.T = self.written_out(self.oracle.scores(self.test))
        self.F = self.written_out(self.oracle.fisher_rows(self.train))
        self.ekfac = (self.F.astype(float) ** 2).sum(0) / count

    def written_out(self, batches: Iterator[ScoreRows]) -> np.ndarray:
        rows = []
        for batch in batches:
            each = zip(batch.factors, self.sides, strict=True)
            parts = [in_float64(f.project(a.vectors, g.vectors)) for f, (a, g) in each]
            rows.append(np.concatenate([p.reshape(len(batch), -1) for p in parts], 1))
        return np.concatenate(rows).astype(np.float32)

    def lds(self, influence: np.ndarray) -> float:
        return exempla.metrics.lds(influence, self.truth.subsets, self.truth.outcomes)

    # ---- without a width

    def exact(self, damping: float) -> np.ndarray:
        n, gram = len(self.S), (self.F @ self.F.T).astype(float)
        inner = np.linalg.solve(gram + n * damping * np.eye(len(gram)), self.F @ self.T.T)
        return (self.S @ self.T.T - (self.S @ self.F.T) @ inner) / damping

    def eigen(self, damping: float) -> np.ndarray:
        return (self.S / (self.ekfac + damping).astype(np.float32)) @ self.T.T

    # ---- with one

    def fitted(self, width: int, share: float) -> exempla.Explainer:
        choose.REST, choose.TRUSTED = share, 0.0  # whatever is measured of the rest
        truth = self.truth
        explainer = exempla.Explainer(
            truth.model(), likelihood=truth.likelihood, sketch=width, progress=False
        )
        return explainer.fit((truth.X, truth.y))

    def sketched(self, explainer: exempla.Explainer, mean: bool = False) -> Way:
        embeddings = explainer.embeddings
        asked = [embeddings[0].oracle.read((self.truth.X_test, self.truth.y_test), role="test")]
        if mean:
            return lambda d: kernel_with(embeddings[0], asked[0], d)
        return lambda d: sketch_influence(embeddings, asked, "true", [d]).values

    def random(self, width: int, seed: int) -> tuple[Way, float]:
        """LoGra: u ⊗ v of each layer, as many of each layer; and its own damping."""
        rng, each = np.random.default_rng(seed), max(1, width // len(self.sides))
        rows, start = [[], [], []], 0
        for a, g in self.sides:
            d_in, d_out = len(a.values), len(g.values)
            r_in = min(d_in, max(1, int(each**0.5)))
            r_out = min(d_out, max(1, each // r_in))
            u = rng.standard_normal((d_in, r_in)).astype(np.float32) / r_in**0.5
            v = rng.standard_normal((d_out, r_out)).astype(np.float32) / r_out**0.5
            for kept, whole in zip(rows, (self.S, self.T, self.F), strict=True):
                block = whole[:, start : start + d_in * d_out].reshape(-1, d_in, d_out)
                kept.append((u.T @ (block @ v)).reshape(len(whole), -1))
            start += d_in * d_out
        s, t, f = (np.concatenate(parts, 1).astype(float) for parts in rows)
        fisher = f.T @ f / len(s)
        eye = np.eye(len(fisher))
        own = 0.1 * float(np.trace(fisher)) / len(fisher)
        return (lambda d: s @ np.linalg.solve(fisher + d * eye, t.T)), own

    def whitened(self, width: int, seed: int) -> Way:
        rng = np.random.default_rng(seed)

        def way(damping: float) -> np.ndarray:
            white = (1 / np.sqrt(self.kfac + damping)).astype(np.float32)
            s = t = np.zeros(())
            for start in range(0, len(white), 4096):
                part = slice(start, start + 4096)
                signs = rng.choice(np.array([-1, 1], np.float32), size=(len(white[part]), width))
                s = s + (self.S[:, part] * white[part]) @ signs
                t = t + (self.T[:, part] * white[part]) @ signs
            return s @ t.T

        return way


def lines(truth: SketchTruth, folder: Path) -> Iterator[dict[str, str]]:
    study = Study(truth)
    P = study.S.shape[1]

    def line(way: str, width: int, auto: list[float], best: list[float], **more: str) -> dict:
        part = "choose" if truth.name == CHOSEN_ON else "report"
        made = {
            "truth": truth.name,
            "part": part,
            "parameters": str(P),
            "way": way,
            "width": str(width),
            "LDS auto": f"{np.mean(auto):.3f}",
            "LDS best": f"{np.mean(best):.3f}",
        } | {name: more.get(name, "") for name in ("share kept", "rest weight", "rest error")}
        print(*made.values(), sep="  ", flush=True)
        return made

    def both(
        way: Way, damping: float, own: float | None = None, grid: tuple[float, ...] = GRID
    ) -> tuple[float, float]:
        each = [study.lds(way(damping * times)) for times in grid]
        auto = each[grid.index(1.0)] if own is None else study.lds(way(own))
        return auto, max([*each, auto])

    first = study.fitted(512, 0.0).embeddings[0]
    damping = resolve_damping("auto", first.evidence, "full").value
    for name, way in (("exact", study.exact), ("EK-FAC", study.eigen)):
        auto, best = both(way, damping)
        yield line(name, P, [auto], [best])
    answers = folder / f"{truth.name}-ekfac.npz"
    if answers.exists():
        with np.load(answers) as stored:
            found = {k: study.lds(stored[k]) for k in stored.files}
        yield line("kronfluence EK-FAC", P, [found["None"]], [max(found.values())])
    for width in (w for w in WIDTHS if w < P):
        plain = study.fitted(width, 0.0)
        share = {"share kept": f"{plain.embeddings[0].evidence.share:.3f}"}
        grid, seeds = ((1.0,), 1) if width > WIDE else (GRID, SEEDS)
        auto, best = both(study.sketched(plain), damping, grid=grid)
        yield line("strongest", width, [auto], [best], **share)
        auto, best = both(study.sketched(plain, mean=True), damping, grid=grid)
        yield line("mean of the rest", width, [auto], [best], **share)
        for rest in SHARES if width <= WIDE else (CHOSEN,):
            found, seen = [], []
            for seed in range(seeds):
                kronecker.SEED = seed
                explainer = study.fitted(width, rest)
                seen.append(explainer.embeddings[0].evidence)
                found.append(both(study.sketched(explainer), damping, grid=grid))
            kronecker.SEED = 0
            auto, best = zip(*found)
            told = {
                "share kept": f"{seen[0].share:.3f}",
                "rest weight": f"{np.mean([e.rest_weight for e in seen]):.2f}",
                "rest error": f"{np.mean([e.rest_error for e in seen]):.2f}",
            }
            yield line(f"rest {rest:g}", width, list(auto), list(best), **told)
        if width <= WIDE:
            made = [study.random(width, seed) for seed in range(SEEDS)]
            found = [both(way, damping, own) for way, own in made]
            yield line("random", width, [a for a, _ in found], [b for _, b in found])
            found = [both(study.whitened(width, seed), damping) for seed in range(SEEDS)]
            yield line("random, whitened", width, [a for a, _ in found], [b for _, b in found])


def main() -> None:
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("docs/experiments/sketch_rest.csv"))
    parser.add_argument("--only", nargs="+", choices=TRUTHS, default=list(TRUTHS))
    given = parser.parse_args()
    with given.out.open("w", newline="", encoding="utf-8") as stream:
        writer: csv.DictWriter[str] | None = None
        for name in given.only:
            for line in lines(load(given.folder, name), given.folder):
                if writer is None:
                    writer = csv.DictWriter(stream, list(line))
                    writer.writeheader()
                writer.writerow(line)
                stream.flush()


if __name__ == "__main__":
    main()
