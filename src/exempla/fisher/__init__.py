"""The Fisher metric in sketch space, and how much to damp it."""

from exempla.fisher.base import Metric
from exempla.fisher.damping import Damping, check_damping, resolve_damping

__all__ = ["Damping", "Metric", "check_damping", "resolve_damping"]
