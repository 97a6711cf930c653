"""Language models: contributions of single tokens to an explanation of `Completions`."""

from exempla.language.alignment import TokenAlignment

__all__ = ["TokenAlignment"]
