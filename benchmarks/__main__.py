"""Measure how fast examples are selected here, beside plain NumPy and scikit-learn.

Everything is measured side by side in one run and on one thread; processor seconds are printed.
With --out also how a run grows with its size, and whole jobs beside other libraries (kronfluence,
TRAK, cleanlab), each in an environment of its own that is made once: a quarter of an hour.
"""

from __future__ import annotations

import contextlib
import io
import sys
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Sequence
from pathlib import Path

from benchmarks import selection, speed
from benchmarks.jobs import page
from benchmarks.peers.environments import ROOT
from exempla.cli.main import exit_code
from exempla.cli.options import Console
from exempla.errors import ExemplaError


def main(words: Sequence[str] | None = None) -> int:
    """`python -m benchmarks`, which is what `exempla bench` runs."""
    parser = ArgumentParser(
        prog="exempla bench", description=__doc__, formatter_class=RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument(
        "--rounds", metavar="N", type=int, default=7, help="repetitions of each (default: 7)"
    )
    parser.add_argument(
        "--out", metavar="DIR", type=Path,
        help="also measure growth and whole jobs beside peers; JSON, tables, bench.html go there",
    )  # fmt: skip
    parser.add_argument(
        "--envs", metavar="DIR", type=Path, default=ROOT / ".peers",
        help="environments of the peers (default: .peers of the checkout)",
    )  # fmt: skip
    parser.add_argument("--quiet", action="store_true", help="print nothing; the exit code tells")
    parser.add_argument("--json", action="store_true", help="print the figures inside JSON")
    options = parser.parse_args(words)
    return exit_code(lambda: run(options), ["bench", *(words or sys.argv[1:])])


def run(options: Namespace) -> int:
    """Measure, and say so in the way that was asked for."""
    if options.rounds < 1:
        raise ExemplaError(f"--rounds {options.rounds} is not usable; give at least 1.")
    console, heard = Console(options), io.StringIO()
    aside = options.quiet or options.json
    with contextlib.redirect_stdout(heard) if aside else contextlib.nullcontext():
        selection.measure(options.rounds, options.quick)
        if options.out is not None:
            speed.measure(options.out, options.rounds, options.quick)
            page.measure(options.out, options.envs, options.rounds, options.quick)
    console.result({"lines": heard.getvalue().splitlines(), "seconds": console.seconds()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
