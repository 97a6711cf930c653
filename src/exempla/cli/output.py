"""The results folder: checked before any work is done, filled all at once at the end.

Every command leaves explanation.json, a table and report.html there, with a manifest that lists
what exempla wrote. Files are written to a staging folder (`published`) and moved together.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any

import pandas as pd

from exempla import __version__
from exempla.cli.console import Console
from exempla.cli.options import check_numbers, command_line
from exempla.errors import ExemplaError
from exempla.io import (
    MANIFEST,
    check_targets,
    foreign_files,
    make_folder,
    probe,
    publishing,
    write_text,
)
from exempla.progress import stage as start_stage
from exempla.progress import waiting
from exempla.report import About, View, write_report
from exempla.results import Answer, Selection
from exempla.tables.formats.encoding import format_suffix

_ALWAYS = ("explanation.json", "explanation.csv", "report.html")
"""What every command writes, besides the manifest."""
_REVIEW_LIST = ("review.json", "suspects.jsonl")
"""What fix-labels writes for the review page, which is not in the manifest."""
_DESCRIPTIONS = {
    "report": "the whole answer, in a browser",
    "picture": "mistakes beside the images behind them",
    "table": "the listed examples as a table",
    "data": "the data itself",
    "tasks": "the rows as tasks for Label Studio",
    "result": "everything, for programs",
}


def named_after(name: str, file: str | Path) -> str:
    """Return the name with the file extension of the user's file.

    >>> named_after("cleaned", "mails.2024.csv"), named_after("cleaned", "mails.csv.gz")
    ('cleaned.csv', 'cleaned.csv.gz')
    """
    return name + format_suffix(PurePath(file).name)


def prepare_folder(
    options: Namespace, files: Iterable[str] = (), others: Iterable[str] = ()
) -> Path:
    """Make the folder --out, or refuse it before any work is done.

    Parameters
    ----------
    options
        The command line, with `out` and `force`.
    files
        What the command writes besides the files of every command.
    others
        Files of the review page, which must not be files that are read.

    Raises
    ------
    ExemplaError
        If the folder cannot be written to, if a result would replace a file that is read, or if it
        would replace a file that exempla did not write (unless --force is given).
    """
    check_numbers(options)
    folder: Path = options.out
    names, others = (*_ALWAYS, *files, MANIFEST), list(others)
    for given in (getattr(options, name, None) for name in ("file", "test", "curated")):
        if given is not None:
            _keep_apart(Path(given), folder, (*names, *others))
    try:
        make_folder(folder)
        probe(folder)
    except OSError as error:
        raise ExemplaError(
            f"The results cannot be written to {folder} ({_reason(error)}); choose another folder "
            "with --out."
        ) from error
    if not is_review(folder):
        names = (*names, *(name for name in _REVIEW_LIST if name in others))
    force = getattr(options, "force", False)
    check_targets(folder, names, force=force)
    if force and (replaced := foreign_files(folder, names)):
        Console.of(options).warn(
            f"--force: overwriting {', '.join(replaced)} in {folder}, which exempla did not write."
        )
    return folder


def is_review(folder: Path) -> bool:
    """Return True if the folder is one that `fix-labels` made, so that it may be replaced."""
    try:
        found = json.loads((folder / "review.json").read_bytes())
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(found, dict) and "suspects_sha256" in found


@contextmanager
def published(folder: Path, options: Namespace) -> Iterator[Path]:
    """Yield a staging folder; its files appear in `folder` when all of them are written."""
    start_stage("writing the results")
    about = {"command": command_line(options), "version": __version__}
    try:
        with publishing(folder, about, force=getattr(options, "force", False)) as stage:
            yield stage
    except (OSError, ExemplaError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or not _is_about(cause, folder):
            raise
        raise ExemplaError(
            f"The results cannot be written to {folder} ({_reason(cause)}); free some space there, "
            "or choose another folder with --out."
        ) from error


def _keep_apart(given: Path, folder: Path, names: Iterable[str]) -> None:
    """Refuse to replace what is read, also through links, and to write into a folder of images."""
    read = Path(os.path.realpath(given))
    if read.is_dir() and Path(os.path.realpath(folder)).is_relative_to(read):
        raise ExemplaError(
            f"The results would be written into {given}, whose images are read; choose a folder "
            "outside it with --out."
        )
    for name in names:
        place = folder / name
        inside = read.is_relative_to(os.path.realpath(place))
        if inside or (place.exists() and read.exists() and place.samefile(read)):
            raise ExemplaError(
                f"{given} is read, and {place} would be written over it; choose another folder "
                "with --out."
            )


def _is_about(error: OSError, folder: Path) -> bool:
    """Return True if the error is about what was being written, not about a file of the user."""
    name = error.filename
    return not isinstance(name, str) or Path(name).is_relative_to(folder)


def _reason(error: OSError) -> str:
    if isinstance(error, FileExistsError):
        return f"{error.filename} is not a folder"
    return error.strerror or str(error) or type(error).__name__


def write_results(
    stage: Path,
    explanation: Selection,
    *,
    train_view: View,
    test_view: View | None = None,
    about: About,
    evidence: Any = None,
    layout: Any = None,
    verification: Any = None,
    extra: dict[str, Any] | None = None,
) -> dict[str, Path]:
    """Write explanation.json, explanation.csv and report.html; return their paths."""
    paths = write_tables(stage, explanation, train_view, extra)
    with waiting("writing the report"):
        paths["report"] = write_report(
            explanation,
            stage / "report.html",
            train_view=train_view,
            test_view=test_view,
            about=about,
            evidence=evidence,
            layout=layout,
            verification=verification,
        )
    return paths


def write_tables(
    stage: Path, explanation: Answer, train_view: View, extra: dict[str, Any] | None = None
) -> dict[str, Path]:
    """Write explanation.json and explanation.csv; return their paths."""
    table = stage / "explanation.csv"
    listed_rows(explanation, train_view).to_csv(table, index=False)
    return {"result": write_json(stage, {**explanation.to_dict(), **(extra or {})}), "table": table}


def contract(options: Namespace, indices: list[int], **known: Any) -> dict[str, Any]:
    """Return the fields of every explanation.json; those the answer does not have are null."""
    return {
        "indices": indices,
        "weights": None,
        "side": None,
        "explained": None,
        "variance": None,
        "k": len(indices),
        "seed": options.seed,
        "version": __version__,
        **known,
    }


def write_json(stage: Path, values: dict[str, Any]) -> Path:
    """Write explanation.json and return its path."""
    text = json.dumps(values, indent=2, allow_nan=False)
    return write_text(stage / "explanation.json", f"{text}\n")


def listed_rows(answer: Answer, view: View) -> pd.DataFrame:
    """Return the listed examples with their labels and all columns of the file."""
    frame = answer.to_frame()
    indices = [int(index) for index in answer.indices]
    shown = [view.show(index) for index in indices]
    for name in ("label", "predicted"):
        values = [getattr(content, name) for content in shown]
        if any(value is not None for value in values):
            frame[name] = values
    rows = [view.columns_of(index) for index in indices]
    own = {
        # A column of the file with the name of one of ours is prefixed with "file:".
        (f"file:{name}" if name in frame.columns else name): [row.get(name) for row in rows]
        for name in (rows[0] if rows else ())
    }
    return pd.concat([frame, pd.DataFrame(own, index=frame.index)], axis=1)


def say_files(console: Console, folder: Path, staged: dict[str, Path]) -> None:
    """Print where each file is and what it is for; with --json, print the result itself."""
    paths = {name: folder / path.name for name, path in staged.items()}
    console.say(f"Done in {console.seconds():.0f} s. Look at:")
    width = max(len(str(path)) for path in paths.values())
    for name in sorted(paths, key=list(_DESCRIPTIONS).index):
        console.say(f"  {str(paths[name]).ljust(width)}  {_DESCRIPTIONS[name]}")
    files = {name: str(path) for name, path in paths.items()}
    console.result({**json.loads(paths["result"].read_text(encoding="utf-8")), "files": files})


def say_review(console: Console, folder: Path) -> None:
    """Print how to start the review page, and how to install it if it is missing.

    >>> say_review(Console(), Path("suspects"))  # doctest: +ELLIPSIS
    Review them: ...exempla review suspects
    """
    missing = any(find_spec(name) is None for name in ("fastapi", "uvicorn"))
    first = "pip install 'exempla[review]', then " if missing else ""
    console.say(f"Review them: {first}exempla review {folder}")
