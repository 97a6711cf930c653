"""Export suspects to Label Studio, FiftyOne, cleanlab and Spotlight; import decisions from two.

**Label Studio.** One task per suspect, with our suggestion as its prediction, scored by the
probability that the given label is wrong. The labeling interface is written beside the tasks
(`.xml`). Annotations are read back from its JSON and JSON-MIN exports.

**FiftyOne.** A CSV for its CSVDataset. A sample's path is that of its image or, for other rows, of
the folder followed by the item's number. The column `label` is empty; a decision goes there or into
the sample's tags (keep, remove, skip). Export it again with

    dataset.export(labels_path="back.csv", dataset_type=fo.types.CSVDataset, export_media=False,
                   fields=["exempla_item", "label", "tags"])

**cleanlab and Spotlight** only display, with the columns of `Datalab.get_issues("label")` and the
fields of `renumics.spotlight.analysis.DataIssue`.

An import is all or nothing: an unknown row or label refuses the file and names each problem. A row
with a different earlier decision keeps it, and is named. Importing a file twice changes nothing.
"""

from __future__ import annotations

import csv
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

import pandas as pd

from exempla import __version__
from exempla.checks import check_choice
from exempla.errors import ExemplaError
from exempla.io import MANIFEST, parse_json, publishing, read_json, write_text
from exempla.report.views import Content
from exempla.review.folder import Suspect, is_number
from exempla.review.log import RowDecision

_CONTROL, _ITEM = "label", "exempla_item"
"""The name of the control in Label Studio, and of the field that identifies the suspect."""


class _Suspects(NamedTuple):
    """What a writer exports; the content of each suspect is a text, the path of an image or both.

    `column` is the label column, and `folder` the one the files are written to.
    """

    items: Sequence[Suspect]
    classes: Sequence[str]
    folder: Path
    column: str = "label"


def _shown(suspect: Suspect, text: str, image: str, column: str = "label") -> Suspect:
    """Return the suspect with this content; without any, its label is the text."""
    if not text and not image:
        text = f"row {suspect.row} · {suspect.part or column}: {suspect.given}"
    return replace(suspect, content=Content(image or None, ((text, 0.0),) if text else ()))


def _text(suspect: Suspect) -> str:
    return "".join(piece for piece, _ in suspect.content.pieces)


def _items_of_result(fixes: Any, texts: Any = None, images: Any = None) -> list[Suspect]:
    """Return the suspects of a result, most suspicious first."""
    from exempla.tables.dataset import span_of

    out = []
    for rank, row in enumerate(fixes.indices.tolist()):
        words = texts[row] if texts is not None else ""
        labels: list[Any] = [fixes.given[rank], fixes.suggested[rank]]
        more: dict[str, Any] = {"id": "" if fixes.ids is None else str(fixes.ids[rank])}
        if fixes.parts:
            more |= {"kind": "part", "part": str(fixes.name[rank]) or " "}
        if fixes.parts == "labels":
            labels = ["present" if label else "absent" for label in labels]
        elif fixes.parts == "tokens":
            place = int(fixes.part[rank])
            more["span"] = (place, place + 1)  # without the sentence, the place identifies it
            if not isinstance(words, str):
                more["span"], words = span_of(words, place), " ".join(words)
        if fixes.spread is not None:
            more |= {name: float(getattr(fixes, name)[rank]) for name in ("expected", "spread")}
            more["kind"], labels = "number", [f"{label:.10g}" for label in labels]
        given, better = map(str, labels)
        suspect = Suspect(row, given, better, float(fixes.probabilities[rank]), 0.0, **more)
        out.append(_shown(suspect, str(words), str(images[row]) if images is not None else ""))
    return out


def _items_of_review(review: Any) -> list[Suspect]:
    """Return the suspects of a review folder, in its order."""
    files = None
    if review.source.format == "images":
        from exempla.tables.dataset import read_table

        files = read_table(review.source_path()).strings("file")
    out = []
    for listed in review.suspects:
        content, image = review.card(listed.item)["content"], ""
        if files is not None:
            image = str(review.source_path() / (files[listed.row] or ""))
        elif content.get("image"):
            image = str((review.directory / "images" / f"train-{listed.row}.webp").resolve())
        cells = "\n".join(f"{column}: {value}" for column, value, _ in content.get("cells", []))
        text = content.get("text", "") or cells
        out.append(_shown(listed, text, image, review.source.label or "label"))
    return out


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    return pd.DataFrame(rows).to_csv(index=False, lineterminator="\n")


def _label_studio(job: _Suspects) -> tuple[str, str]:
    """Return the tasks and the labeling interface."""
    images = any(item.content.image for item in job.items)
    # Label Studio needs every field of the interface in every task.
    texts = not images or any(item.content.pieces for item in job.items)
    shown = ["image"] * images + ["text"] * texts
    lines = ["<View>", '  <Header value="$exempla_question"/>']
    lines += [f'  <{name.capitalize()} name="{name}" value="${name}"/>' for name in shown]
    if any(item.kind == "number" for item in job.items):
        lines.append(f'  <Number name="{_CONTROL}" toName="{shown[0]}"/>')
    else:
        lines.append(f'  <Choices name="{_CONTROL}" toName="{shown[0]}" choice="single-radio">')
        lines += [f"    <Choice value={quoteattr(name)}/>" for name in job.classes]
        lines.append("  </Choices>")
    tasks = [_task(item, shown) for item in job.items]
    return _json(tasks), "\n".join([*lines, "</View>", ""])


def _task(item: Suspect, shown: Sequence[str]) -> dict[str, Any]:
    """Return a suspect as a task; `shown` are "image", "text" or both."""
    number, score = item.kind == "number", round(item.probability, 6)
    what = f"{item.part!r} is given as {item.given}" if item.part else f"Given: {item.given}"
    show = {"image": item.content.image or "", "text": _text(item)}
    data = {
        **{name: show[name] for name in shown},
        _ITEM: item.item,
        "row": item.row,
        "given": item.given,
        "probability_wrong": score,
        "exempla_question": f"{what}. What is right?",
    }
    more = {"part": item.part, "expected": item.expected, "spread": item.spread, "id": item.id}
    result = {
        "id": f"item{item.item}",
        "from_name": _CONTROL,
        "to_name": shown[0],
        "type": "number" if number else "choices",
        "value": {"number": float(item.suggested)} if number else {"choices": [item.suggested]},
    }
    prediction = {"model_version": f"exempla {__version__}", "score": score, "result": [result]}
    known = {name: value for name, value in more.items() if value not in (None, "")}
    return {"data": data | known, "predictions": [prediction]}


def _fiftyone(job: _Suspects) -> tuple[str]:
    """Return the samples."""
    rows = [
        {
            "filepath": i.content.image or f"{job.folder.resolve() / 'rows'}#{i.item}",
            _ITEM: i.item,
            **{name: getattr(i, name) for name in ("row", "part", "given", "suggested")},
            "probability": f"{i.probability:.6g}",
            "expected": "" if i.expected is None else f"{i.expected:.10g}",
            "spread": "" if i.spread is None else f"{i.spread:.10g}",
            "text": "" if i.content.image else _text(i),
            "label": "",
        }
        for i in job.items
    ]
    return (_csv(rows),)


def _cleanlab(job: _Suspects) -> tuple[str]:
    """Return one line per suspect; `row` is its index in the data."""
    parts = any(item.part for item in job.items)
    rows = [
        {
            "row": i.row,
            **({"part": i.part} if parts else {}),
            "is_label_issue": i.probability > 0.5,
            "label_score": f"{1 - i.probability:.6g}",
            "given_label": i.given,
            "predicted_label": i.suggested,
        }
        for i in job.items
    ]
    return (_csv(rows),)


_LEVELS = (("high", 0.5, 1.0), ("medium", 0.1, 0.5), ("low", -1.0, 0.1))
"""Severities, with the probabilities above which and up to which they apply."""


def _spotlight(job: _Suspects) -> tuple[str]:
    """Return one issue per severity that occurs."""
    issues = []
    for severity, above, up_to in _LEVELS:
        rows = [item for item in job.items if above < item.probability <= up_to]
        if not rows:
            continue
        tokens = any(item.span is not None for item in rows)
        columns = {job.column if tokens else item.part or job.column for item in rows}
        issues.append(
            {
                "title": f"Labels wrong with a probability above {max(above, 0):.0%}",
                "rows": sorted({item.row for item in rows}),
                "severity": severity,
                "columns": sorted(columns),
                "description": f"{len(rows):,} suspects of exempla fix-labels.",
            }
        )
    return (_json(issues),)


_WRITERS: dict[str, tuple[Callable[[_Suspects], tuple[str, ...]], tuple[str, ...]]] = {
    "label-studio": (_label_studio, (".json", ".xml")),
    "fiftyone": (_fiftyone, (".csv",)),
    "cleanlab": (_cleanlab, (".csv",)),
    "spotlight": (_spotlight, (".json",)),
}
"""The function that returns the texts of a tool's files, and their suffixes, the main one first."""
TOOL_FILES = {tool: [tool + suffix for suffix in ends] for tool, (_, ends) in _WRITERS.items()}
"""The files of each tool in a review folder, the main one first."""


def export_suspects(
    fixes: Any, path: str | Path, format: str, *, texts: Any = None, images: Any = None
) -> Path:
    """Write the suspects of `fix_labels` for another tool and return the path.

    Parameters
    ----------
    format : {"label-studio", "fiftyone", "cleanlab", "spotlight"}
        Tasks with predictions, a CSVDataset, a table with cleanlab's columns, or a list of issues.
    texts, images : sequences
        What to show of each training row: texts (or lists of tokens), or paths of image files.

    >>> import json, pathlib, tempfile
    >>> from sklearn.datasets import load_iris
    >>> from sklearn.linear_model import LogisticRegression
    >>> import exempla
    >>> X, y = load_iris(return_X_y=True)
    >>> fixes = exempla.fix_labels(LogisticRegression(max_iter=500), (X, y), k=3, progress=False)
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "tasks.json"
    >>> tasks = json.loads(fixes.export(path, "label-studio").read_text())
    >>> len(tasks), sorted(tasks[0])
    (3, ['data', 'predictions'])
    """
    write, (_, *suffixes) = _WRITERS[check_choice("format", format, tuple(_WRITERS))]
    path, items = Path(path), _items_of_result(fixes, texts, images)
    main, *others = write(_Suspects(items, _classes(items), path.parent))
    for suffix, text in zip(suffixes, others, strict=True):
        beside = path.with_suffix(suffix)
        if beside.exists() and beside.read_bytes() != text.encode():
            raise ExemplaError(
                f"{beside} exists and would be replaced, because the labelling interface is "
                f"written beside {path.name}; move it, or choose another name."
            )
        write_text(beside, text)
    return write_text(path, main)


def export_review_items(
    review: Any, folder: Path, formats: Iterable[str], *, force: bool = False
) -> dict[str, Path]:
    """Write the suspects of a review folder for other tools, into `folder`.

    Files that exempla did not write are refused unless `force` is set; the manifest of the folder
    lists those it wrote.
    """
    items = _items_of_review(review)
    classes = review.classes or _classes(items)
    job = _Suspects(items, classes, folder, review.source.label or "label")
    about = read_json(folder / MANIFEST) or {"version": __version__}
    about = {name: value for name, value in about.items() if name not in ("format", "files")}
    paths = {}
    with publishing(folder, about, force=force) as stage:
        for tool in formats:
            for name, text in zip(TOOL_FILES[tool], _WRITERS[tool][0](job), strict=True):
                write_text(stage / name, text)
            paths[tool] = folder / TOOL_FILES[tool][0]
    return paths


def _classes(items: Sequence[Suspect]) -> list[str]:
    if any(item.kind == "number" for item in items):
        return []
    return sorted({label for item in items for label in (item.given, item.suggested)})


_Answer = tuple[Any, str, str]
"""(item; "label", "keep", "remove" or "skip"; label) of a suspect that was decided about."""


def _read_fiftyone(path: Path, problems: list[str]) -> list[_Answer]:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file, restval=""))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ExemplaError(f"{path.name} cannot be read as CSV ({error}).") from error
    if rows and (_ITEM not in rows[0] or not {"label", "tags"} & rows[0].keys()):
        raise ExemplaError(
            f"{path.name} lacks the column {_ITEM}, or both label and tags; export these fields "
            "from FiftyOne."
        )
    found = []
    for number, row in enumerate(rows, start=2):
        item, label = row[_ITEM].strip(), row.get("label", "").strip()
        tags = {tag.strip() for tag in row.get("tags", "").split(",")} & {"keep", "remove", "skip"}
        if not item.isdigit():
            problems.append(f"line {number} has no {_ITEM}")
        elif len(tags) > 1:
            problems.append(f"line {number} is tagged {' and '.join(sorted(tags))}")
        elif tags:
            found.append((int(item), tags.pop(), ""))
        elif label:
            found.append((int(item), "label", label))
    return found


def _read_label_studio(path: Path, problems: list[str]) -> list[_Answer]:
    """Read the answers of annotated tasks; tasks without annotations are left out."""
    try:
        tasks = parse_json(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise ExemplaError(
            f"{path.name} cannot be read as JSON ({error}); export the project as JSON or JSON-MIN."
        ) from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise ExemplaError(
            f"{path.name} is not a list of tasks; export the project as JSON or JSON-MIN."
        )
    found = []
    for number, task in enumerate(tasks):
        data = task.get("data", task)
        item = data.get(_ITEM) if isinstance(data, dict) else None
        try:
            if type(item) is not int:
                raise ValueError(f"has no {_ITEM}")
            answers = _answers(task)
            if len(answers) > 1:
                said = ", ".join(sorted(repr(label) for _, label in answers))
                raise ValueError(f"has annotations that differ ({said})")
            found += [(item, *answer) for answer in answers]
        except ValueError as error:
            problems.append(f"task {task.get('id', number)} {error}")
    return found


def _answers(task: dict[str, Any]) -> set[tuple[str, str]]:
    """Return the distinct answers of a task; a skip counts only if nobody answered."""
    if "annotations" not in task:  # in JSON-MIN, a control's value is beside the data
        value = task.get(_CONTROL)
        return set() if value is None else {("label", _label(value))}
    answers = {
        ("label", _label(result.get("value", {})))
        for annotation in task["annotations"]
        if not annotation.get("was_cancelled")
        for result in annotation.get("result", [])
        if result.get("from_name", _CONTROL) == _CONTROL
    }
    skipped = any(annotation.get("was_cancelled") for annotation in task["annotations"])
    return answers or ({("skip", "")} if skipped else set())


def _label(value: Any) -> str:
    """Return the one label in a value of Label Studio: a string, a number, or a list of choices."""
    if isinstance(value, dict):
        value = value.get("number", value.get("choices"))
    if isinstance(value, int | float):
        return f"{float(value):.10g}"
    if isinstance(value, list) and len(value) == 1:
        return _label(value[0])
    if not value or isinstance(value, list):
        raise ValueError(f"has {len(value or ())} choices instead of one")
    return str(value)


class _Imported(NamedTuple):
    """The numbers of new and of known decisions, and the suspects that keep an earlier one."""

    written: int
    known: int
    kept: tuple[str, ...]


_READERS = {".json": _read_label_studio, ".csv": _read_fiftyone}


def import_decisions(review: Any, path: str | Path) -> _Imported:
    """Import the decisions of a Label Studio export (.json) or a FiftyOne one (.csv).

    >>> import pathlib, tempfile
    >>> from exempla.review import ReviewedFile, Suspect, read_review, write_review
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = write_review(folder, [Suspect(3, "ham", "spam", 0.9, 0.97)],
    ...                  source=ReviewedFile("mails.jsonl", "jsonl"), classes=["ham", "spam"])
    >>> _ = (folder / "back.csv").write_text("exempla_item,label,tags\\n3,spam,\\n")
    >>> import_decisions(read_review(folder), folder / "back.csv").written
    1
    """
    path = Path(path)
    if not path.is_file():
        raise ExemplaError(f"The file {str(path)!r} does not exist.")
    if path.suffix.lower() not in _READERS:
        raise ExemplaError(
            f"{path.name} is neither a Label Studio export (.json) nor a FiftyOne one (.csv)."
        )
    problems: list[str] = []
    answers = _READERS[path.suffix.lower()](path, problems)
    known = {suspect.item: suspect for suspect in review.suspects}
    wanted = _checked(answers, known, review.classes, problems)
    if problems:
        more = f" and {len(problems) - 5:,} more" if len(problems) > 5 else ""
        raise ExemplaError(
            f"{path.name} was not imported: {'; '.join(problems[:5])}{more}. Nothing was written."
        )
    digest = hashlib.sha256(path.read_bytes()).hexdigest()[:24]
    written, same, kept = 0, 0, []
    with closing(review.open_log()) as log:
        for item, decision in wanted.items():
            now = log.state(item)
            if now.action in ("pending", "skip") and now.action != decision.action:
                noted = replace(decision, note=now.note)  # a note from the page stays
                log.decide(noted, seen=now.version, once=f"{digest}-{item}")
                written += 1
            elif (now.action, now.label) == (decision.action, decision.label):
                same += 1
            else:
                part = known[item].part
                kept.append(f"row {known[item].row}" + (f" {part!r}" if part else ""))
    return _Imported(written, same, tuple(kept))


def _checked(
    answers: list[_Answer], known: dict[int, Suspect], classes: Sequence[str], problems: list[str]
) -> dict[int, RowDecision]:
    """Return the decisions; add those about no suspect, or with an unknown label, to `problems`."""
    out: dict[int, RowDecision] = {}
    for item, action, label in answers:
        suspect = known.get(item)
        if suspect is None:
            problems.append(f"item {item} is not among the suspects")
            continue
        decision = RowDecision(item, action)
        if action == "label":
            number = suspect.kind == "number" and is_number(label)
            if label == suspect.given or (number and float(label) == float(suspect.given)):
                decision = RowDecision(item, "keep")
            elif number or label in classes:
                decision = RowDecision(item, "relabel", label)
            else:
                problems.append(f"{label!r} of row {suspect.row} is not one of the labels")
        if out.setdefault(item, decision) != decision:
            problems.append(f"row {suspect.row} is decided twice, and differently")
    return out
