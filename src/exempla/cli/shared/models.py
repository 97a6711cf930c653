"""`--model package.module:name`: the user's own model. Importing it runs the user's own code."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError

__all__ = ["blaming", "load_model"]


def load_model(place: str) -> Any:
    """The scikit-learn model at `package.module:name`; a class or a function is called for it.

    >>> load_model("sklearn.linear_model:LogisticRegression")
    LogisticRegression()
    """
    module_name, _, name = place.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise ExemplaError(f"--model {place} is not understood; write package.module:name.")
    with _importable(module_name.partition(".")[0]):
        with blaming(f"The module {module_name!r} of --model cannot be imported"):
            found = getattr(import_module(module_name), name, None)
        if found is None:
            raise ExemplaError(f"{module_name!r} has no {name!r}; check --model {place}.")
        if isinstance(found, type) or not hasattr(found, "fit"):
            found = _call(found, place)
    if not (hasattr(found, "fit") and hasattr(found, "predict")):
        raise ExemplaError(
            f"--model {place} gives {type(found).__name__}, which has no fit and predict; give a "
            "scikit-learn model (for PyTorch use exempla.explain in Python)."
        )
    return found


@contextmanager
def _importable(package: str) -> Iterator[None]:
    """What is not installed is looked for in the current folder: after everything else, and only
    while the model is made. No file there can pass for a library."""
    if package in sys.modules or find_spec(package) is not None:
        yield
        return
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _call(made: Any, place: str) -> Any:
    if not callable(made):
        raise ExemplaError(
            f"--model {place} is {type(made).__name__}; give a model, or a function that makes one."
        )
    with blaming(f"--model {place} makes no model when it is called without arguments"):
        return made()


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Whatever the user's own code raises is one sentence of ours, which begins so.

    >>> with blaming("Your function fails"):
    ...     1 / 0
    Traceback (most recent call last):
    ...
    exempla.errors.ExemplaError: Your function fails (ZeroDivisionError: division by zero).
    """
    try:
        yield
    except ExemplaError:
        raise
    except (Exception, SystemExit) as error:
        said = str(error).strip().split("\n")[0].rstrip(".")
        kind = type(error).__name__
        raise ExemplaError(f"{what} ({kind}: {said})." if said else f"{what} ({kind}).") from error
