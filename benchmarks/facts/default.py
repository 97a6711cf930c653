"""Ask the candidates for the default of a language model on the seeds that are reported.

    python -m benchmarks.facts.default --folder FOLDER --out FOLDER [--seconds 95]   (one GPU)

The rule is in `benchmarks.facts`; `why` applied it to seeds 10, 11 and 12. This script asks, on
seeds 13, 14, 15, 1 and 2,

* exact   the default: the span of all scores
* 1024    K-FAC directions: what a budget of three epochs allows
* 8192    K-FAC directions with the mean eigenvalue of the residual
* chosen  the candidate with the best precision on seeds 10 to 12: exact, eight draws, 30 times the
          automatic damping

and, on seeds 13 to 15, how far the facts fall when the lines that each names are left out. FOLDER
holds the texts that `why texts` wrote. default.csv has one line for each seed and candidate and is
rewritten after every answer, so that a stopped run keeps what it has.
"""

from __future__ import annotations

import argparse
import time
from concurrent.futures import (
    FIRST_COMPLETED,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    wait,
)
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.facts.model import Decoder
from benchmarks.facts.texts import Job
from benchmarks.facts.why import (
    OLDER,
    REPORT,
    Written,
    first_of,
    part_of,
    precision,
    read_job,
    trained,
    write,
)

SEEDS = (*REPORT, *OLDER)
CANDIDATES = ("exact", "1024", "8192", "chosen")
DRAWS, MULTIPLE = 8, 30.0
"""Of the chosen candidate."""
THREADS = 3
"""Of each process that asks the library; five ask at once. A training has one."""

Key = tuple[int, str]
"""Seed and candidate."""


def model_of(job: Job, state: dict[str, np.ndarray]) -> Decoder:
    model = Decoder(job.words).eval()
    model.load_state_dict({k: torch.from_numpy(v) for k, v in state.items()})
    return model


def use_plain_attention() -> None:
    """Switch off the fused kernels of attention and TF32, as `why` did."""
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cuda.enable_flash_sdp(False)
    torch.backends.cuda.enable_mem_efficient_sdp(False)


def ask_library(
    folder: Path, seed: int, state: dict[str, np.ndarray], sketch: str | int, device: str
) -> tuple[np.ndarray, str]:
    """The lines named first for every fact, and how they were computed."""
    import exempla

    torch.set_num_threads(THREADS)
    use_plain_attention()
    job = read_job(folder, seed)
    begun = time.time()
    explainer = exempla.Explainer(
        model_of(job, state).to(device), likelihood="causal_lm", sketch=sketch, progress=False,
        device=device,
    ).fit(job.lines)  # fmt: skip
    influence = torch.as_tensor(np.asarray(explainer.influence(job.asked)))
    note, damping = explainer.embeddings[0].sketch.note, explainer.features.damping
    about = f"{note}, damping {damping:.4g}, {time.time() - begun:.0f} s"
    return first_of(influence), about


def ask_chosen(job: Job, state: dict[str, np.ndarray], device: str) -> tuple[np.ndarray, str]:
    """The same of the chosen candidate, from gradients written out."""
    from exempla.kernel.embed import typical_square
    from exempla.oracles import make_oracle

    begun, model = time.time(), model_of(job, state)
    square = float(typical_square(make_oracle(model).theta_squares) or 1.0)
    whole = Written(model, job, device)
    damping = MULTIPLE * whole.misfit / (whole.n * 0.5 * square)
    influence, _ = whole.influence("all", DRAWS, damping)
    return first_of(influence), f"damping {damping:.4g}, {time.time() - begun:.0f} s"


def ready() -> None:
    """Start a process; it has imported everything by then."""


class Table:
    """default.csv: what is known of every seed and candidate."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.lines: dict[Key, dict[str, Any]] = {}

    def add(self, key: Key, **known: Any) -> None:
        seed, candidate = key
        empty = dict.fromkeys(("precision", "known", "left out", "fall", "about"), "")
        line = {"seed": seed, "part": part_of(seed), "candidate": candidate} | empty
        self.lines[key] = self.lines.get(key, line) | known
        write(self.file, list(self.lines.values()))
        print(*self.lines[key].values(), flush=True)

    def verdict(self) -> None:
        """Print the means that the rule compares."""
        for part in ("report", "older"):
            for candidate in CANDIDATES:
                own = [x for x in self.lines.values()
                       if (x["part"], x["candidate"]) == (part, candidate)]  # fmt: skip
                for name in ("precision", "fall"):
                    found = [float(x[name]) for x in own if x[name]]
                    if found:
                        print(part, candidate, name, f"{np.mean(found):.4f}", len(found), "seeds")


def ask(folder: Path, out: Path, seconds: float, seeds: tuple[int, ...], sketch: int) -> None:
    out.mkdir(parents=True, exist_ok=True)
    start, table = time.time(), Table(out / "default.csv")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    use_plain_attention()
    workers = 15 if device == "cuda" else 2
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"))
    beside = ThreadPoolExecutor(1)  # one at a time: its gradients take 40 GB
    training = {pool.submit(trained, folder, seed, []): seed for seed in seeds}
    for _ in range(workers - len(seeds)):
        pool.submit(ready)
    jobs = {seed: read_job(folder, seed) for seed in seeds}
    known = {seed: again.result() for again, seed in training.items()}
    print(f"trained in {time.time() - start:.0f} s", flush=True)
    waiting: dict[Future[Any], tuple[str, Key]] = {}
    for seed in seeds:
        for name, wanted in (("exact", "exact"), ("1024", 1024), ("8192", sketch)):
            asked = pool.submit(ask_library, folder, seed, known[seed][0], wanted, device)
            waiting[asked] = "asked", (seed, name)
    for seed in seeds:
        asked = beside.submit(ask_chosen, jobs[seed], known[seed][0], device)
        waiting[asked] = "asked", (seed, "chosen")

    def answered(key: Key, found: np.ndarray, about: str) -> None:
        seed, left_out = key[0], np.unique(found)
        share = f"{np.mean(known[seed][1] > np.log(0.5)):.3f}"
        table.add(key, precision=f"{precision(found, jobs[seed]):.4f}", known=share,
                  about=about, **{"left out": len(left_out)})  # fmt: skip
        if seed in REPORT:
            again = pool.submit(trained, folder, seed, left_out.tolist())
            waiting[again] = "retrained", key

    def collect(limit: float) -> None:
        done, _ = wait(waiting, max(limit, 0.0), FIRST_COMPLETED)
        for future in done:
            what, key = waiting.pop(future)
            try:
                result = future.result()
            except Exception as error:  # the other answers are worth having
                print(*key, what, "failed:", repr(error), flush=True)
                continue
            if what == "asked":
                answered(key, *result)
            else:
                fell = np.mean(known[key[0]][1] - result[1])
                table.add(key, fall=f"{fell:.4f}")

    while waiting and time.time() - start < seconds:
        collect(seconds - (time.time() - start))
    print(f"{time.time() - start:.0f} s; not done: {list(waiting.values())}", flush=True)
    table.verdict()
    for process in list((pool._processes or {}).values()) if waiting else []:
        process.terminate()
    pool.shutdown(wait=False, cancel_futures=True)
    beside.shutdown(wait=False, cancel_futures=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=95.0, help="wait for nothing after these")
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--sketch", type=int, default=8192, help="directions; fewer for a trial")
    options = parser.parse_args()
    seeds = tuple(int(seed) for seed in options.seeds.split(","))
    ask(options.folder, options.out, options.seconds, seeds, options.sketch)


if __name__ == "__main__":
    main()
