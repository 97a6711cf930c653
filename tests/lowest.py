"""The lowest versions that pyproject.toml allows for the core, as constraints for pip.

python tests/lowest.py > floors.txt          (`make lowest` installs them and tries them)
"""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

__all__ = ["CORE", "floors", "groups", "pins"]

ROOT = Path(__file__).parents[1]
CORE = "core"
REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?(?:>=([0-9.]+))?")


def groups(project: dict[str, Any] | None = None) -> dict[str, list[str]]:
    """What pyproject.toml requires: the core, and each extra by its name."""
    if project is None:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return {CORE: project["dependencies"], **project["optional-dependencies"]}


def floors(requirements: list[str]) -> dict[str, str]:
    """The lowest version of each, by its name in lower case."""
    found = {}
    for requirement in requirements:
        match = REQUIREMENT.fullmatch(requirement.partition(";")[0].strip())
        if match is None:
            raise ValueError(f"{requirement!r} is not of the form name>=version")
        name, version = match.groups()
        if name != "exempla":  # an extra that includes another
            found[name.lower()] = version or ""
    return found


def pins() -> dict[str, str]:
    """The tested version of each dependency, from constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {name.lower(): version for name, version in pairs}


if __name__ == "__main__":
    for name, version in floors(groups()[CORE]).items():
        print(f"{name}=={version}")
