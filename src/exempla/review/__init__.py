"""The review page: a person looks at each suspect row, sees what contradicts its label, decides.

    write_review ──▶ DIR ──serve──▶ page ──decisions──▶ DIR/decisions.sqlite ──export──▶ DIR

A review folder holds:

    explanation.json    the explanation the suspects came from (written by the task, not read here)
    review.json         the source file (path relative to DIR, format, fingerprint), the classes,
                        the expected number of wrong labels, how many suspects there are, and the
                        frame of the spot checks: how many rows there are in all, by stratum
    suspects.jsonl      one suspect per line, most suspicious first: row, id, given, suggested,
                        probability, model_probability, side, content, contradicting, supporters,
                        original (every column of the row); for numbers kind "number", expected,
                        spread; for parts of rows kind "part", part, span. Then the sample of the
                        rest, each line with its stratum
    images/             SPACE-ROW.webp, re-encoded; SPACE is "train" or "curated"
    decisions.sqlite    an append-only log of every decision, undo and redo, and of the spot checks
                        drawn, each sealed to the last
    decisions.json, patch.csv, corrected.*      written by export

`content` is what the person sees of a row: a text with its decisive words, table cells with the
weight of each column, or an image. Rows are 0-based, as in `explanation.json`.

Writing a folder and reading decisions back need no web server; `serve` needs the `review` extra.
"""

from __future__ import annotations

from typing import Any

from exempla.report.views import Content
from exempla.review.export import FinalDecision, export_decisions
from exempla.review.folder import Review, read_review, write_review
from exempla.review.server import serve
from exempla.review.suspects import EvidenceRow, ReviewedFile, Suspect

__all__ = [
    "Content",
    "EvidenceRow",
    "ReviewedFile",
    "Suspect",
    "Review",
    "read_review",
    "write_review",
    "serve",
    "FinalDecision",
    "export_decisions",
]

_RENAMED = {"Accuser": EvidenceRow, "Source": ReviewedFile}


def __getattr__(name: str) -> Any:
    """The names of earlier versions, for one more release."""
    if name not in _RENAMED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import warnings

    now = _RENAMED[name]
    message = f"exempla.review.{name} is called {now.__name__} now; use that name."
    warnings.warn(message, DeprecationWarning, stacklevel=2)
    return now
