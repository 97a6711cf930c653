"""Blocks marked `py` are shown and not run by the build: what can be run is run here.

Those marked `python` are run by test_docs.py, test_notebooks.py and test_readme.py, and `exempla`
lines of shell blocks by test_commands.py.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression

import exempla
from tests.docs.commands import PAGES, ROOT, SHELL

FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.DOTALL | re.MULTILINE)
SHOWN = [
    (page, block)
    for page in PAGES
    for language, block in FENCE.findall(page.read_text(encoding="utf-8"))
    if language == "py"
]
ELSEWHERE = {
    "scaling.md": "a Ray cluster: tests/distributed makes the same calls",
    "peft.md": "needs peft, which is not a dependency",
    "trainer.md": "needs a model from a hub; tests/oracles/torch/test_trainers.py runs a pipeline",
    "findings.md": "needs data that is not bundled; docs/measure_gallery.py runs it",
}
"""Pages whose `py` blocks are only compiled, and why."""
NOT_RUN = ("make ", "pip install ", "uvx ", "docker ", "python3 -m venv ")
"""Shell lines that install, build or test the project itself."""


def blocks_of(name: str) -> list[str]:
    return [block for page, block in SHOWN if page.name == name]


@pytest.mark.parametrize(("page", "block"), SHOWN, ids=lambda x: getattr(x, "name", "block"))
def test_a_shown_block_compiles(page, block):
    compile(block, page.name, "exec")


def test_every_shown_block_has_its_place():
    assert {page.name for page, _ in SHOWN} == {*ELSEWHERE, "gallery.md"}


def test_the_blocks_of_the_gallery_run():
    X, y = load_digits(return_X_y=True)
    X = X / 16
    every: dict[str, Any] = {
        "exempla": exempla,
        "LogisticRegression": LogisticRegression,
        "X": X[:300],
        "y": y[:300],
        "train": (X[:300], y[:300]),
        "test": (X[600:800], y[600:800]),
        "errors": (X[600:640], y[600:640]),
        "pool": X[300:500],
        "model": LogisticRegression(max_iter=500).fit(X[:300], y[:300]),
    }
    two = np.isin(y, [3, 8])
    A, b = X[two], (y[two] == 8).astype(int)
    pair = {
        **every,
        "train": (A[:100], b[:100]),
        "target": (A[100:105], b[100:105]),
        "model": LogisticRegression().fit(A[:100], b[:100]),
    }
    blocks = blocks_of("gallery.md")
    assert len(blocks) == 6
    for block in blocks:
        space = dict(pair if "attack" in block else every)
        exec(compile(block, "gallery.md", "exec"), space)
        answer = space[block.split(" = ")[0]]
        assert len(answer.indices) > 0  # pyright: ignore[reportAttributeAccessIssue]


def test_ranks_select_as_shown(tmp_path):
    torch = pytest.importorskip("torch")
    (block,) = [block for block in blocks_of("scaling.md") if "fit_ranks" in block]
    X, y = load_digits(return_X_y=True)
    X, y = X[:200] / 16, y[:200]
    model = LogisticRegression(max_iter=500).fit(X, y)
    space: dict[str, Any] = {"exempla": exempla, "model": model, "train": (X, y)}
    space["target"] = exempla.Explainer(model, progress=False).fit((X, y)).features.rows[:5].mean(0)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1
    )
    try:
        exec(block.replace("/shared/job", str(tmp_path / "job")), space)
    finally:
        torch.distributed.destroy_process_group()
    assert space["explainer"].n_train == 200


def test_other_shell_lines_are_about_the_project_itself():
    blocks = [b for page in PAGES for b in SHELL.findall(Path(page).read_text(encoding="utf-8"))]
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines() if line]
    others = [line for line in lines if not line.startswith(("exempla ", "#"))]
    assert [line for line in others if not line.startswith(NOT_RUN)] == []
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in {line.split()[1] for line in others if line.startswith("make ")}:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_no_command_hides_in_an_indented_block():
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        assert not re.findall(r"^ {4}(?:exempla|python|pip) .*$", text, re.MULTILINE), page.name
