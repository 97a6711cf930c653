"""Why the exact kernel names fewer right lines than a sketch of itself, and which default follows.

    python -m benchmarks.facts.why texts --folder FOLDER            (EXEMPLA_DATA names SST-2)
    python -m benchmarks.facts.why ask --folder FOLDER --out FOLDER [--seconds 170]   (one GPU)

The rule is in `benchmarks.facts`, written before. `texts` writes each seed's lines and facts.
`ask` trains a model a seed (a process each), writes out every line's gradient and up to eight drawn
Fisher rows a line, and counts right lines for every candidate (why.csv); then it applies the rule
and trains again without the lines of today's default and of the candidate chosen (why_falls.csv).
"""

from __future__ import annotations

import argparse
import csv
import json
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import functional_call, vjp, vmap

from benchmarks.facts.corpus import Corpus, Fact, make_corpus
from benchmarks.facts.model import IGNORED, Decoder, token_losses, train
from benchmarks.facts.texts import Arrays, Job, make_job

CHOOSE, REPORT, OLDER = (10, 11, 12), (13, 14, 15), (1, 2)
DRAWS = (1, 2, 4, 8)
MULTIPLES = (0.01, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1000.0, 1e4)
SKETCHES: tuple[str | int, ...] = ("auto", 2048, 8192)
FIRST, BATCH = 10, 50
TODAY = ("library", "auto", 1.0)
GAIN = 0.02

Key = tuple[str, Any, float]
"""Kind ("exact" or "library"), draws or sketch, multiple of the automatic damping."""


def write_texts(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for seed in (*CHOOSE, *REPORT, *OLDER):
        (folder / f"text-{seed}.json").write_text(json.dumps(asdict(make_corpus(seed=seed))))


def read_job(folder: Path, seed: int) -> Job:
    stored = json.loads((folder / f"text-{seed}.json").read_text())
    facts = [Fact(f["prompt"], f["completion"], tuple(f["stated"])) for f in stored["facts"]]
    return make_job(Corpus(stored["lines"], facts))


def trained(
    folder: Path, seed: int, left_out: list[int]
) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Weights of a model trained without some lines, and the log-probability of every fact."""
    torch.set_num_threads(1)
    job = read_job(folder, seed)
    rest = torch.as_tensor(np.setdiff1d(np.arange(len(job.train[0])), left_out))
    model = train(job.train[0][rest], job.train[1][rest], job.words, seed)
    with torch.no_grad():
        known = -token_losses(model(job.questions[0]), job.questions[1]).sum(1).numpy()
    return {k: v.numpy() for k, v in model.state_dict().items()}, known


# ---- the exact kernel, written out


class Written:
    """Scores of lines and questions, and drawn Fisher rows, with their dot products."""

    def __init__(self, model: Decoder, job: Job, device: str) -> None:
        self.model = model.to(device)
        self.weights = {k: w.detach() for k, w in self.model.named_parameters()}
        self.generator = torch.Generator(device).manual_seed(0)
        train, asked = (tuple(t.to(device) for t in a) for a in (job.train, job.questions))
        self.tokens = (train[1][:, 1:] != IGNORED).sum(1).double()
        scores, targets = self.rows(train, False), self.rows(asked, False)
        drawn = [self.rows(train, True) for _ in range(max(DRAWS))]
        n = len(scores)
        self.trace = float(torch.stack([d.square().sum() for d in drawn]).mean() / n)
        self.misfit = float(scores.square().sum() / n / self.trace)
        self.n = n
        fisher = torch.cat(drawn) / n**0.5
        del drawn
        sizes = [w.numel() for w in self.weights.values()]
        place = np.cumsum([0, *sizes])
        embedded = torch.zeros(sum(sizes), dtype=torch.bool, device=device)
        for i, name in enumerate(self.weights):
            if name.startswith(("words", "places")):
                embedded[place[i] : place[i + 1]] = True
        self.energy = float(scores[:, embedded].square().sum() / scores.square().sum())
        self.products = {"all": products(fisher, scores, targets)}
        for rows in (fisher, scores, targets):
            rows[:, embedded] = 0
        self.products["no embeddings"] = products(fisher, scores, targets)

    def rows(self, arrays: Arrays, drawn: bool) -> Tensor:
        """∇ log p of each text's labels, or of labels drawn from the model, (n, parameters)."""

        def single(ids: Tensor, labels: Tensor, sampled: Tensor) -> Tensor:
            counts = (labels[1:] != IGNORED).double()

            def log_p(weights: dict[str, Tensor]) -> Tensor:
                logits = functional_call(self.model, weights, (ids[None],))[0, :-1]
                picked = logits.log_softmax(-1).gather(1, sampled[:, None])[:, 0]
                return (picked * counts.to(picked)).sum()

            value, back = vjp(log_p, self.weights)
            (found,) = back(torch.ones_like(value))
            return torch.cat([g.flatten() for g in found.values()])

        out = []
        for ids, labels in zip(arrays[0].split(BATCH), arrays[1].split(BATCH), strict=True):
            sampled = labels[:, 1:].clamp(min=0)
            if drawn:
                with torch.no_grad():
                    p = self.model(ids)[:, :-1].softmax(-1)
                sampled = torch.multinomial(p.flatten(0, 1), 1, generator=self.generator)
                sampled = sampled.view(len(ids), -1)
            out.append(vmap(single)(ids, labels, sampled))
        return torch.cat(out)

    def influence(self, which: str, draws: int, damping: float) -> tuple[Tensor, Tensor]:
        """(n, questions) and self-influence, with so many draws of every line."""
        gram, left, right, plain, norms = self.products[which]
        rows = draws * self.n
        factor = gram[:rows, :rows].double() / draws
        factor.diagonal().add_(damping)
        factor = torch.linalg.cholesky(factor)
        left, right = left[:rows].double() / draws**0.5, right[:rows].double() / draws**0.5
        solved = torch.linalg.solve_triangular(factor, left, upper=False)
        asked = torch.linalg.solve_triangular(factor, right, upper=False)
        own = (norms.double() - solved.square().sum(0)) / damping
        return (plain.double() - solved.T @ asked) / damping, own


def products(fisher: Tensor, scores: Tensor, targets: Tensor) -> tuple[Tensor, ...]:
    norms = scores.square().sum(1)
    return fisher @ fisher.T, fisher @ scores.T, fisher @ targets.T, scores @ targets.T, norms


def first_of(influence: Tensor) -> np.ndarray:
    return influence.sort(dim=0, descending=True, stable=True).indices[:FIRST].T.cpu().numpy()


def precision(first: np.ndarray, job: Job) -> float:
    facts = job.corpus.facts
    return float(np.mean([np.isin(o, f.stated).mean() for o, f in zip(first, facts, strict=True)]))


def part_of(seed: int) -> str:
    return "choose" if seed in CHOOSE else "report" if seed in REPORT else "older"


def ask_seed(
    folder: Path, seed: int, state: dict[str, np.ndarray], device: str, quick: bool
) -> tuple[list[dict[str, Any]], dict[Key, np.ndarray]]:
    """The lines of why.csv of one seed, and what each candidate for the default names."""
    from exempla.kernel.embed import typical_square
    from exempla.oracles import make_oracle

    job = read_job(folder, seed)
    model = Decoder(job.words).eval()
    model.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    square = typical_square(make_oracle(model).theta_squares)
    lines: list[dict[str, Any]] = []
    named: dict[Key, np.ndarray] = {}

    def tell(key: Key, scale: str, influence: Tensor, **more: Any) -> None:
        found = first_of(influence)
        if scale == "plain" and more.get("parameters", "all") == "all":
            named[key] = found
        lines.append({
            "seed": seed, "part": part_of(seed), "kind": key[0], "draws or sketch": key[1],
            "multiple": key[2], "parameters": "all", "scale": scale,
            "precision": f"{precision(found, job):.4f}", "damping": "", "misfit": "", "trace": "",
            "embedding share": "", **more,
        })  # fmt: skip

    whole = Written(model, job, device)
    trust = whole.misfit / (whole.n * 0.5 * float(square or 1.0))
    about = {"misfit": f"{whole.misfit:.4g}", "trace": f"{whole.trace:.4g}",
             "embedding share": f"{whole.energy:.3f}"}  # fmt: skip
    for which in whole.products:
        for draws in DRAWS if which == "all" else (1, max(DRAWS)):
            for multiple in MULTIPLES[::4] if quick else MULTIPLES:
                found, own = whole.influence(which, draws, multiple * trust)
                norms = whole.products[which][4].double()
                scales = {
                    "plain": torch.ones_like(own), "per token": whole.tokens,
                    "relative": own.clamp_min(1e-30).sqrt(), "unit length": norms.sqrt(),
                }  # fmt: skip
                for scale, by in scales.items():
                    tell(("exact", draws, multiple), scale, found / by[:, None],
                         parameters=which, damping=f"{multiple * trust:.4g}", **about)  # fmt: skip
    del whole
    import exempla

    for sketch in SKETCHES:
        try:
            explainer = exempla.Explainer(
                model.to(device), likelihood="causal_lm", sketch=sketch, progress=False,
                device=device,
            ).fit(job.lines)  # fmt: skip
            automatic = explainer.features.damping
            for multiple in (1.0, 10.0, 100.0):
                explainer = explainer.set_damping(multiple * automatic)
                found = torch.as_tensor(np.asarray(explainer.influence(job.asked)))
                tell(("library", sketch, multiple), "plain", found,
                     damping=f"{multiple * automatic:.4g}")  # fmt: skip
        except Exception as error:
            print("library", sketch, "failed:", repr(error), flush=True)
    return lines, named


def means(lines: list[dict[str, Any]], part: str) -> dict[Key, float]:
    """Mean precision of every candidate for the default on the seeds of a part."""
    found: dict[Key, list[float]] = {}
    for x in lines:
        if x["part"] == part and x["scale"] == "plain" and x["parameters"] == "all":
            key = (x["kind"], x["draws or sketch"], x["multiple"])
            found.setdefault(key, []).append(float(x["precision"]))
    return {key: float(np.mean(values)) for key, values in found.items()}


def write(file: Path, lines: list[dict[str, Any]]) -> None:
    with file.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(lines[0]))
        writer.writeheader()
        writer.writerows(lines)


def ask(folder: Path, out: Path, seconds: float, quick: bool) -> None:
    out.mkdir(parents=True, exist_ok=True)
    start, seeds = time.time(), (10, 13) if quick else (*CHOOSE, *REPORT, *OLDER)
    pool = ProcessPoolExecutor(2 if quick else 16, mp_context=get_context("spawn"))
    waiting = {seed: pool.submit(trained, folder, seed, []) for seed in seeds}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)
    known = {seed: job.result() for seed, job in waiting.items()}
    print(f"trained in {time.time() - start:.0f} s", flush=True)
    lines: list[dict[str, Any]] = []
    named: dict[int, dict[Key, np.ndarray]] = {}
    for seed in seeds:
        if time.time() - start > seconds:
            print("no time for seed", seed, flush=True)
            continue
        more, named[seed] = ask_seed(folder, seed, known[seed][0], device, quick)
        lines += more
        write(out / "why.csv", lines)
        print(f"seed {seed} after {time.time() - start:.0f} s, known "
              f"{np.mean(known[seed][1] > np.log(0.5)):.2f}", flush=True)  # fmt: skip
    chosen_on, reported = means(lines, "choose"), means(lines, "report")
    best = max(chosen_on, key=lambda key: chosen_on[key])
    for key in dict.fromkeys((TODAY, ("exact", 1, 1.0), ("library", 8192, 1.0), best)):
        print(key, "chosen on", chosen_on.get(key), "reported", reported.get(key), flush=True)
    jobs: dict[tuple[int, str], Any] = {}
    counts: dict[tuple[int, str], int] = {}
    for seed in [s for s in REPORT if s in named]:
        for name, key in (("today", TODAY), ("8192", ("library", 8192, 1.0)), ("chosen", best)):
            if key in named[seed]:
                left_out = np.unique(named[seed][key])
                counts[seed, name] = len(left_out)
                jobs[seed, name] = pool.submit(trained, folder, seed, left_out.tolist())
    falls = []
    for (seed, name), again in jobs.items():
        fell = float(np.mean(known[seed][1] - again.result()[1]))
        falls.append({"seed": seed, "method": name, "key": str(best if name == "chosen" else ""),
                      "left out": counts[seed, name], "fall": f"{fell:.4f}"})  # fmt: skip
        print(*falls[-1].values(), flush=True)
    if falls:
        write(out / "why_falls.csv", falls)
    pool.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["texts", "ask"])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=170.0, help="ask no seed after these")
    parser.add_argument("--quick", action="store_true", help="two seeds, to see that it runs")
    options = parser.parse_args()
    if options.what == "texts":
        write_texts(options.folder)
    else:
        ask(options.folder, options.out, options.seconds, options.quick)


if __name__ == "__main__":
    main()
