"""Language models: what single tokens have to do with an answer about `Completions`.

Imports: kernel, explainer and what stands below them.
"""

from exempla.language.alignment import TokenAlignment

__all__ = ["TokenAlignment"]
