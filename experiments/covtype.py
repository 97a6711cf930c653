"""The covtype part of the summary experiments: see `experiments.summaries`."""

from experiments.summaries import run_covtype as run

__all__ = ["run"]
