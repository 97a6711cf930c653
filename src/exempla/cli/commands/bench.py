"""Measure how fast examples are selected here, beside plain NumPy and scikit-learn; with --out also
whole jobs beside other libraries, as a page with plots.

The benchmarks are no part of the installed package: this needs a checkout of exempla's source.
There, `exempla bench --help` lists every option.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from exempla.cli.options import any_words, hand_over

HELP = "measure speed, beside other libraries too (needs a checkout of the source)"


def add_arguments(parser: ArgumentParser) -> None:
    """Whatever `python -m benchmarks` takes."""
    any_words(parser)


def run(options: Namespace) -> int:
    """Hand over to the checkout."""
    return hand_over("benchmarks", options.arguments[1:], __doc__)
