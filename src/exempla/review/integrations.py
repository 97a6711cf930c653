"""Export suspects to Label Studio, FiftyOne, cleanlab and Spotlight; import decisions from two.

**Label Studio.** One task per suspect, with our suggestion as its prediction. The score is the
probability that the given label is wrong: in the Data Manager, sort by it, highest first. The
labeling interface is written beside the tasks (`.xml`), to paste into the project's settings.
Annotations are read back from its JSON and JSON-MIN exports.

**FiftyOne.** A CSV for its CSVDataset. A sample's path is that of its image or, for other rows, of
the folder followed by the item's number. The column `label` is empty; a decision goes there or into
the sample's tags (keep, remove, skip). Export it again with

    dataset.export(labels_path="back.csv", dataset_type=fo.types.CSVDataset, export_media=False,
                   fields=["exempla_item", "label", "tags"])

**cleanlab and Spotlight** only display. cleanlab's columns are those of
`Datalab.get_issues("label")`, where a low `label_score` is bad; Spotlight's are the fields of
`renumics.spotlight.analysis.DataIssue`. Load them with

    spotlight.show(df, issues=[DataIssue(**issue) for issue in json.load(open("spotlight.json"))])

An import is all or nothing: an unknown row or label refuses the file and names each problem. A row
with a different earlier decision keeps it, and is named. Importing a file twice changes nothing.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import quoteattr

from exempla import __version__
from exempla.checks import check_choice
from exempla.errors import ExemplaError
from exempla.io import MANIFEST, parse_json, publishing, write_text
from exempla.report.views import Content
from exempla.review.log import RowDecision
from exempla.review.suspects import Suspect, is_number

_PRESENCE = ("absent", "present")
"""The two values of one label among several."""
_CONTROL, _ITEM = "label", "exempla_item"
"""The name of the control in Label Studio, and of the field that identifies the suspect."""


class _Suspects(NamedTuple):
    """What a writer exports: suspects with a text or the path of an image as their content."""

    items: Sequence[Suspect]
    classes: Sequence[str]
    folder: Path
    column: str = "label"

    def text(self, item: Suspect) -> str:
        """Return a text for a person, whatever the row is."""
        shown = "".join(piece for piece, _ in item.content.pieces)
        return shown or f"row {item.row} · {item.part or self.column}: {item.given}"


def _content(text: str, image: str = "") -> Content:
    return Content(image=image or None, pieces=((text, 0.0),) if text else ())


def _items_of_result(fixes: Any, texts: Any = None, images: Any = None) -> list[Suspect]:
    """Return the suspects of a result, most suspicious first."""
    from exempla.tables.label_parts import span_of

    numbers, out = fixes.spread is not None, []
    for rank, row in enumerate(fixes.indices.tolist()):
        words = texts[row] if texts is not None else ""
        more: dict[str, Any] = {}
        if fixes.parts:
            more = {"kind": "part", "part": str(fixes.name[rank]) or " "}
        if fixes.parts == "tokens":
            place = int(fixes.part[rank])
            more["span"] = (place, place + 1)  # without the sentence, the place identifies it
            if not isinstance(words, str):
                more["span"], words = span_of(words, place), " ".join(words)
        if numbers:
            more = {name: float(getattr(fixes, name)[rank]) for name in ("expected", "spread")}
            more["kind"] = "number"
        labels = [fixes.given[rank], fixes.suggested[rank]]
        if fixes.parts == "labels":
            labels = [_PRESENCE[int(label)] for label in labels]
        given, suggested = (f"{v:.10g}" if numbers else str(v) for v in labels)
        more["content"] = _content(str(words), str(images[row]) if images is not None else "")
        more["id"] = "" if fixes.ids is None else str(fixes.ids[rank])
        out.append(Suspect(row, given, suggested, float(fixes.probabilities[rank]), 0.0, **more))
    return out


def _items_of_review(review: Any) -> list[Suspect]:
    """Return the suspects of a review folder, in its order."""
    files = None
    if review.source.format == "images":
        from exempla.tables.read import read_table

        files = read_table(review.source_path()).strings("file")
    out = []
    for listed in review.suspects:
        content, image = review.card(listed.item)["content"], ""
        if files is not None:
            image = str(review.source_path() / (files[listed.row] or ""))
        elif content.get("image"):
            image = str((review.directory / "images" / f"train-{listed.row}.webp").resolve())
        cells = "\n".join(f"{column}: {value}" for column, value, _ in content.get("cells", []))
        out.append(replace(listed, content=_content(content.get("text", "") or cells, image)))
    return out


def _csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows([header, *rows])
    return out.getvalue()


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"


def _label_studio(job: _Suspects) -> dict[str, str]:
    """Return the tasks and the labeling interface."""
    images = any(item.content.image for item in job.items)
    # Label Studio needs every field of the interface in every task.
    texts = not images or any(item.content.pieces for item in job.items)
    shown = ["image"] * images + ["text"] * texts
    numbers = any(item.kind == "number" for item in job.items)
    tasks = [_task(job, item, shown) for item in job.items]
    return {".json": _json(tasks), ".xml": _interface(job.classes, shown=shown, numbers=numbers)}


def _interface(classes: Sequence[str], *, shown: Sequence[str], numbers: bool) -> str:
    """Return the labeling interface in Label Studio's tags; `shown` are "image", "text" or both.

    >>> print(_interface(["ham", "spam"], shown=["text"], numbers=False).splitlines()[3].strip())
    <Choices name="label" toName="text" choice="single-radio">
    """
    lines = ["<View>", '  <Header value="$exempla_question"/>']
    lines += [f'  <{name.capitalize()} name="{name}" value="${name}"/>' for name in shown]
    if numbers:
        lines.append(f'  <Number name="{_CONTROL}" toName="{shown[0]}"/>')
    else:
        lines.append(f'  <Choices name="{_CONTROL}" toName="{shown[0]}" choice="single-radio">')
        lines += [f"    <Choice value={quoteattr(name)}/>" for name in classes]
        lines.append("  </Choices>")
    return "\n".join([*lines, "</View>"]) + "\n"


def _task(job: _Suspects, item: Suspect, shown: Sequence[str]) -> dict[str, Any]:
    number = item.kind == "number"
    what = f"{item.part!r} is given as {item.given}" if item.part else f"Given: {item.given}"
    show = {"image": item.content.image or "", "text": job.text(item)}
    data = {
        **{name: show[name] for name in shown},
        _ITEM: item.item,
        "row": item.row,
        "given": item.given,
        "probability_wrong": round(item.probability, 6),
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
    prediction = {
        "model_version": f"exempla {__version__}",
        "score": round(item.probability, 6),
        "result": [result],
    }
    known = {name: value for name, value in more.items() if value not in (None, "")}
    return {"data": data | known, "predictions": [prediction]}


def _fiftyone(job: _Suspects) -> dict[str, str]:
    """Return the samples."""
    header = ("filepath", _ITEM, "row", "part", "given", "suggested", "probability", "expected",
              "spread", "text", "label")  # fmt: skip
    rows = [
        (i.content.image or f"{job.folder.resolve() / 'rows'}#{i.item}", i.item, i.row, i.part,
         i.given, i.suggested, f"{i.probability:.6g}",
         *("" if v is None else f"{v:.10g}" for v in (i.expected, i.spread)),
         "" if i.content.image else job.text(i), "")
        for i in job.items
    ]  # fmt: skip
    return {".csv": _csv(header, rows)}


def _cleanlab(job: _Suspects) -> dict[str, str]:
    """Return one line per suspect; `row` is its index in the data."""
    parts = ["part"] if any(item.part for item in job.items) else []
    header = ["row", *parts, "is_label_issue", "label_score", "given_label", "predicted_label"]
    rows = [
        (i.row, *([i.part] if parts else []), i.probability > 0.5, f"{1 - i.probability:.6g}",
         i.given, i.suggested)
        for i in job.items
    ]  # fmt: skip
    return {".csv": _csv(header, rows)}


_LEVELS = (("high", 0.5, 1.0), ("medium", 0.1, 0.5), ("low", -1.0, 0.1))
"""Severities, with the probabilities above which and up to which they apply."""


def _spotlight(job: _Suspects) -> dict[str, str]:
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
    return {".json": _json(issues)}


_FORMATS: dict[str, Callable[[_Suspects], dict[str, str]]] = {
    "label-studio": _label_studio,
    "fiftyone": _fiftyone,
    "cleanlab": _cleanlab,
    "spotlight": _spotlight,
}
"""Each returns texts by file extension, the main file first."""
TOOL_FILES = {
    "label-studio": ("label-studio.json", "label-studio.xml"),
    "fiftyone": ("fiftyone.csv",),
    "cleanlab": ("cleanlab.csv",),
    "spotlight": ("spotlight.json",),
}
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
    writer = _FORMATS[check_choice("format", format, tuple(_FORMATS))]
    path, items = Path(path), _items_of_result(fixes, texts, images)
    main, *others = writer(_Suspects(items, _classes(items), path.parent)).items()
    beside = {path.with_suffix(suffix): text for suffix, text in others}
    for other, text in beside.items():
        if other.exists() and other.read_bytes() != text.encode():
            raise ExemplaError(
                f"{other} exists and would be replaced, because the labelling interface is written "
                f"beside {path.name}; move it, or choose another name."
            )
    for other, text in beside.items():
        write_text(other, text)
    return write_text(path, main[1])


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
    try:
        about = parse_json((folder / MANIFEST).read_bytes())
    except (OSError, ValueError):
        about = {"version": __version__}
    about = {name: value for name, value in about.items() if name not in ("format", "files")}
    paths = {}
    with publishing(folder, about, force=force) as stage:
        for tool in formats:
            for name, text in zip(TOOL_FILES[tool], _FORMATS[tool](job).values(), strict=True):
                write_text(stage / name, text)
            paths[tool] = folder / TOOL_FILES[tool][0]
    return paths


def _classes(items: Sequence[Suspect]) -> list[str]:
    if any(item.kind == "number" for item in items):
        return []
    return sorted({label for item in items for label in (item.given, item.suggested)})


_Answers = list[tuple[int, str, str]]
"""(item, "label", "keep", "remove" or "skip", label) of every suspect that was decided about."""


def _refuse(name: str, problems: list[str]) -> None:
    """Refuse an import that has problems, naming the first five."""
    if problems:
        more = f" and {len(problems) - 5:,} more" if len(problems) > 5 else ""
        raise ExemplaError(
            f"{name} was not imported: {'; '.join(problems[:5])}{more}. Nothing was written."
        )


def _read_fiftyone(path: Path) -> _Answers:
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ExemplaError(f"{path.name} cannot be read as CSV ({error}).") from error
    if rows and (_ITEM not in rows[0] or not {"label", "tags"} & rows[0].keys()):
        raise ExemplaError(
            f"{path.name} lacks the column {_ITEM}, or both label and tags; export these fields "
            "from FiftyOne."
        )
    found, problems = [], []
    for number, row in enumerate(rows, start=2):
        item = (row.get(_ITEM) or "").strip()
        tags = {tag.strip() for tag in (row.get("tags") or "").split(",")}
        tags &= {"keep", "remove", "skip"}
        label = (row.get("label") or "").strip()
        if not item.isdigit():
            problems.append(f"line {number} has no {_ITEM}")
        elif len(tags) > 1:
            problems.append(f"line {number} is tagged {' and '.join(sorted(tags))}")
        elif tags:
            found.append((int(item), tags.pop(), ""))
        elif label:
            found.append((int(item), "label", label))
    _refuse(path.name, problems)
    return found


def _read_label_studio(path: Path) -> _Answers:
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
    found, problems = [], []
    for number, task in enumerate(tasks):
        data = task.get("data", task)
        item = data.get(_ITEM) if isinstance(data, dict) else None
        if not isinstance(item, int) or isinstance(item, bool):
            problems.append(f"task {task.get('id', number)} has no {_ITEM}")
            continue
        try:
            answer = _answer(task)
        except ValueError as error:
            problems.append(f"task {task.get('id', number)} {error}")
            continue
        if answer is not None:
            found.append((item, *answer))
    _refuse(path.name, problems)
    return found


def _answer(task: dict[str, Any]) -> tuple[str, str] | None:
    """Return the answer of a task, None if it has none; ValueError if its annotations differ."""
    if "annotations" not in task:  # in JSON-MIN, a control's value is beside the data
        value = task.get(_CONTROL)
        return None if value is None else ("label", _label(value))
    answers = set()
    for annotation in task["annotations"]:
        if annotation.get("was_cancelled"):
            answers.add(("skip", ""))
            continue
        for result in annotation.get("result", []):
            if result.get("from_name", _CONTROL) == _CONTROL:
                answers.add(("label", _label(result.get("value", {}))))
    if len(answers) > 1:
        answers.discard(("skip", ""))  # another annotator answered
    if len(answers) > 1:
        said = ", ".join(sorted(repr(label) for _, label in answers))
        raise ValueError(f"has annotations that differ ({said})")
    return answers.pop() if answers else None


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
    """The result of an import."""

    written: int
    """New decisions."""
    known: int
    """Decisions that were in the log already."""
    kept: tuple[str, ...]
    """Suspects that keep a different earlier decision."""


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
    readers = {".json": _read_label_studio, ".csv": _read_fiftyone}
    if path.suffix.lower() not in readers:
        raise ExemplaError(
            f"{path.name} is neither a Label Studio export (.json) nor a FiftyOne one (.csv)."
        )
    known = {suspect.item: suspect for suspect in review.suspects}
    wanted = _checked(readers[path.suffix.lower()](path), known, review.classes, path.name)
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
    answers: _Answers, known: dict[int, Suspect], classes: tuple[str, ...], name: str
) -> dict[int, RowDecision]:
    """Return the decisions if every one is about a suspect and names a known label."""
    problems: list[str] = []
    out: dict[int, RowDecision] = {}
    for item, action, label in answers:
        suspect = known.get(item)
        if suspect is None:
            problems.append(f"item {item} is not among the suspects")
            continue
        decision, possible = RowDecision(item, action), True
        if action == "label":
            same, possible = label == suspect.given, label in classes
            if suspect.kind == "number":
                possible = is_number(label)
                same = same or (possible and float(label) == float(suspect.given))
            possible = possible or same
            decision = RowDecision(item, "keep") if same else RowDecision(item, "relabel", label)
        if not possible:
            problems.append(f"{label!r} of row {suspect.row} is not one of the labels")
        elif out.setdefault(item, decision) != decision:
            problems.append(f"row {suspect.row} is decided twice, and differently")
    _refuse(name, problems)
    return out
