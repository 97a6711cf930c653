"""Snapshots of a training run: what `Explainer([model, "run/"])` learns earlier weights from.

Inside: recorder (what a training loop calls), thinning (which steps stay), files (the run's
folder), weights and its two kinds (torch, scikit-learn), callbacks (Trainer, Lightning).
Imports: atomic, checks, errors, version; torch, transformers and Lightning when they are met.
"""

from __future__ import annotations

from exempla.recorder.recorder import Recorder

__all__ = ["Recorder"]
