"""What every command leaves in its folder: explanation.json, a table, report.html."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from exempla.cli.shared.console import Console
from exempla.errors import ExemplaError
from exempla.report import About, View, write_report
from exempla.report.sentences import answer
from exempla.results import Answer, Selection

__all__ = [
    "make_folder", "say_files", "say_where", "table_of", "write_results", "write_tables",
]  # fmt: skip


def make_folder(path: Path) -> Path:
    """The folder, made if it is not there; refused before any work is done if it cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ExemplaError(
            f"The folder {path} cannot be made ({error.strerror}); choose another one with --out."
        ) from error
    return path


def write_results(
    folder: Path,
    explanation: Selection,
    *,
    train_view: View,
    test_view: View | None = None,
    about: About,
    evidence: Any = None,
    extra: dict[str, Any] | None = None,
) -> dict[str, Path]:
    """Write the three files and say where each is."""
    paths = write_tables(folder, explanation, train_view, extra)
    paths["report"] = write_report(
        explanation,
        folder / "report.html",
        train_view=train_view,
        test_view=test_view,
        about=about,
        evidence=evidence,
    )
    return paths


def write_tables(
    folder: Path, explanation: Answer, train_view: View, extra: dict[str, Any] | None = None
) -> dict[str, Path]:
    """Write explanation.json and explanation.csv."""
    values = {**explanation.to_dict(), **(extra or {})}
    result = folder / "explanation.json"
    result.write_text(json.dumps(values, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    table = folder / "explanation.csv"
    table_of(explanation, train_view).to_csv(table, index=False)
    return {"result": result, "table": table}


def table_of(explanation: Answer, train_view: View) -> Any:
    """The picked examples with their labels, one line each."""
    frame = explanation.to_frame()
    shown = [train_view.show(int(index)) for index in explanation.indices]
    frame["label"] = [content.label for content in shown]
    frame["predicted"] = [content.predicted for content in shown]
    return frame


def say_where(
    console: Console, explanation: Selection, about: About, paths: dict[str, Path]
) -> None:
    """The answer in one sentence, and where to read more; the whole of it for programs."""
    console.say(answer(explanation, about))
    say_files(console, paths)


WORDS = {
    "report": "the whole answer, in a browser",
    "picture": "mistakes beside the images behind them",
    "table": "the listed examples as a table",
    "data": "the data itself",
    "result": "everything, for programs",
}


def say_files(console: Console, paths: dict[str, Path]) -> None:
    """Where each file is and what it is for; with --json, the result itself."""
    console.say(f"Done in {console.seconds():.0f} s. Look at:")
    width = max(len(str(path)) for path in paths.values())
    for name in sorted(paths, key=list(WORDS).index):
        console.say(f"  {str(paths[name]).ljust(width)}  {WORDS[name]}")
    files = {name: str(path) for name, path in paths.items()}
    console.result({**json.loads(paths["result"].read_text(encoding="utf-8")), "files": files})
