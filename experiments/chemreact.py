"""The chemreact part of the summary experiments: see `experiments.summaries`."""

from experiments.summaries import run_chemreact as run

__all__ = ["run"]
