"""What pyproject.toml requires: floors below the tested versions, each used, none forgotten."""

import ast
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.version import Version

from tests.lowest import CORE, ROOT, floors, groups, pins

BROUGHT_ALONG = {"pydantic", "starlette", "triton"}
"""Parts of FastAPI's own interface, of the versions it asks for; Triton comes with torch where
there is a GPU to use it on."""


def test_every_direct_dependency_is_pinned_at_a_version_that_is_allowed():
    tested = pins()
    for requirements in groups().values():
        for name, floor in floors(requirements).items():
            assert floor, f"{name} has no floor"
            assert name in tested, f"constraints.txt does not pin {name}"
            assert Version(floor) <= Version(tested[name]), name


def test_floors_are_above_what_could_run_code_from_files():
    every = {}
    for requirements in groups().values():
        every |= floors(requirements)
    assert Version(every["torch"]) >= Version("2.10")  # weights_only
    assert Version(every["jinja2"]) >= Version("3.1.6")  # the sandbox


def imported() -> set[str]:
    """Top-level names of everything the package imports, anywhere in its files."""
    found = set()
    for path in (ROOT / "src" / "exempla").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                found.add(node.module.split(".")[0])
    return found - sys.stdlib_module_names - {"exempla"}


def test_what_is_imported_is_required_and_the_core_is_imported():
    owners = packages_distributions()
    used = {name.lower() for module in imported() for name in owners.get(module, [module])}
    required = {name for requirements in groups().values() for name in floors(requirements)}
    missing = used - required - BROUGHT_ALONG
    assert not missing, f"imported and not required: {missing}"
    core = set(floors(groups()[CORE]))
    assert core <= used, f"required and never imported: {core - used}"


def test_a_requirement_of_another_form_is_refused():
    assert floors(["a>=1.2", "exempla[torch]", "b[x]>=3"]) == {"a": "1.2", "b": "3"}
    with pytest.raises(ValueError, match="not of the form"):
        floors(["a~=1.2"])


def test_make_lowest_installs_the_floors():
    rule = (Path(ROOT) / "Makefile").read_text(encoding="utf-8")
    assert "tests/lowest.py > $(LOWEST)/floors.txt" in rule
    assert "-c $(LOWEST)/floors.txt" in rule


def test_the_recipe_has_the_requirements_of_the_core():
    """Conda's names are those of pip, but for matplotlib without its Qt parts."""
    recipe = (Path(ROOT) / "recipe" / "recipe.yaml").read_text(encoding="utf-8")
    for name, floor in floors(groups()[CORE]).items():
        conda = {"matplotlib": "matplotlib-base"}.get(name, name)
        assert f"- {conda} >={floor}\n" in recipe
