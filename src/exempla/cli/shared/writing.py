"""What every command leaves in its folder: explanation.json, a table, report.html.

Everything is written to a staged folder (`exempla.cli.shared.output.published`) and named where it
will be.
"""

from __future__ import annotations

import json
from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pandas as pd

from exempla.atomic import write_text
from exempla.cli.shared.console import Console
from exempla.progress import waiting
from exempla.report import About, View, write_report
from exempla.results import Answer, Selection
from exempla.version import __version__

__all__ = ["contract", "say_files", "say_review", "write_json", "write_results", "write_tables"]


def write_results(
    stage: Path,
    explanation: Selection,
    *,
    train_view: View,
    test_view: View | None = None,
    about: About,
    evidence: Any = None,
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


WORDS = {
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
    for name in sorted(paths, key=list(WORDS).index):
        console.say(f"  {str(paths[name]).ljust(width)}  {WORDS[name]}")
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
