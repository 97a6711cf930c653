"""Run the experiments of the paper and of this project again: tables, figures and a page each.

They are no part of the installed package: this needs a checkout of exempla's source. There,
`exempla reproduce list` names them and `exempla reproduce --help` lists every option.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace

from exempla.cli.options import any_words, hand_over

HELP = "run the paper's experiments again (needs a checkout of the source)"


def add_arguments(parser: ArgumentParser) -> None:
    """Whatever `python -m experiments` takes."""
    any_words(parser)


def run(options: Namespace) -> int:
    """Hand over to the checkout."""
    return hand_over("experiments", options.arguments[1:], __doc__)
