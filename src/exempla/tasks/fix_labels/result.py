"""What `fix_labels` returns."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from exempla.results import Explanation

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["LabelFixes"]


@dataclass(frozen=True)
class LabelFixes(Explanation):
    """Likely wrong labels, most suspicious first, and what they should be.

    The fields of `Explanation` keep their meaning where they have one: `alignment` is each row's
    mean Fisher similarity with the trusted rows (negative: it pushes against them), `weights` are
    the probabilities (the quadrature weights if the method is "sbq"), `explained` is the share of
    the expected errors that the listed rows hold (of ‖μ‖² for "sbq") and `variance` that of the
    number of wrong labels among them (the posterior's for "sbq").

    Attributes
    ----------
    indices : int64 array
        Rows of the training set.
    probabilities : float array
        Of each listed row: that its given label is wrong.
    given, suggested : arrays
        Its label, and the likeliest one, which is the given one where that is the better bet.
    expected_errors : float
        Expected number of wrong labels in the whole training set.
    accusers : sequence of Accusation
        Of each listed row: the curated rows that speak against its label, worked out when looked
        at.
    method : str
        "calibrated" or "sbq".
    """

    probabilities: np.ndarray = field(default_factory=lambda: np.array([]))
    given: np.ndarray = field(default_factory=lambda: np.array([]))
    suggested: np.ndarray = field(default_factory=lambda: np.array([]))
    expected_errors: float = 0.0
    accusers: Any = field(default=(), repr=False, compare=False)
    method: str = "calibrated"

    def to_dict(self) -> dict[str, Any]:
        """Everything as plain Python values, without the accusers."""
        out = super().to_dict()
        out.pop("accusers")
        return out

    def to_frame(self) -> pd.DataFrame:
        """One line per listed row, most suspicious first."""
        import pandas as pd

        columns: dict[str, Any] = {
            "rank": np.arange(1, len(self) + 1),
            "index": self.indices,
            "given": self.given,
            "suggested": self.suggested,
            "probability": self.probabilities,
            "alignment": self.alignment,
        }
        if self.ids is not None:
            columns["id"] = self.ids
        return pd.DataFrame(columns)
