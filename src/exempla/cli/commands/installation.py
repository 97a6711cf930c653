"""Commands about exempla itself: `doctor`, `completion`, `bench` and `reproduce`."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import exempla
from exempla.cli.main import build_parser, versions
from exempla.cli.options import COMMANDS, Console
from exempla.errors import ExemplaError

_FOLDERS = {"bench": "benchmarks", "reproduce": "experiments"}


def run(options: Namespace) -> int:
    """Run one of these commands."""
    if options.command in _FOLDERS:
        return _run_checkout(options)
    if options.command == "doctor":
        return _doctor(options)
    import shtab

    # Built again now that shtab is loaded, so that paths are completed.
    print(shtab.complete(build_parser(), options.shell))
    return 0


def _run_checkout(options: Namespace) -> int:
    """Run `python -m benchmarks` or `python -m experiments` of the checkout."""
    folder, words = _FOLDERS[options.command], options.arguments[1:]
    try:
        root = _find_checkout(folder)
    except ExemplaError:
        if not {"-h", "--help"} & set(words):
            raise
        print(inspect.getdoc(COMMANDS[options.command][0]))
        return 0
    # In a separate process, so that measurements share no threads. With -P, a folder of the same
    # name in the current folder is not imported by mistake.
    path = os.pathsep.join(filter(None, [str(root), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-P", "-m", folder, *words]
    try:
        return subprocess.run(command, env=os.environ | {"PYTHONPATH": path}).returncode
    except KeyboardInterrupt:
        return 130  # the other process has printed a message


def _find_checkout(folder: str, candidates: Sequence[Path] = ()) -> Path:
    """Return the root of the checkout that contains `folder`.

    Searches above the package (for an editable install) and in the current folder.
    """
    for root in candidates or (Path(exempla.__file__).resolve().parents[2], Path.cwd()):
        # The checkout also contains the package; a folder of that name alone proves nothing.
        if (root / folder).is_dir() and (root / "src" / "exempla").is_dir():
            return root
    raise ExemplaError(
        f"The folder {folder} is part of exempla's source repository, not of the installed "
        "package; run this command inside a checkout of the repository."
    )


def _doctor(options: Namespace) -> int:
    """Return 0 if all required libraries are installed, otherwise 1."""
    console = Console(options)
    if options.file:
        console.result({str(name): _look_at(name, console) for name in options.file})
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
    console.result(found)
    return 1 if missing else 0


def _look_at(name: str, console: Console) -> dict[str, Any]:
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
    """Return versions, extras, devices and resources."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    memory = "memory unknown"
    if hasattr(os, "sysconf"):
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        memory = f"{size / 2**30:.0f} GiB memory"
    return {
        **versions(),
        "executable": sys.executable,
        "cores": cores,
        "memory": memory,
        "devices": _devices(),
    }


def _devices() -> list[str]:
    if find_spec("torch") is None:
        return ["cpu"]
    try:
        import torch
    except (ImportError, OSError) as error:
        return ["cpu", f"torch does not load: {error}"]
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return ["cpu", *gpus, *(["mps"] if torch.backends.mps.is_available() else [])]
