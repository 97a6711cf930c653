"""For the API reference: examples that stand in a docstring without a heading are shown as code."""

from __future__ import annotations

import re
from typing import Any

import griffe

BARE = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.DOTALL | re.MULTILINE)


def fenced(text: str) -> str:
    """Bare doctests in a fence; those under an "Examples" heading are seen to already.

    >>> fenced("Adds.\\n\\n>>> 1 + 1\\n2").splitlines()
    ['Adds.', '', '```pycon', '>>> 1 + 1', '2', '```']
    """
    if re.search(r"^Examples\n-+$", text, re.MULTILINE):
        return text
    return BARE.sub(lambda match: f"```pycon\n{match[0].rstrip()}\n```\n", text).rstrip()


class ExamplesAsCode(griffe.Extension):
    """Rewrites docstrings as they are loaded."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
