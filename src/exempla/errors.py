"""Errors a user can mend: each message names the cause and the remedy in one sentence."""

from __future__ import annotations

import re

__all__ = ["ExemplaError", "ExemplaWarning", "UnfittedModelError", "UnsupportedModelError"]

_LONGEST = 2000
"""Characters of a message: a value shown in it may be of any size."""


class ExemplaError(ValueError):
    """Base of every error raised on a user's mistake.

    >>> import exempla
    >>> try:
    ...     exempla.select([[1.0, 0.0]], [1.0, 0.0], k=0)
    ... except exempla.ExemplaError as error:
    ...     print(type(error).__name__)
    ExemplaError
    """

    def __str__(self) -> str:
        """One line, however many the values named in it have, and not a page long."""
        said = re.sub(r"\s*\n\s*", " ", super().__str__().strip())
        return (
            said if len(said) <= _LONGEST else f"{said[: _LONGEST // 2]} … {said[-_LONGEST // 4 :]}"
        )


class UnsupportedModelError(ExemplaError):
    """The model has no oracle: the message says which models do."""


class UnfittedModelError(ExemplaError):
    """The model has not been fitted, so it has no score."""


class ExemplaWarning(UserWarning):
    """Something the caller asked for was done differently, or not in full.

    >>> import warnings, numpy as np, exempla
    >>> with warnings.catch_warnings(record=True) as caught:
    ...     warnings.simplefilter("always")
    ...     found = exempla.select(np.eye(2), np.array([1.0, -1.0]), 2, side="proponents")
    >>> len(found), caught[0].category.__name__
    (1, 'ExemplaWarning')
    """
