"""Record snapshots of a training run, which `Explainer([model, "run/"])` uses as earlier weights.

Inside: recorder (what a training loop or a callback calls, which steps are kept), snapshots (the
files of a run: weights of torch and scikit-learn models, run.json).
Imports: io, checks, errors, version; torch, transformers and Lightning only when they are used.
"""

from __future__ import annotations

from exempla.recorder.recorder import Recorder

__all__ = ["Recorder"]
