"""How faithful is influence as the sketch gets narrower? LDS, and products against exact ones.

    EXEMPLA_DATA=… python -m benchmarks.sketch_rest --folder FOLDER [--out FILE.csv]

Truths are those of `benchmarks.sketch_truths`; answers of kronfluence, where they are in the folder
(`benchmarks.sketch_kronfluence`), are read from there. Ways, each at widths p:

* ours             `Explainer(sketch=p).influence`: p K-FAC directions, and one mean eigenvalue for
                   exact products outside them
* strongest        p K-FAC directions, the rest dropped
* random           random factored projections of each layer, their p × p Fisher (LoGra's default)
* random, whitened scores whitened by K-FAC, then p random directions, plain products

and without a width: ours as it is by default, exact (the Fisher of all parameters), EK-FAC of all
parameters by these same scores, and kronfluence's. "auto" is the damping that exempla takes by
itself (for kronfluence and LoGra their own rules); "best" the best of a grid around it, chosen by
the answer and so only an upper bound. "error" is that of all train × test products at exempla's
damping, relative to the exact ones in the Frobenius norm, "correlation" theirs at "auto". Each
random way is the mean over `SEEDS` seeds.
"""

from __future__ import annotations

import argparse
import csv
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

import exempla
from benchmarks.sketch_truths import CHOSEN_ON, TRUTHS, SketchTruth, load
from exempla.arrays import products, row_squares
from exempla.kernel.damping import resolve_damping
from exempla.kernel.moments import Moments
from exempla.kernel.solve import query_kernel
from exempla.oracles.base import ScoreRows, in_float64
from exempla.oracles.torch.oracle import TorchOracle

WIDTHS = (128, 512, 2048, 8192)
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
        self.oracle = TorchOracle(truth.model(), truth.likelihood)
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

    def exact_self(self, damping: float) -> np.ndarray:
        n, gram = len(self.S), (self.F @ self.F.T).astype(float)
        across = (self.F @ self.S.T).astype(float)
        inner = np.linalg.solve(gram + n * damping * np.eye(len(gram)), across)
        return ((self.S.astype(float) ** 2).sum(1) - (across * inner).sum(0)) / (n * damping)

    def eigen(self, damping: float) -> np.ndarray:
        return (self.S / (self.ekfac + damping).astype(np.float32)) @ self.T.T

    # ---- with one

    def fitted(self, width: int | str) -> exempla.Explainer:
        truth = self.truth
        explainer = exempla.Explainer(
            truth.model(), likelihood=truth.likelihood, sketch=width, progress=False
        )
        return explainer.fit((truth.X, truth.y))

    def ours(self, explainer: exempla.Explainer) -> Way:
        """The call a user makes."""
        asked = (self.truth.X_test, self.truth.y_test)
        return lambda d: explainer.set_damping(d).influence(asked) * len(self.S)

    def strongest(self, explainer: exempla.Explainer) -> Way:
        """The rows of the sketch, and nothing for what it leaves out."""
        (embedding,) = explainer.embeddings
        rows, _ = embedding.embed(self.test, "true")
        return lambda d: products(embedding.rows, embedding.metric.solve(rows, d))

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
            return s @ t.T / width

        return way


class Book:
    """The lines of one truth."""

    def __init__(self, study: Study, damping: float) -> None:
        self.study, self.damping = study, damping
        self.whole = study.exact(damping)
        self.own = study.exact_self(damping)

    def line(
        self,
        way: str,
        width: int,
        ways: Sequence[tuple[Way, float | None]],
        grid: tuple[float, ...] = (1.0,),
        told: Mapping[str, str] | None = None,
    ) -> dict[str, str]:
        """One way at one width, as the mean over its draws: each with its own damping if any."""
        truth = self.study.truth
        figures = np.mean([self.figures(*one, grid) for one in ways], axis=0)
        made = {
            "truth": truth.name,
            "part": "choose" if truth.name == CHOSEN_ON else "report",
            "parameters": str(self.study.S.shape[1]),
            "way": way,
            "width": str(width),
        }
        names = ("LDS auto", "LDS best", "error", "correlation")
        made |= {name: f"{value:.3f}" for name, value in zip(names, figures, strict=True)}
        known = told or {}
        made |= {name: known.get(name, "") for name in ("self correlation", "share kept", "solver")}
        print(*made.values(), sep="  ", flush=True)
        return made

    def figures(self, way: Way, own: float | None, grid: tuple[float, ...]) -> list[float]:
        """LDS, at its best, and error and correlation of the products against exact ones."""
        found = {times: way(self.damping * times) for times in grid}
        auto = found[1.0] if own is None else way(own)
        scores = [self.study.lds(x) for x in found.values()]
        error = np.linalg.norm(found[1.0] - self.whole) / np.linalg.norm(self.whole)
        chosen = self.study.lds(auto)
        return [chosen, max([*scores, chosen]), float(error), correlation(auto, self.whole)]

    def told(self, explainer: exempla.Explainer, alone: bool) -> dict[str, str]:
        """What is known of a sketch: how well it ranks self-influence, and what it keeps."""
        (embedding,) = explainer.embeddings
        if alone:
            rows = explainer.set_damping(self.damping).features.rows
            own = row_squares(rows) / len(rows)
        else:
            own = explainer.set_damping(self.damping).self_influence()
        return {
            "self correlation": f"{correlation(own, self.own):.3f}",
            "share kept": f"{embedding.evidence.share:.3f}",
        }


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.corrcoef(one.ravel(), other.ravel())[0, 1])


def lines(truth: SketchTruth, folder: Path) -> Iterator[dict[str, str]]:
    study = Study(truth)
    P = study.S.shape[1]
    first = study.fitted(512)
    damping = resolve_damping("auto", first.embeddings[0].evidence, "full").value
    book = Book(study, damping)
    yield book.line("exact", P, [(study.exact, None)], GRID)
    yield book.line("EK-FAC", P, [(study.eigen, None)], GRID)
    answers = folder / f"{truth.name}-ekfac.npz"
    if answers.exists():
        with np.load(answers) as stored:
            found = {k: stored[k] for k in stored.files}
        best = max(study.lds(x) for x in found.values())
        made = book.line("kronfluence EK-FAC", P, [(lambda d: found["None"], None)])
        yield {**made, "LDS best": f"{best:.3f}", "error": ""}
    plain = study.fitted("auto")
    told = book.told(plain, False) | {"solver": plain.embeddings[0].sketch.note}
    yield book.line("ours", P, [(study.ours(plain), None)], told=told)
    for width in (w for w in WIDTHS if w < P):
        grid = (1.0,) if width > WIDE else GRID
        plain = study.fitted(width)
        told = book.told(plain, True)
        yield book.line("strongest", width, [(study.strongest(plain), None)], grid, told)
        said = query_kernel(plain.embeddings[0], study.test, damping).solver
        told = book.told(plain, False) | {"solver": said}
        yield book.line("ours", width, [(study.ours(plain), None)], grid, told)
        seeds = range(1 if width > WIDE else SEEDS)
        yield book.line("random", width, [study.random(width, seed) for seed in seeds], grid)
        draws = [(study.whitened(width, seed), None) for seed in seeds]
        yield book.line("random, whitened", width, draws, grid)


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
