"""The review page: a person looks at each suspect, sees what contradicts its label, and decides.

    write_review ──▶ DIR ──serve──▶ page ──decisions──▶ DIR/decisions.sqlite ──export──▶ DIR

A review folder contains:

    explanation.json    the result that the suspects came from (written by the task, not read here)
    review.json         the source file (path relative to DIR, format, fingerprint), the classes,
                        the expected number of wrong labels, the number of suspects, and the strata
                        that spot checks are drawn from
    suspects.jsonl      one suspect per line, most suspicious first: row, id, given, suggested,
                        probability, model_probability, side, content, contradicting, supporters,
                        original (every column of the row); for numbers kind "number", expected,
                        spread; for parts of rows kind "part", part, span. Then a sample of the
                        other rows, each with its stratum
    images/             SPACE-ROW.webp, re-encoded; SPACE is "train" or "curated"
    decisions.sqlite    an append-only log of every decision, undo and redo, and of the spot checks
    decisions.json, patch.csv, corrected.*      written by the export

`content` is what the person sees of a row: a text with its decisive words, table cells with the
weight of each column, or an image. Rows are 0-based, as in `explanation.json`. Writing a folder and
exporting need no web server; `serve` needs the `review` extra.
"""

from __future__ import annotations

from exempla.report.views import Content
from exempla.review.export import FinalDecision, export_decisions
from exempla.review.folder import Review, read_review, write_review
from exempla.review.server import serve
from exempla.review.suspects import EvidenceRow, ReviewedFile, Suspect

__all__ = [
    "Content",
    "EvidenceRow",
    "FinalDecision",
    "Review",
    "ReviewedFile",
    "Suspect",
    "export_decisions",
    "read_review",
    "serve",
    "write_review",
]
