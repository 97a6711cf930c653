"""File formats of other tools: Label Studio, FiftyOne, cleanlab and Spotlight.

**Label Studio.** One task per suspect, with our suggestion as its prediction, following "Import
pre-annotated data into Label Studio" of its guide. The score is the probability that the given
label is wrong: in the Data Manager, sort by it, highest first. The labeling interface is written
beside the tasks (`.xml`), to paste into the project's settings. Annotations are read back from its
JSON and JSON-MIN exports.

**FiftyOne.** A CSV as its CSVDataset reads and writes it. A sample's path is that of its image or,
for other rows, that of the data file followed by the item's number. The column `label` is empty; a
decision goes there or into the sample's tags (keep, remove, skip). Export it again with

    dataset.export(labels_path="back.csv", dataset_type=fo.types.CSVDataset, export_media=False,
                   fields=["exempla_item", "label", "tags"])

**cleanlab and Spotlight** only display. cleanlab's columns are those of
`Datalab.get_issues("label")`, where a low `label_score` is bad; Spotlight's are the fields of
`renumics.spotlight.analysis.DataIssue`. Load them with

    spotlight.show(df, issues=[DataIssue(**issue) for issue in json.load(open("spotlight.json"))])

Decisions about parts of rows (one of several labels, or a token's) are written back into the file
by `write_corrected_parts`.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

from exempla import __version__
from exempla.errors import ExemplaError
from exempla.io import write_bytes, write_text
from exempla.review.log import DecisionLog
from exempla.review.suspects import item_of, row_of

_PRESENCE = ("absent", "present")
"""What a label of several can be."""


@dataclass(frozen=True)
class Item:
    """One suspect."""

    item: int
    """The number that decisions about it are kept under; the row, unless it is a part of one."""
    row: int
    given: str
    suggested: str
    probability: float
    kind: str = "class"
    part: str = ""
    span: tuple[int, int] | None = None
    text: str = ""
    image: str = ""
    expected: float | None = None
    spread: float | None = None
    id: str = ""
    column: str = "label"

    @property
    def shown(self) -> str:
        """A text for a person, whatever the row is."""
        where = f"{self.part}: {self.given}" if self.part else f"{self.column}: {self.given}"
        return self.text or f"row {self.row} · {where}"


def items_of(fixes: Any, texts: Any = None, images: Any = None) -> list[Item]:
    """The suspects of a result, most suspicious first."""
    tokens = getattr(fixes, "parts", "") == "tokens"
    several = getattr(fixes, "parts", "") == "labels"
    numbers = getattr(fixes, "spread", None) is not None
    out = []
    for rank, row in enumerate(fixes.indices.tolist()):
        words = texts[row] if texts is not None else ""
        part, span = (str(fixes.name[rank]) or " ") if tokens or several else "", None
        if tokens and not isinstance(words, str):
            place = int(fixes.part[rank])
            start = sum(len(word) + 1 for word in words[:place])
            span, words = (start, start + max(len(words[place]), 1)), " ".join(words)
        elif tokens:  # without the sentence, the place among its tokens tells them apart
            span = (int(fixes.part[rank]), int(fixes.part[rank]) + 1)
        labels = [fixes.given[rank], fixes.suggested[rank]]
        if several:
            labels = [_PRESENCE[int(label)] for label in labels]
        given, suggested = (f"{v:.10g}" if numbers else str(v) for v in labels)
        out.append(
            Item(
                item_of(row, part, span),
                row,
                given,
                suggested,
                float(fixes.probabilities[rank]),
                kind="number" if numbers else "part" if part else "class",
                part=part,
                span=span,
                text=str(words),
                image=str(images[row]) if images is not None else "",
                expected=float(fixes.expected[rank]) if numbers else None,
                spread=float(fixes.spread[rank]) if numbers else None,
                id="" if fixes.ids is None else str(fixes.ids[rank]),
            )
        )
    return out


def items_of_review(review: Any) -> list[Item]:
    """The suspects of a review folder, in its order."""
    out = []
    for listed in review.suspects:
        card = review.card(listed.item)
        content = card["content"]
        cells = "\n".join(f"{column}: {value}" for column, value, _ in content.get("cells", []))
        span = card.get("span")
        out.append(
            Item(
                listed.item,
                listed.row,
                listed.given,
                listed.suggested,
                listed.probability,
                kind=listed.kind,
                part=listed.part,
                span=tuple(span) if span else None,
                text=content.get("text", "") or cells,
                image=_image(review, listed.row, content),
                expected=listed.expected,
                spread=listed.spread,
                id=listed.id,
                column=review.source.label or "label",
            )
        )
    return out


def _image(review: Any, row: int, content: dict[str, Any]) -> str:
    """The absolute path of an image; "" if the row is none."""
    if review.source.format == "images":
        from exempla.tables.read import read_table

        return str(review.source_path() / (read_table(review.source_path()).row(row)["file"] or ""))
    if content.get("image"):
        return str((review.directory / "images" / f"train-{row}.webp").resolve())
    return ""


def names(items: Sequence[Item]) -> str:
    """Some items for a sentence."""
    few = [f"row {i.row}" + (f" {i.part!r}" if i.part else "") for i in items[:5]]
    return ", ".join(few) + (f" and {len(items) - 5:,} more" if len(items) > 5 else "")


_FIFTYONE_ITEM = "exempla_item"
_COLUMNS = ("filepath", _FIFTYONE_ITEM, "row", "part", "given", "suggested", "probability",
           "expected",
           "spread", "text", "label")  # fmt: skip
_ACTIONS = ("keep", "remove", "skip")


def write_fiftyone(path: Path, items: Sequence[Item], classes: Sequence[str]) -> Path:
    """Write the samples."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_COLUMNS)
    for i in items:
        place = i.image or f"{path.parent.resolve() / 'rows'}#{i.item}"
        number = ["" if v is None else f"{v:.10g}" for v in (i.expected, i.spread)]
        writer.writerow(
            [place, i.item, i.row, i.part, i.given, i.suggested, f"{i.probability:.6g}", *number,
             "" if i.image else i.shown, ""]
        )  # fmt: skip
    return write_text(path, out.getvalue())


def read_fiftyone(path: Path) -> list[tuple[int, str, str]]:
    """(item, "label", "keep", "remove" or "skip", label) of every sample that was decided about."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = list(csv.DictReader(file))
            names = rows[0].keys() if rows else ()
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ExemplaError(f"{path.name} cannot be read as CSV ({error}).") from error
    if rows and (_FIFTYONE_ITEM not in names or not {"label", "tags"} & set(names)):
        raise ExemplaError(
            f"{path.name} lacks the column {_FIFTYONE_ITEM}, or both label and tags; export these "
            f"fields "
            "from FiftyOne."
        )
    found, problems = [], []
    for number, row in enumerate(rows, start=2):
        item = (row.get(_FIFTYONE_ITEM) or "").strip()
        if not item.isdigit():
            problems.append(f"line {number} has no {_FIFTYONE_ITEM}")
            continue
        tags = {tag.strip() for tag in (row.get("tags") or "").split(",")} & set(_ACTIONS)
        label = (row.get("label") or "").strip()
        if len(tags) > 1:
            problems.append(f"line {number} is tagged {' and '.join(sorted(tags))}")
        elif tags:
            found.append((int(item), tags.pop(), ""))
        elif label:
            found.append((int(item), "label", label))
    if problems:
        raise ExemplaError(
            f"{path.name} was not taken over: {'; '.join(problems[:5])}"
            + (f" and {len(problems) - 5:,} more" if len(problems) > 5 else "")
            + ". Nothing was written."
        )
    return found


_CONTROL, _ITEM = "label", "exempla_item"
"""The name of the control in the interface, and of the field that says which suspect a task is."""


def write_label_studio(path: Path, items: Sequence[Item], classes: Sequence[str]) -> Path:
    """Write the tasks, and the labeling interface beside them."""
    images = any(item.image for item in items)
    # a tag whose field a task lacks stops Label Studio: all tasks have the same ones
    shown = ["image"] * images + ["text"] * (not images or any(item.text for item in items))
    tasks = [_task(item, shown) for item in items]
    numbers = any(item.kind == "number" for item in items)
    write_text(path.with_suffix(".xml"), _interface(classes, shown=shown, numbers=numbers))
    return write_text(path, json.dumps(tasks, indent=1, ensure_ascii=False) + "\n")


def _interface(classes: Sequence[str], *, shown: Sequence[str], numbers: bool) -> str:
    """The labeling interface, in Label Studio's tags; `shown` are "image", "text" or both.

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


def _task(item: Item, shown: Sequence[str]) -> dict[str, Any]:
    kind, value = ("number", {"number": float(item.suggested)}) if item.kind == "number" else (
        "choices", {"choices": [item.suggested]}
    )  # fmt: skip
    data = {
        **{name: item.image if name == "image" else item.shown for name in shown},
        _ITEM: item.item,
        "row": item.row,
        "given": item.given,
        "probability_wrong": round(item.probability, 6),
        "exempla_question": _question(item),
    }
    more = {"part": item.part, "expected": item.expected, "spread": item.spread, "id": item.id}
    data |= {name: value for name, value in more.items() if value not in (None, "")}
    result = {"id": f"item{item.item}", "from_name": _CONTROL, "to_name": shown[0], "type": kind,
              "value": value}  # fmt: skip
    prediction = {
        "model_version": f"exempla {__version__}",
        "score": round(item.probability, 6),
        "result": [result],
    }
    return {"data": data, "predictions": [prediction]}


def _question(item: Item) -> str:
    what = f"{item.part!r} is given as {item.given}" if item.part else f"Given: {item.given}"
    return f"{what}. What is right?"


def read_label_studio(path: Path) -> list[tuple[int, str, str]]:
    """(item, "label" or "skip", label) of every annotated task; tasks without one are left out."""
    try:
        tasks = json.loads(path.read_text(encoding="utf-8-sig"))
    except RecursionError as error:
        raise ExemplaError(
            f"{path.name} is nested too deeply to be a Label Studio export; export the project as "
            "JSON or JSON-MIN."
        ) from error
    except (OSError, ValueError) as error:
        raise ExemplaError(f"{path.name} cannot be read as JSON ({error}).") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise ExemplaError(
            f"{path.name} is no list of tasks; export the project as JSON or JSON-MIN."
        )
    found, problems = [], []
    for number, task in enumerate(tasks):
        data = task.get("data", task)
        item = data.get(_ITEM) if isinstance(data, dict) else None
        if not isinstance(item, int) or isinstance(item, bool):
            problems.append(f"task {task.get('id', number)} has no {_ITEM}")
            continue
        try:
            answer = _annotated(task) if "annotations" in task else _flat(task)
        except ValueError as error:
            problems.append(f"task {task.get('id', number)} {error}")
            continue
        if answer is not None:
            found.append((item, *answer))
    if problems:
        raise ExemplaError(
            f"{path.name} was not taken over: {'; '.join(problems[:5])}"
            + (f" and {len(problems) - 5:,} more" if len(problems) > 5 else "")
            + ". Nothing was written."
        )
    return found


def _annotated(task: dict[str, Any]) -> tuple[str, str] | None:
    """What the task's annotations say; ValueError if they do not agree."""
    answers = set()
    for annotation in task["annotations"]:
        if annotation.get("was_cancelled"):
            answers.add(("skip", ""))
            continue
        for result in annotation.get("result", []):
            if result.get("from_name", _CONTROL) == _CONTROL:
                answers.add(("label", _value(result.get("value", {}))))
    if len(answers) > 1:
        answers.discard(("skip", ""))  # who skipped leaves it to the others
    if len(answers) > 1:
        said = ", ".join(sorted(repr(label) for _, label in answers))
        raise ValueError(f"has annotations that differ ({said})")
    return answers.pop() if answers else None


def _flat(task: dict[str, Any]) -> tuple[str, str] | None:
    """The same of a task in JSON-MIN, which has each control's value beside the data."""
    value = task.get(_CONTROL)
    if value is None:
        return None
    if isinstance(value, dict):
        value = value.get("choices", value.get("number"))
    if isinstance(value, list):
        return "label", _value(value[0] if value and isinstance(value[0], dict) else
                               {"choices": value})  # fmt: skip
    return "label", _number(value) if isinstance(value, int | float) else str(value)


def _value(value: dict[str, Any]) -> str:
    if "number" in value:
        return _number(value["number"])
    chosen = value.get("choices")
    if isinstance(chosen, str):
        return chosen
    if not isinstance(chosen, list) or len(chosen) != 1:
        raise ValueError(f"has {0 if not chosen else len(chosen)} choices where one is needed")
    return str(chosen[0])


def _number(value: Any) -> str:
    return f"{float(value):.10g}"


_LEVELS = (("high", 0.5), ("medium", 0.1), ("low", 0.0))
"""Severities, and from which probability on."""


def write_cleanlab(path: Path, items: Sequence[Item], classes: Sequence[str]) -> Path:
    """A row for each suspect; `row` is its index in the data."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    parts = ["part"] if any(item.part for item in items) else []
    names = ["row", *parts, "is_label_issue", "label_score", "given_label", "predicted_label"]
    writer.writerow(names)
    for i in items:
        score, part = f"{1.0 - i.probability:.6g}", [i.part] if parts else []
        writer.writerow([i.row, *part, i.probability > 0.5, score, i.given, i.suggested])
    return write_text(path, out.getvalue())


def write_spotlight(path: Path, items: Sequence[Item], classes: Sequence[str]) -> Path:
    """An issue for each degree of suspicion that occurs."""
    issues, left = [], list(items)
    for severity, least in _LEVELS:
        rows = [item for item in left if item.probability > least or least == 0.0]
        left = [item for item in left if item not in rows]
        if rows:
            issues.append(
                {
                    "title": f"Labels wrong with a probability above {least:.0%}",
                    "rows": sorted({item.row for item in rows}),
                    "severity": severity,
                    "columns": sorted({item.part or item.column for item in rows})
                    if all(item.span is None for item in rows)
                    else [rows[0].column],
                    "description": f"{len(rows):,} suspects of exempla fix-labels.",
                }
            )
    return write_text(path, json.dumps(issues, indent=1, ensure_ascii=False) + "\n")


def layout_of(review: Any) -> dict[str, Any] | None:
    """How the reviewed file holds the labels of its parts; None if rows have one label each."""
    return review.source.options.get("parts")


def write_corrected_parts(review: Any, path: Path, target: Path) -> Path:
    """Write the reviewed file with the decisions of the log put into it."""
    from exempla.tables.label_parts import changed

    layout = dict(layout_of(review) or {})
    reading = {k: v for k, v in review.source.options.items() if k != "parts"}
    changes: dict[tuple[int, Any], str] = {}
    removed: set[int] = set()
    places = _Places(path, layout, reading)
    log = DecisionLog(review.directory / "decisions.sqlite", review.key)
    try:
        states = log.states()
    finally:
        log.close()
    for state in states:
        if state.action == "remove":
            removed.add(row_of(state.row))
        elif state.action == "relabel":
            changes[row_of(state.row), places.part(state.row)] = str(state.label)
    return write_bytes(target, changed(path, layout, changes, removed, **reading))


class _Places:
    """Which label or token of its row an item is."""

    def __init__(self, path: Path, layout: dict[str, Any], reading: dict[str, Any]) -> None:
        self.layout, self.sentences = layout, None
        if layout["kind"] in ("tokens", "conll"):
            from exempla.tables.label_parts import read_sentences

            label = layout.get("labels")
            if layout["kind"] == "conll":
                place = layout["label"]
                label = str(place + (place >= 0))
            self.sentences = read_sentences(path, label)

    def part(self, item: int) -> Any:
        """The label's name, or the token's place."""
        row = row_of(item)
        if self.sentences is None:
            known = {item_of(row, name): name for name in self.layout["names"]}
        else:
            from exempla.tables.label_parts import span_of

            tokens = self.sentences.tokens[row]
            known = {item_of(row, t or " ", span_of(tokens, i)): i for i, t in enumerate(tokens)}
        if item not in known:
            raise ExemplaError(
                f"A decision is about a part of row {row} that the file no longer has; run the "
                "analysis again."
            )
        return known[item]
