"""Print versions, devices and installed libraries, as a bug report needs them.

With files, print how each one is read and the inferred kinds of its columns; the exit code is 2 if
one cannot be read.
"""

from __future__ import annotations

import os
import sys
from argparse import ArgumentParser, Namespace
from importlib.util import find_spec
from typing import Any

from exempla.cli.console import Console
from exempla.cli.options import completed, core, extras, here


def add_arguments(parser: ArgumentParser) -> None:
    """Add the files and the output."""
    files = parser.add_argument("file", metavar="FILE", nargs="*", help="data files to look at")
    completed(files, "FILE")
    parser.add_argument("--json", action="store_true", help="print as JSON")
    parser.add_argument("--quiet", action="store_true", help="print nothing; use the exit code")


def run(options: Namespace) -> int:
    """Return 0 if all required libraries are installed, otherwise 1."""
    console = Console.of(options)
    if options.file:
        console.result({str(name): look_at(name, console) for name in options.file})
        return 0
    found = _examine()
    console.say(f"exempla {found['exempla']} · Python {found['python']} · {found['system']}")
    console.say(f"{found['cores']} cores · {found['memory']}")
    missing = [name for name, number in found["core"].items() if number is None]
    listed = " · ".join(f"{name} {number}" for name, number in found["core"].items() if number)
    console.say(f"core: {listed}")
    for name in missing:
        console.say(f"  missing: {name}; install it with `pip install {name}`")
    for extra, parts in found["extras"].items():
        there = " · ".join(f"{name} {number}" for name, number in parts.items() if number)
        whole = all(parts.values())
        remedy = "" if whole else f"  (pip install 'exempla[{extra}]')"
        console.say(f"{'✓' if whole else '–'} {extra}: {there or 'not installed'}{remedy}")
    console.say(f"devices: {', '.join(found['devices'])}")
    console.say(f"compiled passes: {found['numba cache']}")
    console.result(found)
    return 1 if missing else 0


def look_at(name: str, console: Console) -> dict[str, Any]:
    """Read a file like every command, and print the kinds of its columns."""
    from exempla.tables import infer_columns, read_table, show_columns

    table = read_table(name)
    columns = infer_columns(table)
    for note in table.notes:
        console.say(note)
    console.say(f"{len(table):,} rows, {len(columns):,} columns:")
    console.say(show_columns(columns))
    return {"rows": len(table), "columns": {c.name: c.kind for c in columns}}


def _examine() -> dict[str, Any]:
    """Return versions, extras, devices and resources.

    >>> _examine()["core"]["numpy"] is not None
    True
    """
    return {
        **here(),
        "executable": sys.executable,
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "memory": _memory(),
        "core": core(),
        "extras": extras(),
        "devices": _devices(),
        "numba cache": _numba_cache(),
    }


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return "memory unknown"
    return f"{size / 2**30:.0f} GiB memory"


def _devices() -> list[str]:
    if find_spec("torch") is None:
        return ["cpu"]
    try:
        import torch
    except (ImportError, OSError) as error:
        return ["cpu", f"torch does not load: {error}"]
    found = ["cpu"]
    if torch.cuda.is_available():
        found += [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def _numba_cache() -> str:
    if find_spec("numba") is None:
        return "numba is missing; slower NumPy passes are used"
    from pathlib import Path

    import exempla

    chosen = os.environ.get("NUMBA_CACHE_DIR")
    place = Path(chosen) if chosen else Path(exempla.__file__).parent
    writable = os.access(place if place.exists() else place.parent, os.W_OK)
    return "numba, cache writable" if writable else "numba, cache not writable here"
