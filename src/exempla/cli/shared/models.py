"""`--model package.module:name`: the user's own model. Importing it runs the user's own code."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError

__all__ = ["load_model"]


def load_model(place: str) -> Any:
    """The scikit-learn model at `package.module:name`; a class or a function is called for it.

    Modules of the current folder are found too, as with `python -m`.

    >>> load_model("sklearn.linear_model:LogisticRegression")
    LogisticRegression()
    """
    module_name, mark, name = place.partition(":")
    if not (module_name and mark and name):
        raise ExemplaError(f"--model {place} is not understood; write package.module:name.")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        module = import_module(module_name)
    except ImportError as error:
        raise ExemplaError(
            f"The module {module_name!r} of --model cannot be imported ({error})."
        ) from error
    found = getattr(module, name, None)
    if found is None:
        raise ExemplaError(f"The module {module_name!r} has no {name!r}; check --model {place}.")
    if isinstance(found, type) or not hasattr(found, "fit"):
        found = _call(found, place)
    if not (hasattr(found, "fit") and hasattr(found, "predict")):
        raise ExemplaError(
            f"--model {place} gives {type(found).__name__}, which has no fit and predict; give a "
            "scikit-learn model (for PyTorch use exempla.explain in Python)."
        )
    return found


def _call(made: Any, place: str) -> Any:
    if not callable(made):
        raise ExemplaError(
            f"--model {place} is {type(made).__name__}; give a model, or a function that makes one."
        )
    try:
        return made()
    except TypeError as error:
        raise ExemplaError(
            f"--model {place} cannot be called without arguments ({error}); wrap it in a function "
            "that returns the finished model."
        ) from error
