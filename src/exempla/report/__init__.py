"""The explanation made visible: one self-contained HTML page, and figures."""

from exempla.report.drawings.plots import plot_evidence, plot_explanation
from exempla.report.evidence import evidence_of
from exempla.report.html import explanation_fragment, render_report, write_report
from exempla.report.jobs import write_job_report
from exempla.report.labels import write_label_report
from exempla.report.listing import Listed, write_listing
from exempla.report.tokens import TokenView, marked_text
from exempla.report.views import Content, ImageView, TableView, TextView, View
from exempla.report.words.about import About

__all__ = [
    "About", "Content", "View", "ImageView", "TableView", "TextView",
    "write_report", "write_label_report", "write_job_report", "render_report",
    "explanation_fragment",
    "TokenView", "marked_text",
    "Listed", "write_listing", "evidence_of", "plot_evidence", "plot_explanation",
]  # fmt: skip
