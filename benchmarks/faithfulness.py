"""Whose influence predicts real retraining? exempla and five peers on the same trained models.

    EXEMPLA_DATA=… python -m benchmarks.faithfulness [--truth digits] [--peers kronfluence,pydvl]

Each peer is installed in a virtual environment of its own (under --envs) and run in a process of
its own with one thread. LDS is reported on subsets 50–99 throughout: with the library's default
damping, and with the best of seven values on subsets 0–49. exempla chooses its damping by itself,
from the training data, without any truth. Seconds and memory are those of the whole process that
answers once with the default damping, importing the library included.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tokenize
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.peers.environments import PEERS, ROOT, make_environment
from benchmarks.peers.truths import REPORT, Truth, digits_truth, mnist_truth

METHODS = {
    "exempla": ("automatic",),
    "kronfluence": ("EK-FAC",),
    "pydvl": ("K-FAC", "EK-FAC"),
    "captum": ("Arnoldi", "TracInCP"),
    "traker": ("TRAK, half precision", "TRAK"),
    "dattri": ("EK-FAC", "Arnoldi", "TRAK"),
}
SWEPT = {"K-FAC", "EK-FAC", "Arnoldi", "TRAK"}
TOGETHER = {("exempla", "automatic"), ("kronfluence", "EK-FAC"), ("traker", "TRAK")}
"""Also run with all models: ours, the strongest peer, and the one made for ensembles."""
SCRIPTS = Path(__file__).parent / "peers"
HEADER = (
    "| library | method | LDS, default damping | LDS, best of 7 (damping) "
    "| all models, default / best | CPU s (of it the job) | peak MB | lines |\n" + "|---" * 8 + "|"
)


@dataclass(frozen=True)
class Answer:
    """What one run of a peer's script left behind."""

    dampings: np.ndarray
    matrices: np.ndarray
    cpu_seconds: float
    job_seconds: float
    peak_mb: float


def user_lines(script: Path) -> int:
    """Lines a user must write: code between the two marks, without comments and blank lines."""
    text = script.read_text()
    first = text[: text.index("# user code")].count("\n") + 1
    last = text[: text.index("# end of user code")].count("\n") + 1
    aside = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    lines: set[int] = set()
    with script.open("rb") as stream:
        for token in tokenize.tokenize(stream.readline):
            if token.type not in aside:
                lines.update(range(token.start[0], token.end[0] + 1))
    only_for_the_sweep = {n for n, line in enumerate(text.splitlines(), 1) if "# sweep" in line}
    return len({n for n in lines if first < n < last} - only_for_the_sweep)


def run_script(python: Path, library: str, job: Path, out: Path, options: list[str]) -> Answer:
    """Run a peer's script once; an answer already in `out` is taken as it is."""
    report = out.with_suffix(".json")
    if not report.exists():
        script = SCRIPTS / f"run_{library}.py"
        threads = {f"{name}_NUM_THREADS": "1" for name in ("OMP", "MKL", "OPENBLAS")}
        command = [str(python), str(script), str(job), str(out), *options]
        done = subprocess.run(command, env=os.environ | threads, capture_output=True, text=True)
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            raise RuntimeError(lines[-1] if lines else f"exit status {done.returncode}")
    with np.load(out, allow_pickle=False) as saved:
        return Answer(saved["dampings"], saved["matrices"], **json.loads(report.read_text()))


def row(truth: Truth, python: Path, library: str, method: str, job: Path, out: Path) -> str:
    """One line of the table: a sweep, a measured run with the default, and all models."""

    def run(name: str, *options: str) -> Answer:
        file = out / f"{truth.name}-{library}-{method.replace(' ', '_')}-{name}.npz"
        return run_script(python, library, job, file, ["--method", method, *options])

    def lds(matrix: np.ndarray) -> float:
        return truth.lds(matrix, REPORT)

    best, chosen, both = "–", "default", ["default"]
    if library in PEERS and method in SWEPT:
        sweep = run("sweep", "--dampings", "sweep")
        index = truth.best(sweep.matrices)
        chosen, best = f"{sweep.dampings[index]:g}", f"{lds(sweep.matrices[index]):.3f}"
        both = ["default", chosen]
    once = run("default")
    together = "–"
    if (library, method) in TOGETHER:
        many = run("many", "--models", str(truth.models), "--dampings", *both)
        together = " / ".join(f"{lds(matrix):.3f}" for matrix in many.matrices)
    cells = (
        library,
        method,
        f"{lds(once.matrices[0]):.3f}",
        f"{best} ({chosen})" if best != "–" else best,
        together,
        f"{once.cpu_seconds:.1f} ({once.job_seconds:.1f})",
        f"{once.peak_mb:.0f}",
        str(user_lines(SCRIPTS / f"run_{library}.py")),
    )
    return "| " + " | ".join(cells) + " |"


def table(truth: Truth, libraries: list[str], envs: Path, out: Path) -> None:
    """Print the table, line by line as it is measured."""
    out.mkdir(parents=True, exist_ok=True)
    job = out / f"{truth.name}-job.npz"
    np.savez(job, network=truth.name, **truth.job)  # pyright: ignore[reportArgumentType]
    print(f"\n{truth.name}: LDS on subsets 50–99; “all” = {truth.models} models\n\n{HEADER}")
    for library in libraries:
        for method in METHODS[library]:
            try:
                inside = library in PEERS
                python = make_environment(library, envs) if inside else Path(sys.executable)
                line = row(truth, python, library, method, job, out)
            except RuntimeError as problem:
                line = f"| {library} | {method} | does not run: {problem} |" + " |" * 5
            print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--truth", choices=("digits", "mnist"), default="digits")
    parser.add_argument("--truth-file", type=Path, help="mnist_truth.npz of benchmarks.mnist_truth")
    parser.add_argument("--peers", default=",".join(PEERS), help="libraries beside exempla")
    parser.add_argument("--envs", type=Path, default=ROOT / ".peers", help="environments go here")
    parser.add_argument("--out", type=Path, default=ROOT / ".peers" / "answers")
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
    table(truth, ["exempla", *peers], options.envs, options.out)


if __name__ == "__main__":
    main()
