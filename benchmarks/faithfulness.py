"""Whose influence predicts real retraining? exempla and five peers on the same trained models.

    EXEMPLA_DATA=… python -m benchmarks.faithfulness [--truth digits] [--peers kronfluence,pydvl]
                   [--checkpoints] [--out docs/experiments/peers_digits.csv]

Each peer is installed in a virtual environment of its own (under --envs) and run in a process of
its own with one thread. LDS is reported on subsets 50–99 throughout: with the library's default
damping, with its own choice from data where it has one, and with the best of seven values on
subsets 0–49. exempla chooses its damping by itself, from the training data, without any truth.
`--checkpoints` asks about eight moments of one training, too. Seconds and memory are those of the
whole process that answers once with the default damping, importing the library included.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import exempla
from benchmarks.peers.answers import OURS, Asked, Kept, Question, add_options, answer_all
from benchmarks.peers.environments import PEERS
from benchmarks.peers.intervals import interval
from benchmarks.peers.scripts import SCRIPTS, user_lines
from benchmarks.peers.truths import CHOOSE, REPORT, Truth, digits_truth, mnist_truth

METHODS = {
    "exempla": ("automatic",),
    "kronfluence": ("EK-FAC",),
    "pydvl": ("K-FAC", "EK-FAC"),
    "captum": ("Arnoldi", "Arnoldi, rank 300", "TracInCP"),
    "traker": ("TRAK, half precision", "TRAK", "TRAK, 512 dimensions"),
    "dattri": ("EK-FAC", "Arnoldi", "TRAK"),
}
UNSWEPT = {"automatic", "TracInCP", "TRAK, half precision"}
TOGETHER = {"automatic", "TRAK", "TRAK, 512 dimensions"}
"""Methods also run with all models, and kronfluence's: ours, the strongest peer, and the one made
for ensembles. The same, and TracInCP, are also given the moments of one training."""
MOMENTS = 8
COLUMNS = (
    "truth", "library", "method", "models", "damping", "value", "LDS", "low", "high",
    "CPU s", "of it the job", "peak MB", "lines", "measured on",
)  # fmt: skip


def asked_of(library: str, method: str, models: int, checkpoints: bool) -> Iterator[Asked]:
    """The runs behind one method's lines: once as it comes, then the rest."""
    yield Asked(library, method)
    rest = ("none",) if library == "kronfluence" else ()
    if library in PEERS and method not in UNSWEPT:
        rest += ("sweep",)
    if rest:
        yield Asked(library, method, "one", rest)
    together = (library in ("kronfluence", "traker", OURS)) and (
        method in TOGETHER or library == "kronfluence"
    )
    if together:
        yield Asked(library, method, str(models), ("default", *rest))
    if checkpoints and (together or method == "TracInCP"):
        own = "recorded run" if library == OURS else method
        yield Asked(library, own, "run", ("default", *rest))


def with_run(truth: Truth) -> dict[str, np.ndarray]:
    """The job, and eight moments of a training by the recipe the truth was made with."""
    from benchmarks.beyond_ggn import EPOCHS, Job, training_run

    job = Job(truth)
    epochs = EPOCHS[truth.name]
    wanted = [round(epochs * part / MOMENTS) for part in range(1, MOMENTS + 1)]
    found = dict(truth.job)
    for epoch, model in training_run(job, seed=0):
        if epoch in wanted:
            state = model.state_dict().items()
            found |= {f"run/{wanted.index(epoch)}/{name}": w.numpy() for name, w in state}
    return found


def question_of(truth: Truth, checkpoints: bool) -> Question:
    given = with_run(truth) if checkpoints else truth.job
    job = given | {"network": np.array(truth.name)}
    mask = exempla.metrics.subset_mask(truth.subsets, len(truth.job["y"]))
    return Question(truth.name, lambda: job, {"half": mask})


def lines(
    truth: Truth, library: str, method: str, options: argparse.Namespace
) -> Iterator[dict[str, str]]:
    """One line for each set of models and damping."""
    code = user_lines(SCRIPTS / f"run_{library}.py")
    for asked in asked_of(library, method, truth.models, options.checkpoints):
        file = options.answers / f"{truth.name}-{asked.name}.npz"
        if not file.exists():
            continue
        kept = Kept.load(file)
        found = kept.ranks["half"]
        fixed = [name for name in asked.dampings if name != "sweep"]
        chosen = dict(zip(fixed, range(len(fixed)), strict=True))
        if "sweep" in asked.dampings:
            scores = [lds(truth, line, CHOOSE) for line in found[len(fixed) :]]
            chosen["best of 7"] = len(fixed) + int(np.argmax(scores))
        measured = asked == Asked(library, method) and "cores" in kept.machine
        for name, at in chosen.items():
            low, high = interval(found[at][REPORT], truth.outcomes[REPORT])
            figures = lds(truth, found[at], REPORT), low, high
            cells = (
                truth.name, library, method, asked.models, "automatic" if library == OURS else name,
                "" if library == OURS or name == "none" else f"{kept.dampings[at]:g}",
                *(f"{value:.3f}" for value in figures),
                f"{kept.cpu_seconds:.1f}" if measured else "",
                f"{kept.job_seconds:.1f}" if measured else "",
                f"{kept.peak_mb:.0f}" if measured else "", str(code) if measured else "",
                kept.machine,
            )  # fmt: skip
            yield dict(zip(COLUMNS, cells, strict=True))


def lds(truth: Truth, ranks: np.ndarray, part: slice) -> float:
    """Of ranks of what was predicted; ranks all alike, of what was no number, score 0."""
    ranks, outcomes = ranks[part], truth.outcomes[part]
    return exempla.metrics.lds(ranks, np.eye(len(ranks)), outcomes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", choices=("digits", "mnist"), default="digits")
    parser.add_argument("--truth-file", type=Path, help="mnist_truth.npz of benchmarks.mnist_truth")
    parser.add_argument("--peers", default=",".join(PEERS), help="libraries beside exempla")
    parser.add_argument("--checkpoints", action="store_true", help="eight moments of a run, too")
    parser.add_argument("--without", default="", help="methods left out, separated by ;")
    parser.add_argument("--out", type=Path, help="docs/experiments/peers_TRUTH.csv")
    add_options(parser)
    options = parser.parse_args()
    if "EXEMPLA_DATA" not in os.environ:
        sys.exit("benchmarks.faithfulness needs EXEMPLA_DATA, the folder with the data sets.")
    data = Path(os.environ["EXEMPLA_DATA"])
    if options.truth == "digits":
        truth = digits_truth(data / "lds_digits")
    else:
        file = options.truth_file or data / "mnist_truth.npz"
        truth = mnist_truth(data / "mnist", file)
    peers = [peer for peer in options.peers.split(",") if peer]
    if unknown := sorted(set(peers) - set(PEERS)):
        sys.exit(f"unknown peer {unknown[0]}; known are {', '.join(PEERS)}.")
    without = options.without.split(";")
    methods = [(lib, m) for lib in (OURS, *peers) for m in METHODS[lib] if m not in without]
    question = question_of(truth, options.checkpoints)
    jobs = [
        (question, asked)
        for library, method in methods
        for asked in asked_of(library, method, truth.models, options.checkpoints)
    ]
    jobs.sort(key=lambda job: job[1].models == "one")  # the long ones first
    answer_all(jobs, options)
    if options.answers_only:
        return
    made = [line for library, method in methods for line in lines(truth, library, method, options)]
    out = options.out or Path(f"docs/experiments/peers_{truth.name}.csv")
    with out.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, COLUMNS)
        writer.writeheader()
        writer.writerows(made)


if __name__ == "__main__":
    main()
