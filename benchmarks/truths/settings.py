"""The settings of the suite and the half that rules are chosen on.

The settings differ in what matters to influence: the kind of network and data, the optimiser,
weight decay, and whether training was stopped early or went on to the end. The two halves were
written down before any truth was made; whatever a rule has to choose (a constant, a width, a
weighting of checkpoints) is chosen on `choose` and reported on `report`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["SETTINGS", "Setting", "settings_of"]


@dataclass(frozen=True)
class Setting:
    """One network, trained in one way on one data set."""

    name: str
    half: Literal["choose", "report"]
    data: str
    network: str
    optimizer: Literal["adam", "sgd"]
    rate: float
    decay: float
    """Weight decay: decoupled with Adam (AdamW), an L2 penalty with SGD."""
    epochs: int
    batch: int = 50
    momentum: float = 0.9


SETTINGS = (
    Setting("digits-mlp-sgd", "choose", "digits", "mlp", "sgd", 0.05, 0.0, 40),
    Setting("mnist-cnn-adam", "choose", "mnist", "cnn", "adam", 2e-3, 0.0, 15),
    Setting("adult-mlp-adamw-early", "choose", "adult", "mlp", "adam", 1e-3, 1e-2, 5),
    Setting("sst2-transformer-adam", "choose", "sst2", "transformer", "adam", 2e-3, 0.0, 12),
    Setting("mnist-residual-sgd-decay", "choose", "mnist", "residual", "sgd", 0.05, 5e-4, 15),
    Setting("covtype-logistic-sgd-decay", "choose", "covtype", "logistic", "sgd", 0.05, 1e-3, 40),
    Setting("mnist-mlp-adamw-early", "report", "mnist", "mlp", "adam", 1e-3, 1e-2, 6),
    Setting("digits-cnn-sgd", "report", "digits", "cnn", "sgd", 0.02, 0.0, 40),
    Setting("covtype-mlp-adam", "report", "covtype", "mlp", "adam", 2e-3, 0.0, 40),
    Setting("enron-transformer-adamw", "report", "enron", "transformer", "adam", 2e-3, 1e-2, 8),
    Setting("digits-residual-adam", "report", "digits", "residual", "adam", 3e-3, 0.0, 30),
    Setting("adult-logistic-sgd-early", "report", "adult", "logistic", "sgd", 0.02, 0.0, 3),
)


def settings_of(half: str | None = None) -> tuple[Setting, ...]:
    """The settings of one half, or all."""
    return tuple(s for s in SETTINGS if half in (None, s.half))
