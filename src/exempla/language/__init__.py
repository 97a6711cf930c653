"""Language models: prompts and completions as data, and what single tokens have to do with it.

Imports: kernel, explainer and what stands below them.
"""

from exempla.language.alignment import TokenAlignment
from exempla.language.completions import Completions

__all__ = ["Completions", "TokenAlignment"]
