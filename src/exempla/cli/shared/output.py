"""The folder for the results: checked before any work is done, filled all at once after it."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from exempla.atomic import MANIFEST, check_targets, make_folder, probe, publishing
from exempla.cli.shared.options import check_numbers, command_line
from exempla.errors import ExemplaError
from exempla.tables.formats.suffix import format_suffix
from exempla.version import __version__

__all__ = ["ALWAYS", "named_after", "prepare_folder", "published"]

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
