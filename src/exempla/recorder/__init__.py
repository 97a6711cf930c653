"""Record snapshots of a training run, which `Explainer([model, "run/"])` uses as earlier weights.

Inside: recorder (what a training loop calls, which steps are kept, the folder), weights (files of
torch and scikit-learn weights), callbacks (Hugging Face Trainer, Lightning).
Imports: io, checks, errors, version; torch, transformers and Lightning only when they are used.
"""

from __future__ import annotations

from exempla.recorder.recorder import Recorder

__all__ = ["Recorder"]
