"""What a report says beside the explanation: where the data came from and how to repeat it."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from exempla.version import __version__

__all__ = ["About", "versions"]

SHOWN = ("numpy", "scipy", "scikit-learn", "pandas", "torch")


@dataclass(frozen=True)
class About:
    """The circumstances of one explanation, in words.

    Attributes
    ----------
    question, answer : str
        Sentences that replace the standard ones.
    data, model : str
        What was learned from, and what learned.
    accuracy : str
        How good the model is on rows it has not seen, in a few words; "" if nobody measured it.
    command : str
        What to type to get the same result again.
    notes : tuple of str
        What the reader should know: how many errors there were, which rows were left out.
    warnings : tuple of str
        What speaks against trusting the answer.
    steps : tuple of (why, command)
        What to do next: a sentence, and what to type for it ("" where there is nothing to type).
    noun : str
        What the questioned predictions are, in the plural ("errors", "predictions").

    >>> About(data="digits", noun="errors").data
    'digits'
    """

    question: str = ""
    answer: str = ""
    data: str = ""
    model: str = ""
    accuracy: str = ""
    command: str = ""
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    steps: tuple[tuple[str, str], ...] = ()
    noun: str = "predictions"


def versions() -> list[tuple[str, str]]:
    """Python and the libraries that can change a result, with their versions.

    >>> versions()[0][0]
    'Python'
    """
    found = [("Python", platform.python_version()), ("exempla", __version__)]
    for name in SHOWN:
        try:
            found.append((name, version(name)))
        except PackageNotFoundError:
            continue
    return found
