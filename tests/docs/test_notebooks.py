"""The notebooks run in a kernel, cell by cell, as in Jupyter."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest

from tests.docs.test_docs import DOCS, load, run_code, text_of

make_notebooks = load("make_notebooks")
WITH_CARD = ("explain-errors", "clean")
"""Notebooks whose answer has a card; the other answers show themselves as text."""
PLAIN_TAGS = {"p", "b", "div", "table", "thead", "tbody", "tr", "th", "td"}
"""What strict previews such as GitHub's keep of HTML; attributes are dropped too."""


@pytest.mark.parametrize("name", make_notebooks.ANSWERS)
def test_a_notebook_has_the_code_of_its_tutorial(name):
    stored = text_of(f"notebooks/{name}.ipynb")
    assert stored == make_notebooks.write(name), "run: python docs/make_notebooks.py"
    cells = [c for c in json.loads(stored)["cells"] if c["cell_type"] == "code"]
    assert all(c["outputs"] == [] and c["execution_count"] is None for c in cells)
    blocks = run_code.code_blocks(text_of(f"tutorials/{name}.md"))
    sources = ["".join(c["source"]).strip() for c in cells]
    assert sources == [*(block.strip() for block in blocks), make_notebooks.ANSWERS[name]]


@pytest.mark.parametrize("name", make_notebooks.ANSWERS)
def test_a_notebook_runs_and_shows_the_answer(name, tmp_path):
    cells = executed(name, tmp_path)
    printed = "".join(out["text"] for c in cells for out in c["outputs"] if "text" in out)
    assert printed.strip()
    wanted = re.findall(r"images/generated/([\w-]+\.png)", text_of(f"tutorials/{name}.md"))
    assert sorted(path.name for path in tmp_path.glob("*.png")) == sorted(wanted)
    assert all(1000 < (tmp_path / picture).stat().st_size < 200_000 for picture in wanted)
    (shown,) = cells[-1]["outputs"]
    assert shown["output_type"] == "execute_result"
    first = shown["data"]["text/plain"].splitlines()[0]
    assert not re.match(r"\w+\(|<", first), "the answer shows its fields, not its finding"
    if name in WITH_CARD:
        check_plain(shown["data"]["text/html"], first)


def executed(name: str, folder: Any) -> list[dict[str, Any]]:
    """Return the code cells of a notebook with their outputs, run by a kernel in `folder`."""
    pytest.importorskip("ipykernel")
    client = pytest.importorskip("nbclient").NotebookClient
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(DOCS / "notebooks" / f"{name}.ipynb", 4)
    where = {"metadata": {"path": str(folder)}}
    # a cell that raises ends the run with its traceback
    client(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    return [c for c in notebook.cells if c.cell_type == "code"]


class Sanitized(HTMLParser):
    """What is left of a card where styles, pictures, forms and attributes are stripped."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.dropped: list[str] = []
        self.parts: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        if tag in {"style", "svg", "fieldset"}:
            self.dropped.append(tag)
        elif tag in PLAIN_TAGS and not self.dropped:
            self.parts.append(f"<{tag}>")

    def handle_endtag(self, tag):
        if self.dropped and tag == self.dropped[-1]:
            self.dropped.pop()

    def handle_data(self, data):
        if not self.dropped and data.strip():
            self.parts.append(data.strip())


def check_plain(card: str, finding: str) -> None:
    """Without styles the card reads as its finding, then a table of the rows in order."""
    assert "<script" not in card
    assert "http" not in re.sub(r"http://www\.w3\.org/\S+", "", card)
    parts = Sanitized(card).parts
    words = [part for part in parts if not part.startswith("<")]
    assert words[0] in finding or finding in words[0]
    assert words[1:4] == ["#", "training row", "side"]
    places = [word for word in words if re.fullmatch(r"#\d+", word)]
    assert len(places) == parts.count("<tr>") - 1 == 30
    start = words.index(places[0])
    assert words[start - 1] == "1"
    assert words[start + 1] in {"opponent", "proponent"}
