"""Code that lives beside the package in a checkout of the source: experiments, benchmarks."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import exempla
from exempla.errors import ExemplaError

__all__ = ["any_words", "find_checkout", "hand_over"]


def any_words(parser: ArgumentParser) -> None:
    """Let the command take every word, options included: they are understood elsewhere."""
    parser.add_argument("words", nargs="*", metavar="…", help="see above")
    parser.prefix_chars = ""  # nothing begins an option


def hand_over(folder: str, words: Sequence[str], about: str | None) -> int:
    """Run `python -m folder` of the checkout with these words, where the user stands."""
    try:
        root = find_checkout(folder)
    except ExemplaError:
        if not {"-h", "--help"} & set(words):
            raise
        print(about)
        return 0
    # A process of its own: measurements share their threads with nobody. -P: a folder of the same
    # name where the user stands is not taken for ours.
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", folder, *words]
    try:
        return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode
    except KeyboardInterrupt:
        return 130  # the other process has said so


def find_checkout(folder: str, candidates: Sequence[Path] = ()) -> Path:
    """The root of the checkout that holds `folder`.

    Looked for above the package itself (an editable install) and in the current folder.

    >>> find_checkout("experiments", [Path("no-such-place")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: The folder experiments is part of exempla's source repository, ...
    """
    for root in candidates or (Path(exempla.__file__).resolve().parents[2], Path.cwd()):
        # A folder of that name alone proves nothing: the project's own has our package beside it.
        if (root / folder).is_dir() and (root / "src" / "exempla").is_dir():
            return root
    raise ExemplaError(
        f"The folder {folder} is part of exempla's source repository, not of the installed "
        "package; run this command inside a checkout of the repository."
    )
