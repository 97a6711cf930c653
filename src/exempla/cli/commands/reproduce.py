"""Run the experiments of the paper and of this project again: tables, figures and a page each.

NAME is an experiment, several, `all`, or `list`. Each writes DIR/NAME/ with a CSV, a figure (PNG
and SVG) and a page in Markdown. Data sets are read from --data or $EXEMPLA_DATA; an experiment
whose data are not there is skipped, and that is said. --fast runs everything at reduced size.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from exempla.cli.shared.console import Console
from exempla.errors import ExemplaError

HELP = "run the paper's experiments again (needs a checkout of the source)"


@dataclass(frozen=True)
class Experiment:
    """One experiment: what it shows, and the files it reads, below the data folder."""

    what: str
    needs: tuple[str, ...] = ()


MNIST = tuple(
    f"mnist/{name}-ubyte.gz"
    for name in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
)
EXPERIMENTS = {
    "toy": Experiment("nearest and farthest points in RBF space and in Fisher space"),
    "theorem": Experiment("measured convergence against proved and estimated bounds"),
    "influence": Experiment("influence functions as a special case, and leave-one-out refits"),
    "variants": Experiment("objective, time and memory of every greedy variant"),
    "enron": Experiment("flipped spam labels found and fixed", ("enron1/enron1.jsonl.gz",)),
    "label_errors": Experiment(
        "wrong labels in Adult, SST-2 and digits",
        (
            "tabular/adult.data.gz",
            "tabular/adult.test.gz",
            "text/sst2_train.tsv.gz",
            "text/sst2_dev.tsv.gz",
        ),
    ),
    "covtype": Experiment("CovType in 10 to 2000 weighted rows", ("covtype/covtype.npz",)),
    "chemreact": Experiment(
        "ChemReact in 10 to 2000 weighted rows",
        ("chemreact/ds1.10.csv.bz2", "chemreact/ds1.100_subset2674.npz"),
    ),
    "mnist_clean": Experiment("digits removed, network retrained: are mistakes mended?", MNIST),
    "attack": Experiment("two training digits moved: which predictions flip?", MNIST),
}


@dataclass
class Outcome:
    """What became of one experiment."""

    name: str
    status: str = "skipped"
    seconds: float = 0.0
    page: str = ""
    reason: str = ""


def add_arguments(parser: ArgumentParser) -> None:
    """Which, how thorough, where."""
    parser.add_argument(
        "names",
        metavar="NAME",
        nargs="+",
        choices=[*EXPERIMENTS, "all", "list"],
        help=f"all, list, or some of: {', '.join(EXPERIMENTS)}",
    )
    parser.add_argument("--fast", action="store_true", help="reduced size, minutes instead of days")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="folder for the results (default: results, with --fast results-fast)",
    )
    parser.add_argument(
        "--data", metavar="DIR", type=Path, help="folder of the data sets (default: $EXEMPLA_DATA)"
    )
    parser.add_argument("--quiet", action="store_true", help="say nothing but warnings and errors")
    parser.add_argument(
        "--json", action="store_true", help="print the summary as JSON; sentences go to stderr"
    )


def run(options: Namespace) -> int:
    """Run what was asked for; exit code 2 if one failed, or if a named one has no data."""
    console = Console.of(options)
    if "list" in options.names:
        width = max(map(len, EXPERIMENTS))
        for name, experiment in EXPERIMENTS.items():
            console.say(f"{name:{width}}  {experiment.what}")
        console.result({name: asdict(experiment) for name, experiment in EXPERIMENTS.items()})
        return 0
    find_experiments()
    whole = "all" in options.names
    names = list(EXPERIMENTS) if whole else list(dict.fromkeys(options.names))
    data = _data(options)
    lacking = {name: reason for name in names if (reason := missing(name, data))}
    if lacking and not whole:
        raise ExemplaError(f"{next(iter(lacking))} cannot run: {next(iter(lacking.values()))}.")
    out = options.out or Path("results-fast" if options.fast else "results")
    outcomes = []
    for place, name in enumerate(names, start=1):
        console.say(f"[{place}/{len(names)}] {name}: {EXPERIMENTS[name].what}")
        if name in lacking:
            outcomes.append(Outcome(name, reason=lacking[name]))
            console.say(f"  skipped: {lacking[name]}")
            continue
        outcomes.append(_perform(console, name, out / name, options.fast, data))
    _summarise(console, outcomes)
    return 2 if any(outcome.status == "failed" for outcome in outcomes) else 0


def find_experiments() -> Path:
    """The repository's root; refused in one sentence where only the package is installed."""
    from exempla.cli.shared.checkout import find_checkout

    return find_checkout("experiments")


def missing(name: str, data: Path | None) -> str:
    """What this experiment lacks, in words; "" if nothing.

    >>> missing("toy", None), missing("covtype", None)
    ('', 'its data are unknown; name their folder with --data DIR or EXEMPLA_DATA')
    """
    needs = EXPERIMENTS[name].needs
    if not needs:
        return ""
    if data is None:
        return "its data are unknown; name their folder with --data DIR or EXEMPLA_DATA"
    absent = [need for need in needs if not (data / need).exists()]
    return f"{data} lacks {', '.join(absent)}" if absent else ""


def _data(options: Namespace) -> Path | None:
    """The folder of data sets; refused if one was named and is not there."""
    named = options.data or os.environ.get("EXEMPLA_DATA")
    if not named:
        return None
    folder = Path(named)
    if not folder.is_dir():
        raise ExemplaError(f"The data folder {folder} is not there; check --data or EXEMPLA_DATA.")
    return folder


def _perform(console: Console, name: str, out: Path, fast: bool, data: Path | None) -> Outcome:
    """Run one experiment; a failure is told and does not stop the others."""
    started = time.perf_counter()
    outcome = Outcome(name, "done")
    try:
        with _elsewhere(console):
            module = import_module(f"experiments.{name}")
            outcome.page = str(module.run(out, fast, data or Path()))
    except Exception as error:  # whatever an experiment may raise, the next one can still run
        outcome.status = "failed"
        outcome.reason = (
            f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        )
        traceback.print_exc()
    outcome.seconds = time.perf_counter() - started
    console.say(f"  {outcome.status} in {outcome.seconds:.0f} s  {outcome.page or outcome.reason}")
    return outcome


@contextlib.contextmanager
def _elsewhere(console: Console) -> Iterator[None]:
    """What experiments print: nowhere when quiet; away from the JSON when there is some."""
    if console.quiet:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    elif console.as_json:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    else:
        yield


def _summarise(console: Console, outcomes: list[Outcome]) -> None:
    width = max(len(outcome.name) for outcome in outcomes)
    console.say(f"\n{'experiment':{max(width, 10)}}  {'result':8}  {'seconds':>7}  page, or reason")
    for o in outcomes:
        where = o.page or o.reason
        console.say(f"{o.name:{max(width, 10)}}  {o.status:8}  {o.seconds:7.0f}  {where}")
    total = sum(outcome.seconds for outcome in outcomes)
    done = sum(outcome.status == "done" for outcome in outcomes)
    console.say(f"{done} of {len(outcomes)} experiments done in {total / 60:.1f} minutes.")
    console.result({"experiments": [asdict(o) for o in outcomes], "seconds": total})
