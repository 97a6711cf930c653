"""The Fisher metric in sketch space, and how much to damp it.

Inside: estimate (the sum over rows), the metrics identity, diagonal and full, damping (its rules).
Imports: sketch, oracles.base, arrays, progress, errors.
"""

from exempla.fisher.base import Metric
from exempla.fisher.damping import Damping, check_damping, resolve_damping

__all__ = ["Damping", "Metric", "check_damping", "resolve_damping"]
