"""The Fisher metric in sketch space, and how much to damp it."""

from exempla.fisher.base import Metric
from exempla.fisher.damping import Damping, resolve_damping

__all__ = ["Damping", "Metric", "resolve_damping"]
