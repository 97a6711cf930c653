"""Measure how fast examples are selected here, beside plain NumPy and scikit-learn.

Everything is measured side by side in one run and on one thread; processor seconds are printed.
"""

from __future__ import annotations

import subprocess
import sys
from argparse import ArgumentParser, Namespace

from exempla.cli.shared.console import Console

HELP = "measure the speed of selection (needs a checkout of the source)"


def add_arguments(parser: ArgumentParser) -> None:
    """How thorough."""
    parser.add_argument("--quick", action="store_true", help="small sizes, to see that it runs")
    parser.add_argument(
        "--rounds", metavar="N", type=int, default=7, help="repetitions of each (default: 7)"
    )
    parser.add_argument("--quiet", action="store_true", help="print nothing; the exit code tells")
    parser.add_argument("--json", action="store_true", help="print the figures inside JSON")


def run(options: Namespace) -> int:
    """Run the benchmark in a process of its own, so that nothing else shares its threads."""
    from exempla.cli.shared.checkout import find_checkout
    from exempla.errors import ExemplaError

    root = find_checkout("benchmarks")
    if options.rounds < 1:
        raise ExemplaError(f"--rounds {options.rounds} is not usable; give at least 1.")
    console = Console.of(options)
    command = [sys.executable, "-m", "benchmarks.selection", "--rounds", str(options.rounds)]
    command += ["--quick"] if options.quick else []
    lines: list[str] = []
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout or ():
            lines.append(line.rstrip())
            console.say(lines[-1])
    console.result({"command": command[1:], "lines": lines, "seconds": console.seconds()})
    return 2 if process.returncode else 0
