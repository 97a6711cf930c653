"""`--model package.module:name`: the user's own model. Importing it runs the user's own code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError
from exempla.oracles.trees import is_trees
from exempla.tables.columns.infer import Column
from exempla.tables.tree_columns import with_tree_columns

__all__ = ["blaming", "load_model", "named_object", "prepared"]

TREES = ("lightgbm", "xgboost", "catboost")
"""Libraries of the extra [trees]."""
QUIET: dict[str, dict[str, Any]] = {
    "lightgbm": {"verbosity": -1},
    "catboost": {"verbose": 0, "allow_writing_files": False},
}
"""What keeps a library from talking at every one of many trainings, unless the user set it."""


def load_model(place: str) -> Any:
    """The scikit-learn model at `package.module:name`; a class or a function is called for it.

    >>> load_model("sklearn.linear_model:LogisticRegression")
    LogisticRegression()
    """
    found = named_object(place, made=lambda named: hasattr(named, "fit"))
    if not (hasattr(found, "fit") and hasattr(found, "predict")):
        raise ExemplaError(
            f"--model {place} gives {type(found).__name__}, which has no fit and predict; give a "
            "scikit-learn model (for PyTorch use exempla.explain in Python)."
        )
    return found


def named_object(place: str, made: Callable[[Any], bool]) -> Any:
    """What `package.module:name` names; what is not `made` yet, and any class, is called for it."""
    module_name, _, name = place.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise ExemplaError(f"--model {place} is not understood; write package.module:name.")
    package = module_name.partition(".")[0]
    if package in TREES and package not in sys.modules and find_spec(package) is None:
        raise ExemplaError(
            f"--model {place} needs {package}, which is not installed: "
            "pip install 'exempla[trees]'."
        )
    with _importable(package):
        with blaming(f"The module {module_name!r} of --model cannot be imported"):
            found = getattr(import_module(module_name), name, None)
        if found is None:
            raise ExemplaError(f"{module_name!r} has no {name!r}; check --model {place}.")
        return found if made(found) and not isinstance(found, type) else _call(found, place)


def prepared(model: Any, columns: Collection[Column]) -> Any:
    """The user's model ready for a file's columns and labels, which bare trees are not; anything
    else is taken as it is."""
    if hasattr(model, "steps") or not is_trees(model):
        return model
    if type(model).__name__ == "XGBClassifier":
        from exempla.oracles.trees.any_labels import AnyLabelXGBClassifier

        model = AnyLabelXGBClassifier(**model.get_params())
    library = type(model).__module__.partition(".")[0]
    given = model.get_params()
    model.set_params(**{k: v for k, v in QUIET.get(library, {}).items() if k not in given})
    return with_tree_columns(model, columns)


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
