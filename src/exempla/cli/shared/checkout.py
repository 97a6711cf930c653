"""Code that lives beside the package in a checkout of the source: experiments, benchmarks."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import exempla
from exempla.errors import ExemplaError

__all__ = ["find_checkout"]


def find_checkout(folder: str, candidates: Iterable[Path] | None = None) -> Path:
    """The root of the checkout that holds `folder`, put where Python imports from.

    Looked for above the package itself (an editable install) and in the current folder.

    >>> find_checkout("experiments", [Path("no-such-place")])  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: The folder experiments is part of exempla's source repository, ...
    """
    places = candidates or (Path(exempla.__file__).resolve().parents[2], Path.cwd())
    for root in places:
        # A folder of that name alone proves nothing: the project's own has our package beside it.
        if (root / folder).is_dir() and (root / "src" / "exempla").is_dir():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return root
    raise ExemplaError(
        f"The folder {folder} is part of exempla's source repository, not of the installed "
        "package; run this command inside a checkout of the repository."
    )
