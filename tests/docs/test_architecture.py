"""The architecture page describes the tree: its walks, its rooms and its layers."""

from __future__ import annotations

import re
import tomllib

import pytest

from tests.docs.walks import PAGE, ROOT, WALKS, listed, measured

SOURCE = ROOT / "src" / "exempla"


def contracts() -> list[list[list[str]]]:
    """Return the layers of each import contract, each layer as the rooms in it."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    found = tomllib.loads(text)["tool"]["importlinter"]["contracts"]
    return [[re.findall(r"\w+", layer) for layer in c["layers"]] for c in found]


def rooms() -> set[str]:
    """Return the top-level folders and modules of the package."""
    folders = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    return folders | {path.stem for path in SOURCE.glob("*.py")} - {"__init__"}


@pytest.mark.parametrize("walk", list(WALKS))
def test_the_page_lists_the_files_that_a_walk_passes(walk):
    number, files = listed(walk)
    assert number == len(files) == len(set(files))
    found = measured(walk)
    assert set(files) == set(found), "run: python -m tests.docs.walks --write"


def test_the_diagram_shows_the_layers_of_the_import_contract():
    diagram = re.search(r"```text title=\"Layers\"\n(.*?)```", PAGE.read_text(), re.S)
    assert diagram is not None
    boxes = re.findall(r"^\s*\d+\s*│ (.*?) │", diagram.group(1), re.M)
    assert [set(box.split()) for box in boxes] == [set(layer) for layer in contracts()[0]]
    assert len(boxes) <= 10


def test_every_room_is_in_one_layer_and_described_once():
    in_layers = [room for layer in contracts()[0] for room in layer]
    assert sorted(in_layers) == sorted(rooms())
    described = re.findall(r"^\| `(\w+)(?:/|\.py)` \|", PAGE.read_text(encoding="utf-8"), re.M)
    assert sorted(described) == sorted(rooms())


def test_every_decision_is_five_lines():
    text = (PAGE.parent / "decisions.md").read_text(encoding="utf-8")
    notes = re.split(r"^## ", text, flags=re.M)[1:]
    assert len(notes) == 10
    for note in notes:
        title, *body = note.strip().splitlines()
        points = [line for line in body if line]
        assert len(points) == 5, title
        starts = ["Question", "Decision", "Why", "Cost", "Where"]
        assert [re.match(r"- \*\*(\w+)\.\*\*", p).group(1) for p in points] == starts, title


def test_decisions_name_files_that_exist():
    text = (PAGE.parent / "decisions.md").read_text(encoding="utf-8")
    for line in re.findall(r"^- \*\*Where\.\*\* (.*)$", text, re.M):
        files = re.findall(r"`([\w/]+\.py)`", line)
        assert files, line
        for file in files:
            assert (SOURCE / file).exists(), file
