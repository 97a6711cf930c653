"""No sketch at all: the scores written out, for models with few parameters."""

from __future__ import annotations

import numpy as np

from exempla.arrays import Array, concatenate
from exempla.oracles.base import Layer, ScoreRows
from exempla.sketch.base import Sketch

__all__ = ["IdentitySketch"]


class IdentitySketch(Sketch):
    """V = I: exact, p = number of parameters."""

    exact = True

    def __init__(self, layers: tuple[Layer, ...]) -> None:
        self.width = sum(layer.size for layer in layers)
        self.penalty = np.concatenate([np.repeat(x.penalty, x.d_out) for x in layers])
        self.note = f"exact: all {self.width} parameters"

    def project(self, rows: ScoreRows) -> Array:
        return concatenate([f.dense() for f in rows.factors], axis=1)
