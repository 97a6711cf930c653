"""The rules that infer the kind of a column: number, category, date, text, id, constant or leak.

Type inference of libraries finds how a column is stored. It does not find that a column is an id, a
copy of the label or a code with leading zeros, and it gives no reason that a user could check. Each
rule returns a kind and a reason; `apply_rules` has their order. A date column has one format, found
by trying the usual ones; libraries parse each value by itself and may mix days and months.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from exempla.tables.table import LARGEST, Table, encoded, is_text, missing_mask, pc, to_numbers

_DAYS = (
    "%Y-%m-%d", "%Y/%m/%d", "%Y.%m.%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y",
    "%d.%m.%y", "%d/%m/%y", "%m/%d/%y", "%d %b %Y", "%d %B %Y", "%b %d, %Y", "%B %d, %Y",
    "%d-%b-%Y", "%d-%b-%y", "%a, %d %b %Y",
)  # fmt: skip
_TIMES = ("", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", "T%H:%M", "T%H:%M:%S", "T%H:%M:%S.%f")
_ZONES = ("", "Z", "%z", " %z", " UTC")
_FORMATS = tuple(
    day + time + zone for day in _DAYS for time in _TIMES for zone in (_ZONES if time else ("",))
)


def _find_format(column: Any, share: float = 0.95) -> tuple[str, str | None] | None:
    """Return the format that parses at least `share` of the values, or None.

    The second entry is another format that reads them as well (day or month first?).

    >>> import pyarrow as pa
    >>> _find_format(pa.array(["2024-01-31", "2024-02-01"]))
    ('%Y-%m-%d', None)
    >>> _find_format(pa.array(["01/02/2024", "03/04/2024"]))
    ('%d/%m/%Y', '%m/%d/%Y')
    """
    codes, words = encoded(column)
    few = [word for word in words[:100] if word]
    if not few or sum(any(c.isdigit() for c in word) for word in few) < share * len(few):
        return None
    fitting = [each for each in _FORMATS if _read_share(few, each) >= share]
    counts = np.bincount(codes[codes >= 0], minlength=len(words))
    found = []
    for each in fitting:
        read = pd.to_datetime(
            pd.Series(words, dtype=object), format=each, errors="coerce", utc=True
        )
        if counts[read.notna().to_numpy()].sum() >= share * counts.sum():
            found.append(each)
    return (found[0], found[1] if len(found) > 1 else None) if found else None


def _read_share(words: list[str], style: str) -> float:
    # A few words first, cheaply: nearly every format fails there.
    if not any(_reads(word, style) for word in words[:3]):
        return 0.0
    read = pd.to_datetime(pd.Series(words, dtype=object), format=style, errors="coerce", utc=True)
    return float(read.notna().mean())


def _reads(word: str, style: str) -> bool:
    return _pattern(style).fullmatch(word.strip()) is not None


@cache
def _pattern(style: str) -> re.Pattern[str]:
    parts = {"%Y": r"\d{4}", "%b": r"[^\W\d]{3,4}", "%B": r"[^\W\d]+", "%a": r"[^\W\d]{3}"}
    parts |= {"%f": r"\d+", "%z": r"[-+]\d\d:?\d\d"}
    return re.compile(
        "".join(
            parts.get(piece, r"\d{1,2}") if piece.startswith("%") else re.escape(piece)
            for piece in re.split(r"(%[a-zA-Z])", style)
        )
    )


def to_dates(column: Any, style: str | None) -> np.ndarray:
    """The values as datetime64[s]; what does not read is NaT. Without a style: Arrow's own dates.

    >>> import pyarrow as pa
    >>> to_dates(pa.array(["2024-01-31", "x"]), "%Y-%m-%d").astype(str).tolist()
    ['2024-01-31T00:00:00', 'NaT']
    """
    if style is None:
        values = pd.to_datetime(
            pd.Series(column.to_pylist(), dtype=object), errors="coerce", utc=True
        )
        return values.dt.tz_localize(None).to_numpy().astype("datetime64[s]")
    codes, words = encoded(column)
    read = pd.to_datetime(pd.Series(words, dtype=object), format=style, errors="coerce", utc=True)
    dates = read.dt.tz_localize(None).to_numpy().astype("datetime64[s]")
    return np.append(dates, np.datetime64("NaT"))[codes]


_NUMBER_SHARE, _DATE_SHARE = 0.99, 0.95
_TEXT_DISTINCT, _TEXT_WORDS = 50, 5
_NEARLY = 0.95
"""Share of distinct values from which short strings count as ids."""
UUID = r"^\{?[0-9a-fA-F]{8}-([0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\}?$"
_GERMAN = r"^\s*[-+]?\d{1,3}(\.\d{3})+,\d+\s*$"
"""Thousands separated by points and a decimal comma."""
_HASH = r"^(0x)?[0-9a-fA-F]{16,128}$"
_ID_NAME = re.compile(r"(^|_)(id|key|index)(_|$)")
_LEAK_ROWS = 20
"""With fewer rows than this, two columns may be one-to-one by chance."""


@dataclass(frozen=True)
class Facts:
    """The values of a column, and properties of them that the rules use."""

    name: str
    values: Any
    missing: np.ndarray
    decimal_comma: bool
    """Whether "1,5" may be a number, because the file's delimiter is not a comma."""
    json: bool = False
    """Whether a value may be the JSON text of a list or an object."""

    @classmethod
    def of(cls, table: Table, name: str, rows: np.ndarray) -> Facts:
        values = table.column(name)
        values = values if len(rows) == len(table) else values.take(pa.array(rows))
        comma = getattr(getattr(table.source, "dialect", None), "delimiter", ",") != ","
        return cls(name, values, missing_mask(values), comma, table.format == "jsonl")

    @cached_property
    def present(self) -> Any:
        return self.values.filter(pa.array(~self.missing)) if self.missing.any() else self.values

    @cached_property
    def distinct(self) -> int:
        return int(pc.count_distinct(self.present).as_py())

    @cached_property
    def text(self) -> bool:
        return is_text(self.values)

    @cached_property
    def unique(self) -> bool:
        return not self.missing.any() and self.distinct == len(self.values) > 1

    @cached_property
    def words(self) -> float:
        return float(pc.mean(pc.count_substring_regex(self.present, r"\S+")).as_py() or 0.0)

    @cached_property
    def example(self) -> str:
        return str(self.present[0].as_py())

    def numbers(self, decimal: str = ".") -> np.ndarray:
        if not self.text and not _numeric(self.values.type):
            return np.full(len(self.present), np.nan)
        return to_numbers(self.present, decimal)

    @cached_property
    def plain_numbers(self) -> np.ndarray:
        return self.numbers()

    @cached_property
    def date(self) -> tuple[str, str | None] | None:
        return _find_format(self.present, _DATE_SHARE) if self.text else None

    def matches(self, pattern: str) -> bool:
        """Return True if every present value matches."""
        return bool(pc.all(pc.match_substring_regex(self.present, pattern)).as_py())


def apply_rules(facts: Facts) -> tuple[str, str, str]:
    """Return kind, reason and detail by the first rule that matches."""
    kind = facts.values.type
    if not (facts.text or _numeric(kind) or _dated(kind) or pa.types.is_boolean(kind)):
        return "ignored", f"type {kind}, which the default model cannot use", ""
    if facts.json and len(facts.present) and facts.matches(r"^[\[{]"):
        return "ignored", "nested lists or objects", ""
    for rule in (_constant, _identifier, _leading_zero, _number, _date, _text):
        answer = rule(facts)
        if answer is not None:
            return answer if len(answer) == 3 else (*answer, "")
    return "category", f"{facts.distinct:,} distinct values{_gaps(facts)}", ""


def _constant(facts: Facts) -> tuple[str, str] | None:
    if len(facts.present) == 0:
        return "constant", "every value is missing"
    if facts.distinct == 1 and not facts.missing.any():
        return "constant", f"every value is {facts.example[:40]!r}"
    return None


def _identifier(facts: Facts) -> tuple[str, str] | None:
    if not facts.unique or _dated(facts.values.type):
        return _nearly_unique(facts)
    numbers = facts.plain_numbers
    numeric = decimal_of(facts) is not None
    whole = bool(np.isfinite(numbers).all() and (numbers % 1 == 0).all())
    if whole and _span(facts, numbers) == len(numbers) - 1:
        return "id", "unique, consecutive integers"
    if facts.text and facts.matches(UUID):
        return "id", "unique UUIDs"
    if facts.text and facts.matches(_HASH) and not numeric:
        return "id", "unique hashes"
    # A measurement such as heat_index = 71.5 is not a key.
    if _ID_NAME.search(_snake(facts.name)) and (whole or not numeric):
        return "id", "unique, and named like an id"
    if facts.text and not numeric and facts.words < _TEXT_WORDS and facts.date is None:
        return "id", f"unique strings of fewer than {_TEXT_WORDS} words"
    return None


def _nearly_unique(facts: Facts) -> tuple[str, str] | None:
    """Names and codes that are rarely repeated: a value seen once teaches a model nothing."""
    if not facts.text or len(facts.present) < _LEAK_ROWS:
        return None
    if facts.distinct < _NEARLY * len(facts.present) or facts.words >= _TEXT_WORDS:
        return None
    if decimal_of(facts) is not None or facts.date is not None:
        return None
    return "id", f"nearly unique strings ({facts.distinct:,} of {len(facts.present):,} differ)"


def _span(facts: Facts, numbers: np.ndarray) -> float:
    if pa.types.is_integer(facts.values.type):  # 64-bit keys may differ where floats are equal
        ends = pc.min_max(facts.present).as_py()
        return ends["max"] - ends["min"]
    return float(numbers.max() - numbers.min())


def _snake(name: str) -> str:
    # customerID, Customer-Id and customer id are all customer_id.
    return re.sub(r"[^0-9a-z]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower())


def _leading_zero(facts: Facts) -> tuple[str, str] | None:
    if not facts.text:
        return None
    zeros = pc.match_substring_regex(facts.present, r"^\s*0\d+\s*$")
    if not pc.any(zeros).as_py():
        return None
    first = facts.present.filter(zeros)[0].as_py().strip()
    return "category", f"numbers with leading zeros such as {first[:20]!r} are codes"


def decimal_of(facts: Facts) -> str | None:
    """Return the decimal mark with which at least 99 % of the values are numbers, or None."""
    if np.isfinite(facts.plain_numbers).mean() >= _NUMBER_SHARE:
        return "."
    if not facts.text:
        return None
    # In a comma-separated file "1,5" may be two cells; "1.597,50" can only be a number.
    german = pc.any(pc.match_substring_regex(facts.present, _GERMAN)).as_py()
    if facts.decimal_comma or german:
        return "," if np.isfinite(facts.numbers(",")).mean() >= _NUMBER_SHARE else None
    return None


def _number(facts: Facts) -> tuple[str, str, str] | None:
    decimal = decimal_of(facts)
    if decimal is None:
        return None
    numbers = facts.numbers(decimal)
    odd, vast = int((~np.isfinite(numbers)).sum()), int((np.abs(numbers) > LARGEST).sum())
    if vast + odd == len(numbers):
        return "ignored", f"every number exceeds ±{LARGEST:g}, too large to compute with", ""
    reason = f"all {len(facts.present):,} values are numbers"
    if odd:
        reason = f"{1 - odd / len(facts.present):.1%} of the values are numbers"
    comma = " (decimal comma)" if decimal == "," else ""
    beyond = f", {vast:,} too large to compute with" if vast else ""
    return "number", reason + comma + beyond + _gaps(facts), decimal


def date_of(facts: Facts, share: float) -> tuple[str, str | None] | None:
    """Return the format of a date column, and another one that fits as well."""
    return _find_format(facts.present, share) if facts.text else None


def _date(facts: Facts) -> tuple[str, str, str] | None:
    if _dated(facts.values.type):
        return "date", f"stored as {facts.values.type}{_gaps(facts)}", ""
    if facts.date is None:
        return None
    style, rival = facts.date
    doubt = f"; {rival} fits as well" if rival else ""
    return "date", f"written as {style}{doubt}{_gaps(facts)}", style


def _text(facts: Facts) -> tuple[str, str] | None:
    if not facts.text or facts.distinct <= _TEXT_DISTINCT or facts.words < _TEXT_WORDS:
        return None
    return "text", f"{facts.distinct:,} distinct values of {facts.words:.0f} words on average"


def _gaps(facts: Facts) -> str:
    count = int(facts.missing.sum())
    return f", {count:,} missing" if count else ""


def copies_label(facts: Facts, label: Facts) -> str:
    """Return why a column reveals the label (a copy of it, or one-to-one with it), or ""."""
    if not (facts.text or _numeric(facts.values.type) or pa.types.is_boolean(facts.values.type)):
        return ""
    known = ~label.missing
    if facts.missing[known].any() or label.distinct < 2:
        return ""
    own, own_words = encoded(facts.values.filter(pa.array(known)))
    key, key_words = encoded(label.values.filter(pa.array(known)))
    if len(own_words) != len(key_words):
        return ""
    # One-to-one: as many pairs as values. A column that is unique in every row is an id.
    pairs = len(np.unique(own * len(key_words) + key))
    if pairs != len(key_words):
        return ""
    if [str(word) for word in own_words] == [str(word) for word in key_words]:
        return f"a copy of the label {label.name!r}"
    if len(own) >= max(_LEAK_ROWS, 2 * len(key_words)):
        return f"one-to-one with the label {label.name!r}"
    return ""


def _numeric(kind: Any) -> bool:
    types = pa.types
    return types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)


def _dated(kind: Any) -> bool:
    return pa.types.is_date(kind) or pa.types.is_timestamp(kind)
