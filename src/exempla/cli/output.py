"""The folder for the results: checked before any work is done, filled all at once after it.

What every command leaves in its folder: explanation.json, a table, report.html.

Everything is written to a staged folder (`exempla.cli.output.published`) and named where it
will be.
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
from exempla.io import MANIFEST, check_targets, make_folder, probe, publishing, write_text
from exempla.progress import waiting
from exempla.report import About, View, write_report
from exempla.results import Answer, Selection
from exempla.tables.formats.encoding import format_suffix

ALWAYS = ("explanation.json", "explanation.csv", "report.html")
"""What every command leaves behind, besides the manifest."""


def named_after(name: str, file: str | Path) -> str:
    """The name with the ending of the user's file, whose other dots are no ending.

    >>> named_after("cleaned", "mails.2024.csv"), named_after("cleaned", "mails.csv.gz")
    ('cleaned.csv', 'cleaned.csv.gz')
    """
    return name + format_suffix(PurePath(file).name)


def prepare_folder(
    options: Namespace, files: Iterable[str] = (), others: Iterable[str] = ()
) -> Path:
    """--out, made if it is not there; refused, before any work is done, if the results cannot be
    written there or would touch what is read.

    `files` are written besides those of every command; `others` belong to the review page.
    """
    check_numbers(options)
    folder: Path = options.out
    names = (*ALWAYS, *files, MANIFEST)
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
    check_targets(folder, names)
    return folder


@contextmanager
def published(folder: Path, options: Namespace) -> Iterator[Path]:
    """A place to write the results to; they appear in the folder, with a manifest, when all are
    complete."""
    try:
        with publishing(
            folder, {"command": command_line(options), "version": __version__}
        ) as stage:
            yield stage
    except (OSError, ExemplaError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError) or not _about(cause, folder):
            raise
        raise ExemplaError(
            f"The results cannot be written to {folder} ({_reason(cause)}); make room there, or "
            "choose another folder with --out."
        ) from error


def _keep_apart(given: Path, folder: Path, names: Iterable[str]) -> None:
    """Refuse to write over what is read, be it through links, or into a folder of images."""
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


def _about(error: OSError, folder: Path) -> bool:
    """Whether the error is about what was being written, not about a file of the user's."""
    name = error.filename
    return not isinstance(name, str) or Path(name).is_relative_to(folder)


def _reason(error: OSError) -> str:
    if isinstance(error, FileExistsError):
        return f"{error.filename} is no folder"
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
    """Write the three files."""
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
    """Write explanation.json and explanation.csv."""
    table = stage / "explanation.csv"
    _listed(explanation, train_view).to_csv(table, index=False)
    return {"result": write_json(stage, {**explanation.to_dict(), **(extra or {})}), "table": table}


def contract(options: Namespace, indices: list[int], **known: Any) -> dict[str, Any]:
    """What programs find in every explanation.json, where the answer is no weighted selection:
    what it does not have is null."""
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
    """Write explanation.json."""
    text = json.dumps(values, indent=2, allow_nan=False)
    return write_text(stage / "explanation.json", f"{text}\n")


def _listed(explanation: Answer, train_view: View) -> Any:
    """The picked examples with their labels and all that the file says of them, one line each."""
    frame = explanation.to_frame()
    shown = [train_view.show(int(index)) for index in explanation.indices]
    frame["label"] = [content.label for content in shown]
    frame["predicted"] = [content.predicted for content in shown]
    rows = [train_view.columns_of(int(index)) for index in explanation.indices]
    own = {}
    for name in rows[0] if rows else ():
        # a column called like one of ours keeps its name behind the word "file"
        title = f"file:{name}" if name in frame.columns else name
        own[title] = [row.get(name) for row in rows]
    return pd.concat([frame, pd.DataFrame(own, index=frame.index)], axis=1)


_WORDS = {
    "report": "the whole answer, in a browser",
    "picture": "mistakes beside the images behind them",
    "table": "the listed examples as a table",
    "data": "the data itself",
    "result": "everything, for programs",
}


def say_files(console: Console, folder: Path, staged: dict[str, Path]) -> None:
    """Where each file is now and what it is for; with --json, the result itself."""
    paths = {name: folder / path.name for name, path in staged.items()}
    console.say(f"Done in {console.seconds():.0f} s. Look at:")
    width = max(len(str(path)) for path in paths.values())
    for name in sorted(paths, key=list(_WORDS).index):
        console.say(f"  {str(paths[name]).ljust(width)}  {_WORDS[name]}")
    files = {name: str(path) for name, path in paths.items()}
    console.result({**json.loads(paths["result"].read_text(encoding="utf-8")), "files": files})


def say_review(console: Console, folder: Path) -> None:
    """How to go on to the review page; what it lacks is said now, not when it is asked for.

    >>> say_review(Console(), Path("suspects"))  # doctest: +ELLIPSIS
    Decide about them: ...exempla review suspects
    """
    needed = ("fastapi", "uvicorn")
    missing = any(find_spec(name) is None for name in needed)
    first = "pip install 'exempla[review]', then " if missing else ""
    console.say(f"Decide about them: {first}exempla review {folder}")
