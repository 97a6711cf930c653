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
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path

from exempla.cli.main import exit_code
from exempla.cli.options import Console
from exempla.errors import ExemplaError
from experiments.catalogue import EXPERIMENTS, missing


def main(words: Sequence[str] | None = None) -> int:
    """`python -m experiments NAME …`, which is what `exempla reproduce` runs."""
    parser = ArgumentParser(
        prog="exempla reproduce",
        description=__doc__,
        formatter_class=RawDescriptionHelpFormatter,
    )
    add_arguments(parser)
    options = parser.parse_args(words)
    return exit_code(lambda: run(options), ["reproduce", *(words or sys.argv[1:])])


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
    console = Console(options)
    if "list" in options.names:
        width = max(map(len, EXPERIMENTS))
        for name, experiment in EXPERIMENTS.items():
            console.say(f"{name:{width}}  {experiment.what}")
        console.result({name: asdict(experiment) for name, experiment in EXPERIMENTS.items()})
        return 0
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
    if console.options.quiet:
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
            yield
    elif console.options.json:
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


if __name__ == "__main__":
    sys.exit(main())
