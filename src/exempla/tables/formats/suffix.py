"""The ending of a file's name that tells its format: `.csv`, `.csv.gz`; not `.2024.csv`."""

from __future__ import annotations

from pathlib import PurePath

__all__ = ["format_suffix", "named_format"]

FORMATS = frozenset(
    {".csv", ".tsv", ".jsonl", ".ndjson", ".json", ".npz", ".parquet", ".xlsx", ".xlsm"}
)
PACKINGS = frozenset({".gz", ".bz2", ".xz", ".zip"})


def format_suffix(path: str | PurePath) -> str:
    """Everything from the last ending that names a format on; the last ending if none does. A
    number, such as a year, is no ending.

    >>> [format_suffix(n) for n in ("data.2024.csv", "mails.v2.csv.gz", "adult.data", "a.2024")]
    ['.csv', '.csv.gz', '.data', '']
    """
    suffixes = PurePath(path).suffixes
    known = [place for place, suffix in enumerate(suffixes) if suffix.lower() in FORMATS]
    if known:
        return "".join(suffixes[known[-1] :])
    packed = bool(suffixes) and suffixes[-1].lower() in PACKINGS
    last = suffixes[-2 if packed else -1 :]
    return "".join(suffix for suffix in last if not suffix[1:].isdecimal())


def named_format(path: str | PurePath) -> str:
    """The format a name speaks of, as its ending; "" if it speaks of none.

    >>> named_format("a.json.CSV.gz"), named_format("adult.data")
    ('.csv', '')
    """
    first = PurePath(f"_{format_suffix(path)}").suffixes[:1]
    return next((suffix.lower() for suffix in first if suffix.lower() in FORMATS), "")
