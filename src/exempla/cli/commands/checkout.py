"""Run the benchmarks (`exempla bench`) or the experiments (`exempla reproduce`) of a checkout.

Benchmarks measure speed, with --out also whole jobs beside other libraries. Experiments produce the
tables and figures of the paper and of this project. This needs a checkout of exempla's source:
neither is part of the installed package. There, --help lists every option, and `exempla reproduce
list` names the experiments.
"""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path

import exempla
from exempla.errors import ExemplaError

_FOLDERS = {"bench": "benchmarks", "reproduce": "experiments"}


def add_arguments(parser: ArgumentParser) -> None:
    """Accept all words, including options, to pass them on."""
    parser.add_argument("words", nargs="*", metavar="…", help="see above")
    parser.prefix_chars = ""  # nothing begins an option


def run(options: Namespace) -> int:
    """Run `python -m benchmarks` or `python -m experiments` of the checkout."""
    folder, words = _FOLDERS[options.command], options.arguments[1:]
    try:
        root = find_checkout(folder)
    except ExemplaError:
        if not {"-h", "--help"} & set(words):
            raise
        print(__doc__)
        return 0
    # In a separate process, so that measurements share no threads. With -P, a folder of the same
    # name in the current folder is not imported by mistake.
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", folder, *words]
    try:
        return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode
    except KeyboardInterrupt:
        return 130  # the other process has printed a message


def find_checkout(folder: str, candidates: Sequence[Path] = ()) -> Path:
    """Return the root of the checkout that contains `folder`.

    Searches above the package (for an editable install) and in the current folder.

    >>> find_checkout("experiments", [Path("no-such-place")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: The folder experiments is part of exempla's source repository, ...
    """
    for root in candidates or (Path(exempla.__file__).resolve().parents[2], Path.cwd()):
        # The checkout also contains the package; a folder of that name alone proves nothing.
        if (root / folder).is_dir() and (root / "src" / "exempla").is_dir():
            return root
    raise ExemplaError(
        f"The folder {folder} is part of exempla's source repository, not of the installed "
        "package; run this command inside a checkout of the repository."
    )
