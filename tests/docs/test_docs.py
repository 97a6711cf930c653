"""The docs say what is so: their code runs, their commands exist, their numbers are the code's."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import exempla

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


run_code = load("run_code")
PAGES = sorted(DOCS.rglob("*.md"))
TUTORIALS = sorted(DOCS.glob("tutorials/*.md"))


def text_of(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    return str(page.relative_to(DOCS).with_suffix(""))


RUN_HERE = [page for page in run_code.pages() if page not in TUTORIALS]
"""Pages with code; the tutorials run as notebooks, in test_notebooks.py."""


@pytest.mark.parametrize("page", RUN_HERE, ids=name_of)
def test_code_runs_and_makes_the_pictures(page):
    wanted = re.findall(r"images/generated/([\w-]+\.png)", page.read_text(encoding="utf-8"))
    for picture in wanted:
        (run_code.PICTURES / picture).unlink(missing_ok=True)
    printed = run_code.printed_by(page, fresh=True)
    assert any(said.strip() for said in printed), "a page whose code shows nothing"
    for picture in wanted:
        assert 1000 < (run_code.PICTURES / picture).stat().st_size < 200_000


def test_every_job_has_a_tutorial_with_pictures_and_code():
    jobs = ["attack", "clean", "explain-errors", "fix-labels", "summarize"]
    assert [page.stem for page in TUTORIALS] == jobs
    for page in TUTORIALS:
        text = page.read_text(encoding="utf-8")
        assert len(run_code.code_blocks(text)) >= 3
        assert "images/generated/" in text


def test_output_is_shown_under_its_block():
    page = "```python\nprint(1)\n```\n\n```python\nx = 2\n```\n"
    shown = run_code.with_output(page, ["1\n", ""])
    assert shown.count('title="prints"') == 1
    assert shown.index("print(1)") < shown.index('title="prints"') < shown.index("x = 2")


def test_every_command_is_on_the_command_line_page():
    from exempla.cli.options import COMMANDS

    page = text_of("command-line.md")
    assert not [c for c in COMMANDS if f"`exempla {c.replace('_', '-')}`" not in page]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s#]+)", page.read_text(encoding="utf-8")):
        if "://" not in target and "images/generated" not in target:
            assert (page.parent / target).exists(), target


def test_the_pages_are_short():
    """At most 16,000 words on the pages of docs/, without the reference and the studies."""
    pages = [page for page in DOCS.glob("*.md") if not page.name.startswith("reference")]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 16_000


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=name_of)
def test_a_page_begins_with_what_the_reader_can_do(page):
    text = page.read_text(encoding="utf-8")
    if not page.name.startswith("reference") and page.stem != "how-do-i":
        assert "fter this page you" in " ".join(text.split())[:600]


@pytest.mark.parametrize("page", sorted(DOCS.glob("studies/*.md")), ids=name_of)
def test_a_study_begins_with_its_question(page):
    text = page.read_text(encoding="utf-8")
    assert text.splitlines()[2].startswith("**Question.**")


def test_every_page_is_in_the_navigation():
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text(encoding="utf-8")))
    assert {page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")} == listed


def test_every_public_name_is_in_the_reference():
    reference = "".join(page.read_text() for page in DOCS.glob("reference*.md"))
    listed = set(re.findall(r"^::: exempla\.(\w+)$", reference, re.M))
    assert set(exempla.__all__) - {"metrics", "__version__"} <= listed
    assert "::: exempla.metrics.lds" in reference


def test_numbers_of_the_method_are_those_of_the_code():
    from exempla.explainer import DEFAULT_NOISE
    from exempla.kernel.damping import AUTO_RULES, RULES
    from exempla.kernel.sketch import DUAL_LIMIT, PRIMAL_LIMIT, WIDEST, WIDTH
    from exempla.tasks.summarize.posterior import DRAWS

    method, scaling = text_of("how-it-works.md"), text_of("scaling.md")
    for rule in RULES:
        assert f'`"{rule}"`' in method
    for use in ("influence", "selection"):
        rule = AUTO_RULES[use]
        assert f'`"{rule}"`, default for **{use}**' in method
    for number in (DUAL_LIMIT, PRIMAL_LIMIT, WIDEST, WIDTH):
        assert str(number) in method
        assert str(number) in scaling
    assert f"The default for explanations is {DEFAULT_NOISE:g}" in method
    assert rf"\theta_{{{DRAWS}}}" in method


@pytest.mark.parametrize(("t", "p"), [(60_000, 2048), (581_012, 55), (1_000_000, 512)])
def test_the_memory_formulas_are_those_of_the_code(t, p):
    from exempla.memory import IMPORT_BYTES, explain_bytes

    formula = r"2\, t\, p\, b + 24\, p^2 + (48 + 4\,\ell)\, t + 16\ \text{MiB}"
    assert formula in text_of("scaling.md")
    assert "`16·t·p + 24·p²` bytes plus 16 MiB" in text_of("faq.md")
    steps = min(max(p / 8, 8), 32)
    for itemsize, squares in ((8, 24), (4, 48)):
        stated = 2 * t * p * itemsize + squares * p**2 + (48 + 4 * steps) * t + IMPORT_BYTES
        assert stated == pytest.approx(explain_bytes(t, p, itemsize), rel=0.02)


def test_the_models_page_lists_what_is_supported():
    from exempla.oracles import SUPPORTED

    page = text_of("models.md")
    for name in re.findall(
        r"\b[A-Z]\w+(?:Regression|RegressionCV|Classifier|Regressor)\b", SUPPORTED
    ):
        assert name in page


@pytest.mark.slow
def test_the_site_builds_strictly_and_fetches_nothing(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    pages = [page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")]
    assert len(pages) > 20
    fetched = (
        r"<(?:script|img|iframe|source)[^>]+src=\"?https?:"
        r"|<link[^>]+(?:stylesheet|preconnect)[^>]+https?:"
    )
    assert not [found for page in pages for found in re.findall(fetched, page)]
    assert (
        "of 900 training rows, the correct answers become"
        in (tmp_path / "quickstart.html").read_text()
    )
    assert "prints" in (tmp_path / "tutorials/clean.html").read_text()
    source, built = (ROOT / "docs/how-it-works.md").read_text(), tmp_path / "how-it-works.html"
    assert built.read_text().count("<math") == source.count("$$") / 2 > 5
