"""The review page: a person looks at each suspect, sees what contradicts its label, and decides.

    write_review ──▶ DIR ──serve──▶ page ──decisions──▶ DIR/decisions.sqlite ──export──▶ DIR

`folder.py` describes the files of such a folder. Writing one and exporting need no web server;
`serve` needs the `review` extra.
"""

from __future__ import annotations

from exempla.report.views import Content
from exempla.review.export import FinalDecision, export_decisions
from exempla.review.folder import (
    EvidenceRow,
    Review,
    ReviewedFile,
    Suspect,
    read_review,
    write_review,
)
from exempla.review.server import serve

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
