"""One HTML file that needs nothing else: no network, no server, no script to be readable."""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from exempla.atomic import write_text
from exempla.checks import renamed_options
from exempla.errors import ExemplaError
from exempla.report.page import Page, build_page, strength_class
from exempla.report.tokens import about_texts, token_views
from exempla.report.views import View
from exempla.report.words.about import About
from exempla.results import Explanation, Selection

__all__ = ["explanation_fragment", "render_report", "write_report"]

CARD_ROWS = 50
"""Examples a notebook's card holds; it scrolls."""
_CARDS = count(1)
"""Cards of one notebook are told apart by their number: the buttons of one leave others alone."""


@renamed_options(beside="others")
def write_report(
    explanation: Selection,
    path: str | Path,
    *,
    train_view: View | None = None,
    test_view: View | None = None,
    about: About | None = None,
    evidence: np.ndarray | None = None,
    limit: int = 200,
    others: int = 6,
    verification: Any = None,
) -> Path:
    """Write the explanation as one self-contained HTML file and return its path.

    Parameters
    ----------
    train_view, test_view : View
        How to show a training example (row numbers of the training set) and a questioned one
        (positions among the questioned examples): `ImageView`, `TextView`, `TableView`, or a plain
        `View` with labels only. Texts of `Completions` need none: their decisive tokens are marked.
    about : About
        Where the data came from, how good the model is, and the command to repeat it.
    evidence : (k, n_test) array
        How much each picked example bears on each questioned one; by default computed by the
        Explainer that made the explanation, if it is still at hand.
    limit, others : int
        At most this many questioned and picked examples are shown, with this many causes each;
        what is left out is counted on the page.
    verification : Verification
        What `explanation.verify()` gave: the page then shows the predicted effect beside what
        retraining did.

    >>> import tempfile, pathlib
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> import exempla
    >>> from exempla.report import TableView, write_report
    >>> X, y = load_iris(return_X_y=True, as_frame=True)
    >>> model = LogisticRegression(max_iter=500).fit(X, y)
    >>> answer = exempla.explain(model, (X, y), (X[70:80], y[70:80]), k=5, progress=False)
    >>> page = write_report(answer, pathlib.Path(tempfile.mkdtemp()) / "report.html",
    ...     train_view=TableView(X, labels=y), test_view=TableView(X[70:80], labels=y[70:80]))
    >>> "petal length" in page.read_text()
    True
    """
    views = _views(explanation, train_view, test_view)
    page = build_page(explanation, *views, about or About(), evidence, limit, others, verification)
    return save_page(page, path)


def _views(
    explanation: Selection, train_view: View | None, test_view: View | None
) -> tuple[View | None, View | None]:
    """How to show the examples: as told, and texts of a language model with their tokens marked."""
    if train_view is None and test_view is None and about_texts(explanation):
        assert isinstance(explanation, Explanation)
        return token_views(explanation)
    return train_view, test_view


def save_page(page: Page, path: str | Path) -> Path:
    """Write a page and return its path."""
    path = Path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, render(page))
    except OSError as error:
        raise ExemplaError(f"The report cannot be written to {path} ({error.strerror}).") from error
    return path


@renamed_options(beside="others")
def render_report(
    explanation: Selection,
    *,
    train_view: View | None = None,
    test_view: View | None = None,
    about: About | None = None,
    evidence: np.ndarray | None = None,
    limit: int = 200,
    others: int = 6,
    verification: Any = None,
) -> str:
    """The page as a string; see `write_report`."""
    views = _views(explanation, train_view, test_view)
    page = build_page(explanation, *views, about or About(), evidence, limit, others, verification)
    return render(page)


def render(page: Page) -> str:
    """The page with its style and script inside, and a policy that allows nothing else."""
    style, script = _asset("report.css"), _asset("report.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return _template("report.html").render(page=page, style=style, script=script, policy=policy)


def explanation_fragment(explanation: Explanation) -> str:
    """The explanation for a notebook: a small card that sorts and filters without any script."""
    page = build_page(explanation, None, None, About(), None, limit=CARD_ROWS, others=0)
    by_weight = np.argsort(-np.abs([card.bar for card in page.picked]), kind="stable")
    by_row = np.argsort([card.index for card in page.picked], kind="stable")
    ranks = [{"weight": w, "row": r} for w, r in zip(np.argsort(by_weight), np.argsort(by_row))]
    key = f"exempla-{next(_CARDS)}-{_hash(explanation.indices.tobytes().hex())[7:13]}"
    key = "".join(letter if letter.isalnum() else "-" for letter in key)
    return _template("fragment.html").render(page=page, rows=[*zip(page.picked, ranks)], key=key)


def _asset(name: str) -> str:
    return files("exempla.report").joinpath("templates", name).read_text(encoding="utf-8").strip()


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"


@cache
def _environment():
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("exempla.report", "templates"),
        autoescape=True,  # every value, whatever the template is called
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["strength"] = strength_class
    return environment


def _template(name: str):
    return _environment().get_template(name)
