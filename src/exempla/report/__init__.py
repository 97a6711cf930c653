"""The explanation made visible: one self-contained HTML page, and figures."""

from exempla.report.page import (
    Listed,
    explanation_fragment,
    render_report,
    write_label_report,
    write_listing,
    write_report,
)
from exempla.report.plots import plot_evidence, plot_explanation
from exempla.report.views import (
    Content,
    ImageView,
    TableView,
    TextView,
    TokenView,
    View,
    evidence_of,
    marked_text,
)
from exempla.report.words import About

__all__ = [
    "About", "Content", "View", "ImageView", "TableView", "TextView",
    "write_report", "write_label_report", "render_report",
    "explanation_fragment",
    "TokenView", "marked_text",
    "Listed", "write_listing", "evidence_of", "plot_evidence", "plot_explanation",
]  # fmt: skip
