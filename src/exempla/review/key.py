"""Which decisions belong together: those about one column of one file, read in one way.

A decision says "row 17 is wrong". That means something only together with the bytes of the file,
how they were cut into rows, the column whose label it is, and the classes to choose from. All of it
is in the key that each decision is kept under, so one folder can hold decisions about several
columns, or versions of a file, and never mixes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

__all__ = ["earlier_key", "elsewhere", "key_of", "told"]


def key_of(header: Mapping[str, Any]) -> str:
    """The key of the review that a review.json describes; it names file and column in the open.

    >>> source = {"name": "a.csv", "fingerprint": "4f", "label": "smoker", "options": {}}
    >>> first = key_of({"source": source, "classes": ["no", "yes"]})
    >>> other = key_of({"source": source | {"label": "diabetic"}, "classes": ["no", "yes"]})
    >>> first != other, told(other)
    (True, "the column 'diabetic' of 'a.csv'")
    """
    source = header["source"]
    name, label = str(source["name"]), source["label"]
    # Names of columns move no row, and the label's own is there anyway.
    options = sorted((k, v) for k, v in dict(source["options"]).items() if k != "names")
    meaning = [name, str(source["fingerprint"]), list(header["classes"]), label, options]
    return f"{_digest(meaning)} {json.dumps([name, label])}"


def earlier_key(header: Mapping[str, Any]) -> str:
    """The key of the same review until the label column was part of it."""
    source = header["source"]
    return _digest([str(source["name"]), str(source["fingerprint"]), list(header["classes"])])


def told(key: str) -> str:
    """What a key is about, for a sentence.

    >>> told("0123456789abcdef")
    'an earlier analysis'
    """
    try:
        name, label = json.loads(key.partition(" ")[2])
    except ValueError:
        return "an earlier analysis"
    return f"the column {label!r} of {name!r}" if label else repr(name)


def elsewhere(others: Mapping[str, int]) -> str:
    """One sentence about decisions in the same folder that are about something else; "" if none.

    >>> elsewhere({'4f ["a.csv", "smoker"]': 5}).partition(";")[0]
    "Kept in this folder and not used here: 5 decisions about the column 'smoker' of 'a.csv'"
    """
    if not others:
        return ""
    parts = [f"{n:,} decision{'s' * (n != 1)} about {told(key)}" for key, n in others.items()]
    return (
        f"Kept in this folder and not used here: {', '.join(parts)}; they come back when that is "
        "analysed into this folder again."
    )


def _digest(meaning: list[Any]) -> str:
    return hashlib.sha256(json.dumps(meaning).encode()).hexdigest()[:32]
