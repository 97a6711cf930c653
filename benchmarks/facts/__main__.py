"""Train, ask every method, and count how many of the first ten lines taught the fact.

With --retrain every method's first ten lines of all facts are left out together and the model is
trained again: how far the facts' log-probability falls is what those lines did, whatever they say.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from benchmarks.facts import methods
from benchmarks.facts.corpus import make_corpus
from benchmarks.facts.model import Decoder, train
from benchmarks.facts.retrain import falls, log_probabilities, references
from benchmarks.facts.texts import Job, make_job
from benchmarks.peers.environments import make_environment
from exempla import Recorder

FIRST = 10
HERE = Path(__file__).parent
PEERS = {
    "kronfluence": {
        "kronfluence, its own damping": "kronfluence-own",
        "kronfluence, its own damping, relative": "kronfluence-own-relative",
        "kronfluence, damping 1e-8": "kronfluence-default",
        "kronfluence, damping 1e-8, relative": "kronfluence-default-relative",
    },
    "traker": {"TRAK": "traker", "TRAK, recorded run": "traker-run"},
}
RETRAINED = {
    "exempla, recorded run", "exempla, influence", "BM25", "gradient cosine",
    "kronfluence, its own damping", "TRAK, recorded run",
}  # fmt: skip
"""A training each: one of every kind, chosen before any fall was seen; TRAK for its precision."""

Ranked = dict[str, tuple[list[np.ndarray], float]]
"""Of each method, the first lines for every fact, best first, and its processor seconds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="a folder for everything made")
    parser.add_argument("--seed", type=int, default=0, help="of the text and of the training")
    parser.add_argument("--peers", type=Path, help="a folder for the peers' environments")
    parser.add_argument("--exact", action="store_true", help="also the exact embedding: minutes")
    parser.add_argument("--only", choices=list(PEERS), help="this peer alone")
    parser.add_argument("--retrain", action="store_true", help="also train without the lines")
    parser.add_argument("--csv", type=Path, help="a table of all seeds to put these lines into")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    job = make_job(make_corpus(seed=options.seed))
    began = time.process_time()
    model, run = trained(options.out, options.seed, job)
    said(f"trained in {time.process_time() - began:.0f} processor seconds")
    known = log_probabilities(model, job.questions)
    share = float(np.mean(known > np.log(0.5)))
    said(f"{share:.0%} of {len(known)} facts are known (p > .5)")
    ranked = once(options.out / f"own-{options.seed}.json", lambda: rankings(job, model, run))
    if options.exact:
        ranked |= once(options.out / f"exact-{options.seed}.json", lambda: exact(job, model))
    if options.peers:
        for peer in [options.only] if options.only else list(PEERS):
            kept = options.out / f"{peer}-{options.seed}.json"
            ranked |= once(kept, lambda peer=peer: answers_of(peer, options, job, model, run))
    table = precisions(ranked, job, options.seed).assign(known=share)
    write(table, options)
    if options.retrain:
        named = {name: order for name, (order, _) in ranked.items() if name in RETRAINED}
        named |= references(job.corpus, FIRST, options.seed)
        kept = options.out / f"falls-{options.seed}.csv"
        found = falls(named, job, known, options.seed, kept, said)
        added = pd.DataFrame(
            [(name, *found[name]) for name in found],
            columns=["method", "left_out", "fall", "still_known"],
        )
        table = table.merge(added, on="method", how="outer").assign(seed=options.seed, known=share)
        write(table, options)


def trained(out: Path, seed: int, job: Job) -> tuple[Decoder, Path]:
    """The model and the folder with moments of its training."""
    path, run = out / f"weights-{seed}.pt", out / f"run-{seed}"
    if path.exists():
        model = Decoder(job.words).eval()
        model.load_state_dict(torch.load(path, weights_only=True))
        return model, run
    model = train(*job.train, job.words, seed, lambda model, by: Recorder(model, run, optimizer=by))
    torch.save(model.state_dict(), path)
    return model, run


def rankings(job: Job, model: Decoder, run: Path) -> Ranked:
    """The answers of what runs in this process."""
    wordings = [f.prompt + f.completion for f in job.corpus.facts]
    out: Ranked = {}
    explainer, fitting = timed(lambda: methods.fitted(model, job.lines))
    said(f"one model fitted in {fitting:.0f} processor seconds")
    whole, following = timed(lambda: methods.fitted_run(model, run, job.lines))
    said(f"the recorded run fitted in {following:.0f} processor seconds")
    ours: dict[str, tuple[float, Callable[[], list[np.ndarray]]]] = {
        "influence": (fitting, lambda: first(explainer.influence(job.asked))),
        "relative": (fitting, lambda: first(explainer.influence(job.asked, relative=True))),
        "SBQ": (fitting, lambda: methods.picked(explainer, job.asked, FIRST)),
        "recorded run": (following, lambda: first(whole.influence(job.asked))),
        "recorded run, relative": (
            following, lambda: first(whole.influence(job.asked, relative=True))
        ),
    }  # fmt: skip
    for way, (before, ask) in ours.items():
        order, seconds = timed(ask)
        out[f"exempla, {way}"] = order, before + seconds
    moments = methods.moments(model, run)
    others: dict[str, Callable[[], np.ndarray]] = {
        "BM25": lambda: methods.bm25(job.corpus.lines, wordings),
        "hidden states": lambda: methods.hidden_states(model, job.lines, job.asked),
        "gradient cosine": lambda: methods.gradient_cosine([model], job, said),
        "gradient cosine, recorded run": lambda: methods.gradient_cosine(moments, job, said),
    }
    for name, ask in others.items():
        scores, seconds = timed(ask)
        out[name] = first(scores), seconds
    return out


def exact(job: Job, model: Decoder) -> Ranked:
    """One model again, with the automatic sketch, which is exact for so few lines."""
    explainer, fitting = timed(lambda: methods.fitted(model, job.lines, "auto"))
    said(f"exactly, in {fitting:.0f} processor seconds")
    out: Ranked = {}
    for way in ("influence", "relative"):
        scores, seconds = timed(
            lambda way=way: explainer.influence(job.asked, relative=way == "relative")
        )
        out[f"exempla, exact, {way}"] = first(scores), fitting + seconds
    return out


def once(path: Path, work: Callable[[], Ranked]) -> Ranked:
    """What was answered before, or is now and kept."""
    if not path.exists():
        answers = {name: ([o.tolist() for o in order], s) for name, (order, s) in work().items()}
        path.write_text(json.dumps(answers))
    found = json.loads(path.read_text())
    return {name: ([np.array(o) for o in order], s) for name, (order, s) in found.items()}


def answers_of(
    peer: str, options: argparse.Namespace, job: Job, model: Decoder, run: Path
) -> Ranked:
    """The answers of a peer in its own environment, by the clock on the wall."""
    states = [moment.state_dict() for moment in methods.moments(model, run)]
    torch.save({"model": model.state_dict(), "moments": states}, options.out / "weights.pt")
    np.savez(
        options.out / "job.npz", train_ids=job.train[0].numpy(), words=job.words,
        train_labels=job.train[1].numpy(), test_ids=job.questions[0].numpy(),
        test_labels=job.questions[1].numpy(),
    )  # fmt: skip
    python = make_environment(peer, options.peers)
    began = time.time()
    subprocess.run([str(python), str(HERE / f"run_{peer}.py"), str(options.out)], check=True)
    seconds = time.time() - began
    said(f"{peer} asked")
    # larger = more helpful, in both
    files = {name: np.load(options.out / f"{file}.npy") for name, file in PEERS[peer].items()}
    return {name: (first(scores), seconds) for name, scores in files.items()}


def first(scores: np.ndarray) -> list[np.ndarray]:
    """For every column, the rows with the largest scores."""
    return [np.argsort(-column, kind="stable")[:FIRST] for column in scores.T]


def precisions(ranked: Ranked, job: Job, seed: int) -> pd.DataFrame:
    """A line for each method: which share of its first lines state the fact."""
    lines = []
    for name, (order, seconds) in ranked.items():
        hits = [np.isin(o, f.stated).sum() / FIRST for o, f in zip(order, job.corpus.facts)]
        error = np.std(hits) / np.sqrt(len(hits))
        lines.append((seed, name, np.mean(hits), error, seconds))
        said(f"{name}: {np.mean(hits):.3f} ± {error:.3f}, {seconds:.0f} s")
    columns = ["seed", "method", "precision", "standard_error", "seconds"]
    return pd.DataFrame(lines, columns=columns)


def write(table: pd.DataFrame, options: argparse.Namespace) -> None:
    """This seed's lines, in its folder and in the table of all seeds in place of earlier ones."""
    table.round(4).to_csv(options.out / f"facts-{options.seed}.csv", index=False)
    if options.csv:
        before = pd.read_csv(options.csv) if options.csv.exists() else table[:0]
        others = before[before.seed != options.seed]
        whole = pd.concat([others, table]) if len(others) else table
        whole = whole.sort_values(["seed", "method"]).round(4)
        whole.to_csv(options.csv, index=False)


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    return work(), time.process_time() - began


def said(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
