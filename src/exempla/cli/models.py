"""The user's own model: `--model package.module:name`. Importing it runs the user's code."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from exempla.errors import ExemplaError
from exempla.tables.features import with_tree_columns
from exempla.tables.infer import Column

_TREE_LIBRARIES = ("lightgbm", "xgboost", "catboost")
"""Libraries of the extra [trees]."""
_QUIET: dict[str, dict[str, Any]] = {
    "lightgbm": {"verbosity": -1},
    "catboost": {"verbose": 0, "allow_writing_files": False},
}
"""Parameters that silence a library during many fits, unless the user set them."""


def load_model(place: str) -> Any:
    """Return the scikit-learn model at `package.module:name`; call a class or function to get it.

    >>> load_model("sklearn.linear_model:LogisticRegression")
    LogisticRegression()
    """
    found = named_object(place, is_ready=lambda named: hasattr(named, "fit"))
    if not (hasattr(found, "fit") and hasattr(found, "predict")):
        raise ExemplaError(
            f"--model {place} gives {type(found).__name__}, which has no fit and predict; give a "
            "scikit-learn model (for PyTorch use exempla.explain in Python)."
        )
    return found


def named_object(place: str, is_ready: Callable[[Any], bool]) -> Any:
    """Return what `package.module:name` names; classes and what is not ready are called."""
    module_name, _, name = place.partition(":")
    if not all(part.isidentifier() for part in (*module_name.split("."), name)):
        raise ExemplaError(f"--model {place} is not understood; write package.module:name.")
    package = module_name.partition(".")[0]
    if package in _TREE_LIBRARIES and package not in sys.modules and find_spec(package) is None:
        raise ExemplaError(
            f"--model {place} needs {package}, which is not installed: "
            "pip install 'exempla[trees]'."
        )
    with _importable(package):
        with blaming(f"The module {module_name!r} of --model cannot be imported"):
            found = getattr(import_module(module_name), name, None)
        if found is None:
            raise ExemplaError(f"{module_name!r} has no {name!r}; check --model {place}.")
        if is_ready(found) and not isinstance(found, type):
            return found
        if not callable(found):
            raise ExemplaError(
                f"--model {place} is {type(found).__name__}; give a model, or a function that "
                "returns one."
            )
        with blaming(f"--model {place} does not return a model when called without arguments"):
            return found()


def prepared(model: Any, columns: Collection[Column]) -> Any:
    """Put a bare tree model behind a preparation of the file's columns; return others unchanged."""
    from exempla.oracles.sklearn.unwrap import is_trees

    if hasattr(model, "steps") or not is_trees(model):
        return model
    if type(model).__name__ == "XGBClassifier":
        from exempla.oracles.trees.xgboost_labels import AnyLabelXGBClassifier

        model = AnyLabelXGBClassifier(**model.get_params())
    library = type(model).__module__.partition(".")[0]
    given = model.get_params()
    model.set_params(**{k: v for k, v in _QUIET.get(library, {}).items() if k not in given})
    return with_tree_columns(model, columns)


@contextmanager
def _importable(package: str) -> Iterator[None]:
    """Look for a package that is not installed in the current folder, after everything else.

    No file there can take the place of an installed library.
    """
    if package in sys.modules or find_spec(package) is not None:
        yield
        return
    here = str(Path.cwd())
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


@contextmanager
def blaming(what: str) -> Iterator[None]:
    """Turn whatever the user's code raises into one sentence that begins with `what`.

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
        text = str(error).strip().split("\n")[0].rstrip(".")
        kind = type(error).__name__
        raise ExemplaError(f"{what} ({kind}: {text})." if text else f"{what} ({kind}).") from error
