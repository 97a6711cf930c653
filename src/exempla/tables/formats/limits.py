"""How large one file may be in each respect, so that a small file cannot fill the memory.

Every limit can be raised by the environment variable EXEMPLA_LIMITS, as in
`EXEMPLA_LIMITS="columns=500000 unpacked=2e11"`; the message of a refusal says which one.
"""

from __future__ import annotations

import os

from exempla.errors import ExemplaError

__all__ = ["DEFAULTS", "VARIABLE", "check_limit", "limit"]

VARIABLE = "EXEMPLA_LIMITS"
DEFAULTS = {
    "unpacked": 2 * 10**9,  # bytes that a .gz, .bz2, .xz, .npz or .parquet file unpacks to
    "columns": 100_000,  # columns of a table, or keys of all JSON objects together
    "gaps": 10**8,  # cells of JSON lines whose row lacks the key: each new key is one per row
    "depth": 100,  # JSON lists and objects inside each other
    "line": 5_000_000,  # characters of one line of a text file
}
WORDS = {
    "unpacked": "bytes unpacked",
    "columns": "columns",
    "gaps": "cells without a value",
    "depth": "JSON values inside each other",
    "line": "characters in one line",
}


def limit(name: str) -> int:
    """One limit, as the environment has it or by default.

    >>> limit("columns")
    100000
    """
    return _told().get(name, DEFAULTS[name])


def check_limit(name: str, found: int | None, file: str) -> None:
    """Refuse what is larger than the limit; None means larger, nobody counted by how much."""
    most = limit(name)
    if found is not None and found <= most:
        return
    said = f"more than {most:,}" if found is None else f"{found:,}"
    needed = "NUMBER" if found is None else str(found)
    raise ExemplaError(
        f"{file} has {said} {WORDS[name]}, and {most:,} is the limit; if that is meant, raise it "
        f"with {VARIABLE}={name}={needed}."
    )


def _told() -> dict[str, int]:
    found = {}
    for piece in os.environ.get(VARIABLE, "").replace(",", " ").split():
        name, _, number = piece.partition("=")
        try:
            found[name] = int(float(number))
        except (ValueError, OverflowError):
            found[name] = 0
        if name not in DEFAULTS or found[name] < 1:
            raise ExemplaError(
                f"{VARIABLE} holds {piece!r}, which is not understood; write NAME=NUMBER with a "
                f"name of {', '.join(DEFAULTS)}."
            )
    return found
