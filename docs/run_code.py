"""Run the Python blocks of a docs page, in order, as a reader would: one session per page.

The site shows what they printed, the pictures they saved are the pictures on the page, and the
tests run the same blocks. So nothing on a page can be out of date.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
import shutil
import sys
import tempfile
import warnings
from pathlib import Path

import matplotlib

DOCS = Path(__file__).parent
SOURCE = DOCS.parent / "src" / "exempla"
PICTURES = DOCS / "images" / "generated"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)


def code_blocks(text: str) -> list[str]:
    """The Python blocks of a page.

    >>> code_blocks("a\\n```python\\nx = 1\\n```\\nb")
    ['x = 1\\n']
    """
    return BLOCK.findall(text)


def run_page(page: Path, folder: Path) -> list[str]:
    """Run a page's blocks in one namespace inside `folder`; what each one printed."""
    matplotlib.use("Agg")
    space: dict[str, object] = {"__name__": page.stem}
    printed = []
    for number, block in enumerate(code_blocks(page.read_text(encoding="utf-8")), start=1):
        said = io.StringIO()
        code = compile(block, f"{page.name}, block {number}", "exec")
        with contextlib.chdir(folder), contextlib.redirect_stdout(said), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(code, space)
        printed.append(said.getvalue())
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")
    return printed


def pages() -> list[Path]:
    """Every page that has Python blocks."""
    found = sorted(DOCS.rglob("*.md"))
    return [page for page in found if code_blocks(page.read_text(encoding="utf-8"))]


def fingerprint(page: Path) -> str:
    """Of the page and of the package: what was printed holds until either changes."""
    digest = hashlib.sha256()
    for path in [page, Path(__file__), *sorted(SOURCE.rglob("*.py"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def printed_by(page: Path, fresh: bool = False) -> list[str]:
    """What each block prints, and its pictures in `images/generated`; run only if need be."""
    record = PICTURES / f"{page.stem}.json"
    print_of_page = fingerprint(page)
    if record.exists() and not fresh:
        known = json.loads(record.read_text(encoding="utf-8"))
        if known["fingerprint"] == print_of_page:
            return known["printed"]
    PICTURES.mkdir(parents=True, exist_ok=True)
    # a folder of its own for every run: tests and the site's build may run one page at once
    desk = Path(tempfile.mkdtemp(dir=PICTURES, prefix=f"{page.stem}.", suffix=".run"))
    printed = run_page(page, desk)
    for picture in desk.glob("*.png"):
        picture.replace(PICTURES / picture.name)
    shutil.rmtree(desk)
    record.write_text(
        json.dumps({"fingerprint": print_of_page, "printed": printed}), encoding="utf-8"
    )
    return printed


def with_output(text: str, printed: list[str]) -> str:
    """The page with what each block printed below it.

    >>> print(with_output("```python\\nprint(1)\\n```", ["1\\n"]))
    ```python
    print(1)
    ```
    <BLANKLINE>
    ```text title="prints"
    1
    ```
    """
    outputs = iter(printed)

    def add(match: re.Match[str]) -> str:
        said = next(outputs).rstrip()
        return match[0] + (f'\n\n```text title="prints"\n{said}\n```' if said else "")

    return BLOCK.sub(add, text)
