"""What the build does besides building: run the pages' code, and turn LaTeX into MathML.

MathML needs no script and nothing to download, prints, and is read aloud by screen readers.
"""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

DOCS = Path(__file__).parent
FORMULA = re.compile(r"^\$\$(.+?)\$\$$", re.DOTALL | re.MULTILINE)


def _load() -> Any:
    """`run_code.py` beside this file: hooks are no package."""
    spec = importlib.util.spec_from_file_location("run_code", DOCS / "run_code.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run_code = _load()


def on_pre_build(config: Any) -> None:
    """Make the pictures before the files are collected."""
    for page in run_code.pages():
        run_code.printed_by(page)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Show under each block what it printed, and formulas as MathML."""
    path = Path(page.file.abs_src_path)
    if path in _run():
        markdown = run_code.with_output(markdown, run_code.printed_by(path))
    return FORMULA.sub(_formula, markdown)


def _formula(match: re.Match[str]) -> str:
    return f'<div class="formula">{convert(match[1].strip(), display="block")}</div>'


def _run() -> list[Path]:
    return run_code.pages()
