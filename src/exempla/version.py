"""The version of exempla, in one place that nothing else is imported from."""

__version__ = "0.2.0"
