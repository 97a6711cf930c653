"""Cases that failed once, kept so that they never do again."""

from __future__ import annotations

from tests.fuzz.doors import Case

CORPUS: tuple[Case, ...] = ()
