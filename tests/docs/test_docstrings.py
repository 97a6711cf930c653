"""Every example in a docstring runs; every public function and class has a docstring."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil
import warnings
from importlib.util import find_spec

import pytest

import exempla

NEEDS = {"torch": "torch", "hf": "transformers", "ray": "ray", "distributed": "ray"}
"""Part of a module's name → what it needs."""
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE | doctest.IGNORE_EXCEPTION_DETAIL


def modules() -> list[str]:
    names = [m.name for m in pkgutil.walk_packages(exempla.__path__, "exempla.")]
    return ["exempla", *(name for name in names if not name.endswith("__main__"))]


def load(name: str):
    for part, package in NEEDS.items():
        if part in name.replace(".", "_").split("_") and find_spec(package) is None:
            pytest.skip(f"{name} needs {package}")
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("exempla"):
            raise
        pytest.skip(f"{name} needs {error.name}")


@pytest.mark.parametrize("name", modules())
def test_examples_run(name, tmp_path, monkeypatch):
    module = load(name)
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = doctest.testmod(module, optionflags=FLAGS)
    assert result.failed == 0


@pytest.mark.parametrize("name", modules())
def test_public_names_are_documented(name):
    module = load(name)
    assert (module.__doc__ or "").strip(), f"{name} has no docstring"
    for public in getattr(module, "__all__", []):
        thing = getattr(module, public)
        own = getattr(thing, "__module__", "").startswith("exempla")
        if own and (inspect.isfunction(thing) or inspect.isclass(thing)):
            assert (thing.__doc__ or "").strip(), f"{name}.{public} has no docstring"


def examples_of(thing: object) -> list[doctest.Example]:
    return [e for test in doctest.DocTestFinder().find(thing, "x") for e in test.examples]


@pytest.mark.parametrize("name", [n for n in exempla.__all__ if n != "__version__"])
def test_contract_names_have_examples(name):
    """What a newcomer imports from `exempla` shows how it is used."""
    thing = getattr(exempla, name)
    assert examples_of(thing), f"exempla.{name} has no example"


def test_help_of_explain_documents_every_argument():
    import inspect
    import re

    import exempla

    said = inspect.getdoc(exempla.explain) or ""
    for name, given in inspect.signature(exempla.explain).parameters.items():
        head = r"\*\*options" if given.kind is given.VAR_KEYWORD else f"{name} : .+"
        assert re.search(rf"^{head}\n    \S", said, re.MULTILINE), name
