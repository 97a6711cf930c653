"""The review page: a person looks at each suspect row, sees who accuses it, and decides.

    write_review ──▶ DIR ──serve──▶ page ──decisions──▶ DIR/decisions.sqlite ──export──▶ DIR

A review folder holds:

    explanation.json    the explanation the suspects came from (written by the task, not read here)
    review.json         the source file (path relative to DIR, format, fingerprint), the classes,
                        the expected number of wrong labels, how many suspects there are
    suspects.jsonl      one suspect per line, most suspicious first: row, id, given, suggested,
                        probability, model_probability, side, content, accusers, supporters
    images/             SPACE-ROW.webp, re-encoded; SPACE is "train" or "curated"
    decisions.sqlite    an append-only log of every decision, undo and redo
    decisions.json, patch.csv, corrected.*      written by export

`content` is what the person sees of a row: a text with its decisive words, table cells with the
weight of each column, or an image. Rows are 0-based, as in `explanation.json`.

Writing a folder and reading decisions back need no web server; `serve` needs the `review` extra.
"""

from __future__ import annotations

from exempla.review.export import FinalDecision, export_decisions
from exempla.review.folder import Review, read_review, write_review
from exempla.review.server import serve
from exempla.review.suspects import Accuser, Cell, Content, Source, Suspect, Word

__all__ = [
    "Accuser",
    "Cell",
    "Content",
    "Source",
    "Suspect",
    "Word",
    "Review",
    "read_review",
    "write_review",
    "serve",
    "FinalDecision",
    "export_decisions",
]
