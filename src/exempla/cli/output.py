"""The results folder of a command: checked before any work is done, filled all at once at the end.

Every command leaves explanation.json, a table and report.html there, with a manifest that lists
what exempla wrote. Files are written to a staging folder (`Job.published`) and moved together.
"""

from __future__ import annotations

import json
import os
from argparse import Namespace
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from exempla import __version__
from exempla.checks import check_seed
from exempla.cli.options import Console, command_line
from exempla.errors import ExemplaError
from exempla.explainer import Explainer
from exempla.io import (
    MANIFEST,
    check_targets,
    foreign_files,
    make_folder,
    probe,
    publishing,
    read_json,
    write_text,
)
from exempla.progress import showing, waiting
from exempla.progress import stage as start_stage
from exempla.report import About, View, write_report
from exempla.results import Answer, Selection

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


class Job(Console):
    """A running command: its options, its results folder, and what it prints."""

    def __init__(self, options: Namespace, folder: Path) -> None:
        super().__init__(options)
        self.folder = folder

    @classmethod
    @contextmanager
    def opened(
        cls, options: Namespace, files: Iterable[str] = (), others: Iterable[str] = ()
    ) -> Iterator[Job]:
        """Prepare the results folder, or refuse it before any work is done.

        `files` are written besides those of every command; `others`, which the review page writes,
        must not be files that are read. A new folder is removed if the command fails.
        """
        is_new = not options.out.exists()
        job = cls(options, options.out)
        job._prepare(list(files), list(others))
        try:
            with job.hearing_warnings(), showing(job.progress):
                yield job
        except BaseException:
            if is_new:
                with suppress(OSError):
                    job.folder.rmdir()
            raise

    def _prepare(self, files: list[str], others: list[str]) -> None:
        check_seed(self.options.seed)
        k = getattr(self.options, "k", None)
        if k not in (None, "auto") and k < 1:
            raise ExemplaError(f"k is {k}; ask for at least one row with -k.")
        folder, names = self.folder, [*_ALWAYS, *files, MANIFEST]
        for given in (getattr(self.options, name, None) for name in ("file", "test", "curated")):
            if given is not None:
                _keep_apart(Path(given), folder, [*names, *others])
        try:
            make_folder(folder)
            probe(folder)
        except OSError as error:
            raise self._unwritable(error) from error
        if not is_review(folder):
            names += [name for name in _REVIEW_LIST if name in others]
        check_targets(folder, names, force=self.options.force)
        if self.options.force and (replaced := foreign_files(folder, names)):
            self.warn(
                f"--force: overwriting {', '.join(replaced)} in {folder}, which exempla did not "
                "write."
            )

    @contextmanager
    def published(self) -> Iterator[Path]:
        """Yield a staging folder; its files appear in the results folder when all are written."""
        start_stage("writing the results")
        about = {"command": command_line(self.options), "version": __version__}
        try:
            with (
                showing(self.progress),
                publishing(self.folder, about, force=self.options.force) as stage,
            ):
                yield stage
        except (OSError, ExemplaError) as error:
            cause = error if isinstance(error, OSError) else error.__cause__
            name = getattr(cause, "filename", None)
            # An error about another file is not about what was being written.
            ours = not isinstance(name, str) or Path(name).is_relative_to(self.folder)
            if not isinstance(cause, OSError) or not ours:
                raise
            raise self._unwritable(cause) from error

    def _unwritable(self, error: OSError) -> ExemplaError:
        why = error.strerror or str(error) or type(error).__name__
        if isinstance(error, FileExistsError):
            why = f"{error.filename} is not a folder"
        return ExemplaError(
            f"The results cannot be written to {self.folder} ({why}); free some space there, or "
            "choose another folder with --out."
        )

    def explainer(self, model: Any) -> Explainer:
        """Return an Explainer of this model with the options of the command."""
        options = self.options
        return Explainer(
            model, store=getattr(options, "store", None), budget=options.budget,
            seed=options.seed, progress=self.progress,
        )  # fmt: skip

    def contract(self, indices: list[int], **known: Any) -> dict[str, Any]:
        """Return the fields of every explanation.json; those the answer does not have are null."""
        nothing = dict.fromkeys(("weights", "side", "explained", "variance"))
        own = {"k": len(indices), "seed": self.options.seed, "version": __version__}
        return {"indices": indices, **nothing, **own, **known}

    def say_files(self, staged: dict[str, Path]) -> None:
        """Print where each file is and what it is for; with --json, print the result itself."""
        paths = {name: self.folder / path.name for name, path in staged.items()}
        self.say(f"Done in {self.seconds():.0f} s. Look at:")
        width = max(len(str(path)) for path in paths.values())
        for name in sorted(paths, key=list(_DESCRIPTIONS).index):
            self.say(f"  {str(paths[name]).ljust(width)}  {_DESCRIPTIONS[name]}")
        files = {name: str(path) for name, path in paths.items()}
        self.result({**json.loads(paths["result"].read_text(encoding="utf-8")), "files": files})

    def say_review(self) -> None:
        """Print how to start the review page, and how to install it if it is missing."""
        missing = any(find_spec(name) is None for name in ("fastapi", "uvicorn"))
        first = "pip install 'exempla[review]', then " if missing else ""
        self.say(f"Review them: {first}exempla review {self.folder}")

    def verdict(self, found: float, what: str) -> int:
        """Return exit code 1 and say why if the share `found` is above --fail-above."""
        limit = self.options.fail_above
        if limit is None or found <= limit:
            return 0
        self.warn(f"{found:.1%} {what}, which is above --fail-above {limit:g}.")
        return 1


def is_review(folder: Path) -> bool:
    """Return True if the folder is one that `fix-labels` made, so that it may be replaced."""
    found = read_json(folder / "review.json")
    return isinstance(found, dict) and "suspects_sha256" in found


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


def write_results(
    stage: Path,
    answer: Selection,
    *,
    train_view: View,
    about: About,
    extra: dict[str, Any] | None = None,
    **report: Any,
) -> dict[str, Path]:
    """Write explanation.json, explanation.csv and report.html; return their paths.

    `report` are further options of `write_report`.
    """
    paths = write_tables(stage, answer, train_view, {**answer.to_dict(), **(extra or {})})
    with waiting("writing the report"):
        paths["report"] = write_report(
            answer, stage / "report.html", train_view=train_view, about=about, **report
        )
    return paths


def write_tables(
    stage: Path, answer: Answer, view: View, values: dict[str, Any]
) -> dict[str, Path]:
    """Write explanation.json with these values and explanation.csv; return their paths."""
    table = stage / "explanation.csv"
    _listed_rows(answer, view).to_csv(table, index=False)
    return {"result": write_json(stage, values), "table": table}


def write_json(stage: Path, values: dict[str, Any]) -> Path:
    """Write explanation.json and return its path."""
    text = json.dumps(values, indent=2, allow_nan=False)
    return write_text(stage / "explanation.json", f"{text}\n")


def _listed_rows(answer: Answer, view: View) -> pd.DataFrame:
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
