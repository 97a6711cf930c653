"""Errors a user can mend: each message names the cause and the remedy in one sentence."""

from __future__ import annotations

__all__ = ["ExemplaError", "ExemplaWarning", "UnfittedModelError", "UnsupportedModelError"]


class ExemplaError(ValueError):
    """Base of every error raised on a user's mistake.

    >>> import exempla
    >>> try:
    ...     exempla.select([[1.0, 0.0]], [1.0, 0.0], k=0)
    ... except exempla.ExemplaError as error:
    ...     print(type(error).__name__)
    ExemplaError
    """


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
